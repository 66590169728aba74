//! A world from a seed: capacity, config, traffic and faults, run by virtual time.

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
    Arrivals, CostModel, Random, SimExecutor, Twin, Workload, chaos::Chaos, executor::Fault,
    groups_twin::CheckedGroups, laps_twin::CheckedLaps, ledger::Ledger, random::mix,
    srjf_twin::CheckedSrjf,
};
use crate::{Event, LapsConfig, Reject, Scheduler, SchedulerConfig, SchedulerStats};

/// A request waits at most so many steps for its first token of work.
/// Queues are bounded to a few dozen rows here and every row takes a few dozen steps at most;
/// the bound is generous, but starvation has none.
const STARVATION_STEPS: u64 = 4000;

/// What happened in a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Steps that the executor was given.
    pub steps: u64,
    /// Requests accepted.
    pub accepted: u64,
    /// Requests rejected.
    pub rejected: u64,
    /// Requests answered in full.
    pub done: u64,
    /// Requests aborted.
    pub aborted: u64,
    /// Requests that failed with a step.
    pub failed: u64,
    /// Requests that missed their deadline.
    pub expired: u64,
    /// Most steps that a request waited before any of it was scheduled.
    pub longest_wait_steps: u64,
    /// Steps of one long prompt alone.
    pub long_steps: u64,
    /// Segments that continue a prompt of an earlier step.
    pub later_chunks: u64,
    /// Decode rows whose token was still being sampled.
    pub run_ahead_rows: u64,
    /// Times that the policy left the device idle to wait for more.
    pub idle_waits: u64,
    /// Plans of length-aware prefill that put short requests off.
    pub gatherings: u64,
    /// Depends on every batch and event: equal seeds give equal digests.
    pub digest: u64,
    /// The scheduler's own counts.
    pub stats: SchedulerStats,
}

/// Runs the world of `seed` for `steps` steps, lets it drain, and reports.
///
/// # Panics
/// At the first broken promise; the message on standard error says how to run it again.
#[must_use]
pub fn simulate(seed: u64, steps: u64) -> Summary {
    let _on_panic = Reproduce { seed, steps };
    let mut world = World::new(seed);
    // Few steps are made where nearly everything is rejected.
    let mut turns = 0;
    while world.summary.steps < steps && turns < 40 * steps {
        world.turn(true);
        turns += 1;
    }
    let end = world.summary.steps + 100_000;
    while world.ledger.live() > 0 || !world.running.is_empty() {
        world.turn(false);
        assert!(world.summary.steps < end, "the scheduler does not drain");
    }
    world.check_drained();
    world.summarise()
}

/// Says how to reproduce a failure.
struct Reproduce {
    seed: u64,
    steps: u64,
}

