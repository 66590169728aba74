//! Replies and errors as responses.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use super::{
    output::{Output, Streaming},
    ticket::Ticket,
    wire::Active,
};
use crate::{
    app::App,
    endpoint::{Inference, Reply},
    error::{ApiError, Dialect},
};
use bytes::Bytes;
use hyper::{
    HeaderMap, Response, StatusCode, Version,
    body::{Body, Frame, SizeHint},
    header::{self, HeaderName, HeaderValue},
};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const CLASS: HeaderName = HeaderName::from_static("x-prelude-class");
const PROMPT_TOKENS: HeaderName = HeaderName::from_static("x-prelude-prompt-tokens");
const CACHED_TOKENS: HeaderName = HeaderName::from_static("x-prelude-cached-tokens");
const COMPUTED_TOKENS: HeaderName = HeaderName::from_static("x-prelude-computed-tokens");
const QUEUE_MS: HeaderName = HeaderName::from_static("x-prelude-queue-ms");
const EXEC_MS: HeaderName = HeaderName::from_static("x-prelude-exec-ms");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const SSE: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");

/// What a response carries: all at once, or as it comes. Keeps the request counted until it ends.
pub(super) struct ReplyBody {
    output: Output,
    ticket: Ticket,
    _active: Active,
}

/// A successful answer.
pub(super) fn reply(
    app: &Arc<App>,
    reply: Reply,
    mut ticket: Ticket,
    active: Active,
    output: Output,
) -> Response<ReplyBody> {
    ticket.answered(200);
    let mut headers = HeaderMap::with_capacity(12);
    if let (Some(call), Reply::Json(body) | Reply::Text { body, .. }) = (ticket.call(), &reply) {
        call.reservation.answered(body.len());
    }
    let is_stream = matches!(reply, Reply::Stream(_));
    match reply {
        Reply::Json(body) => {
            headers.insert(header::CONTENT_TYPE, JSON);
            output.whole(body)
        }
        Reply::Text { content_type, body } => {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
            output.whole(body)
        }
        Reply::Empty => output.whole(Bytes::new()),
        Reply::Stream(events) => {
            headers.insert(header::CONTENT_TYPE, SSE);
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            let buffering = HeaderName::from_static("x-accel-buffering");
            headers.insert(buffering, HeaderValue::from_static("no"));
            output.stream(Streaming::new(app, events));
        }
    }
    if let Some(call) = ticket.call() {
        inference_headers(&mut headers, &call.inference(), is_stream);
        if !is_stream {
            call.reservation.release();
        }
    }
    respond(StatusCode::OK, headers, ticket, active, output)
}

/// The answer to a browser's question whether it may ask.
pub(super) fn preflight(
    headers: HeaderMap,
    mut ticket: Ticket,
    active: Active,
    output: Output,
) -> Response<ReplyBody> {
    ticket.answered(204);
    output.whole(Bytes::new());
    respond(StatusCode::NO_CONTENT, headers, ticket, active, output)
}

/// A refusal or a failure.
pub(super) fn error(
    app: &App,
    error: &ApiError,
    dialect: Dialect,
    version: Version,
    mut ticket: Ticket,
    active: Active,
    output: Output,
) -> Response<ReplyBody> {
    app.metrics.reject(error.reason());
    // A client that does not read its refusal must not hold a place in the queue by it.
    if let Some(call) = ticket.call() {
        call.reservation.release();
        call.reservation.answered(0);
    }
    let shed;
    let error = if error.status() == 429 {
        // The body says what the status line says.
        shed = error.clone().with_status(app.config.overload_status);
        &shed
    } else {
        error
    };
    let status = error.status();
    ticket.answered(status);
    let mut headers = HeaderMap::with_capacity(8);
    headers.insert(header::CONTENT_TYPE, JSON);
    if let Some(allow) = error.allow() {
        headers.insert(header::ALLOW, HeaderValue::from_static(allow));
    }
    if status == 401 {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Some(after) = error.retry_after() {
        let seconds = after.as_secs_f64().ceil();
        headers.insert(header::RETRY_AFTER, number(format!("{seconds:.0}")));
        let exact = HeaderName::from_static("retry-after-ms");
        headers.insert(exact, number(after.as_millis().to_string()));
    }
    if let Some(should) = error.should_retry() {
        let name = HeaderName::from_static("x-should-retry");
        let value = if should { "true" } else { "false" };
        headers.insert(name, HeaderValue::from_static(value));
    }
    // HTTP/2 has no such header; its connections end by another way.
    if error.closes() && version <= Version::HTTP_11 {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    output.whole(error.to_json(dialect).into());
    respond(status, headers, ticket, active, output)
}

fn respond(
    status: StatusCode,
    mut headers: HeaderMap,
    ticket: Ticket,
    active: Active,
    output: Output,
) -> Response<ReplyBody> {
    let id = HeaderValue::from_str(ticket.request_id());
    let id = id.expect("request ids are plain ASCII");
    headers.insert(REQUEST_ID, id);
    let mut response = Response::new(ReplyBody {
        output,
        ticket,
        _active: active,
    });
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// What routers want to know of an inference request.
fn inference_headers(headers: &mut HeaderMap, seen: &Inference, is_stream: bool) {
    let Some(class) = seen.class else {
        return;
    };
    headers.insert(CLASS, HeaderValue::from_static(class.as_str()));
    headers.insert(PROMPT_TOKENS, seen.prompt_tokens.into());
    if is_stream {
        return;
    }
    // A request with nothing to compute has no usage: all zeros are the truth.
    let usage = seen.usage.unwrap_or_default();
    headers.insert(CACHED_TOKENS, usage.cached_tokens.into());
    headers.insert(COMPUTED_TOKENS, usage.computed_tokens.into());
    headers.insert(QUEUE_MS, number(millis(usage.queue_time)));
    headers.insert(EXEC_MS, number(millis(usage.exec_time)));
}

/// Milliseconds with three places behind the point.
fn millis(duration: Duration) -> String {
    // Whole numbers: to print a fraction takes far more code, which no cache holds after a step.
    let us = (duration.as_nanos() + 500) / 1000;
    format!("{}.{:03}", us / 1000, us % 1000)
}

fn number(text: String) -> HeaderValue {
    HeaderValue::from_maybe_shared(Bytes::from(text)).expect("digits are a header value")
}

/// A whole HTTP/1.1 response, for connections that never became a request.
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

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let next = std::task::ready!(self.output.poll_next(cx));
        let bytes = next.map(|(bytes, _)| bytes).unwrap_or_default();
        Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.output.remaining() == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.output
            .remaining()
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for ReplyBody {
    fn drop(&mut self) {
        if self.output.dropped() {
            self.ticket.whole();
        }
    }
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
