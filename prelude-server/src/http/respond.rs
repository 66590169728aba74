//! Replies and errors as responses.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use hyper::{
    HeaderMap, Response, StatusCode, Version,
    body::{Body, Frame, SizeHint},
    header::{self, HeaderName, HeaderValue},
};
use tokio::time::{Instant, Sleep};

use super::{ticket::Ticket, wire::Active};
use crate::{
    app::App,
    config::ms,
    endpoints::{Inference, Reply},
    error::{ApiError, Dialect},
    lifecycle::Phase,
    sse::{EventStream, Events, KEEP_ALIVE},
};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const SSE: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");

/// What a response carries: all at once, or as it comes. Keeps the request counted until it ends.
pub(super) struct ReplyBody {
    content: Content,
    ticket: Ticket,
    _active: Active,
}

enum Content {
    Whole(Option<Bytes>),
    Stream(Streaming),
    /// A stream that has ended.
    Over,
}

struct Streaming {
    events: EventStream,
    silence: Duration,
    keep_alive: Pin<Box<Sleep>>,
    /// Ready when running work is ended.
    ending: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// A successful answer.
pub(super) fn reply(
    app: &Arc<App>,
    reply: Reply,
    mut ticket: Ticket,
    active: Active,
) -> Response<ReplyBody> {
    ticket.answered(200);
    let mut headers = HeaderMap::with_capacity(12);
    let is_stream = matches!(reply, Reply::Stream(_));
    let content = match reply {
        Reply::Json(body) => {
            headers.insert(header::CONTENT_TYPE, JSON);
            Content::Whole(Some(body))
        }
        Reply::Text { content_type, body } => {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
            Content::Whole(Some(body))
        }
        Reply::Empty => Content::Whole(Some(Bytes::new())),
        Reply::Stream(events) => {
            headers.insert(header::CONTENT_TYPE, SSE);
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            let buffering = HeaderName::from_static("x-accel-buffering");
            headers.insert(buffering, HeaderValue::from_static("no"));
            Content::Stream(Streaming::new(app, events))
        }
    };
    if let Some(call) = ticket.call() {
        inference_headers(&mut headers, &call.inference(), is_stream);
        if !is_stream {
            call.reservation.release();
        }
    }
    respond(StatusCode::OK, headers, content, ticket, active)
}

/// A refusal or a failure.
pub(super) fn error(
    app: &App,
    error: &ApiError,
    dialect: Dialect,
    version: Version,
    mut ticket: Ticket,
    active: Active,
) -> Response<ReplyBody> {
    app.metrics.reject(error.reason());
    // A client that does not read its refusal must not hold a place in the queue by it.
    if let Some(call) = ticket.call() {
        call.reservation.release();
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
    let content = Content::Whole(Some(error.to_json(dialect).into()));
    respond(status, headers, content, ticket, active)
}

fn respond(
    status: StatusCode,
    mut headers: HeaderMap,
    content: Content,
    ticket: Ticket,
    active: Active,
) -> Response<ReplyBody> {
    let id = HeaderValue::from_str(ticket.request_id());
    let id = id.expect("request ids are plain ASCII");
    headers.insert(HeaderName::from_static("x-request-id"), id);
    let mut response = Response::new(ReplyBody {
        content,
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
    let mut put = |name, value| headers.insert(HeaderName::from_static(name), value);
    put("x-prelude-class", HeaderValue::from_static(class.as_str()));
    put("x-prelude-prompt-tokens", seen.prompt_tokens.into());
    if is_stream {
        return;
    }
    // A request with nothing to compute has no usage: all zeros are the truth.
    let usage = seen.usage.unwrap_or_default();
    put("x-prelude-cached-tokens", usage.cached_tokens.into());
    put("x-prelude-computed-tokens", usage.computed_tokens.into());
    let millis = |d: Duration| number(format!("{:.3}", d.as_secs_f64() * 1e3));
    put("x-prelude-queue-ms", millis(usage.queue_time));
    put("x-prelude-exec-ms", millis(usage.exec_time));
}

fn number(text: String) -> HeaderValue {
    HeaderValue::from_maybe_shared(Bytes::from(text)).expect("digits are a header value")
}

/// A whole HTTP/1.1 response, for connections that never became a request.
pub(super) fn raw_error(error: &ApiError) -> Vec<u8> {
    let body = error.to_json(Dialect::OpenAi);
    let reason = StatusCode::from_u16(error.status())
        .ok()
        .and_then(|status| status.canonical_reason())
        .unwrap_or_default();
    let retry = error.retry_after().map_or(String::new(), |after| {
        format!("retry-after: {}\r\n", after.as_secs().max(1))
    });
    let head = format!(
        "HTTP/1.1 {} {reason}\r\ncontent-type: application/json\r\n{retry}connection: close\r\n\
         content-length: {}\r\n\r\n",
        error.status(),
        body.len()
    );
    [head.as_bytes(), &body].concat()
}

impl Streaming {
    fn new(app: &Arc<App>, events: EventStream) -> Self {
        let silence = ms(app.config.limits.keep_alive_comment_ms);
        let app = Arc::clone(app);
        Self {
            events,
            silence,
            keep_alive: Box::pin(tokio::time::sleep(silence)),
            ending: Box::pin(async move { app.lifecycle.reached(Phase::Ending).await }),
        }
    }

    /// The next bytes, and whether they are the last.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(Bytes, bool)> {
        if let Poll::Ready(next) = self.events.poll_next(cx) {
            self.keep_alive
                .as_mut()
                .reset(Instant::now() + self.silence);
            let over = next.is_none();
            return Poll::Ready((next.unwrap_or_default(), over));
        }
        if self.ending.as_mut().poll(cx).is_ready() {
            self.events.stop();
            let mut last = Events::default();
            last.push_error(&ApiError::draining());
            last.push_done();
            return Poll::Ready((last.take(), true));
        }
        if self.keep_alive.as_mut().poll(cx).is_ready() {
            self.keep_alive
                .as_mut()
                .reset(Instant::now() + self.silence);
            return Poll::Ready((Bytes::from_static(KEEP_ALIVE), false));
        }
        Poll::Pending
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        let (bytes, is_last) = match &mut this.content {
            Content::Whole(body) => (body.take().unwrap_or_default(), true),
            Content::Stream(stream) => std::task::ready!(stream.poll(cx)),
            Content::Over => return Poll::Ready(None),
        };
        if is_last {
            this.content = Content::Over;
            this.ticket.whole();
        }
        Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Whole(body) => body.as_ref().is_none_or(Bytes::is_empty),
            Content::Stream(_) => false,
            Content::Over => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(body) => {
                SizeHint::with_exact(body.as_ref().map_or(0, |b| b.len() as u64))
            }
            Content::Stream(_) => SizeHint::default(),
            Content::Over => SizeHint::with_exact(0),
        }
    }
}

impl Drop for ReplyBody {
    fn drop(&mut self) {
        // An answer without a body, or one to HEAD, is whole without having been asked for.
        if matches!(self.content, Content::Whole(_)) {
            self.ticket.whole();
        }
    }
}
