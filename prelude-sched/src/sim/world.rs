//! A world from a seed: capacity, config, traffic and faults, run by virtual time.

mod setup;
#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use prelude_core::{Capacity, Executor, ForwardBatch, RequestId, StepId, Timestamp, TokenSource};

use super::{
    Arrivals, CostModel, LongestWaits, Random, SimExecutor, Twin, Workload, executor::Fault,
    ledger::Ledger, random::mix, waits::Waits,
};
use crate::{Event, Reject, Scheduler, SchedulerConfig, SchedulerStats};

/// Upper bound of the turns in which a world without traffic drains. Half of them are worth a
/// message: worlds need some hundreds.
const MAX_DRAIN_TURNS: u64 = 20_000;

/// The counts of events in a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    /// The policy that ran.
    pub(crate) policy: &'static str,
    /// Steps that the executor takes at once.
    pub(crate) pipeline_depth: u32,
    /// Steps that the executor was given.
    pub(crate) steps: u64,
    /// Requests accepted.
    pub(crate) accepted: u64,
    /// Requests rejected.
    pub(crate) rejected: u64,
    /// Requests answered in full.
    pub(crate) done: u64,
    /// Requests aborted.
    pub(crate) aborted: u64,
    /// Requests that failed with a step.
    pub(crate) failed: u64,
    /// Requests that missed their deadline.
    pub(crate) expired: u64,
    /// The longest waits of requests; none where the policy makes no sense.
    pub(crate) waits: LongestWaits,
    /// The turns in which the world drained.
    pub(crate) drain_turns: u64,
    /// Steps of one long prompt alone.
    pub(crate) long_steps: u64,
    /// Segments that continue a prompt of an earlier step.
    pub(crate) later_chunks: u64,
    /// Decode rows whose token was still being sampled.
    pub(crate) run_ahead_rows: u64,
    /// Times that the policy left the device idle to wait for more.
    pub(crate) idle_waits: u64,
    /// Plans of length-aware prefill that put short requests off.
    pub(crate) gatherings: u64,
    /// Depends on every batch and event: equal seeds give equal digests.
    pub(crate) digest: u64,
    /// The scheduler's own counts.
    pub(crate) stats: SchedulerStats,
}

/// Runs the world of `seed` for `steps` steps, lets it drain, and reports.
///
/// # Panics
/// At the first broken promise; the message on standard error says how to run it again.
#[must_use]
pub(crate) fn simulate(seed: u64, steps: u64) -> Summary {
    let mut world = World::new(seed);
    let _on_panic = Reproduce {
        seed,
        steps,
        policy: world.summary.policy,
    };
    // Few steps are made where nearly everything is rejected.
    let mut turns = 0;
    while world.summary.steps < steps && turns < 40 * steps {
        world.turn(true);
        turns += 1;
    }
    world.drain(seed);
    world.check_drained();
    world.summarise()
}

/// Says how to reproduce a failure.
struct Reproduce {
    seed: u64,
    steps: u64,
    policy: &'static str,
}

impl Drop for Reproduce {
    #[expect(clippy::print_stderr, reason = "the way to a failed test's output")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self {
                seed,
                steps,
                policy,
            } = self;
            eprintln!("simulation failed: seed {seed}, {steps} steps, {policy}; to reproduce:");
            eprintln!(
                "  PRELUDE_SEEDS={seed} PRELUDE_STEPS={steps} cargo test -p prelude-sched \
                 named_worlds -- --ignored --nocapture"
            );
        }
    }
}

struct World {
    random: Random,
    now: Timestamp,
    capacity: Capacity,
    scheduler: Scheduler,
    executor: SimExecutor,
    cost: CostModel,
    workload: Workload,
    arrivals: Arrivals,
    /// The number of steps of which one fails; 0: none.
    fault_every: u64,
    /// The number of requests of which one is aborted; 0: none.
    abort_every: u64,
    max_rows: u32,
    max_tokens: u32,
    max_oneshot_tokens: u32,
    max_idle: Duration,
    /// The time since which the policy has left the device idle.
    idle_since: Option<Timestamp>,
    next_arrival: Timestamp,
    arriving: u32,
    aborts: Vec<(Timestamp, RequestId)>,
    /// Steps in flight and when they end.
    running: VecDeque<(StepId, Timestamp)>,
    /// The checker of waits; none where the policy makes no sense.
    waits: Option<Waits>,
    ledger: Ledger,
    events: Vec<Event>,
    next_id: u64,
    gatherings: Arc<AtomicU64>,
    summary: Summary,
}

