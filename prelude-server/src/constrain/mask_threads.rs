//! Masks are computed on threads of their own, while the model runs, several rows at once; whoever
//! samples waits for what is not ready.

use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError, mpsc},
    thread,
};

use llguidance::Matcher;
use prelude_core::{NextTokens, TokenSet};

/// Parsers recurse over the grammar.
pub(super) const STACK_BYTES: usize = 64 << 20;

/// A set to come.
#[derive(Debug, Default)]
pub(super) struct Promise(OnceLock<Option<TokenSet>>);

impl NextTokens for Promise {
    fn wait(&self) -> Option<&TokenSet> {
        self.0.wait().as_ref()
    }
}

/// A set to compute. Dropped without having been, it keeps its promise with nothing, so that
/// nobody waits for ever.
pub(super) struct Job {
    matcher: Arc<Mutex<Matcher>>,
    ends: Arc<[u32]>,
    promise: Arc<Promise>,
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.promise.0.set(None);
    }
}

impl Job {
    fn run(self) {
        // Nobody waits any more: the request is gone.
        if Arc::strong_count(&self.promise) > 1 {
            let mut matcher = self.matcher.lock().unwrap_or_else(PoisonError::into_inner);
            let set = next_tokens(&mut matcher, &self.ends);
            let _ = self.promise.0.set(set);
        }
    }
}

/// What may come next; `ends` where the text may end.
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
        // Where nothing can follow, that is an error too.
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
#[derive(Debug)]
pub(super) struct MaskThreads {
    jobs: mpsc::Sender<Job>,
}

impl MaskThreads {
    /// Starts `threads` of them. If none can be started, masks are computed where they are asked
    /// for.
    pub(super) fn start(threads: usize) -> Self {
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
            // Without any, sending fails.
            let _ = builder.stack_size(STACK_BYTES).spawn(work);
        }
        Self { jobs }
    }

    /// Computes what may come next. As many jobs wait as there are constrained continuations
    /// running, which the scheduler bounds.
    pub(super) fn compute(&self, matcher: Arc<Mutex<Matcher>>, ends: Arc<[u32]>) -> Arc<Promise> {
        let promise = Arc::new(Promise::default());
        let job = Job {
            matcher,
            ends,
            promise: Arc::clone(&promise),
        };
        if let Err(mpsc::SendError(job)) = self.jobs.send(job) {
            job.run();
        }
        promise
    }
}
