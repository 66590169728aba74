//! The caller's end of a request.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    vec::IntoIter,
};

use prelude_core::{RequestId, RowOutput, SampledToken};
use prelude_sched::{Event, FinishReason, Outcome, Usage};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::{AnswerError, AnswerEvent, shared::Shared};

/// Events of one request. Dropping it aborts the request wherever it is.
pub struct Answer {
    id: RequestId,
    rows: usize,
    /// The messages of the engine: each is what one step, or one command, did to the request.
    events: UnboundedReceiver<Vec<AnswerEvent>>,
    /// The events of the last message that were not taken yet.
    arrived: IntoIter<AnswerEvent>,
    shared: Arc<Shared>,
    over: bool,
    /// True if the engine was told to give the request up: once is enough.
    aborted: AtomicBool,
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Answer")
            .field("id", &self.id)
            .field("over", &self.over)
            .finish()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.abort();
    }
}

impl Answer {
    pub(crate) fn new(
        id: RequestId,
        rows: usize,
        events: UnboundedReceiver<Vec<AnswerEvent>>,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            id,
            rows,
            events,
            arrived: IntoIter::default(),
            shared,
            over: false,
            aborted: AtomicBool::new(false),
        }
    }

    /// Returns the request's id, as in every event about it.
    #[must_use]
    pub const fn id(&self) -> RequestId {
        self.id
    }

    /// Ends the request early. Events still come, the last of them [`Event::Finished`] with what
    /// the request used; a step in flight may add others before it.
    pub fn abort(&self) {
        if !self.over && !self.aborted.swap(true, Ordering::Relaxed) {
            self.shared.inbox.abort(self.id);
        }
    }

    /// Waits for the next event; returns `None` after the last. Cancel-safe.
    pub async fn next(&mut self) -> Option<AnswerEvent> {
        while !self.over {
            if let Some(event) = self.arrived.next() {
                return self.note(event);
            }
            let events = self.events.recv().await;
            self.arrived = or_stopped(events);
        }
        None
    }

    /// Returns the next event if it has arrived.
    pub fn try_next(&mut self) -> Option<AnswerEvent> {
        while !self.over {
            if let Some(event) = self.arrived.next() {
                return self.note(event);
            }
            self.arrived = self.events.try_recv().ok()?.into_iter();
        }
        None
    }

    /// Does what [`Answer::next`] does, for threads outside an async runtime.
    ///
    /// # Panics
    /// If called inside one.
    pub fn blocking_next(&mut self) -> Option<AnswerEvent> {
        while !self.over {
            if let Some(event) = self.arrived.next() {
                return self.note(event);
            }
            let events = self.events.blocking_recv();
            self.arrived = or_stopped(events);
        }
        None
    }

    fn note(&mut self, event: AnswerEvent) -> Option<AnswerEvent> {
        self.over = event.is_last();
        Some(event)
    }

    /// Waits for the whole answer.
    ///
    /// # Errors
    /// [`AnswerError`] if the request has no whole answer.
    pub async fn collect(mut self) -> Result<Collected, AnswerError> {
        let mut collector = Collector::new(self.rows);
        loop {
            let event = self.next().await.unwrap_or(AnswerEvent::EngineStopped);
            if let Some(done) = collector.take(event) {
                return done;
            }
        }
    }

    /// Does what [`Answer::collect`] does, for threads outside an async runtime.
    ///
    /// # Errors
    /// [`AnswerError`] if the request has no whole answer.
    ///
    /// # Panics
    /// If called inside an async runtime.
    pub fn blocking_collect(mut self) -> Result<Collected, AnswerError> {
        let mut collector = Collector::new(self.rows);
        loop {
            let event = self.blocking_next().unwrap_or(AnswerEvent::EngineStopped);
            if let Some(done) = collector.take(event) {
                return done;
            }
        }
    }
}

