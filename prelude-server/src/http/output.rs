//! What of a response the client has yet to take, watched from outside the transport.
//!
//! The transport asks a body for more only when the client has taken what there was, so nobody
//! would notice a client that takes nothing: of an HTTP/2 connection one stream may stand still
//! while others flow. Whoever runs a request's future therefore looks after its output as well:
//! goes on with a stream that is not asked for, within a bound, and gives the request up when the
//! bound or the client's time is passed. Dropping the future resets that stream alone.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use hyper::rt::Executor;
use tokio::time::{Instant, Sleep};

use super::timer::Timer;
use crate::{
    app::App,
    config::{Limits, ms},
    error::ApiError,
    lifecycle::Phase,
    sse::{EventStream, Events, KEEP_ALIVE},
};

/// Most bytes given to the transport at once: what it holds of a client that does not read.
const PIECE_BYTES: usize = 64 << 10;

/// One response's output, shared by its body and whoever runs the request.
#[derive(Clone)]
pub(super) struct Output(Arc<Mutex<State>>);

struct State {
    content: Content,
    /// The transport asked and there was nothing: whoever is waited for, it is not the client.
    is_awaited: bool,
    /// Since when the client has taken nothing of what there is.
    stalled_since: Option<Instant>,
    timer: Timer,
    /// Whether the transport was given anything.
    is_begun: bool,
    is_given_up: bool,
    write_stall: Duration,
    unread_bytes: usize,
}

enum Content {
    /// The request has no answer yet.
    NotYet,
    Whole(Bytes),
    Stream(Box<Streaming>),
    /// The transport has the last of it.
    HandedOver,
    /// The transport has no use for it any more.
    Gone,
}

