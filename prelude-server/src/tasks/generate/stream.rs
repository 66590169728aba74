//! The loop behind every stream of generated text.

use std::sync::Arc;

use crate::{
    admission::Stage,
    endpoint::Reply,
    error::ApiError,
    sse::{EventSender, EventStream, Events},
};

use super::{super::submit::UsageBody, Run};

/// A dialect's way to put chunks into words.
pub(crate) trait Speaker: Send + Sized + 'static {
    /// Returns the generation that is answered.
    fn run(&self) -> &Run;

    /// Returns the generation that is answered, to go on with it.
    fn run_mut(&mut self) -> &mut Run;

    /// Returns the whole answer, once the generation is complete.
    fn whole(&self) -> Reply;

    /// Writes a chunk with what choice `index` has to say: its first one, or a later one. `usage`
    /// is absent, or null on all chunks but the last, or the running count.
    fn push_chunk(
        &self,
        index: usize,
        is_first: bool,
        usage: Option<Option<UsageBody>>,
        events: &mut Events,
    );

    /// Writes the chunk without choices that ends a stream which reports its usage.
    fn push_usage(&self, events: &mut Events);

    /// Returns true if a first chunk has to wait for something, or is to be sent before there is text.
    fn readiness(&self, index: usize) -> Readiness;

    /// Waits for the whole answer and returns it.
    ///
    /// # Errors
    /// The error with which the request ends instead.
    async fn answer(mut self) -> Result<Reply, ApiError> {
        self.run_mut().complete().await?;
        let (call, bytes) = (Arc::clone(&self.run().call), self.run().answer_bytes());
        Ok(call.write(bytes, move || self.whole()).await)
    }

    /// Returns the answer in the form that was asked for. The request's body is not needed any more.
    ///
    /// # Errors
    /// The same as of [`Speaker::answer`] and [`Speaker::stream`].
    async fn reply(self) -> Result<Reply, ApiError> {
        self.run().call.reservation.reach(Stage::Encoded);
        match self.run().params.stream {
            Some(_) => Ok(Reply::Stream(self.stream().await?)),
            None => self.answer().await,
        }
    }

    /// Returns the stream: what comes at once has a status of its own, what comes later is in the
    /// stream.
    ///
    /// # Errors
    /// The error that keeps the request from its first event.
    async fn stream(mut self) -> Result<EventStream, ApiError> {
        self.run_mut().begin().await?;
        Ok(EventStream::new(|sender| send_all(self, sender)))
    }
}

/// True if a choice's first chunk can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// Nothing is sent yet, whatever there is.
    Wait,
    /// The first chunk is sent as soon as there is text.
    WithText,
    /// The first chunk can be sent now.
    Now,
}

/// Sends what each choice has, one write per batch of events.
async fn send_all<S: Speaker>(mut speaker: S, mut sender: EventSender) {
    let mut events = Events::default();
    if let Err(error) = send_choices(&mut speaker, &mut sender, &mut events).await {
        events.push_error(&error);
    } else if options(&speaker).include_usage == Some(true) {
        speaker.push_usage(&mut events);
    }
    events.push_done();
    sender.send(events.take()).await;
}

fn options(speaker: &impl Speaker) -> super::StreamOptions {
    speaker.run().params.stream.unwrap_or_default()
}

/// Returns when every choice has ended and the engine has said what it cost. What the last events
/// brought may still be in `events`.
async fn send_choices<S: Speaker>(
    speaker: &mut S,
    sender: &mut EventSender,
    events: &mut Events,
) -> Result<(), ApiError> {
    let mut progress = vec![Progress::Unsaid; speaker.run().choices.len()];
    let mut more = speaker.run().is_waiting();
    loop {
        for (index, progress) in progress.iter_mut().enumerate() {
            speak(speaker, index, progress, events);
        }
        if !more {
            let ended = progress.iter().all(|p| *p == Progress::Ended);
            // The engine never finishes a request with a choice left open.
            return if ended {
                Ok(())
            } else {
                Err(ApiError::internal(&speaker.run().call.request_id))
            };
        }
        sender.send(events.take()).await;
        more = speaker.run_mut().advance().await?;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Unsaid,
    Begun,
    Ended,
}

/// Writes a chunk for a choice that has something to say.
fn speak<S: Speaker>(speaker: &mut S, index: usize, progress: &mut Progress, events: &mut Events) {
    let choice = &speaker.run().choices[index];
    let speaks = choice.speaks();
    let is_first = *progress == Progress::Unsaid;
    let ready = match (*progress, speaker.readiness(index)) {
        (Progress::Ended, _) | (Progress::Unsaid, Readiness::Wait) => false,
        (Progress::Unsaid, Readiness::Now) => true,
        (Progress::Unsaid, Readiness::WithText) | (Progress::Begun, _) => speaks,
    };
    if !ready {
        return;
    }
    *progress = match choice.finish {
        Some(_) => Progress::Ended,
        None => Progress::Begun,
    };
    let options = options(speaker);
    let usage = match (options.continuous_usage, options.include_usage) {
        (Some(true), _) => Some(Some(speaker.run().usage_body())),
        (_, Some(true)) => Some(None),
        _ => None,
    };
    speaker.push_chunk(index, is_first, usage, events);
    speaker.run_mut().choices[index].sent();
}
