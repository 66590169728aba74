//! Responses made of replies and errors.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use hyper::{
    HeaderMap, Response, StatusCode, Version,
    header::{self, HeaderName, HeaderValue},
};

use super::{
    reply_body::{Content, MAX_PIECE_BYTES, ReplyBody},
    request_log::RequestLog,
};
use crate::{
    admission::Stage,
    app::App,
    endpoint::{Inference, Reply},
    error::{ApiError, Dialect},
};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const FINGERPRINT: HeaderName = HeaderName::from_static("x-prelude-fingerprint");
const REVISION: HeaderName = HeaderName::from_static("x-prelude-revision");
const CLASS: HeaderName = HeaderName::from_static("x-prelude-class");
const PROMPT_TOKENS: HeaderName = HeaderName::from_static("x-prelude-prompt-tokens");
const CACHED_TOKENS: HeaderName = HeaderName::from_static("x-prelude-cached-tokens");
const COMPUTED_TOKENS: HeaderName = HeaderName::from_static("x-prelude-computed-tokens");
const TRUNCATED: HeaderName = HeaderName::from_static("x-prelude-truncated");
const QUEUE_MS: HeaderName = HeaderName::from_static("x-prelude-queue-ms");
const EXEC_MS: HeaderName = HeaderName::from_static("x-prelude-exec-ms");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// A page runs nothing but the program's own script, and asks nobody but this server.
const PAGE_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);
const SSE: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");

/// Returns the response of a successful request.
pub(super) fn reply(app: &Arc<App>, reply: Reply, mut log: RequestLog) -> Response<ReplyBody> {
    log.answered(200);
    let mut headers = HeaderMap::with_capacity(12);
    let content = match reply {
        Reply::Json(body) => {
            headers.insert(header::CONTENT_TYPE, JSON);
            Content::Whole(body)
        }
        Reply::Text { content_type, body } => {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
            Content::Whole(body)
        }
        Reply::Page { content_type, body } => {
            page_headers(&mut headers, content_type);
            Content::Whole(body)
        }
        Reply::Empty => Content::Whole(Bytes::new()),
        Reply::Stream(mut events) => {
            headers.insert(header::CONTENT_TYPE, SSE);
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            let buffering = HeaderName::from_static("x-accel-buffering");
            headers.insert(buffering, HeaderValue::from_static("no"));
            match events.take_ready(MAX_PIECE_BYTES) {
                // As of one token: nothing is left to wait for.
                (whole, true) => Content::Whole(whole),
                (first, false) => Content::Stream {
                    first,
                    rest: events,
                },
            }
        }
    };
    if let Some(call) = log.call() {
        let is_stream = matches!(content, Content::Stream { .. });
        inference_headers(app, &mut headers, &call.inference(), is_stream);
        if let Content::Whole(body) = &content {
            call.reservation.reach(Stage::Answered(body.len()));
        }
    }
    respond(app, StatusCode::OK, headers, content, log)
}

/// Inserts the headers of a part of the page for browsers.
fn page_headers(headers: &mut HeaderMap, content_type: &'static str) {
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CONTENT_SECURITY_POLICY, PAGE_POLICY);
    let mut put = |name, value| headers.insert(name, HeaderValue::from_static(value));
    put(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    put(header::REFERRER_POLICY, "no-referrer");
    // Another version of the program has another script.
    put(header::CACHE_CONTROL, "no-cache");
}

/// Returns the response to a browser's preflight request.
pub(super) fn preflight(
    app: &Arc<App>,
    headers: HeaderMap,
    mut log: RequestLog,
) -> Response<ReplyBody> {
    log.answered(204);
    let content = Content::Whole(Bytes::new());
    respond(app, StatusCode::NO_CONTENT, headers, content, log)
}

/// Returns the response of a request that is refused or has failed.
pub(super) fn error(
    app: &Arc<App>,
    error: &ApiError,
    dialect: Dialect,
    mut log: RequestLog,
) -> Response<ReplyBody> {
    app.metrics.reject(error.reason());
    // A client that does not read its refusal must not hold room in the queue.
    if let Some(call) = log.call() {
        call.reservation.reach(Stage::Answered(0));
    }
    let shed;
    let error = if error.status() == 429 {
        // The status in the body is that of the response.
        shed = error.clone().with_status(app.config.overload_status);
        &shed
    } else {
        error
    };
    log.answered(error.status());
    let headers = error_headers(error, log.version());
    let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let content = Content::Whole(error.to_json(dialect).into());
    respond(app, status, headers, content, log)
}

