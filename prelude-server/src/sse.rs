//! Server-sent events: what a stream is made of, without the transport.
//!
//! A stream is an async block that sends; the response body polls it. All events of one engine
//! step are one `send`, so one write. Dropping the stream drops the block and with it the answer
//! it waits for: the request is aborted.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use bytes::Bytes;
use serde::Serialize;

use crate::error::ApiError;

/// The end of every stream.
pub(crate) const DONE: &[u8] = b"data: [DONE]\n\n";

/// A line clients skip, sent in silence so that proxies keep the connection.
pub(crate) const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// Events in the making, written back to back.
#[derive(Debug, Default)]
pub(crate) struct Events(Vec<u8>);

impl Events {
    /// Adds `data: <value as JSON>`.
    pub(crate) fn push(&mut self, value: &impl Serialize) {
        self.0.extend_from_slice(b"data: ");
        // JSON escapes line breaks, so an event never spans two lines.
        serde_json::to_writer(&mut self.0, value).expect("wire types have string keys");
        self.0.extend_from_slice(b"\n\n");
    }

    /// Adds an error; the stream ends after it.
    pub(crate) fn push_error(&mut self, error: &ApiError) {
        self.push(&serde_json::json!({ "error": error.to_value() }));
    }

    /// Adds the end of the stream.
    pub(crate) fn push_done(&mut self) {
        self.0.extend_from_slice(DONE);
    }

    /// Takes what was written.
    pub(crate) fn take(&mut self) -> Bytes {
        std::mem::take(&mut self.0).into()
    }
}

/// A stream of events, to be polled.
pub(crate) struct EventStream {
    slot: Slot,
    /// `None` once it has ended.
    block: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl std::fmt::Debug for EventStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventStream")
            .field("over", &self.block.is_none())
            .finish_non_exhaustive()
    }
}

/// Where the block puts what the poller takes.
type Slot = Arc<Mutex<Option<Bytes>>>;

/// The sending side, owned by the block.
pub(crate) struct EventSender(Slot);

impl EventSender {
    /// Hands over bytes and resumes when they have been taken.
    pub(crate) async fn send(&mut self, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        put(&self.0, Some(bytes));
        let mut handed_over = false;
        std::future::poll_fn(|_| {
            // The poller sees the slot filled, takes it, and polls the block again when it wants
            // more; there is nothing to be woken for in between.
            if std::mem::replace(&mut handed_over, true) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}

impl EventStream {
    /// Makes a stream of what the block made by `make` sends.
    pub(crate) fn new<F>(make: impl FnOnce(EventSender) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let slot = Slot::default();
        Self {
            block: Some(Box::pin(make(EventSender(Arc::clone(&slot))))),
            slot,
        }
    }

    /// The next bytes; `None` after the last.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let Some(block) = &mut self.block else {
            return Poll::Ready(None);
        };
        let ended = block.as_mut().poll(cx).is_ready();
        if ended {
            self.block = None;
        }
        match put(&self.slot, None) {
            Some(bytes) => Poll::Ready(Some(bytes)),
            None if ended => Poll::Ready(None),
            None => Poll::Pending,
        }
    }

    /// Stops the stream: what it waits for is aborted.
    pub(crate) fn stop(&mut self) {
        self.block = None;
    }
}

fn put(slot: &Slot, bytes: Option<Bytes>) -> Option<Bytes> {
    std::mem::replace(
        &mut slot.lock().unwrap_or_else(PoisonError::into_inner),
        bytes,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn yields_what_is_sent_in_order_and_ends() {
        let mut stream = EventStream::new(|mut sender| async move {
            sender.send(Bytes::from_static(b"a")).await;
            sender.send(Bytes::new()).await;
            tokio::task::yield_now().await;
            sender.send(Bytes::from_static(b"b")).await;
        });
        let mut seen = Vec::new();
        while let Some(bytes) = std::future::poll_fn(|cx| stream.poll_next(cx)).await {
            seen.push(bytes);
        }
        assert_eq!(seen, ["a", "b"]);
        assert!(
            std::future::poll_fn(|cx| stream.poll_next(cx))
                .await
                .is_none()
        );
    }

    #[test]
    fn events_are_one_line_each() {
        let mut events = Events::default();
        events.push(&"a\nb");
        events.push_done();
        assert_eq!(&events.take()[..], b"data: \"a\\nb\"\n\ndata: [DONE]\n\n");
        assert!(events.take().is_empty());
    }
}
