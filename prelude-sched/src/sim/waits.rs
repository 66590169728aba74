//! The waits of requests, held against the bound that [`Turn`](crate::Turn) promises.

use std::{sync::atomic::Ordering, time::Duration};

use prelude_core::{Capacity, RequestId, Timestamp};

use super::auto_twin::HadTheirs;
use crate::{Scheduler, SchedulerConfig, scheduler::invariants::TurnOf};

/// The longest waits of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LongestWaits {
    /// The longest time from arrival until some of a request was scheduled.
    pub(crate) wait: Duration,
    /// The most steps from the moment at which a request had waited for `max_wait_ms` until some of
    /// it was scheduled. Requests are overdue one at a time, and wait for work that was admitted
    /// before.
    pub(crate) overdue_steps: u64,
    /// The most steps without such work for which the request that had the turn did not get on.
    pub(crate) turn_steps: u64,
    /// The number of such steps (`turn_steps`) that is allowed.
    pub(crate) turn_steps_max: u64,
}

/// Checks waits, step by step.
#[derive(Debug)]
pub(super) struct Waits {
    max_wait: Duration,
    /// True if a step has work of one class, so that both queues have one turn.
    one_turn: bool,
    /// Accepted requests of which nothing has started.
    unstarted: Vec<Unstarted>,
    /// The turns of the one-shot queue and of the queue of generations.
    turns: [Option<TurnWait>; 2],
    longest: LongestWaits,
    /// The times until which overdue requests of either queue have had their part of the device.
    had_theirs: HadTheirs,
}

#[derive(Clone, Copy, Debug)]
struct Unstarted {
    id: RequestId,
    arrival: Timestamp,
    is_overdue: bool,
    /// The steps since the request became overdue.
    steps: u64,
}

/// The index of the one-shot queue among the two.
const ONESHOT: usize = 0;

/// An overdue request that has not got on.
#[derive(Clone, Copy, Debug)]
struct TurnWait {
    of: TurnOf,
    /// Sequences that had been admitted when it began, when blocks were found to lack, or when
    /// overdue requests had last had their part of the device.
    admitted: u64,
    steps: u64,
}

impl Waits {
    pub(super) fn new(
        config: &SchedulerConfig,
        capacity: Capacity,
        laps_chunk: Option<u32>,
        had_theirs: HadTheirs,
    ) -> Self {
        let max_wait = Duration::from_millis(u64::from(config.max_wait_ms));
        Self {
            max_wait,
            one_turn: laps_chunk.is_some(),
            unstarted: Vec::new(),
            turns: [None; 2],
            longest: LongestWaits {
                turn_steps_max: turn_steps_max(config, capacity, laps_chunk),
                ..LongestWaits::default()
            },
            had_theirs,
        }
    }

    pub(super) const fn longest(&self) -> LongestWaits {
        self.longest
    }

    pub(super) fn accepted(&mut self, id: RequestId, now: Timestamp) {
        self.unstarted.push(Unstarted {
            id,
            arrival: now,
            is_overdue: false,
            steps: 0,
        });
    }

    pub(super) fn finished(&mut self, id: RequestId) {
        self.unstarted.retain(|waiting| waiting.id != id);
    }

    pub(super) fn settle(&mut self, now: Timestamp, scheduler: &Scheduler) {
        let (longest, max_wait) = (&mut self.longest, self.max_wait);
        self.unstarted.retain_mut(|waiting| {
            let waited = now.saturating_since(waiting.arrival);
            waiting.is_overdue = waited >= max_wait;
            longest.wait = longest.wait.max(waited);
            longest.overdue_steps = longest.overdue_steps.max(waiting.steps);
            scheduler.has_started(waiting.id) == Some(false)
        });
    }

