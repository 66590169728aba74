//! Many inputs by several threads.
//!
//! The threads belong to this crate alone and outlive the call that makes them. They are
//! this crate's one global: a pool for each tokenizer would multiply threads, one handed in
//! by the caller would put a type of another crate into the interface.

use crate::tokenizer::Tokenizer;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{ScopedJoinHandle, available_parallelism};

/// The threads beside the caller's. They run nothing but the loop of [`in_parallel`] over
/// code of this crate, which never waits, so whoever waits for them waits for work that is
/// under way. The process's own pool gives no such promise: its threads may be waiting for
/// something that the caller holds.
#[derive(Debug)]
struct Pool {
    threads: ThreadPool,
    /// The process that has these threads: one that is forked off has only their memory.
    process: u32,
}

impl Pool {
    /// One thread for each processor but the caller's. `None` on a machine with one, in
    /// another process than that which made the threads, and where none can be had.
    fn of(process: u32) -> Option<&'static Self> {
        static POOL: OnceLock<Pool> = OnceLock::new();
        static BEGUN: AtomicBool = AtomicBool::new(false);
        if POOL.get().is_none() && !BEGUN.swap(true, Ordering::Relaxed) {
            // Only who comes first gets here, so a process that was forked off meanwhile
            // does not wait for a thread that it lacks.
            if let Some(pool) = Self::build(process) {
                let _ = POOL.set(pool);
            }
        }
        POOL.get().filter(|pool| pool.process == process)
    }

    fn build(process: u32) -> Option<Self> {
        let count = available_parallelism().map_or(0, |all| all.get() - 1);
        if count == 0 {
            return None;
        }
        let threads = ThreadPoolBuilder::new()
            .num_threads(count)
            .thread_name(|n| format!("fasttoken-{n}"))
            .build();
        let threads = threads.ok()?;
        Some(Self { threads, process })
    }

    /// Calls `run` here and on up to `others` of the threads, and waits for all of them.
    fn run(&self, others: usize, run: &(impl Fn() + Sync)) {
        let all = || {
            self.threads.in_place_scope(|scope| {
                for _ in 0..others {
                    scope.spawn(|_| run());
                }
                run();
            });
        };
        if rayon::current_thread_index().is_none() {
            return all();
        }
        // A thread of a pool does not just wait: it runs other jobs of its pool meanwhile,
        // which may need what our caller holds. A thread that is of no pool waits for it.
        std::thread::scope(|scope| {
            let waiting = std::thread::Builder::new().spawn_scoped(scope, all);
            match waiting.map(ScopedJoinHandle::join) {
                Ok(Ok(())) => (),
                Ok(Err(panic)) => std::panic::resume_unwind(panic),
                Err(_) => run(),
            }
        });
    }
}

/// `work` of 0 to `count`, by up to `threads` threads: this one and those of [`Pool`].
/// Threads of its own would cost a small batch more than its texts do. `work` must not wait
/// for anything, and so must not call code of our users.
pub(crate) fn in_parallel<T, F>(count: usize, threads: usize, work: F) -> Vec<T>
where
    T: Send,
    F: Fn(usize) -> T + Sync,
{
    let others = threads.min(count).saturating_sub(1);
    let pool = (others > 0).then(|| Pool::of(std::process::id())).flatten();
    // None of ours gets here, as none calls our users' code; if one did, it would wait for
    // itself.
    let pool = pool.filter(|pool| pool.threads.current_thread_index().is_none());
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
        all.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .append(&mut done);
    };
    pool.run(others.min(pool.threads.current_num_threads()), &run);
    let mut all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    all.sort_unstable_by_key(|(n, _)| *n);
    all.into_iter().map(|(_, result)| result).collect()
}

impl Tokenizer {
    /// The ids of each of `texts`, encoded by up to `threads` threads: the calling one and,
    /// for more than one text, those of a pool that this crate keeps, one for each further
    /// processor. The first call with `threads` above 1 starts it; no code of the caller runs
    /// on it, and it never waits for the caller or for other pools. In a process that was
    /// forked off after that, and where threads cannot be had, the calling thread encodes
    /// all.
    pub fn encode_batch(
        &self,
        texts: &[impl AsRef<str> + Sync],
        add_special_tokens: bool,
        threads: usize,
    ) -> Vec<Vec<u32>> {
        let texts: Vec<&str> = texts.iter().map(AsRef::as_ref).collect();
        in_parallel(texts.len(), threads, |n| {
            self.encode(texts[n], add_special_tokens)
        })
    }

    /// [`Tokenizer::encode_pair`] for each of `pairs`, by up to `threads` threads as in
    /// [`Tokenizer::encode_batch`].
    pub fn encode_pair_batch(
        &self,
        pairs: &[(impl AsRef<str> + Sync, impl AsRef<str> + Sync)],
        add_special_tokens: bool,
        threads: usize,
    ) -> Vec<Vec<u32>> {
        let both = pairs.iter().map(|(a, b)| (a.as_ref(), b.as_ref()));
        let pairs: Vec<(&str, &str)> = both.collect();
        in_parallel(pairs.len(), threads, |n| {
            let (a, b) = pairs[n];
            self.encode_pair(a, b, add_special_tokens)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::AssertUnwindSafe;
    use std::sync::atomic::AtomicU32;
    use std::sync::mpsc;
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

    /// With all threads of the process's pool waiting for something that the caller holds.
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

    /// As after a fork, when the threads stayed behind.
    #[test]
    fn threads_of_another_process_are_not_used() {
        squares(2);
        let ours = std::process::id();
        assert!(Pool::of(ours ^ 1).is_none());
        assert!(Pool::of(ours).is_none_or(|pool| pool.process == ours));
    }
}
