//! A modelled engine that runs by the clock.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use anyhow::Result;
use prelude_core::Timestamp;
use prelude_sched::SchedulerStats;
use tokio::{
    sync::{
        Notify,
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    },
    time::sleep,
};

use super::question::Question;
use crate::sim::{Arrival, Engine, Prompt, Record};

/// Requests that an engine holds at once; it refuses more.
const MAX_REQUESTS: usize = 16_384;

/// The progress of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Progress {
    /// A token of its output is there.
    Token,
    /// The request has ended.
    Done(Record),
}

/// The reason why an engine does not take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The engine holds as many requests as it may.
    Full,
    /// The request never fits into the engine.
    TooLarge,
}

/// An engine whose steps end when the clock says so.
pub(super) struct ClockedEngine {
    model: String,
    state: Mutex<State>,
    /// Wakes the driver when a step has begun.
    begun: Notify,
    start: Instant,
}

/// The state that the lock guards.
struct State {
    engine: Engine,
    /// The time at which the engine must be finished and started again.
    next: Option<Timestamp>,
    next_request: usize,
    /// Requests under way. A channel holds at most one message for each token of the output and one
    /// for the end.
    open: BTreeMap<usize, UnboundedSender<Progress>>,
    records: Vec<Record>,
}

impl std::fmt::Debug for ClockedEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClockedEngine")
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}

impl ClockedEngine {
    /// Returns an idle engine whose clock starts now.
    pub(super) fn new(engine: Engine, model: String) -> Self {
        Self {
            model,
            state: Mutex::new(State {
                engine,
                next: None,
                next_request: 0,
                open: BTreeMap::new(),
                records: Vec::new(),
            }),
            begun: Notify::new(),
            start: Instant::now(),
        }
    }

    /// Returns the name of the engine's model.
    pub(super) fn model(&self) -> &str {
        &self.model
    }

    fn now(&self) -> Timestamp {
        Timestamp::ZERO.saturating_add(self.start.elapsed())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the scheduler's counters, and the requests under way.
    pub(super) fn stats(&self) -> (SchedulerStats, usize) {
        let state = self.lock();
        (state.engine.stats(), state.open.len())
    }

    /// Takes a request in, and returns where its progress comes.
    ///
    /// # Errors
    /// [`Refusal`] if the engine does not take it.
    pub(super) fn submit(
        &self,
        question: Question,
    ) -> Result<UnboundedReceiver<Progress>, Refusal> {
        let mut state = self.lock();
        if state.open.len() >= MAX_REQUESTS {
            return Err(Refusal::Full);
        }
        let now = self.now();
        // An error of the scheduler comes again in the driver, which reports it.
        let _ = state.advance(now);
        let arrival = Arrival {
            at: now,
            prompt: Prompt::default(),
            output_tokens: question.output_tokens,
            key: 0,
            user: 0,
            root: 0,
        };
        let request = state.next_request;
        let engine = &mut state.engine;
        let taken = engine.submit(now, request, &arrival, question.tokens);
        taken.map_err(|_| Refusal::TooLarge)?;
        state.next_request += 1;
        let (sender, receiver) = unbounded_channel();
        state.open.insert(request, sender);
        if let Some(next) = state.engine.start(now) {
            state.next = Some(next);
            self.begun.notify_one();
        }
        Ok(receiver)
    }

    /// Ends and starts steps when they are due, for as long as the future is polled.
    ///
    /// # Errors
    /// If the scheduler fails a request: a defect.
    pub(super) async fn drive(self: Arc<Self>) -> Result<()> {
        loop {
            let next = {
                let mut state = self.lock();
                state.advance(self.now())?;
                state.next
            };
            match next {
                None => self.begun.notified().await,
                Some(at) => {
                    tokio::select! {
                        () = sleep(at.saturating_since(self.now())) => {}
                        () = self.begun.notified() => {}
                    }
                }
            }
        }
    }
}

impl State {
    /// Ends all steps that end until `now`, each at its own time, and starts those that follow. A
    /// timer that fires late so delays answers and no step.
    fn advance(&mut self, now: Timestamp) -> Result<()> {
        while let Some(at) = self.next.take_if(|at| *at <= now) {
            self.records.clear();
            self.engine.finish(at, &mut self.records)?;
            for request in self.engine.sampled() {
                if let Some(sender) = self.open.get(request) {
                    // A client that has gone reads nothing; its request goes on.
                    let _ = sender.send(Progress::Token);
                }
            }
            for record in &self.records {
                if let Some(sender) = self.open.remove(&record.request) {
                    let _ = sender.send(Progress::Done(*record));
                }
            }
            self.next = self.engine.start(at);
        }
        Ok(())
    }
}
