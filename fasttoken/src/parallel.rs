//! Many inputs by several threads.
//!
//! The threads belong to this crate alone and outlive the call that makes them. They are
//! this crate's one global: a pool for each tokenizer would multiply threads, one handed in
//! by the caller would put a type of another crate into the interface.

mod job;
mod pool;

use crate::input::Input;
use crate::tokenizer::Tokenizer;
use pool::Pool;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of text for each thread, at least: a sleeping thread takes about as long to wake. Four
/// texts of 674 bytes took two to three times as long by two threads as by one.
const MIN_BYTES_PER_THREAD: usize = 8 << 10;

/// Returns the number of threads, at most `threads` or one for each processor, that are worth waking
/// for `bytes` bytes of text.
pub(crate) fn worth(threads: Option<usize>, bytes: usize) -> usize {
    // No more threads run than there are processors.
    threads
        .unwrap_or(usize::MAX)
        .min(bytes / MIN_BYTES_PER_THREAD)
}

/// Returns the results of `work` for 0 to `count`, computed by up to `threads` threads: this one and
/// those of [`Pool`]. Threads of its own would cost a small batch more than its texts do. `work` must
/// not wait for anything, and so must not call code of our users.
pub(crate) fn in_parallel<T, F>(count: usize, threads: usize, work: F) -> Vec<T>
where
    T: Send,
    F: Fn(usize) -> T + Sync,
{
    let others = threads.min(count).saturating_sub(1);
    let pool = (others > 0).then(|| Pool::of(std::process::id())).flatten();
    let Some(pool) = pool else {
        return (0..count).map(work).collect();
    };
    // Threads take the next input when they are done with one, since lengths differ. Those
    // of the pool that come late find nothing left.
    let next = AtomicUsize::new(0);
    let all = Mutex::new(Vec::with_capacity(count));
    let run = || {
        let mut done = Vec::new();
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= count {
                break;
            }
            done.push((n, work(n)));
        }
        lock(&all).append(&mut done);
    };
    pool.run(others, &run);
    let mut all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    all.sort_unstable_by_key(|(n, _)| *n);
    all.into_iter().map(|(_, result)| result).collect()
}

/// Locks a mutex whose data stays usable if a thread panics: no lock here guards unfinished changes.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tokenizer {
    /// Returns the ids of each of `inputs`, texts or pairs as in [`Tokenizer::encode`].
    ///
    /// Up to `threads` threads encode, or with `None` as many as there are processors: the calling
    /// one and, for each further 8 KiB of text, one of a pool that this crate keeps, one for each
    /// further processor. The first call that needs it starts it; no code of the caller runs on it,
    /// and it never waits for the caller or for other pools. In a process that was forked off after
    /// that, and where threads cannot be had, the calling thread encodes all.
    pub fn encode_batch<'t, I>(
        &self,
        inputs: &'t [I],
        add_special_tokens: bool,
        threads: impl Into<Option<usize>>,
    ) -> Vec<Vec<u32>>
    where
        &'t I: Into<Input<'t>>,
    {
        let inputs: Vec<Input<'_>> = inputs.iter().map(Into::into).collect();
        let threads = worth(threads.into(), inputs.iter().map(Input::len).sum());
        in_parallel(inputs.len(), threads, |n| {
            self.encode(inputs[n], add_special_tokens)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rayon::ThreadPoolBuilder;
    use std::panic::AssertUnwindSafe;
    use std::sync::atomic::{AtomicBool, AtomicU32};
    use std::sync::mpsc;
    use std::thread::available_parallelism;
    use std::time::Duration;

    fn squares(threads: usize) {
        let squares = in_parallel(5_000, threads, |n| n * n);
        assert!(squares.into_iter().eq((0..5_000).map(|n| n * n)));
    }

    #[test]
    fn results_keep_their_order_and_threads_are_bounded() {
        for threads in [0, 1, 2, 3, usize::MAX] {
            squares(threads);
        }
        assert!(in_parallel(0, usize::MAX, |n| n).is_empty());
        // A test beside this one may be making the pool just now.
        let seen = Mutex::new(std::collections::HashSet::new());
        in_parallel(5_000, usize::MAX, |_| {
            let mut seen = seen.lock().unwrap();
            seen.insert(std::thread::current().id());
        });
        let bound = available_parallelism().map_or(1, |all| all.get());
        assert!(seen.into_inner().unwrap().len() <= bound);
    }

    /// A batch ends although all threads of the process's pool wait for the caller.
    #[test]
    fn the_pool_of_the_process_is_not_waited_for() {
        let held = Mutex::new(());
        let holding = held.lock().unwrap();
        let count = rayon::current_num_threads();
        let (started, all_started) = mpsc::channel();
        let (finished, is_finished) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                rayon::scope(|jobs| {
                    for _ in 0..count {
                        let started = started.clone();
                        let held = &held;
                        jobs.spawn(move |_| {
                            let _ = started.send(());
                            drop(held.lock());
                        });
                    }
                });
            });
            for _ in 0..count {
                all_started.recv().unwrap();
            }
            scope.spawn(move || {
                squares(4);
                let _ = finished.send(());
            });
            // Only so that a failure ends: the threads go on once this one lets go.
            let ended = is_finished.recv_timeout(Duration::from_secs(120));
            drop(holding);
            assert_eq!(ended, Ok(()), "waits for the pool of the process");
        });
    }

    /// A call from a thread of a pool must not run that pool's other jobs inside of itself.
    #[test]
    fn jobs_of_the_callers_pool_do_not_run_inside_of_a_call() {
        let pool = ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let inside = AtomicBool::new(false);
        let jobs = AtomicU32::new(0);
        pool.scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|_| {
                    assert!(!inside.load(Ordering::Relaxed), "a job inside of a call");
                    jobs.fetch_add(1, Ordering::Relaxed);
                });
                inside.store(true, Ordering::Relaxed);
                // The thread of ours that has the second input is still at it when all
                // others are done, so that the call waits for it.
                in_parallel(2, 2, |n| {
                    std::thread::sleep(Duration::from_millis(2 + 6 * n as u64))
                });
                inside.store(false, Ordering::Relaxed);
            }
        });
        assert_eq!(jobs.into_inner(), 20);
    }

    #[test]
    fn a_call_inside_of_a_call_ends() {
        let sums = in_parallel(100, 4, |n| in_parallel(n, 4, |m| m).iter().sum::<usize>());
        let expected: Vec<usize> = (0..100).map(|n| (0..n).sum()).collect();
        assert_eq!(sums, expected);
    }

    #[test]
    fn panics_reach_the_caller() {
        let panics = || {
            in_parallel(100, 4, |n| assert_ne!(n, 70));
        };
        assert!(std::panic::catch_unwind(panics).is_err());
        let pool = ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let installed = AssertUnwindSafe(|| pool.install(panics));
        assert!(std::panic::catch_unwind(installed).is_err());
        squares(4);
    }
}
