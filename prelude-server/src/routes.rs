//! Paths to endpoints: the whole surface on one page.

use crate::error::{ApiError, Dialect};

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Health,
    Ready,
    Live,
    Version,
    Embeddings,
    Classify,
    Score,
    SystemOne,
}

/// One path.
#[derive(Debug)]
pub(crate) struct Route {
    /// The path. One that ends in `/*` matches any non-empty rest.
    pub(crate) path: &'static str,
    /// `GET` (which takes HEAD along) or `POST`.
    pub(crate) method: &'static str,
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

/// Every path and what it leads to. Aliases are further lines.
pub(crate) const ROUTES: &[Route] = &[
    get("/health", Endpoint::Health),
    get("/ping", Endpoint::Health),
    get("/ready", Endpoint::Ready),
    get("/live", Endpoint::Live),
    get("/version", Endpoint::Version),
    post("/v1/embeddings", Endpoint::Embeddings),
    post("/classify", Endpoint::Classify),
    post("/v1/classify", Endpoint::Classify),
    post("/score", Endpoint::Score),
    post("/v1/score", Endpoint::Score),
    post("/v1/systemone", Endpoint::SystemOne),
    post("/v1/decide", Endpoint::SystemOne),
];

impl Endpoint {
    /// The endpoint's path, as metrics and logs name it whatever alias was used.
    pub(crate) fn route(self) -> &'static str {
        let route = ROUTES.iter().find(|r| r.endpoint == self);
        route.expect("every endpoint has a route").path
    }

    /// Whether anyone may ask, key or not.
    pub(crate) fn is_open(self, protect_metrics: bool) -> bool {
        let _ = protect_metrics;
        match self {
            Self::Health | Self::Ready | Self::Live | Self::Version => true,
            Self::Embeddings | Self::Classify | Self::Score | Self::SystemOne => false,
        }
    }

    /// Whether it makes the engine work, so that it needs room in the queue and a process in
    /// service.
    pub(crate) fn is_inference(self) -> bool {
        match self {
            Self::Health | Self::Ready | Self::Live | Self::Version => false,
            Self::Embeddings | Self::Classify | Self::Score | Self::SystemOne => true,
        }
    }

    /// How its errors are written.
    pub(crate) fn dialect(self) -> Dialect {
        match self {
            Self::SystemOne => Dialect::SystemOne,
            _ => Dialect::OpenAi,
        }
    }
}

/// Finds the route of a path and the rest that a `/*` matched.
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

fn matches<'p>(pattern: &str, path: &'p str) -> Option<Option<&'p str>> {
    match pattern.strip_suffix('*') {
        None => (path == pattern).then_some(None),
        Some(prefix) => {
            let tail = path.strip_prefix(prefix)?;
            (!tail.is_empty()).then_some(Some(tail))
        }
    }
}
