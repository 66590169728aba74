//! Paths to endpoints: the whole surface on one page.

use std::sync::PoisonError;

use crate::{
    app::App,
    endpoint::{Access, Endpoint, Reply},
    endpoints::{
        chat, classify, cohere, completions, decisions, embeddings, health, metrics, models,
        moderations, pooling, rerank, score, status, systemone, tei, tokenize, ui,
    },
    error::ApiError,
    openapi,
};

/// Every endpoint of the server.
pub(crate) const ENDPOINTS: &[&Endpoint] = &[
    &completions::COMPLETIONS,
    &chat::CHAT,
    &embeddings::EMBEDDINGS,
    &classify::CLASSIFY,
    &score::SCORE,
    &rerank::RERANK,
    &rerank::RERANK_V2,
    &pooling::POOLING,
    &cohere::EMBED_V2,
    &tei::EMBED,
    &tei::EMBED_ALL,
    &tei::PREDICT,
    &tei::SIMILARITY,
    &moderations::MODERATIONS,
    &systemone::SYSTEM_ONE,
    &systemone::PERMUTE,
    &decisions::DECISIONS,
    &tokenize::TOKENIZE,
    &tokenize::DETOKENIZE,
    &tokenize::TOKENIZER_INFO,
    &models::MODELS,
    &models::MODEL,
    &tei::INFO,
    &health::HEALTH,
    &health::READY,
    &health::LIVE,
    &health::VERSION,
    &metrics::METRICS,
    &status::STATUS,
    &status::EVENTS,
    &ui::PAGE,
    &ui::STYLE,
    &ui::SCRIPT,
    &OPENAPI,
    &DOCS,
];

/// `GET /openapi.json`: it describes all the others, so it stands beside them.
const OPENAPI: Endpoint = Endpoint {
    group: "state",
    summary: "This document",
    responses: openapi::of_itself,
    ..Endpoint::get(&["/openapi.json"], |call, _| {
        Box::pin(async { Ok(Reply::json(&openapi::document(&all(&call.app)))) })
    })
};

/// `GET /docs`: that document in short, for people.
const DOCS: Endpoint = Endpoint {
    group: "page",
    summary: "The routes on a page",
    responses: |_| vec![("text/html", schemars::json_schema!({ "type": "string" }))],
    access: Access::Open,
    ..Endpoint::get(&["/docs"], |call, _| {
        Box::pin(async {
            Ok(Reply::Page {
                content_type: "text/html; charset=utf-8",
                body: openapi::page(&all(&call.app)).into(),
            })
        })
    })
};

/// Returns the endpoints of the server, and those that its program has added.
fn all(app: &App) -> Vec<&'static Endpoint> {
    [ENDPOINTS, &own(app)].concat()
}

fn own(app: &App) -> Vec<&'static Endpoint> {
    let own = app.own.read().unwrap_or_else(PoisonError::into_inner);
    own.iter().filter_map(|any| any.downcast_ref()).collect()
}

/// Returns the endpoint of a path, whatever the method.
pub(crate) fn named(app: &App, path: &str) -> Option<&'static Endpoint> {
    let (endpoint, _) = found(app, path)?;
    Some(endpoint)
}

fn found<'p>(app: &App, path: &'p str) -> Option<(&'static Endpoint, Option<&'p str>)> {
    among(ENDPOINTS, path).or_else(|| among(&own(app), path))
}

/// Finds the endpoint of a path among these, and the rest that a `*` matched.
pub(crate) fn among<'p>(
    endpoints: &[&'static Endpoint],
    path: &'p str,
) -> Option<(&'static Endpoint, Option<&'p str>)> {
    endpoints.iter().find_map(|endpoint| {
        let mut paths = endpoint.paths.iter();
        let tail = paths.find_map(|pattern| matches(pattern, path))?;
        Some((*endpoint, tail))
    })
}

/// Finds the endpoint of a path and the rest that a `*` matched.
///
/// # Errors
/// 404, or 405 with the methods the path has.
pub(crate) fn find<'p>(
    app: &App,
    method: &str,
    path: &'p str,
) -> Result<(&'static Endpoint, Option<&'p str>), ApiError> {
    let (endpoint, tail) = found(app, path).ok_or_else(ApiError::not_found)?;
    match (method, endpoint.method) {
        ("HEAD" | "GET", "GET") | ("POST", "POST") => Ok((endpoint, tail)),
        (_, "GET") => Err(ApiError::method_not_allowed("GET, HEAD")),
        _ => Err(ApiError::method_not_allowed("POST")),
    }
}

/// Returns `None` if the path does not match, else what a `*` stands for.
#[expect(clippy::option_option, reason = "no match, and a match without a rest")]
fn matches<'p>(pattern: &str, path: &'p str) -> Option<Option<&'p str>> {
    match pattern.strip_suffix('*') {
        None => (path == pattern).then_some(None),
        Some(prefix) => {
            let tail = path.strip_prefix(prefix)?;
            (!tail.is_empty()).then_some(Some(tail))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ApiKeys, ServerConfig};

    fn check(method: &str, path: &str, expected: Result<(&str, Option<&str>), u16>) {
        let app = App::new(ServerConfig::default(), ApiKeys::default());
        let found = find(&app, method, path);
        let found = found
            .map(|(endpoint, tail)| (endpoint.route(), tail))
            .map_err(|e| e.status());
        assert_eq!(found, expected, "{method} {path}");
    }

    #[test]
    fn paths_and_methods() {
        check("POST", "/v1/completions", Ok(("/v1/completions", None)));
        check("POST", "/v1/classify", Ok(("/classify", None)));
        check("GET", "/v1/completions", Err(405));
        check("HEAD", "/ping", Ok(("/health", None)));
        check("POST", "/health", Err(405));
        check("GET", "/", Ok(("/ui", None)));
        check("POST", "/", Err(405));
        check("POST", "/embeddings", Ok(("/v1/embeddings", None)));
        check("GET", "/v1/models", Ok(("/v1/models", None)));
        check("GET", "/v1/models/", Err(404));
        check("GET", "/v1/models/a/b", Ok(("/v1/models/*", Some("a/b"))));
        check("GET", "/health/", Err(404));
        check("BREW", "/nothing", Err(404));
    }

    #[test]
    fn each_path_has_one_endpoint() {
        let paths = || ENDPOINTS.iter().flat_map(|endpoint| endpoint.paths);
        for path in paths() {
            assert_eq!(paths().filter(|other| *other == path).count(), 1, "{path}");
        }
        assert!(
            ENDPOINTS
                .iter()
                .all(|e| !e.summary.is_empty() && !e.group.is_empty())
        );
    }
}