impl World {
    /// Lets what is there come to its end.
    #[expect(
        clippy::print_stderr,
        reason = "a world that hangs has to say which it is"
    )]
    fn drain(&mut self, seed: u64) {
        while self.ledger.live() > 0 || !self.running.is_empty() {
            self.turn(false);
            self.summary.drain_turns += 1;
            let turns = self.summary.drain_turns;
            if turns == MAX_DRAIN_TURNS / 2 {
                let policy = self.summary.policy;
                eprintln!("seed {seed} ({policy}) still drains after {turns} turns");
            }
            assert!(turns < MAX_DRAIN_TURNS, "the scheduler does not drain");
        }
    }

    /// Starts what can be started, then lets the next thing happen.
    fn turn(&mut self, traffic: bool) {
        while let Some((step, batch)) = self.next_batch() {
            self.launch(step, batch);
            self.settle();
        }
        self.settle();
        let arrival = traffic.then_some(self.next_arrival);
        let ended = self.running.front().map(|&(_, at)| at);
        let abort = self.aborts.iter().map(|&(at, _)| at).min();
        let deadline = self.scheduler.next_deadline();
        let next = [arrival, ended, abort, deadline]
            .into_iter()
            .flatten()
            .min();
        let Some(next) = next else {
            assert_eq!(
                self.ledger.live(),
                0,
                "requests wait, but nothing will ever happen"
            );
            return;
        };
        let stalled = self.running.is_empty() && self.ledger.live() > 0 && !self.scheduler.idles();
        assert!(
            !stalled,
            "requests wait, but nothing runs: {}",
            self.scheduler.describe()
        );
        self.now = self.now.max(next);
        if traffic && self.next_arrival <= self.now {
            self.arrive();
        } else if ended.is_some_and(|at| at <= self.now) {
            self.collect();
        } else if abort.is_some_and(|at| at <= self.now) {
            self.abort();
        }
        self.settle();
    }

    fn next_batch(&mut self) -> Option<(StepId, ForwardBatch)> {
        let batch = self.scheduler.next_batch(self.now, &mut self.events);
        if batch.is_some() || !self.running.is_empty() || !self.scheduler.idles() {
            self.idle_since = None;
            return batch;
        }
        // No policy leaves the device idle for longer than it may.
        let since = *self.idle_since.get_or_insert(self.now);
        let next = self.scheduler.next_deadline().expect("it waits for a time");
        assert!(
            next <= since.saturating_add(self.max_idle),
            "idle until {next:?}"
        );
        self.summary.idle_waits += 1;
        None
    }

    fn arrive(&mut self) {
        for _ in 0..self.arriving {
            // Callers may use an id again once its request has finished.
            while self.ledger.live_ids().any(|id| id.0 == self.next_id) {
                self.next_id = (self.next_id + 1) % 400;
            }
            let id = RequestId(self.next_id);
            self.next_id = (self.next_id + 1) % 400;
            let request = self.workload.request(&mut self.random, id, self.now);
            self.submit(request);
        }
        let (after, count) = self.arrivals.next(&mut self.random);
        self.next_arrival = self.now.saturating_add(after);
        self.arriving = count;
    }

    fn submit(&mut self, request: prelude_core::Request) {
        let id = request.id;
        match self.scheduler.submit(self.now, request.clone()) {
            Ok(()) => {
                self.summary.accepted += 1;
                self.ledger.open(request.clone());
                if let Some(waits) = &mut self.waits {
                    waits.accepted(id, self.now);
                }
                if self.abort_every > 0 && self.random.one_in(self.abort_every) {
                    let after = Duration::from_micros(u64::from(self.random.in_range(0, 30_000)));
                    self.aborts.push((self.now.saturating_add(after), id));
                }
                if self.random.one_in(50) {
                    let again = self.scheduler.submit(self.now, request);
                    assert_eq!(again, Err(Reject::DuplicateId(id)));
                }
            }
            Err(reject) => {
                self.summary.rejected += 1;
                self.digest(reject.to_string().len() as u64);
            }
        }
    }

    fn abort(&mut self) {
        let at = (0..self.aborts.len()).min_by_key(|&i| self.aborts[i].0);
        let (_, id) = self.aborts.swap_remove(at.expect("an abort is due"));
        let live = self.ledger.live_ids().any(|other| other == id);
        assert_eq!(self.scheduler.abort(self.now, id, &mut self.events), live);
        assert!(
            !self.scheduler.abort(self.now, id, &mut self.events),
            "aborted twice"
        );
        self.settle();
        if live && self.random.one_in(3) {
            // The id comes back while steps of the old request may be in flight.
            let request = self.workload.request(&mut self.random, id, self.now);
            self.submit(request);
        }
    }

    fn launch(&mut self, step: StepId, batch: ForwardBatch) {
        self.summary.steps += 1;
        if let Some(waits) = &mut self.waits {
            waits.step(self.now, &self.scheduler);
        }
        self.check_budgets(&batch);
        let duration = self.cost.duration(&batch);
        self.digest(batch.num_tokens() as u64 * 1000 + batch.num_rows() as u64);
        if self.fault_every > 0 && self.random.one_in(self.fault_every) {
            self.executor
                .inject(*self.random.pick(&[Fault::Refused, Fault::Broken]));
        }
        match self.executor.submit(step, batch) {
            Ok(()) => {
                let free_at = self.running.back().map_or(self.now, |&(_, at)| at);
                self.running
                    .push_back((step, free_at.saturating_add(duration)));
            }
            Err(error) => {
                let known = self
                    .scheduler
                    .complete(self.now, step, Err(error), &mut self.events);
                known.expect("a refused step is in flight");
            }
        }
    }

    fn collect(&mut self) {
        let (step, _) = self.running.pop_front().expect("a step has ended");
        let output = self.executor.collect(step);
        let known = self
            .scheduler
            .complete(self.now, step, output.clone(), &mut self.events);
        known.expect("the oldest step is in flight");
        let again = self
            .scheduler
            .complete(self.now, step, output, &mut self.events);
        assert!(again.is_err(), "completed twice");
    }

    /// Enters events into the ledger, and checks the scheduler's books against a recount: after
    /// every call.
    fn settle(&mut self) {
        for event in std::mem::take(&mut self.events) {
            let word = match &event {
                Event::Token { token, choice, .. } => {
                    u64::from(token.token) * 64 + u64::from(*choice)
                }
                Event::Output { row, .. } => u64::from(*row) + 7,
                Event::RowFinished { choice, .. } => u64::from(*choice) + 11,
                Event::Preempted { .. } => 13,
                Event::Finished { usage, .. } => usage.computed_tokens + 17,
            };
            self.digest(mix(event.request().0, word));
            if let Event::Finished { request, .. } = event
                && let Some(waits) = &mut self.waits
            {
                waits.finished(request);
            }
            self.ledger.record(self.now, event);
        }
        self.scheduler.check_invariants();
        assert_eq!(self.scheduler.stats().requests, self.ledger.live() as u64);
        if let Some(waits) = &mut self.waits {
            waits.settle(self.now, &self.scheduler);
        }
    }

    /// Checks that a step stays within its budget, unless it is one long prompt alone.
    fn check_budgets(&mut self, batch: &ForwardBatch) {
        let (oneshot, prefill, decode) = batch.parts();
        let chunks = oneshot.segments.iter().chain(&prefill.segments);
        let later =
            |s: &&prelude_core::Segment| !s.context_len.is_multiple_of(self.capacity.block_size);
        self.summary.later_chunks +=
            chunks.filter(|s| s.parent.is_none()).filter(later).count() as u64;
        let ahead = decode
            .rows
            .iter()
            .filter(|r| matches!(r.token, TokenSource::Sampled(_)));
        self.summary.run_ahead_rows += ahead.count() as u64;
        let most = match self.scheduler.has_generations() {
            true => self.max_tokens,
            false => self.max_oneshot_tokens,
        };
        if batch.num_tokens() > most as usize {
            let alone = oneshot.rows.len() == 1 && prefill.is_empty() && decode.is_empty();
            assert!(alone, "over the token budget");
            self.summary.long_steps += 1;
        }
        // Chunks hold blocks, so there are no more of them than blocks.
        let rows = self.max_rows + self.capacity.num_blocks;
        assert!(oneshot.rows.len() <= rows as usize, "over the row budget");
    }

    fn check_drained(&self) {
        let stats = self.scheduler.stats();
        assert_eq!(stats.used_blocks, 0, "blocks leaked");
        let rest = [
            stats.requests,
            stats.queued_rows,
            stats.queued_tokens,
            stats.waiting_oneshot_rows,
            stats.waiting_decode_seqs,
            stats.running_decode_seqs,
            stats.running_chunked_rows,
            stats.steps_in_flight,
        ];
        assert_eq!(rest, [0; 8], "something is left: {stats:?}");
        assert_eq!(self.scheduler.next_deadline(), None);
    }

    const fn digest(&mut self, word: u64) {
        self.summary.digest = mix(self.summary.digest, word);
    }

    fn summarise(&self) -> Summary {
        let finished = self.ledger.finished;
        Summary {
            done: finished.done,
            aborted: finished.aborted,
            failed: finished.failed,
            expired: finished.expired,
            waits: self.waits.as_ref().map(Waits::longest).unwrap_or_default(),
            gatherings: self.gatherings.load(Ordering::Relaxed),
            stats: self.scheduler.stats(),
            ..self.summary
        }
    }
}
