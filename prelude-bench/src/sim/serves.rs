//! The interface of an engine that a cluster drives in virtual time.

use std::time::Duration;

use anyhow::Result;
use prelude_core::Timestamp;

use super::{Arrival, Engine, Record};

/// An engine in virtual time.
pub(super) trait Serves {
    /// Takes a request in that arrives now, spelled as `tokens`. Returns false if it never fits.
    fn submit(
        &mut self,
        now: Timestamp,
        request: usize,
        arrival: &Arrival,
        tokens: Vec<u32>,
    ) -> bool;

    /// Starts a step, unless one runs or there is nothing to do yet. Returns when the engine must
    /// be finished and started again.
    fn start(&mut self, now: Timestamp) -> Option<Timestamp>;

    /// Ends the step that runs, if it ends now, and appends what became of requests that it
    /// finished.
    ///
    /// # Errors
    /// If a request did not end with its answer.
    fn finish(&mut self, now: Timestamp, records: &mut Vec<Record>) -> Result<()>;

    /// Returns the busy time, including the current step.
    fn busy(&self) -> Duration;

    /// Returns the number of steps, and how often a generation lost its blocks.
    fn steps_and_preemptions(&self) -> (u64, u64);
}

impl Serves for Engine {
    fn submit(
        &mut self,
        now: Timestamp,
        request: usize,
        arrival: &Arrival,
        tokens: Vec<u32>,
    ) -> bool {
        Self::submit(self, now, request, arrival, tokens).is_ok()
    }

    fn start(&mut self, now: Timestamp) -> Option<Timestamp> {
        Self::start(self, now)
    }

    fn finish(&mut self, now: Timestamp, records: &mut Vec<Record>) -> Result<()> {
        Self::finish(self, now, records)
    }

    fn busy(&self) -> Duration {
        Self::busy(self)
    }

    fn steps_and_preemptions(&self) -> (u64, u64) {
        let stats = self.stats();
        (stats.steps, stats.preemptions)
    }
}