fn error_headers(error: &ApiError, version: Version) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(8);
    headers.insert(header::CONTENT_TYPE, JSON);
    if let Some(allow) = error.allow() {
        headers.insert(header::ALLOW, HeaderValue::from_static(allow));
    }
    if error.status() == 401 {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Some(after) = error.retry_after() {
        let seconds = after.as_secs_f64().ceil();
        headers.insert(header::RETRY_AFTER, plain(format!("{seconds:.0}")));
        let exact = HeaderName::from_static("retry-after-ms");
        headers.insert(exact, plain(after.as_millis().to_string()));
    }
    if let Some(should) = error.should_retry() {
        let name = HeaderName::from_static("x-should-retry");
        let value = if should { "true" } else { "false" };
        headers.insert(name, HeaderValue::from_static(value));
    }
    // HTTP/2 has no such header.
    if error.closes() && version <= Version::HTTP_11 {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    headers
}

fn respond(
    app: &Arc<App>,
    status: StatusCode,
    mut headers: HeaderMap,
    content: Content,
    log: RequestLog,
) -> Response<ReplyBody> {
    let id = HeaderValue::from_str(log.request_id());
    let id = id.expect("request ids are plain ASCII");
    headers.insert(REQUEST_ID, id);
    let mut response = Response::new(ReplyBody::new(app, content, log));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// Inserts the figures of an inference request, which routers read.
fn inference_headers(app: &App, headers: &mut HeaderMap, seen: &Inference, is_stream: bool) {
    let Some(class) = seen.class else {
        return;
    };
    if let Some(model) = seen.model.and_then(|place| app.models().get(place)) {
        headers.insert(FINGERPRINT, plain(model.fingerprint.clone()));
        if let Some(commit) = &model.revision {
            headers.insert(REVISION, plain(commit.clone()));
        }
    }
    headers.insert(CLASS, HeaderValue::from_static(class.as_str()));
    headers.insert(PROMPT_TOKENS, seen.prompt_tokens.into());
    if seen.truncated > 0 {
        headers.insert(TRUNCATED, seen.truncated.into());
    }
    if is_stream {
        return;
    }
    // A request with nothing to compute has no usage, and zeros say so.
    let usage = seen.usage.unwrap_or_default();
    headers.insert(CACHED_TOKENS, usage.cached_tokens.into());
    headers.insert(COMPUTED_TOKENS, usage.computed_tokens.into());
    headers.insert(QUEUE_MS, plain(millis(usage.queue_time)));
    headers.insert(EXEC_MS, plain(millis(usage.exec_time)));
}

/// Prints milliseconds with three decimal places.
fn millis(duration: Duration) -> String {
    // Whole microseconds: printing a fraction takes far more code, which no cache holds after a
    // step.
    let us = (duration.as_nanos() + 500) / 1000;
    format!("{}.{:03}", us / 1000, us % 1000)
}

fn plain(text: String) -> HeaderValue {
    HeaderValue::from_maybe_shared(Bytes::from(text)).expect("visible ASCII is a header value")
}

/// Prints a whole HTTP/1.1 response, for connections on which no request began.
pub(super) fn raw_error(app: &App, error: &ApiError) -> Vec<u8> {
    let body = error.to_json(Dialect::OpenAi);
    let reason = StatusCode::from_u16(error.status())
        .ok()
        .and_then(|status| status.canonical_reason())
        .unwrap_or_default();
    let retry = error.retry_after().map_or(String::new(), |after| {
        let (seconds, ms) = (after.as_secs().max(1), after.as_millis());
        format!("retry-after: {seconds}\r\nretry-after-ms: {ms}\r\n")
    });
    let head = format!(
        "HTTP/1.1 {} {reason}\r\ncontent-type: application/json\r\n{retry}x-request-id: {}\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n",
        error.status(),
        app.ids.next("req-"),
        body.len()
    );
    [head.as_bytes(), &body].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_are_rounded_to_microseconds() {
        let check = |ns: u64, expected: &str| {
            assert_eq!(millis(Duration::from_nanos(ns)), expected, "{ns} ns");
        };
        check(0, "0.000");
        check(499, "0.000");
        check(500, "0.001");
        check(4_000, "0.004");
        check(999_499, "0.999");
        check(999_500, "1.000");
        check(12_345_678_901, "12345.679");
    }
}