impl Drop for Reproduce {
    #[expect(clippy::print_stderr, reason = "the way to a failed test's output")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { seed, steps } = self;
            eprintln!("simulation failed: seed {seed}, {steps} steps; to reproduce:");
            eprintln!(
                "  cargo run -p prelude-sched --features sim --example simulate -- {seed} {steps}"
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
    /// One in so many steps fails, one in so many requests is aborted; 0: none.
    fault_every: u64,
    abort_every: u64,
    max_rows: u32,
    max_tokens: u32,
    max_idle: Duration,
    /// Since when the policy has left the device idle.
    idle_since: Option<Timestamp>,
    next_arrival: Timestamp,
    arriving: u32,
    aborts: Vec<(Timestamp, RequestId)>,
    /// Steps in flight and when they end.
    running: VecDeque<(StepId, Timestamp)>,
    /// Accepted requests not yet seen to start, with the step of their admission.
    unstarted: VecDeque<(RequestId, u64)>,
    ledger: Ledger,
    events: Vec<Event>,
    next_id: u64,
    /// Whether admission is in the hands of a policy that makes no sense.
    chaos: bool,
    gatherings: Arc<AtomicU64>,
    summary: Summary,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let block_size = *random.pick(&[1, 2, 4, 4, 8]);
        let max_context_len = *random.pick(&[24, 48, 96]);
        // From barely one long sequence to plenty.
        let least = max_context_len / block_size;
        let capacity = Capacity {
            block_size,
            num_blocks: random.in_range(least / 2 + 1, least * 5),
            max_step_tokens: random.in_range(8, 160),
            max_context_len,
            vocab_size: 16,
            pipeline_depth: *random.pick(&[1, 2]),
        };
        let config = SchedulerConfig {
            max_batch_tokens: random.in_range(4, 160),
            max_batch_rows: random.in_range(1, 24),
            max_num_seqs: random.in_range(1, 12),
            max_queued_rows: random.in_range(8, 48),
            max_queued_tokens: u64::from(random.in_range(100, 2000)),
            prefill_chunk_tokens: random.in_range(1, 64),
            oneshot_share_percent: random.in_range(1, 99),
            enable_prefix_caching: !random.one_in(5),
            keep_suffixes: !random.one_in(3),
            keep_shared_min_rows: random.in_range(1, 3),
            defer_max: random.in_range(0, 4),
            mask_patience_ms: random.in_range(0, 20),
            max_wait_ms: random.in_range(1, 60),
            max_idle_ms: random.in_range(0, 30),
            ..SchedulerConfig::default()
        };
        let interval_us = f64::from(random.in_range(200, 3000));
        let arrivals = if random.one_in(2) {
            Arrivals::Poisson { interval_us }
        } else {
            Arrivals::Bursts {
                interval_us: interval_us * 4.0,
                size: 8,
            }
        };
        let mut workload = Workload::random(&mut random, capacity);
        workload.priorities &= random.one_in(2);
        let max_tokens = config.max_batch_tokens.min(capacity.max_step_tokens);
        let chaos = random.one_in(8);
        let srjf = random.one_in(3);
        let fairness = *random.pick(&[0, 1, 500, 1_000_000]);
        let saturation = *random.pick(&[1, 16, 64, 2048]);
        let groups = random.one_in(3);
        let gatherings = Arc::new(AtomicU64::new(0));
        let laps = random.one_in(3).then(|| laps_config(&mut random));
        let scheduler = if let Some(laps) = laps.filter(|_| !chaos) {
            let policy = CheckedLaps::new(laps, Arc::clone(&gatherings));
            Scheduler::with_policy(config.clone(), capacity, Box::new(policy))
        } else if groups && !srjf && !chaos {
            let policy = CheckedGroups::default();
            Scheduler::with_policy(config.clone(), capacity, Box::new(policy))
        } else if srjf && !chaos {
            let policy = CheckedSrjf::new(fairness, saturation);
            Scheduler::with_policy(config.clone(), capacity, Box::new(policy))
        } else if chaos {
            let policy = Chaos {
                random: Random::new(seed),
            };
            Scheduler::with_policy(config.clone(), capacity, Box::new(policy))
        } else {
            Scheduler::new(config.clone(), capacity)
        };
        let mut scheduler = scheduler.expect("the config is in range");
        // Numbers of their own, so that worlds are what they were.
        let mut told = Random::new(mix(seed, 0x701d));
        scheduler.limit_told(*told.pick(&[1, 2, 5, 20, 256]));
        Self {
            now: Timestamp::ZERO,
            scheduler,
            executor: SimExecutor::new(capacity),
            cost: CostModel::default(),
            workload,
            arrivals,
            fault_every: *random.pick(&[0, 0, 6, 50, 300]),
            abort_every: *random.pick(&[0, 4, 20]),
            max_rows: config.max_batch_rows,
            max_tokens,
            max_idle: Duration::from_millis(u64::from(config.max_idle_ms)),
            idle_since: None,
            next_arrival: Timestamp::ZERO,
            arriving: 1,
            aborts: Vec::new(),
            running: VecDeque::new(),
            unstarted: VecDeque::new(),
            ledger: Ledger::new(Twin {
                vocab_size: capacity.vocab_size,
            }),
            events: Vec::new(),
            next_id: 0,
            chaos,
            gatherings,
            summary: Summary::default(),
            capacity,
            random,
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
                self.unstarted.push_back((id, self.summary.steps));
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

    /// After every call: events into the ledger, and the scheduler's books against a recount.
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
            if let Event::Finished { request, .. } = event {
                self.unstarted.retain(|&(id, _)| id != request);
            }
            self.ledger.record(self.now, event);
        }
        self.scheduler.check_invariants();
        assert_eq!(self.scheduler.stats().requests, self.ledger.live() as u64);
        let steps = self.summary.steps;
        while let Some(&(id, since)) = self.unstarted.front() {
            if self.scheduler.has_started(id) != Some(false) {
                self.unstarted.pop_front();
                let waited = steps - since;
                self.summary.longest_wait_steps = self.summary.longest_wait_steps.max(waited);
                continue;
            }
            // Neither priorities nor short requests of others hold anyone up for good.
            assert!(
                self.chaos || steps - since <= STARVATION_STEPS,
                "request {id} starves"
            );
            break;
        }
    }

