//! The memory of the threads' caches, which lie side by side in huge pages.
//!
//! A huge page is in memory as a whole once one byte of it is touched, so a cache in pages of its
//! own takes 2 MiB however few lines it uses. Eight caches of 1.75 MiB in a row take seven huge
//! pages together, 1.84 MB each, and their addresses are translated (in the TLB) as fast. The last
//! page is whole as well: seven caches take as much as eight.
//!
//! A thread takes the first free slot and keeps it until it ends. The words of the last thread stay
//! cached for the next one: entries name the tokenizer that made them. With its last slot a row of
//! slots goes back to the system.
#![expect(
    unsafe_code,
    reason = "values that do not borrow from what they lie in"
)]

use super::Cache;
use crate::pages::Pages;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The number of caches in a row.
const ROW: usize = 8;

/// The caches of this process.
static ALL: Rows = Rows::new();

/// A cache that one thread has to itself.
pub(crate) struct Slot {
    cache: NonNull<Cache>,
    rows: &'static Rows,
}

/// The rows of slots, each with at least one slot in use.
struct Rows(Mutex<Vec<Row>>);

struct Row {
    first: NonNull<Cache>,
    count: usize,
    /// A bit for each slot in use.
    taken: u32,
    /// The owner of the memory behind `first`, which is only kept alive.
    _keeper: Keeper,
}

enum Keeper {
    Pages { _pages: Pages },
    Heap { _one: Vec<Cache> },
}

// SAFETY: a row owns the caches, which may be used from any thread, by one at a time: `taken`
// sees to that.
unsafe impl Send for Row {}

impl Row {
    /// Creates a row of zeroed caches. Without huge pages it has one slot.
    fn new() -> Self {
        if let Some(mut pages) = Pages::zeroed(ROW * size_of::<Cache>())
            && let Ok(caches) = bytemuck::try_cast_slice_mut::<u8, Cache>(&mut pages)
        {
            return Self {
                count: caches.len(),
                first: NonNull::from(caches).cast(),
                taken: 0,
                _keeper: Keeper::Pages { _pages: pages },
            };
        }
        // Not a box: moving a box would invalidate the pointer to its contents.
        let mut one: Vec<Cache> = bytemuck::zeroed_vec(1);
        Self {
            count: one.len(),
            first: NonNull::from(&mut one[..]).cast(),
            taken: 0,
            _keeper: Keeper::Heap { _one: one },
        }
    }

    /// Takes the first free slot.
    fn take(&mut self) -> Option<NonNull<Cache>> {
        let free = self.taken.trailing_ones() as usize;
        if free >= self.count {
            return None;
        }
        self.taken |= 1 << free;
        // SAFETY: the row has more than `free` caches.
        Some(unsafe { self.first.add(free) })
    }

    /// Frees the slot of `cache`. Returns false if it is not in this row.
    fn give_back(&mut self, cache: NonNull<Cache>) -> bool {
        let bytes = cache.addr().get().wrapping_sub(self.first.addr().get());
        let at = bytes / size_of::<Cache>();
        let is_here = at < self.count;
        if is_here {
            self.taken &= !(1 << at);
        }
        is_here
    }
}

impl Rows {
    const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Row>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&'static self) -> Slot {
        let mut rows = self.lock();
        let cache = rows.iter_mut().find_map(Row::take).unwrap_or_else(|| {
            let mut row = Row::new();
            let cache = row.take().expect("all slots of a new row are free");
            rows.push(row);
            cache
        });
        Slot { cache, rows: self }
    }
}

impl Default for Slot {
    fn default() -> Self {
        ALL.take()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut rows = self.rows.lock();
        let row = rows.iter_mut().position(|row| row.give_back(self.cache));
        if let Some(row) = row
            && rows[row].taken == 0
        {
            rows.remove(row);
        }
    }
}

impl Deref for Slot {
    type Target = Cache;

    #[inline(always)]
    fn deref(&self) -> &Cache {
        // SAFETY: the row of this slot keeps the cache where it is, as long as this value has
        // not given it back, and lets no other slot have it. Any bytes are a valid one.
        unsafe { self.cache.as_ref() }
    }
}

impl DerefMut for Slot {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Cache {
        // SAFETY: as above, and `&mut self` is exclusive.
        unsafe { self.cache.as_mut() }
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
    use crate::cache::{LINES, Owner};
    use crate::short_tokens::Key;
    use std::sync::Barrier;

    /// A word that is cached in the last line.
    const KEY: Key = Key { low: 1, high: 7 };

    fn remember(slot: &mut Slot, owner: Owner, id: u32) {
        assert!(slot.insert_short(owner, KEY, u64::MAX, &[id]));
    }

    fn known(slot: &Slot, owner: Owner) -> Option<u32> {
        slot.short(owner, KEY, u64::MAX).map(|(four, _)| four[0])
    }

    #[test]
    fn slots_are_apart_and_handed_on() {
        static ROWS: Rows = Rows::new();
        let owner = Owner::new();
        let mut slots: Vec<Slot> = (0..2 * ROW + 1).map(|_| ROWS.take()).collect();
        for (id, slot) in (0..).zip(&mut slots) {
            assert_eq!(known(slot, owner), None);
            remember(slot, owner, id);
        }
        for (id, slot) in (0..).zip(&slots) {
            assert_eq!(known(slot, owner), Some(id));
        }
        let rows = ROWS.lock().len();
        let whole = ROWS.lock().iter().all(|row| row.count == ROW);
        assert_eq!(rows, if whole { 3 } else { slots.len() });
        // The only slot of its row.
        slots.pop();
        assert_eq!(ROWS.lock().len(), rows - 1);
        if whole {
            // Of those that are free the first one, as it was left.
            slots.truncate(ROW + 2);
            slots.swap_remove(3);
            assert_eq!(known(&ROWS.take(), owner), Some(3));
        }
        slots.clear();
        assert!(ROWS.lock().is_empty());
    }

    #[test]
    fn threads_that_come_and_go_take_no_more() {
        static ROWS: Rows = Rows::new();
        let owner = Owner::new();
        // It stays, so that there is a row.
        let _first = ROWS.take();
        let row = ROWS.lock().iter().map(|row| row.count).sum::<usize>();
        let most = if row == ROW { 1 } else { ROW };
        for round in 0..50 {
            let ready = Barrier::new(ROW - 1);
            std::thread::scope(|scope| {
                for thread in 1..ROW as u32 {
                    let ready = &ready;
                    scope.spawn(move || {
                        let mut slot = ROWS.take();
                        remember(&mut slot, owner, thread);
                        ready.wait();
                        assert_eq!(known(&slot, owner), Some(thread), "in round {round}");
                    });
                }
            });
            assert!(ROWS.lock().len() <= most);
            assert_eq!(ROWS.lock()[0].taken, 1);
        }
        assert_eq!(size_of::<Cache>(), LINES * 64);
    }
}
