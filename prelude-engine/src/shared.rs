//! The state that the engine's thread and its handles share.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use prelude_core::{Capacity, Timestamp};

use crate::{inbox::Inbox, report::Reports};

/// State that the engine thread and its handles share.
pub(crate) struct Shared {
    pub(crate) inbox: Inbox,
    pub(crate) capacity: Capacity,
    pub(crate) started: Instant,
    pub(crate) alive: AtomicBool,
    pub(crate) reports: Mutex<Reports>,
    /// Tiny steps that succeeded, and nanoseconds of the fastest of them.
    pub(crate) tiny_steps: AtomicU64,
    pub(crate) fastest_tiny_ns: AtomicU64,
    /// Prompt tokens of requests that the engine thread has not looked at.
    pub(crate) unseen_tokens: AtomicU64,
    pub(crate) next_id: AtomicU64,
}

impl Shared {
    pub(crate) fn new(inbox: Inbox, capacity: Capacity, recent_steps: usize) -> Self {
        Self {
            inbox,
            capacity,
            started: Instant::now(),
            alive: AtomicBool::new(true),
            reports: Mutex::new(Reports::new(recent_steps)),
            tiny_steps: AtomicU64::new(0),
            fastest_tiny_ns: AtomicU64::new(u64::MAX),
            unseen_tokens: AtomicU64::new(0),
            next_id: AtomicU64::new(0),
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
    }
}

/// Locks a mutex whose contents are valid between statements, so that a panic elsewhere hides
/// nothing of them.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
