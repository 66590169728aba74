//! Cross-origin requests of browsers, from the origins that the operator allows.

use hyper::{
    HeaderMap, Method,
    header::{self, HeaderName, HeaderValue},
    http::request::Parts,
};

use crate::config::ServerConfig;

/// The time in seconds for which a browser may keep the response to a preflight request.
const MAX_AGE: &str = "600";

/// The response headers that a page may read.
const EXPOSED: &str = "x-request-id, retry-after, retry-after-ms, x-should-retry, \
                       x-prelude-fingerprint, x-prelude-revision, \
                       x-prelude-class, x-prelude-prompt-tokens, x-prelude-cached-tokens, \
                       x-prelude-computed-tokens, x-prelude-queue-ms, x-prelude-exec-ms";

/// Returns the request's origin if its pages are allowed.
pub(super) fn origin(config: &ServerConfig, headers: &HeaderMap) -> Option<HeaderValue> {
    if config.cors_origins.is_empty() {
        return None;
    }
    let origin = headers.get(header::ORIGIN)?;
    let allowed = |o: &String| o == "*" || o.as_bytes() == origin.as_bytes();
    config
        .cors_origins
        .iter()
        .any(allowed)
        .then(|| origin.clone())
}

/// Returns whether this is a preflight request, which concerns no endpoint and brings no key.
pub(super) fn is_preflight(parts: &Parts) -> bool {
    let asks = header::ACCESS_CONTROL_REQUEST_METHOD;
    parts.method == Method::OPTIONS && parts.headers.contains_key(asks)
}

/// Inserts the headers that let pages of `origin` read the response.
pub(super) fn allow(origin: HeaderValue, headers: &mut HeaderMap) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    let exposed = HeaderValue::from_static(EXPOSED);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    headers.append(header::VARY, HeaderValue::from_static("origin"));
}

/// Returns the headers of the response to a preflight request. They allow all headers that the
/// request names, because clients send many of their own.
pub(super) fn preflight(asked: &HeaderMap) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(8);
    let mut put = |name: HeaderName, value| headers.insert(name, value);
    let methods = HeaderValue::from_static("GET, HEAD, POST");
    put(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    put(
        header::ACCESS_CONTROL_MAX_AGE,
        HeaderValue::from_static(MAX_AGE),
    );
    if let Some(wanted) = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        put(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    headers
}
