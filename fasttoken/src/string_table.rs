//! Immutable open-addressing hash tables, filled at load.
//!
//! Text cannot make a table slow: lookups never insert. Nor can a file: its author knows the hash
//! and can choose keys that share a slot, or that make a factor of the hash zero, so no key is
//! stored more than [`MAX_PROBES`] slots from the slot that its hash selects, and lookups stop
//! there. A key that finds no room is an error, [`TooManyCollisions`].

use crate::store::{Flat, Relocatable};
use bytemuck::{Pod, Zeroable};
use std::ops::Deref;

/// Multiplies and folds the halves together: a cheap and good mixer.
#[inline(always)]
pub(crate) fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

// Odd constants without structure: the fractional parts of pi and e.
pub(crate) const K0: u64 = 0x243F_6A88_85A3_08D3;
pub(crate) const K1: u64 = 0xB7E1_5162_8AED_2A6B;

#[inline]
fn read8(bytes: &[u8], at: usize) -> u64 {
    let chunk = bytes[at..at + 8].try_into().expect("eight bytes");
    u64::from_le_bytes(chunk)
}

#[inline]
fn read4(bytes: &[u8], at: usize) -> u64 {
    let chunk = bytes[at..at + 4].try_into().expect("four bytes");
    u64::from(u32::from_le_bytes(chunk))
}

#[inline]
fn hash(bytes: &[u8]) -> u64 {
    let len = bytes.len();
    let seed = len as u64 ^ K0;
    match len {
        0 => fold(seed, K1),
        1..=3 => {
            let all = u64::from(bytes[0]) << 16
                | u64::from(bytes[len / 2]) << 8
                | u64::from(bytes[len - 1]);
            fold(all ^ seed, K1)
        }
        4..=8 => fold((read4(bytes, 0) << 32 | read4(bytes, len - 4)) ^ seed, K1),
        9..=16 => fold(read8(bytes, 0) ^ seed, read8(bytes, len - 8) ^ K1),
        _ => {
            let mut state = seed;
            for at in (0..len - 16).step_by(16) {
                state = fold(read8(bytes, at) ^ state, read8(bytes, at + 8) ^ K1);
            }
            fold(read8(bytes, len - 16) ^ state, read8(bytes, len - 8) ^ K1)
        }
    }
}

/// The largest number of slots that are probed for a key. Among a million random keys, the last
/// finds its slot within a hundred.
pub(crate) const MAX_PROBES: usize = 512;

/// The error of a key that finds no free slot within [`MAX_PROBES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooManyCollisions;

/// Returns the number of slots for `entries`, at most two thirds full.
fn capacity(entries: usize) -> usize {
    (entries + entries / 2 + 1).next_power_of_two()
}

/// A table from byte strings to ids.
#[derive(Debug)]
pub(crate) struct StringTable<S = Flat<StringSlot>> {
    slots: S,
}

/// A [`StringTable`] that is being filled.
pub(crate) type StringTableBuilder = StringTable<Vec<StringSlot>>;

/// The upper half of the hash, and the id; `EMPTY` if free.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct StringSlot {
    tag: u32,
    id: u32,
}

const EMPTY: u32 = u32::MAX;

impl StringTableBuilder {
    pub(crate) fn with_capacity(entries: usize) -> Self {
        let free = StringSlot { tag: 0, id: EMPTY };
        Self {
            slots: vec![free; capacity(entries)],
        }
    }

    pub(crate) fn finish(self) -> StringTable {
        StringTable {
            slots: self.slots.into(),
        }
    }

    /// Adds `key` as `id` and returns `None`, or returns the id of an equal key that is there
    /// already. `resolve` gives the key of an id added before. No id may be `u32::MAX`.
    pub(crate) fn insert<'a>(
        &mut self,
        key: &[u8],
        id: u32,
        resolve: impl Fn(u32) -> &'a [u8],
    ) -> Result<Option<u32>, TooManyCollisions> {
        let (tag, start) = self.start(key);
        for step in 0..MAX_PROBES {
            let at = (start + step) & (self.slots.len() - 1);
            let slot = self.slots[at];
            if slot.id == EMPTY {
                self.slots[at] = StringSlot { tag, id };
                return Ok(None);
            }
            if slot.tag == tag && resolve(slot.id) == key {
                return Ok(Some(slot.id));
            }
        }
        Err(TooManyCollisions)
    }
}

