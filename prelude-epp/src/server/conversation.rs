//! A stream of the proxy's messages: answers are made as the proxy takes them.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::time::{Sleep, sleep};
use tokio_stream::Stream;
use tonic::Status;

use crate::{
    exchange::Exchange,
    picker::Picker,
    proto::{ProcessingRequest, ProcessingResponse},
};

/// The answers of one exchange, as a stream over the proxy's messages.
///
/// A message is read only once all answers to those before it are taken, so that a proxy that takes
/// none fills no memory. Dropping the stream, as a reset does, ends the request.
#[derive(Debug)]
pub struct Conversation<S> {
    /// The messages of the proxy; `None` once it has sent its last.
    messages: Option<S>,
    exchange: Exchange,
    /// The deadline of a body that is coming.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> Conversation<S> {
    /// Returns the answers to a proxy's messages.
    pub fn new(picker: &Arc<Picker>, messages: S) -> Self {
        Self {
            messages: Some(messages),
            exchange: Exchange::new(picker),
            deadline: None,
        }
    }

    /// Returns ready once the body that is coming is late.
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.exchange.waits_for_body() {
            self.deadline = None;
            return Poll::Pending;
        }
        let timeout = self.exchange.body_timeout();
        let deadline = self
            .deadline
            .get_or_insert_with(|| Box::pin(sleep(timeout)));
        deadline.as_mut().poll(cx)
    }
}

impl<S> Stream for Conversation<S>
where
    S: Stream<Item = Result<ProcessingRequest, Status>> + Unpin,
{
    type Item = Result<ProcessingResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if let Some(answer) = this.exchange.next_answer() {
                return Poll::Ready(Some(Ok(answer)));
            }
            let Some(messages) = &mut this.messages else {
                return Poll::Ready(None);
            };
            match Pin::new(messages).poll_next(cx) {
                Poll::Ready(Some(Ok(message))) => this.exchange.on(message),
                Poll::Ready(Some(Err(status))) => {
                    this.messages = None;
                    return Poll::Ready(Some(Err(status)));
                }
                Poll::Ready(None) => this.messages = None,
                Poll::Pending => match this.poll_deadline(cx) {
                    Poll::Ready(()) => {
                        this.deadline = None;
                        this.exchange.on_late_body();
                    }
                    Poll::Pending => return Poll::Pending,
                },
            }
        }
    }
}
