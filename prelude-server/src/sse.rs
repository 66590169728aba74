//! Server-sent events, and streams of them.
//!
//! A stream is an async block that sends, and that runs while the next bytes are awaited. All events
//! of one engine step are one `send`, so one write. Dropping the stream drops the block and with it
//! the engine's answer that it waits for: the request is aborted.

use std::{
    future::Future,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use bytes::{Bytes, BytesMut};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::error::ApiError;

/// The end of every stream.
pub(crate) const DONE: &[u8] = b"data: [DONE]\n\n";

/// A line that clients skip. It is sent in silence so that proxies keep the connection.
pub(crate) const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// Events that are being written, back to back.
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

    /// Takes the bytes that were written.
    pub(crate) fn take(&mut self) -> Bytes {
        std::mem::take(&mut self.0).into()
    }
}

/// A stream of events: an async block that sends, and what it has sent.
pub(crate) struct EventStream {
    sent: mpsc::Receiver<Bytes>,
    /// True if the block runs only while the client has taken all that was sent before.
    is_paced: bool,
    /// `None` once the block has ended.
    block: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl std::fmt::Debug for EventStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventStream")
            .field("over", &self.block.is_none())
            .finish_non_exhaustive()
    }
}

/// The sending side of a stream, owned by the block.
pub(crate) struct EventSender(mpsc::Sender<Bytes>);

impl EventSender {
    /// Sends bytes, once those before them have been taken.
    pub(crate) async fn send(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            // The receiver is dropped with the block, so the channel is open.
            let _ = self.0.send(bytes).await;
        }
    }
}

impl EventStream {
    /// Makes a stream of the events that the block made by `make` sends.
    pub(crate) fn new<F>(make: impl FnOnce(EventSender) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sender, sent) = mpsc::channel(1);
        Self {
            block: Some(Box::pin(make(EventSender(sender)))),
            is_paced: false,
            sent,
        }
    }

    /// Makes a stream as [`EventStream::new`] does, whose block stands still while the client does
    /// not read: for events that tell of a state, where a slow client is to miss some rather than
    /// have them wait for it.
    pub(crate) fn paced<F>(make: impl FnOnce(EventSender) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self {
            is_paced: true,
            ..Self::new(make)
        }
    }

    /// Returns whether the stream waits for the client.
    pub(crate) fn is_paced(&self) -> bool {
        self.is_paced
    }

    /// Takes all that the block sends without waiting, up to about `most` bytes; nothing of a stream that
    /// waits for the client. Returns it, and true if the stream has ended with it.
    pub(crate) fn take_ready(&mut self, most: usize) -> (Bytes, bool) {
        let mut ready = BytesMut::new();
        let mut cx = Context::from_waker(Waker::noop());
        while !self.is_paced && ready.len() < most {
            // This waker wakes nothing. No event is lost by that: when `next` is awaited later, it
            // registers the waker of its caller.
            match pin!(self.next()).poll(&mut cx) {
                Poll::Ready(Some(bytes)) => ready.extend_from_slice(&bytes),
                Poll::Ready(None) => return (ready.freeze(), true),
                Poll::Pending => break,
            }
        }
        (ready.freeze(), false)
    }

    /// Returns the next bytes; `None` after the last. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        if let Some(block) = &mut self.block {
            tokio::select! {
                biased;
                () = block => self.block = None,
                Some(bytes) = self.sent.recv() => return Some(bytes),
            }
        }
        // The sender has ended with the block.
        self.sent.recv().await
    }
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
        while let Some(bytes) = stream.next().await {
            seen.push(bytes);
        }
        assert_eq!(seen, ["a", "b"]);
        assert!(stream.next().await.is_none());
    }

    #[tokio::test]
    async fn takes_what_is_ready_and_awaits_the_rest() {
        let (wake, woken) = tokio::sync::oneshot::channel();
        let mut stream = EventStream::new(|mut sender| async move {
            sender.send(Bytes::from_static(b"a")).await;
            sender.send(Bytes::from_static(b"b")).await;
            woken.await.unwrap();
            sender.send(Bytes::from_static(b"c")).await;
        });
        assert_eq!(stream.take_ready(1), (Bytes::from_static(b"a"), false));
        assert_eq!(stream.take_ready(100), (Bytes::from_static(b"b"), false));
        assert_eq!(stream.take_ready(100), (Bytes::new(), false));
        let ((), next) = tokio::join!(
            async {
                tokio::task::yield_now().await;
                wake.send(()).unwrap();
            },
            stream.next()
        );
        assert_eq!(next, Some(Bytes::from_static(b"c")));
        assert_eq!(stream.take_ready(100), (Bytes::new(), true));

        let mut paced = EventStream::paced(|mut sender| async move {
            sender.send(Bytes::from_static(b"a")).await;
        });
        assert_eq!(paced.take_ready(100), (Bytes::new(), false));
        assert_eq!(paced.next().await, Some(Bytes::from_static(b"a")));
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
