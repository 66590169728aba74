//! Paths to endpoints: the whole surface on one page.

use crate::error::{ApiError, Dialect};

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Completions,
    Chat,
    Embeddings,
    Classify,
    Score,
    GenerativeScoring,
    Rerank,
    RerankV2,
    Pooling,
    SystemOne,
    Decisions,
    Tokenize,
    Detokenize,
    TokenizerInfo,
    Models,
    Model,
    Health,
    Ready,
    Live,
    Version,
    Metrics,
    OpenApi,
}

/// What an endpoint needs of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// It answers in every phase.
    Nothing,
    /// Models and their tokenizers.
    Models,
    /// Room in the queue: it makes an engine work.
    Queue,
}

/// One path.
#[derive(Debug)]
pub(crate) struct Route {
    /// The path. A `*` at its end matches any non-empty rest.
    pub(crate) path: &'static str,
    /// `GET` (which takes HEAD along) or `POST`.
    pub(crate) method: &'static str,
    /// Where it leads.
    pub(crate) endpoint: Endpoint,
}

const fn get(path: &'static str, endpoint: Endpoint) -> Route {
    Route {
        path,
        method: "GET",
        endpoint,
    }
}

const fn post(path: &'static str, endpoint: Endpoint) -> Route {
    Route {
        path,
        method: "POST",
        endpoint,
    }
}

/// Every path and where it leads. The first line of an endpoint names it in metrics and logs,
/// further ones are aliases.
pub(crate) const ROUTES: &[Route] = &[
    post("/v1/completions", Endpoint::Completions),
    post("/v1/chat/completions", Endpoint::Chat),
    post("/v1/embeddings", Endpoint::Embeddings),
    post("/classify", Endpoint::Classify),
    post("/v1/classify", Endpoint::Classify),
    post("/score", Endpoint::Score),
    post("/v1/score", Endpoint::Score),
    post("/generative_scoring", Endpoint::GenerativeScoring),
    post("/rerank", Endpoint::Rerank),
    post("/v1/rerank", Endpoint::Rerank),
    post("/v2/rerank", Endpoint::RerankV2),
    post("/pooling", Endpoint::Pooling),
    post("/v1/systemone", Endpoint::SystemOne),
    post("/v1/decide", Endpoint::SystemOne),
    post("/v1/decisions", Endpoint::Decisions),
    post("/tokenize", Endpoint::Tokenize),
    post("/detokenize", Endpoint::Detokenize),
    get("/tokenizer_info", Endpoint::TokenizerInfo),
    get("/v1/models", Endpoint::Models),
    get("/v1/models/*", Endpoint::Model),
    get("/health", Endpoint::Health),
    get("/ping", Endpoint::Health),
    get("/ready", Endpoint::Ready),
    get("/live", Endpoint::Live),
    get("/version", Endpoint::Version),
    get("/metrics", Endpoint::Metrics),
    get("/openapi.json", Endpoint::OpenApi),
];

impl Endpoint {
    /// The endpoint's path, as metrics and logs name it whatever alias was used.
    pub(crate) fn route(self) -> &'static str {
        let route = ROUTES.iter().find(|r| r.endpoint == self);
        route.expect("every endpoint has a route").path
    }

    /// Whether anyone may ask, key or not.
    pub(crate) fn is_open(self, protect_metrics: bool) -> bool {
        match self {
            Self::Health | Self::Ready | Self::Live | Self::Version => true,
            Self::Metrics => !protect_metrics,
            _ => false,
        }
    }

    /// What it needs of the process.
    pub(crate) fn needs(self) -> Needs {
        match self {
            Self::Completions
            | Self::Chat
            | Self::Embeddings
            | Self::Classify
            | Self::Score
            | Self::GenerativeScoring
            | Self::Rerank
            | Self::RerankV2
            | Self::Pooling
            | Self::SystemOne
            | Self::Decisions => Needs::Queue,
            Self::Tokenize
            | Self::Detokenize
            | Self::TokenizerInfo
            | Self::Models
            | Self::Model => Needs::Models,
            Self::Health
            | Self::Ready
            | Self::Live
            | Self::Version
            | Self::Metrics
            | Self::OpenApi => Needs::Nothing,
        }
    }

    /// Whether what it is asked may take more than one step.
    pub(crate) fn generates(self) -> bool {
        matches!(self, Self::Completions | Self::Chat)
    }

    /// How its errors are written.
    pub(crate) fn dialect(self) -> Dialect {
        match self {
            Self::SystemOne => Dialect::SystemOne,
            _ => Dialect::OpenAi,
        }
    }
}

/// The route of a path, whatever the method.
pub(crate) fn named(path: &str) -> Option<&'static Route> {
    ROUTES.iter().find(|r| matches(r.path, path).is_some())
}

/// Finds the route of a path and the rest that a `*` matched.
///
/// # Errors
/// 404, or 405 with the methods the path has.
pub(crate) fn find<'p>(
    method: &str,
    path: &'p str,
) -> Result<(&'static Route, Option<&'p str>), ApiError> {
    let (route, tail) = ROUTES
        .iter()
        .find_map(|route| Some((route, matches(route.path, path)?)))
        .ok_or_else(ApiError::not_found)?;
    match (method, route.method) {
        ("HEAD" | "GET", "GET") | ("POST", "POST") => Ok((route, tail)),
        (_, "GET") => Err(ApiError::method_not_allowed("GET, HEAD")),
        _ => Err(ApiError::method_not_allowed("POST")),
    }
}

/// `None` if the path does not match, else what a `*` stands for.
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

    fn check(method: &str, path: &str, expected: Result<(Endpoint, Option<&str>), u16>) {
        let found = find(method, path);
        let found = found
            .map(|(route, tail)| (route.endpoint, tail))
            .map_err(|e| e.status());
        assert_eq!(found, expected, "{method} {path}");
    }

    #[test]
    fn paths_and_methods() {
        check("POST", "/v1/completions", Ok((Endpoint::Completions, None)));
        check("GET", "/v1/completions", Err(405));
        check("HEAD", "/ping", Ok((Endpoint::Health, None)));
        check("POST", "/health", Err(405));
        check("GET", "/v1/models", Ok((Endpoint::Models, None)));
        check("GET", "/v1/models/", Err(404));
        check("GET", "/v1/models/a/b", Ok((Endpoint::Model, Some("a/b"))));
        check("GET", "/health/", Err(404));
        check("BREW", "/nothing", Err(404));
    }

    #[test]
    fn each_path_has_one_route() {
        for (i, route) in ROUTES.iter().enumerate() {
            assert!(ROUTES[..i].iter().all(|other| other.path != route.path));
            assert!(!route.endpoint.route().is_empty());
        }
    }
}
