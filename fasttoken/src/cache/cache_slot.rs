//! The memory of the threads' caches, a huge page each where the system gives one.
//!
//! An ending thread leaves its cache to the next one with all words: entries name the tokenizer that
//! made them.

use super::Cache;
use crate::store::ZeroedBuffer;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The caches that ended threads left.
static LEFT: Left = Left::new();

/// The caches that there are, those that were left included.
static CACHES: AtomicUsize = AtomicUsize::new(0);

/// Returns the bytes of all caches of words that this process keeps: one of a few megabytes for each
/// thread that encodes, and those that ended threads left.
#[must_use]
pub fn word_cache_bytes() -> usize {
    CACHES.load(Ordering::Relaxed) * size_of::<Cache>()
}

/// The largest number of caches that are kept for threads to come.
const MAX_KEPT_CACHES: usize = 8;

/// A cache that one thread has to itself.
pub(crate) struct Slot {
    cache: ZeroedBuffer<Cache>,
    left: &'static Left,
}

struct Left(Mutex<Vec<ZeroedBuffer<Cache>>>);

impl Left {
    const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ZeroedBuffer<Cache>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a cache that was left, or a new one.
    fn take(&'static self) -> Slot {
        let left = self.lock().pop();
        Slot {
            cache: left.unwrap_or_else(|| {
                CACHES.fetch_add(1, Ordering::Relaxed);
                ZeroedBuffer::zeroed(1)
            }),
            left: self,
        }
    }
}

impl Default for Slot {
    fn default() -> Self {
        LEFT.take()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut left = self.left.lock();
        if left.len() < MAX_KEPT_CACHES {
            left.push(std::mem::take(&mut self.cache));
        } else {
            CACHES.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Deref for Slot {
    type Target = Cache;

    #[inline(always)]
    fn deref(&self) -> &Cache {
        &self.cache[0]
    }
}

impl DerefMut for Slot {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Cache {
        &mut self.cache[0]
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Slot")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Owner;
    use crate::short_tokens::Key;

    #[test]
    fn caches_are_apart_and_handed_on() {
        static LEFT: Left = Left::new();
        // A word that is cached in the last line.
        let (owner, key) = (Owner::new(), Key { low: 1, high: 7 });
        let known = |slot: &Slot| slot.short(owner, key, u64::MAX).map(|(four, _)| four[0]);
        let mut slots: Vec<Slot> = (0..MAX_KEPT_CACHES + 1).map(|_| LEFT.take()).collect();
        for (id, slot) in (0..).zip(&mut slots) {
            assert_eq!(known(slot), None);
            assert!(slot.insert_short(owner, key, u64::MAX, &[id]));
        }
        for (id, slot) in (0..).zip(&slots) {
            assert_eq!(known(slot), Some(id));
        }
        slots.swap_remove(3);
        assert_eq!(known(&LEFT.take()), Some(3));
        slots.clear();
        assert_eq!(LEFT.lock().len(), MAX_KEPT_CACHES);
    }
}