/// Returns the events of a message. A channel that closes before the last event says that the
/// engine's thread is gone.
fn or_stopped(events: Option<Vec<AnswerEvent>>) -> IntoIter<AnswerEvent> {
    let events = events.unwrap_or_else(|| vec![AnswerEvent::EngineStopped]);
    events.into_iter()
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Collected {
    /// The rows of the request, in order.
    pub rows: Vec<CollectedRow>,
    /// The resources that the request used.
    pub usage: Usage,
}

/// The answer of one row.
#[derive(Clone, Debug, PartialEq)]
pub enum CollectedRow {
    /// The output of a row that reads the prompt. Log-probabilities computed in pieces are joined.
    Output(RowOutput),
    /// The continuations of a row that generates, one per choice.
    Generated(Vec<Generation>),
}

/// A continuation of a row that generates.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// The tokens; a token that ended the continuation is among them.
    pub tokens: Vec<SampledToken>,
    /// The reason why the continuation ended.
    pub finish: FinishReason,
}

/// Joins the events of one request.
struct Collector {
    rows: Vec<Option<RowOutput>>,
    /// Per row and choice, tokens and the reason of the end.
    generations: Vec<Vec<(Vec<SampledToken>, Option<FinishReason>)>>,
}

impl Collector {
    fn new(rows: usize) -> Self {
        Self {
            rows: vec![None; rows],
            generations: vec![Vec::new(); rows],
        }
    }

    fn choice(&mut self, row: u32, choice: u32) -> &mut (Vec<SampledToken>, Option<FinishReason>) {
        let choices = &mut self.generations[row as usize];
        if choices.len() <= choice as usize {
            choices.resize(choice as usize + 1, (Vec::new(), None));
        }
        &mut choices[choice as usize]
    }

    fn take(&mut self, event: AnswerEvent) -> Option<Result<Collected, AnswerError>> {
        match event {
            AnswerEvent::Rejected(reject) => return Some(Err(AnswerError::Rejected(reject))),
            AnswerEvent::EngineStopped => return Some(Err(AnswerError::EngineStopped)),
            AnswerEvent::Event(Event::Token {
                row, choice, token, ..
            }) => {
                self.choice(row, choice).0.push(token);
            }
            AnswerEvent::Event(Event::RowFinished {
                row,
                choice,
                reason,
                ..
            }) => {
                self.choice(row, choice).1 = Some(reason);
            }
            AnswerEvent::Event(Event::Output { row, output, .. }) => {
                join(&mut self.rows[row as usize], output);
            }
            AnswerEvent::Event(Event::Finished { outcome, usage, .. }) => {
                return Some(match outcome {
                    Outcome::Done => self.finish(usage),
                    Outcome::Aborted => Err(AnswerError::Aborted),
                    Outcome::DeadlineExpired => Err(AnswerError::DeadlineExpired),
                    Outcome::Failed(why) => Err(AnswerError::Failed(why)),
                });
            }
            AnswerEvent::Event(_) => {}
        }
        None
    }

    fn finish(&mut self, usage: Usage) -> Result<Collected, AnswerError> {
        let missing = || AnswerError::Failed("a row has no result".to_owned());
        let mut rows = Vec::with_capacity(self.rows.len());
        for (output, choices) in self.rows.drain(..).zip(self.generations.drain(..)) {
            rows.push(match output {
                Some(RowOutput::Failed(why)) => return Err(AnswerError::Failed(why.to_owned())),
                Some(output) => CollectedRow::Output(output),
                None if choices.is_empty() => return Err(missing()),
                None => {
                    let generation = |(tokens, finish): (_, Option<FinishReason>)| {
                        Some(Generation {
                            tokens,
                            finish: finish?,
                        })
                    };
                    let choices: Option<Vec<_>> = choices.into_iter().map(generation).collect();
                    CollectedRow::Generated(choices.ok_or_else(missing)?)
                }
            });
        }
        Ok(Collected { rows, usage })
    }
}

/// Appends a piece of a row's output: outputs for each token of a prompt computed in chunks come in
/// several pieces, in order.
fn join(slot: &mut Option<RowOutput>, output: RowOutput) {
    match (slot.as_mut(), output) {
        (Some(RowOutput::Logprobs { entries, .. }), RowOutput::Logprobs { entries: more, .. }) => {
            entries.extend(more);
        }
        (Some(RowOutput::Tokens { rows, .. }), RowOutput::Tokens { rows: more, .. }) => {
            rows.extend(more);
        }
        // A failed piece stays failed, whatever follows.
        (Some(RowOutput::Failed(_)), _) => {}
        (_, output) => *slot = Some(output),
    }
}
