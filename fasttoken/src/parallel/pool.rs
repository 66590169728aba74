//! The threads beside the caller's.

use super::job::Job;
use super::lock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::{self, available_parallelism};

/// Threads that run jobs of this crate only. These jobs wait for nothing but each other, so a
/// caller that waits for them waits for work in progress. The process's own pool gives no such
/// promise: its threads may wait for something that the caller holds.
pub(super) struct Pool {
    shared: Arc<Shared>,
    /// The number of threads.
    threads: usize,
    /// The process that has these threads. A forked child has only their memory.
    process: u32,
}

#[derive(Default)]
struct Shared {
    /// The calls that want more threads, and how many more.
    calls: Mutex<Vec<(Arc<Job>, usize)>>,
    wanted: Condvar,
}

impl Pool {
    /// Returns the pool, which has one thread for each processor but the caller's. `None` on a
    /// machine with one, in another process than that which made the threads, and where none can be
    /// had.
    pub(super) fn of(process: u32) -> Option<&'static Self> {
        static POOL: OnceLock<Pool> = OnceLock::new();
        static BEGUN: AtomicBool = AtomicBool::new(false);
        if POOL.get().is_none() && !BEGUN.swap(true, Ordering::Relaxed) {
            // Only the first caller gets here, so a process that was forked in between
            // does not wait for a thread that it lacks.
            if let Some(pool) = Self::build(process) {
                let _ = POOL.set(pool);
            }
        }
        POOL.get().filter(|pool| pool.process == process)
    }

    fn build(process: u32) -> Option<Self> {
        let count = available_parallelism().map_or(0, |all| all.get() - 1);
        let shared = Arc::new(Shared::default());
        let start = |n: &usize| {
            let shared = Arc::clone(&shared);
            let thread = thread::Builder::new().name(format!("fasttoken-{n}"));
            thread.spawn(move || shared.serve()).is_ok()
        };
        let threads = (0..count).take_while(start).count();
        (threads > 0).then_some(Self {
            shared,
            threads,
            process,
        })
    }

    /// Calls `run` here and on up to `others` of the threads, which may come while it runs
    /// here. None of them is in it when this returns.
    pub(super) fn run(&self, others: usize, run: &(impl Fn() + Sync)) {
        let others = others.min(self.threads);
        let mut offered = Offered {
            shared: &self.shared,
            job: None,
        };
        Job::share(run, |job| {
            lock(&self.shared.calls).push((Arc::clone(job), others));
            offered.job = Some(Arc::clone(job));
            for _ in 0..others {
                self.shared.wanted.notify_one();
            }
        });
    }
}

/// Takes a call off the list when it is dropped, in a panic as well.
struct Offered<'a> {
    shared: &'a Shared,
    job: Option<Arc<Job>>,
}

impl Drop for Offered<'_> {
    fn drop(&mut self) {
        if let Some(job) = &self.job {
            lock(&self.shared.calls).retain(|(call, _)| !Arc::ptr_eq(call, job));
        }
    }
}

impl Shared {
    /// Joins one job after the other, for ever.
    fn serve(&self) {
        loop {
            self.next().join();
        }
    }

    /// Waits for a job that wants one more thread, and returns it. Staying awake for 30 µs to see
    /// the next one made no difference to batches that follow each other at once.
    fn next(&self) -> Arc<Job> {
        let mut calls = lock(&self.calls);
        loop {
            if let Some((job, others)) = calls.iter_mut().find(|(_, others)| *others > 0) {
                *others -= 1;
                return Arc::clone(job);
            }
            calls = self
                .wanted
                .wait(calls)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state after a fork, when the threads stayed behind.
    #[test]
    fn threads_of_another_process_are_not_used() {
        let ours = std::process::id();
        let pool = Pool::of(ours);
        assert!(Pool::of(ours ^ 1).is_none());
        assert!(pool.is_none_or(|pool| pool.process == ours));
    }

    #[test]
    fn calls_leave_nothing_on_the_list() {
        let Some(pool) = Pool::build(0) else {
            return;
        };
        for _ in 0..100 {
            pool.run(usize::MAX, &|| ());
        }
        let panics = || pool.run(1, &|| panic!("as texts never do"));
        let panics = std::panic::AssertUnwindSafe(panics);
        assert!(std::panic::catch_unwind(panics).is_err());
        assert!(lock(&pool.shared.calls).is_empty());
    }
}