impl StringTable {
    pub(crate) fn table(&mut self) -> &mut dyn Relocatable {
        &mut self.slots
    }

    pub(crate) fn slots(&self) -> &[StringSlot] {
        &self.slots
    }

    /// Creates a table from stored slots, or returns `None` if their number is not that of a table.
    pub(crate) fn from_slots(slots: Flat<StringSlot>) -> Option<Self> {
        slots.len().is_power_of_two().then_some(Self { slots })
    }
}

impl<S: Deref<Target = [StringSlot]>> StringTable<S> {
    #[inline]
    pub(crate) fn get<'a>(&self, key: &[u8], resolve: impl Fn(u32) -> &'a [u8]) -> Option<u32> {
        let (tag, start) = self.start(key);
        for step in 0..MAX_PROBES {
            let slot = self.slots[(start + step) & (self.slots.len() - 1)];
            if slot.id == EMPTY {
                return None;
            }
            if slot.tag == tag && resolve(slot.id) == key {
                return Some(slot.id);
            }
        }
        None
    }

    #[inline]
    fn start(&self, key: &[u8]) -> (u32, usize) {
        let hash = hash(key);
        ((hash >> 32) as u32, hash as usize & (self.slots.len() - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn string_table_is_a_map(keys in prop::collection::vec(prop::collection::vec(0u8..4, 0..40), 0..60)) {
            let mut table = StringTableBuilder::with_capacity(keys.len());
            let mut map = HashMap::new();
            let resolve = |id: u32| keys[id as usize].as_slice();
            for (id, key) in keys.iter().enumerate() {
                let id = id as u32;
                let old = map.get(key).copied();
                prop_assert_eq!(table.insert(key, id, resolve), Ok(old));
                map.entry(key).or_insert(id);
            }
            let table = StringTable::from_slots(table.finish().slots().to_vec().into()).unwrap();
            for key in &keys {
                prop_assert_eq!(table.get(key, resolve), map.get(key).copied());
                let mut other = key.clone();
                other.push(9);
                prop_assert_eq!(table.get(&other, resolve), None);
            }
        }
    }

    #[test]
    fn slots_of_no_table_are_refused() {
        let free = StringSlot { tag: 0, id: EMPTY };
        let full = StringSlot { tag: 0, id: 1 };
        let strings = |slots: &[StringSlot]| StringTable::from_slots(slots.to_vec().into());
        assert!(strings(&[full, free]).is_some());
        for slots in [&[full, full, free][..], &[]] {
            assert!(strings(slots).is_none());
        }
        // Looking ends without a free one, too.
        let full = strings(&[full, full]).unwrap();
        assert_eq!(full.get(b"a", |_| b"b"), None);
    }

    #[test]
    fn keys_that_share_a_place_are_crowded() {
        // A first half that makes the factor with the length zero: all hashes are zero.
        let start = (12 ^ K0).to_le_bytes();
        let keys: Vec<Vec<u8>> = (0..100_000u32)
            .map(|n| [&start[..], &n.to_le_bytes()].concat())
            .collect();
        let resolve = |id: u32| keys[id as usize].as_slice();
        let mut table = StringTableBuilder::with_capacity(keys.len());
        let mut results = (0..)
            .zip(&keys)
            .map(|(id, key)| table.insert(key, id, resolve));
        // The first one that is not there is found out after a bounded number of steps, as
        // are all others.
        assert_eq!(results.position(|result| result.is_err()), Some(MAX_PROBES));
        assert!(results.all(|result| result == Err(TooManyCollisions)));
        let table = table.finish();
        assert_eq!(
            table.get(&keys[MAX_PROBES - 1], resolve),
            Some(MAX_PROBES as u32 - 1)
        );
        assert_eq!(table.get(&keys[MAX_PROBES], resolve), None);
    }
}
