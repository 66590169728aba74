//! Masks are computed on threads of their own, while the model runs, several rows at once; the
//! executor waits for a mask that is not ready when it samples.
//!
//! A step should not take longer for it, so a promise says when its set is due, by what the masks
//! of the same grammar have taken and by what is to be computed before it. The scheduler leaves
//! a row out of steps that would have ended before.

use std::{
    fmt,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use llguidance::Matcher;
use prelude_core::{TokenMask, TokenSet};

/// Parsers recurse over the grammar.
pub(super) const STACK_BYTES: usize = 64 << 20;

/// The time that masks of one grammar take: the longest of late, in nanoseconds.
#[derive(Debug)]
pub(super) struct MaskCost(AtomicU64);

impl MaskCost {
    pub(super) fn new(first: Duration) -> Self {
        Self(AtomicU64::new(nanos(first)))
    }

    /// Notes another one. A dear mask is remembered for about the next twenty.
    fn note(&self, took: Duration) {
        let lately = self.0.load(Ordering::Relaxed);
        let fading = lately - lately / 8;
        // Another thread's note may be lost: it is an estimate.
        self.0.store(fading.max(nanos(took)), Ordering::Relaxed);
    }

    fn expected(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// A set to come.
#[derive(Debug)]
pub(super) struct Promise {
    set: OnceLock<Option<TokenSet>>,
    /// The time at which the mask should be there.
    due: Instant,
}

impl TokenMask for Promise {
    fn wait(&self) -> Option<&TokenSet> {
        self.set.wait().as_ref()
    }

    fn due_in(&self) -> Duration {
        if self.set.get().is_some() {
            return Duration::ZERO;
        }
        let now = Instant::now();
        let early = self.due.saturating_duration_since(now);
        // What is late for some time is taken to need as much again.
        early.max(now.saturating_duration_since(self.due))
    }
}

/// A set to compute. Dropped without having been, it keeps its promise with nothing, so that
/// nobody waits for ever.
struct Job {
    work: Box<dyn FnOnce() -> Option<TokenSet> + Send>,
    cost: Arc<MaskCost>,
    promise: Kept,
    counted: Counted,
}

/// A promise that is kept in any case.
struct Kept(Arc<Promise>);

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.0.set.set(None);
    }
}

/// The time of a job, which is part of the backlog until this value is dropped.
struct Counted {
    backlog_ns: Arc<AtomicU64>,
    ns: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.backlog_ns.fetch_sub(self.ns, Ordering::Relaxed);
    }
}

impl Job {
    fn run(self) {
        let Self {
            work,
            cost,
            promise,
            counted,
        } = self;
        // The set is computed only if the request is still there.
        if Arc::strong_count(&promise.0) > 1 {
            let began = Instant::now();
            let set = work();
            cost.note(began.elapsed());
            drop(counted);
            let _ = promise.0.set.set(set);
        }
    }
}

/// Returns the tokens that may come next; `ends` where the text may end.
pub(super) fn next_tokens(matcher: &mut Matcher, ends: &[u32]) -> Option<TokenSet> {
    let accepts = matcher.is_accepting().ok()?;
    let mut words: Vec<u32> = match matcher.compute_mask() {
        Ok(mask) => {
            let vocab = mask.len();
            let mut words = mask.as_slice()[..vocab.div_ceil(32)].to_vec();
            if let (Some(last), true) = (words.last_mut(), vocab % 32 > 0) {
                *last &= (1 << (vocab % 32)) - 1;
            }
            words
        }
        // The library also returns an error where nothing can follow.
        Err(_) if accepts => Vec::new(),
        Err(_) => return None,
    };
    if accepts {
        for &end in ends {
            let at = end as usize / 32;
            words.resize(words.len().max(at + 1), 0);
            words[at] |= 1 << (end % 32);
        }
    }
    Some(TokenSet::from_words(words.into()))
}

/// The threads. They end when this is dropped and nothing is left to do.
pub(super) struct MaskThreads {
    jobs: mpsc::Sender<Job>,
    threads: u32,
    /// The expected time of all jobs that have not been done.
    backlog_ns: Arc<AtomicU64>,
}

impl fmt::Debug for MaskThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MaskThreads")
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

