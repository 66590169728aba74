//! Many inputs by several threads.

use crate::tokenizer::Tokenizer;
use std::sync::atomic::{AtomicUsize, Ordering};

/// `work` of 0 to `count`, by up to `threads` threads that live as long as the call.
pub(crate) fn in_parallel<T, F>(count: usize, threads: usize, work: F) -> Vec<T>
where
    T: Send,
    F: Fn(usize) -> T + Sync,
{
    let threads = threads.min(count);
    if threads <= 1 {
        return (0..count).map(work).collect();
    }
    // Threads take the next input when they are done with one, since lengths differ.
    let next = AtomicUsize::new(0);
    let run = || {
        let mut done = Vec::new();
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= count {
                return done;
            }
            done.push((n, work(n)));
        }
    };
    let mut all = Vec::with_capacity(count);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (1..threads).map(|_| scope.spawn(run)).collect();
        all.extend(run());
        for worker in workers {
            match worker.join() {
                Ok(done) => all.extend(done),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    all.sort_unstable_by_key(|(n, _)| *n);
    all.into_iter().map(|(_, result)| result).collect()
}

impl Tokenizer {
    /// The ids of each of `texts`, encoded by up to `threads` threads.
    pub fn encode_batch(
        &self,
        texts: &[impl AsRef<str> + Sync],
        add_special_tokens: bool,
        threads: usize,
    ) -> Vec<Vec<u32>> {
        in_parallel(texts.len(), threads, |n| {
            self.encode(texts[n].as_ref(), add_special_tokens)
        })
    }

    /// [`Tokenizer::encode_pair`] for each of `pairs`, by up to `threads` threads.
    pub fn encode_pair_batch(
        &self,
        pairs: &[(impl AsRef<str> + Sync, impl AsRef<str> + Sync)],
        add_special_tokens: bool,
        threads: usize,
    ) -> Vec<Vec<u32>> {
        in_parallel(pairs.len(), threads, |n| {
            let (a, b) = &pairs[n];
            self.encode_pair(a.as_ref(), b.as_ref(), add_special_tokens)
        })
    }
}
