//! How long requests wait, held against the bound that [`Turn`](crate::Turn) promises.

use std::time::Duration;

use prelude_core::{Capacity, RequestId, Timestamp};

use crate::{Scheduler, SchedulerConfig, scheduler::invariants::TurnOf};

/// The longest waits of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LongestWaits {
    /// From arrival until some of a request was scheduled.
    pub wait: Duration,
    /// Steps from the moment at which a request had waited for `max_wait_ms` until some of it was
    /// scheduled. Requests are overdue one at a time, and wait for work that was admitted before.
    pub overdue_steps: u64,
    /// Steps without such work for which the request that had the turn did not get on.
    pub turn_steps: u64,
    /// Most such steps that are allowed.
    pub turn_steps_max: u64,
}

/// Checks waits, step by step.
#[derive(Debug)]
pub(super) struct Waits {
    max_wait: Duration,
    /// Accepted requests of which nothing has started.
    unstarted: Vec<Unstarted>,
    /// Of the one-shot queue and that of generations.
    turns: [Option<TurnWait>; 2],
    longest: LongestWaits,
}

#[derive(Clone, Copy, Debug)]
struct Unstarted {
    id: RequestId,
    arrival: Timestamp,
    is_overdue: bool,
    /// Since it was.
    steps: u64,
}

/// A turn that has not got on.
#[derive(Clone, Copy, Debug)]
struct TurnWait {
    of: TurnOf,
    /// Sequences that had been admitted when it began, or when blocks were found to lack.
    admitted: u64,
    steps: u64,
}

impl Waits {
    pub(super) fn new(config: &SchedulerConfig, capacity: Capacity) -> Self {
        let max_wait = Duration::from_millis(u64::from(config.max_wait_ms));
        Self {
            max_wait,
            unstarted: Vec::new(),
            turns: [None; 2],
            longest: LongestWaits {
                turn_steps_max: turn_steps_max(config, capacity),
                ..LongestWaits::default()
            },
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
    pub(super) fn step(&mut self, scheduler: &Scheduler) {
        for waiting in &mut self.unstarted {
            waiting.steps += u64::from(waiting.is_overdue);
        }
        let most = self.longest.turn_steps_max;
        for (is_decode, (wait, turn)) in [false, true]
            .into_iter()
            .zip(self.turns.iter_mut().zip(scheduler.turns()))
        {
            let Some(of) = turn else {
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
            let with_prompt = !is_decode && !of.is_short_of_blocks;
            if scheduler.has_older_work(&of, wait.admitted, with_prompt) {
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

fn turn_steps_max(config: &SchedulerConfig, capacity: Capacity) -> u64 {
    if let Ok(k) = std::env::var("K") {
        eprintln!("{config:?}\n{capacity:?}");
        return k.parse().unwrap();
    }
    2000
}