    /// Notes that a step was planned.
    ///
    /// # Panics
    /// If a request that has the turn has waited for too many of them.
    pub(super) fn step(&mut self, now: Timestamp, scheduler: &Scheduler) {
        for waiting in &mut self.unstarted {
            waiting.steps += u64::from(waiting.is_overdue);
        }
        let most = self.longest.turn_steps_max;
        let turns = scheduler.turns();
        let oldest = turns.into_iter().flatten().map(|of| of.age).min();
        for (n, wait) in self.turns.iter_mut().enumerate() {
            let Some(of) = turns[n] else {
                *wait = None;
                continue;
            };
            let begins = TurnWait {
                of,
                admitted: scheduler.admitted(),
                steps: 0,
            };
            let wait = wait.get_or_insert(begins);
            if wait.of != of {
                *wait = begins;
                continue;
            }
            // What was admitted before holds blocks and slots of generations; a one-shot row that
            // needs none of them shares its part of a step with prompts in chunks only.
            let with_prompt = n == ONESHOT && !of.is_short_of_blocks;
            let is_older = |waiting: &Unstarted| waiting.is_overdue && waiting.arrival < of.age.0;
            let not_yet =
                self.one_turn && (oldest < Some(of.age) || self.unstarted.iter().any(is_older));
            // It waits until generations have had their share of the time, which is bounded by the
            // time of the steps that one-shot work had too much of.
            let sits_out = (n == ONESHOT || self.one_turn) && scheduler.oneshot_is_ahead();
            let had_theirs = now.as_nanos() < self.had_theirs[n].load(Ordering::Relaxed);
            if had_theirs {
                // Who is admitted meanwhile goes before it, and holds blocks and slots until the end.
                wait.admitted = begins.admitted;
            }
            if not_yet
                || sits_out
                || had_theirs
                || scheduler.has_older_work(&of, wait.admitted, with_prompt)
            {
                continue;
            }
            wait.steps += 1;
            self.longest.turn_steps = self.longest.turn_steps.max(wait.steps);
            assert!(
                wait.steps <= most,
                "overdue and passed over for {} steps: {of:?}\n{}",
                wait.steps,
                scheduler.describe()
            );
        }
    }
}

/// Returns the k of "a request waits for `max_wait_ms` and k steps": the most steps for which the
/// overdue request of a queue may not get on, while nothing lives that was admitted before it.
///
/// - Up to `depth` steps are in flight when the turn begins, or hold the blocks that it lacks.
/// - Prompts of both classes have room in a step, or one-shot work has all of it after its next row
///   did not fit. Before the time of tokens is known, rooms follow the shares of the classes: after
///   `2 * 100 / share` steps even a row that fills a step has had its turn.
/// - A step of one long prompt alone may come before each of these steps, which doubles the sum.
/// - Under LAPS (`laps_chunk`, the tokens of its chunks) a step has work of short or of long
///   requests alone, which doubles the sum again; and a prompt that has begun goes on before an
///   overdue one of its length begins: a chunk in every second step, of at least what a share of
///   half a step is.
///
/// Beside that, a request waits for older ones, each of which has the turn before it, and for
/// sequences admitted before it, which hold blocks and slots until they end: no scheduler that
/// lets generations go on can promise less. Steps in which such work lives are not counted, nor
/// those in which one-shot work is [ahead](crate::shares) of its share of the time, nor, under
/// [`Auto`](crate::Auto), those in which overdue requests have had their quarter of it, or in which
/// a sequence lives that was admitted meanwhile.
fn turn_steps_max(config: &SchedulerConfig, capacity: Capacity, laps_chunk: Option<u32>) -> u64 {
    let share = u64::from(config.oneshot_share_percent);
    let least_share = share.min(100 - share);
    let steps = 2 * (u64::from(capacity.pipeline_depth) + (2 * 100_u64).div_ceil(least_share));
    let Some(chunk) = laps_chunk else {
        return steps;
    };
    let step_tokens = config.shared_step_tokens(&capacity);
    let owed = u64::from(step_tokens) / 2 * least_share / 100;
    let chunk = u64::from(chunk.min(config.prefill_chunk_tokens)).min(owed.max(1));
    2 * (steps + u64::from(capacity.max_context_len).div_ceil(chunk))
}
