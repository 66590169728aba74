//! Many inputs by several threads.

use crate::tokenizer::Tokenizer;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// `work` of 0 to `count`, by up to `threads` threads: this one and those of the process's
/// pool. Threads of its own would cost a small batch more than its texts do.
pub(crate) fn in_parallel<T, F>(count: usize, threads: usize, work: F) -> Vec<T>
where
    T: Send,
    F: Fn(usize) -> T + Sync,
{
    let threads = threads.min(count);
    if threads <= 1 {
        return (0..count).map(work).collect();
    }
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
    rayon::in_place_scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|_| run());
        }
        run();
    });
    let mut all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
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