impl MaskThreads {
    /// Starts `threads` threads that compute masks. If none can be started, masks are computed
    /// where they are asked for.
    pub(super) fn start(threads: u32) -> Self {
        let (jobs, queue) = mpsc::channel::<Job>();
        let queue = Arc::new(Mutex::new(queue));
        for i in 0..threads {
            let queue = Arc::clone(&queue);
            let work = move || {
                loop {
                    let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    match job {
                        Ok(job) => job.run(),
                        Err(_) => return,
                    }
                }
            };
            let builder = thread::Builder::new().name(format!("prelude-mask-{i}"));
            // If no thread starts, sending a job fails.
            let _ = builder.stack_size(STACK_BYTES).spawn(work);
        }
        Self {
            jobs,
            threads: threads.max(1),
            backlog_ns: Arc::default(),
        }
    }

    /// Computes what may come next. As many jobs wait as there are constrained continuations
    /// running, which the scheduler bounds.
    pub(super) fn compute(
        &self,
        matcher: Arc<Mutex<Matcher>>,
        ends: Arc<[u32]>,
        cost: &Arc<MaskCost>,
    ) -> Arc<Promise> {
        self.promise(cost, move || {
            let mut matcher = matcher.lock().unwrap_or_else(PoisonError::into_inner);
            next_tokens(&mut matcher, &ends)
        })
    }

    fn promise(
        &self,
        cost: &Arc<MaskCost>,
        work: impl FnOnce() -> Option<TokenSet> + Send + 'static,
    ) -> Arc<Promise> {
        let own = cost.expected();
        let ns = nanos(own);
        let ahead = Duration::from_nanos(self.backlog_ns.fetch_add(ns, Ordering::Relaxed));
        let promise = Arc::new(Promise {
            set: OnceLock::new(),
            due: Instant::now() + ahead / self.threads + own,
        });
        let job = Job {
            work: Box::new(work),
            cost: Arc::clone(cost),
            promise: Kept(Arc::clone(&promise)),
            counted: Counted {
                backlog_ns: Arc::clone(&self.backlog_ns),
                ns,
            },
        };
        if let Err(mpsc::SendError(job)) = self.jobs.send(job) {
            job.run();
        }
        promise
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set() -> Option<TokenSet> {
        Some(TokenSet::from_ids([3], 8))
    }

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn a_dear_mask_is_due_until_it_is_there() {
        let threads = MaskThreads::start(1);
        let cost = Arc::new(MaskCost::new(HOUR));
        let (go, gate) = mpsc::channel::<()>();
        let promise = threads.promise(&cost, move || {
            gate.recv().unwrap();
            set()
        });
        assert!(promise.due_in() > HOUR / 2);
        go.send(()).unwrap();
        assert_eq!(promise.wait(), set().as_ref());
        assert_eq!(promise.due_in(), Duration::ZERO);
        // What it really took counts from now on.
        assert!(cost.expected() < HOUR);
        assert_eq!(threads.backlog_ns.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_cheap_mask_behind_dear_ones_is_due_after_them() {
        let threads = MaskThreads::start(1);
        let (go, gate) = mpsc::channel::<()>();
        let dear = Arc::new(MaskCost::new(HOUR));
        let cheap = Arc::new(MaskCost::new(Duration::ZERO));
        let first = threads.promise(&dear, move || {
            gate.recv().unwrap();
            set()
        });
        let second = threads.promise(&cheap, set);
        assert!(first.due_in().min(second.due_in()) > HOUR / 2);
        go.send(()).unwrap();
        assert_eq!(second.wait(), set().as_ref());
        assert_eq!(first.due_in().max(second.due_in()), Duration::ZERO);
    }

    /// No wait is without end: neither after a panic nor for a job whose request is gone.
    #[test]
    fn a_promise_is_kept_or_given_up() {
        let threads = MaskThreads::start(1);
        let cost = Arc::new(MaskCost::new(Duration::ZERO));
        let promise = threads.promise(&cost, || panic!("on purpose"));
        assert_eq!(promise.wait(), None);
        assert_eq!(threads.backlog_ns.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_dear_mask_fades() {
        let cost = MaskCost::new(Duration::from_micros(100));
        cost.note(Duration::from_millis(10));
        assert_eq!(cost.expected(), Duration::from_millis(10));
        for _ in 0..20 {
            cost.note(Duration::from_micros(100));
        }
        assert!(cost.expected() < Duration::from_millis(1));
    }
}