    /// A step stays within its budget, unless it is one long prompt alone.
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
        if batch.num_tokens() > self.max_tokens as usize {
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
            gatherings: self.gatherings.load(Ordering::Relaxed),
            stats: self.scheduler.stats(),
            ..self.summary
        }
    }
}

/// Knobs of the size of these worlds: few tokens, short steps.
fn laps_config(random: &mut Random) -> LapsConfig {
    LapsConfig {
        boundary_tokens: *random.pick(&[4, 16, 40, 1000]),
        chunk_tokens: random.in_range(1, 64),
        batch_tokens: random.in_range(1, 64),
        load_window_ms: *random.pick(&[1, 100, 1000]),
        share_floor_percent: random.in_range(1, 50),
        ttft_target_ms: *random.pick(&[0, 20, 400, 400]),
        slack_us: random.in_range(0, 3000),
        max_window_us: *random.pick(&[0, 1000, 10_000, 10_000]),
        window_margin_us: random.in_range(0, 3000),
        max_head_wait_us: random.one_in(2).then(|| random.in_range(0, 30_000)),
        max_depth: random.in_range(1, 16),
        ..LapsConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seeds `from..from + 50`, 2,000 steps each. Four of these run side by side.
    fn check(from: u64) {
        let mut total = SchedulerStats::default();
        let (mut done, mut long_steps, mut later_chunks, mut run_ahead_rows) = (0, 0, 0, 0);
        let (mut idle_waits, mut gatherings) = (0, 0);
        for seed in from..from + 50 {
            let summary = simulate(seed, 2000);
            done += summary.done;
            long_steps += summary.long_steps;
            later_chunks += summary.later_chunks;
            run_ahead_rows += summary.run_ahead_rows;
            idle_waits += summary.idle_waits;
            gatherings += summary.gatherings;
            total.preemptions += summary.stats.preemptions;
            total.prefix_hit_tokens += summary.stats.prefix_hit_tokens;
            total.shared_tokens += summary.stats.shared_tokens;
            total.deferrals += summary.stats.deferrals;
            total.srjf_recalibrations += summary.stats.srjf_recalibrations;
            total.evicted_blocks += summary.stats.evicted_blocks;
            total.deadline_expirations += summary.stats.deadline_expirations;
        }
        // The worlds are of use only if these things happen in them.
        assert!(done > 10_000, "{done} requests");
        assert!(long_steps > 100, "{long_steps} long steps");
        assert!(later_chunks > 1000, "{later_chunks} later chunks");
        assert!(run_ahead_rows > 1000, "{run_ahead_rows} rows ahead");
        assert!(idle_waits > 50, "{idle_waits} waits");
        assert!(gatherings > 50, "{gatherings} gatherings");
        assert!(total.preemptions > 200, "{total:?}");
        assert!(total.prefix_hit_tokens > 10_000, "{total:?}");
        assert!(total.shared_tokens > 10_000, "{total:?}");
        assert!(total.deferrals > 1000, "{total:?}");
        assert!(total.srjf_recalibrations > 100, "{total:?}");
        assert!(total.evicted_blocks > 1000, "{total:?}");
        assert!(total.deadline_expirations > 10, "{total:?}");
    }

    #[test]
    fn seeds_0_to_49() {
        check(0);
    }

    #[test]
    fn seeds_50_to_99() {
        check(50);
    }

    #[test]
    fn seeds_100_to_149() {
        check(100);
    }

    #[test]
    fn seeds_150_to_199() {
        check(150);
    }

    #[test]
    fn a_seed_repeats_itself() {
        for seed in 0..8 {
            assert_eq!(simulate(seed, 500), simulate(seed, 500));
        }
        assert_ne!(simulate(1, 500).digest, simulate(2, 500).digest);
    }
}
