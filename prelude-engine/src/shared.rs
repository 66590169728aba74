//! The state that the engine's thread and its handles share.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use prelude_core::{Capacity, StepWork, Timestamp};
use prelude_sched::SchedulerConfig;

use crate::{EngineConfig, inbox::Inbox, kv_events::KvEventQueue, report::Reports};

/// State that the engine thread and its handles share.
pub(crate) struct Shared {
    pub(crate) inbox: Inbox,
    pub(crate) capacity: Capacity,
    /// Prompt tokens that full steps compute in a second, by the executor's profile.
    pub(crate) profiled_rate: Option<f64>,
    pub(crate) started: Instant,
    pub(crate) alive: AtomicBool,
    pub(crate) reports: Mutex<Reports>,
    /// The number of tiny steps that succeeded, and the nanoseconds of the fastest of them.
    pub(crate) tiny_steps: AtomicU64,
    pub(crate) fastest_tiny_ns: AtomicU64,
    /// Prompt tokens of requests that the engine thread has not looked at.
    pub(crate) unseen_tokens: AtomicU64,
    pub(crate) next_id: AtomicU64,
    /// `Some` if events of the KV cache are recorded.
    pub(crate) kv_events: Option<KvEventQueue>,
}

impl Shared {
    pub(crate) fn new(config: &EngineConfig, capacity: Capacity) -> Self {
        Self {
            inbox: Inbox::new(config.command_queue),
            capacity,
            profiled_rate: profiled_rate(&config.scheduler, capacity),
            started: Instant::now(),
            alive: AtomicBool::new(true),
            reports: Mutex::new(Reports::new(config.recent_steps)),
            tiny_steps: AtomicU64::new(0),
            fastest_tiny_ns: AtomicU64::new(u64::MAX),
            unseen_tokens: AtomicU64::new(0),
            next_id: AtomicU64::new(0),
            kv_events: { config.kv_events }.then(|| KvEventQueue::new(kv_event_blocks(capacity))),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::ZERO.saturating_add(self.started.elapsed())
    }

    pub(crate) fn reports(&self) -> MutexGuard<'_, Reports> {
        // Reports are valid between statements; a panic elsewhere must not hide them.
        lock(&self.reports)
    }

    /// Marks the engine as gone. Dropping the submissions closes their channels, which their
    /// answers take for `EngineStopped`.
    pub(crate) fn close(&self) {
        self.alive.store(false, Ordering::Release);
        drop(self.inbox.close());
        if let Some(events) = &self.kv_events {
            events.close();
        }
    }
}

/// Returns an upper bound of the blocks that unread events name. Beyond it the contents of the cache
/// replace the events. They fill at most half of the bound, so the next replacement comes after as many
/// blocks of events again.
pub(crate) const fn kv_event_blocks(capacity: Capacity) -> usize {
    2 * capacity.num_blocks as usize
}

/// Returns the prompt tokens that full steps compute in a second by the time of steps, if that is
/// known. Contexts are not, so the tokens count as if they attended to none: a rate that is too high
/// refuses fewer requests than one that is too low.
fn profiled_rate(config: &SchedulerConfig, capacity: Capacity) -> Option<f64> {
    let tokens = config.oneshot_step_tokens(&capacity);
    let work = StepWork {
        tokens: f64::from(tokens),
        ..StepWork::default()
    };
    let ms = config.service?.step_ms(&work);
    (ms > 0.0).then(|| 1e3 * f64::from(tokens) / ms)
}

/// Locks a mutex whose contents are valid between statements, so that a panic elsewhere hides
/// nothing of them.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