/// A stream on its way.
pub(super) struct Streaming {
    events: EventStream,
    /// What came while nobody asked.
    unread: BytesMut,
    is_over: bool,
    silence: Duration,
    keep_alive: Pin<Box<Sleep>>,
    /// Ready when running work is ended.
    ending: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Output {
    /// The output of a request that has no answer yet.
    pub(super) fn new(limits: &Limits) -> Self {
        Self(Arc::new(Mutex::new(State {
            content: Content::NotYet,
            is_awaited: false,
            stalled_since: None,
            timer: Timer::default(),
            is_begun: false,
            is_given_up: false,
            write_stall: ms(limits.write_stall_ms),
            unread_bytes: limits.unread_bytes,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer is these bytes.
    pub(super) fn whole(&self, bytes: Bytes) {
        self.lock().content = Content::Whole(bytes);
    }

    /// The answer is this stream.
    pub(super) fn stream(&self, stream: Streaming) {
        self.lock().content = Content::Stream(Box::new(stream));
    }

    /// The next bytes for the transport, and whether they are the last; `None` if there are none.
    pub(super) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<(Bytes, bool)>> {
        let state = &mut *self.lock();
        state.stalled_since = None;
        let (bytes, is_last) = match &mut state.content {
            Content::Whole(body) => {
                let piece = body.split_to(body.len().min(PIECE_BYTES));
                (piece, body.is_empty())
            }
            Content::Stream(stream) => match stream.poll(cx) {
                Poll::Ready(next) => next,
                Poll::Pending => {
                    state.is_awaited = true;
                    return Poll::Pending;
                }
            },
            Content::NotYet | Content::HandedOver | Content::Gone => return Poll::Ready(None),
        };
        state.is_awaited = false;
        state.is_begun = true;
        if is_last {
            state.content = Content::HandedOver;
        }
        Poll::Ready(Some((bytes, is_last)))
    }

    /// Bytes still to come, if that is known.
    pub(super) fn remaining(&self) -> Option<u64> {
        match &self.lock().content {
            Content::Whole(body) => Some(body.len() as u64),
            Content::Stream(_) => None,
            Content::NotYet | Content::HandedOver | Content::Gone => Some(0),
        }
    }

    /// The transport drops the body. Whether that leaves nothing unsent: all was handed over, or
    /// nothing was ever wanted (HEAD, an answer without a body).
    pub(super) fn dropped(&self) -> bool {
        let state = &mut *self.lock();
        let content = std::mem::replace(&mut state.content, Content::Gone);
        let is_whole = match content {
            Content::HandedOver => true,
            Content::Whole(_) => !state.is_begun,
            _ => false,
        };
        is_whole && !state.is_given_up
    }

    /// To be polled by whoever runs the request, after the request: ready when it is to be given
    /// up because its client does not take its answer.
    pub(super) fn poll_give_up(&self, cx: &mut Context<'_>) -> Poll<()> {
        let state = &mut *self.lock();
        let is_stalled = match &mut state.content {
            Content::NotYet | Content::Gone => false,
            // Not asked for means not taken: the transport asks as soon as it has room.
            Content::Whole(_) | Content::HandedOver => true,
            Content::Stream(_) if state.is_awaited => false,
            Content::Stream(stream) => {
                stream.read_ahead(cx, state.unread_bytes);
                if stream.unread.len() > state.unread_bytes {
                    return state.give_up();
                }
                true
            }
        };
        if !is_stalled {
            return Poll::Pending;
        }
        let since = *state.stalled_since.get_or_insert_with(Instant::now);
        if state.timer.poll(cx, since + state.write_stall) {
            return state.give_up();
        }
        Poll::Pending
    }
}

impl State {
    /// What the request still does for its answer ends here.
    fn give_up(&mut self) -> Poll<()> {
        self.is_given_up = true;
        self.content = Content::Gone;
        Poll::Ready(())
    }
}

impl Streaming {
    pub(super) fn new(app: &Arc<App>, events: EventStream) -> Self {
        let silence = ms(app.config.limits.keep_alive_comment_ms);
        let app = Arc::clone(app);
        Self {
            events,
            unread: BytesMut::new(),
            is_over: false,
            silence,
            keep_alive: Box::pin(tokio::time::sleep(silence)),
            ending: Box::pin(async move { app.lifecycle.reached(Phase::Ending).await }),
        }
    }

    /// The next bytes, and whether they are the last.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(Bytes, bool)> {
        if !self.unread.is_empty() || self.is_over {
            return Poll::Ready((self.unread.split().freeze(), self.is_over));
        }
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

    /// Takes what has come although nobody asks, until there are more than `max` bytes.
    fn read_ahead(&mut self, cx: &mut Context<'_>, max: usize) {
        while !self.is_over && self.unread.len() <= max {
            match self.events.poll_next(cx) {
                Poll::Ready(Some(bytes)) => self.unread.extend_from_slice(&bytes),
                Poll::Ready(None) => self.is_over = true,
                Poll::Pending => return,
            }
        }
    }
}

/// The requests of one connection, as the transport runs them.
///
/// HTTP/2 asks the service for a future and at once hands it to its executor, in one task: what
/// the service left here belongs to the future that comes next. HTTP/1.1 has no executor; what is
/// left here belongs to the connection's only request.
#[derive(Clone, Default)]
pub(super) struct Requests(Arc<Mutex<Option<Output>>>);

impl Requests {
    fn lock(&self) -> MutexGuard<'_, Option<Output>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request begins.
    pub(super) fn begin(&self, output: Output) {
        *self.lock() = Some(output);
    }

    /// As [`Output::poll_give_up`] of the request that is not run by [`Executor`].
    pub(super) fn poll_give_up(&self, cx: &mut Context<'_>) -> Poll<()> {
        match &*self.lock() {
            Some(output) => output.poll_give_up(cx),
            None => Poll::Pending,
        }
    }
}

impl<F> Executor<F> for Requests
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        let Some(output) = self.lock().take() else {
            tokio::spawn(future);
            return;
        };
        tokio::spawn(async move {
            let mut future = std::pin::pin!(future);
            std::future::poll_fn(|cx| {
                if future.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(());
                }
                output.poll_give_up(cx)
            })
            .await;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(whole: &'static [u8]) -> Output {
        let output = Output::new(&Limits::default());
        output.whole(Bytes::from_static(whole));
        output
    }

    #[tokio::test]
    async fn a_request_is_given_up_once_its_client_takes_nothing() {
        let given_up = |output: &Output| {
            let output = output.clone();
            std::future::poll_fn(move |cx| Poll::Ready(output.poll_give_up(cx).is_ready()))
        };
        let limits = Limits {
            write_stall_ms: 0,
            ..Limits::default()
        };
        let output = Output::new(&limits);
        // However long an answer takes, that is not the client's doing.
        assert!(!given_up(&output).await);
        output.whole(Bytes::from_static(&[7; 2 * PIECE_BYTES + 1]));
        let next = std::future::poll_fn(|cx| output.poll_next(cx)).await;
        assert_eq!(next.unwrap().0.len(), PIECE_BYTES);
        assert_eq!(output.remaining(), Some(PIECE_BYTES as u64 + 1));
        assert!(given_up(&output).await);
        assert_eq!(output.remaining(), Some(0));
        assert!(!output.dropped());
    }

    #[tokio::test]
    async fn an_answer_is_whole_once_handed_over_or_never_wanted() {
        let taken = output(b"abc");
        let next = std::future::poll_fn(|cx| taken.poll_next(cx)).await;
        assert_eq!(next, Some((Bytes::from_static(b"abc"), true)));
        assert!(taken.dropped());
        assert!(output(b"abc").dropped());
    }
}
