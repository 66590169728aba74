//! Buffers that belong to one worker of a job.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value for each worker. Two tasks that run at once have different workers, so a lock is never
/// waited for; it is what makes sharing safe.
#[derive(Debug)]
pub(crate) struct PerWorker<T>(Vec<Mutex<T>>);

impl<T> PerWorker<T> {
    pub(crate) fn new(workers: usize, make: impl Fn() -> T) -> Self {
        Self((0..workers).map(|_| Mutex::new(make())).collect())
    }

    /// Locks the worker's own value. What a panicking task left behind is only scratch.
    pub(crate) fn get(&self, worker: usize) -> MutexGuard<'_, T> {
        self.0[worker]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
