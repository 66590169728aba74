//! Frozen open-addressing hash tables, filled at load and only read afterwards.
//!
//! Text cannot make them slow: look-ups never insert, so the longest probe is
//! fixed by the vocabulary file alone.

use crate::image::ImageError;
use crate::image::format::{Reader, Section, Writer};
use crate::store::Flat;
use bytemuck::{Pod, Zeroable};
use std::ops::Deref;

/// Multiplies and folds the halves together: a cheap and good mixer.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

// Odd constants without structure: the fractional parts of pi and e.
const K0: u64 = 0x243F_6A88_85A3_08D3;
const K1: u64 = 0xB7E1_5162_8AED_2A6B;

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

/// Slots for `entries`, at most two thirds full.
fn capacity(entries: usize) -> usize {
    (entries + entries / 2 + 1).next_power_of_two()
}

/// From byte strings to the ids under which a caller keeps them.
#[derive(Debug)]
pub(crate) struct StringTable<S = Flat<StringSlot>> {
    slots: S,
}

/// A [`StringTable`] that is being filled.
pub(crate) type StringTableBuilder = StringTable<Vec<StringSlot>>;

/// Upper half of the hash and id; `EMPTY` where free.
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

    /// Adds `key` as `id`, unless an equal key is there: then returns its id.
    /// `resolve` gives the key of an id added before. No more keys than the
    /// capacity may be added, and no id may be `u32::MAX`.
    pub(crate) fn insert<'a>(
        &mut self,
        key: &[u8],
        id: u32,
        resolve: impl Fn(u32) -> &'a [u8],
    ) -> Option<u32> {
        let (tag, mut at) = self.start(key);
        loop {
            let slot = self.slots[at];
            if slot.id == EMPTY {
                self.slots[at] = StringSlot { tag, id };
                return None;
            }
            if slot.tag == tag && resolve(slot.id) == key {
                return Some(slot.id);
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }
}

impl StringTable {
    pub(crate) fn slots(&self) -> &[StringSlot] {
        &self.slots
    }

    /// From the slots of another; `None` if no table has such.
    pub(crate) fn from_slots(slots: Flat<StringSlot>) -> Option<Self> {
        // Probing ends at a free slot.
        let free = slots.iter().any(|slot| slot.id == EMPTY);
        (free && slots.len().is_power_of_two()).then_some(Self { slots })
    }
}

impl<S: Deref<Target = [StringSlot]>> StringTable<S> {
    #[inline]
    pub(crate) fn get<'a>(&self, key: &[u8], resolve: impl Fn(u32) -> &'a [u8]) -> Option<u32> {
        let (tag, mut at) = self.start(key);
        loop {
            let slot = self.slots[at];
            if slot.id == EMPTY {
                return None;
            }
            if slot.tag == tag && resolve(slot.id) == key {
                return Some(slot.id);
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    #[inline]
    fn start(&self, key: &[u8]) -> (u32, usize) {
        let hash = hash(key);
        ((hash >> 32) as u32, hash as usize & (self.slots.len() - 1))
    }
}

/// What a pair of neighbouring tokens becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Merge {
    /// Position among the merge rules; lower merges first.
    pub(crate) rank: u32,
    /// The token made.
    pub(crate) id: u32,
}

/// From pairs of ids to their [`Merge`].
#[derive(Debug)]
pub(crate) struct PairTable<S = Flat<PairSlot>, B = Flat<u64>> {
    slots: S,
    /// A bit for each of 8 to 16 times as many hashes as there are pairs: most pairs
    /// that are looked up have no merge, and this says so from the second-level cache.
    bits: B,
}

/// A [`PairTable`] that is being filled.
pub(crate) type PairTableBuilder = PairTable<Vec<PairSlot>, Vec<u64>>;

/// Left id in the upper half of the key, right id in the lower; `EMPTY_PAIR` where
/// free.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct PairSlot {
    key: u64,
    merge: Merge,
}

const EMPTY_PAIR: u64 = u64::MAX;

impl PairTableBuilder {
    pub(crate) fn with_capacity(entries: usize) -> Self {
        let free = PairSlot {
            key: EMPTY_PAIR,
            merge: Merge { rank: 0, id: 0 },
        };
        Self {
            slots: vec![free; capacity(entries)],
            bits: vec![0; (capacity(entries) / 8).max(1)],
        }
    }

    pub(crate) fn finish(self) -> PairTable {
        PairTable {
            slots: self.slots.into(),
            bits: self.bits.into(),
        }
    }

    /// Sets the merge of a pair; a later rule for the same pair wins.
    pub(crate) fn insert(&mut self, left: u32, right: u32, merge: Merge) {
        let key = pair(left, right);
        let hash = fold(key ^ K0, K1);
        let (word, bit) = self.bit(hash);
        self.bits[word] |= bit;
        let mut at = hash as usize & (self.slots.len() - 1);
        while self.slots[at].key != EMPTY_PAIR && self.slots[at].key != key {
            at = (at + 1) & (self.slots.len() - 1);
        }
        self.slots[at] = PairSlot { key, merge };
    }
}

impl PairTable {
    pub(crate) fn write(&self, image: &mut Writer) {
        image.put(Section::Pairs, &self.slots);
        image.put(Section::PairBits, &self.bits);
    }

    pub(crate) fn read(image: &Reader) -> Result<Self, ImageError> {
        let this = Self::from_parts(image.get(Section::Pairs)?, image.get(Section::PairBits)?);
        this.ok_or_else(|| Section::Pairs.invalid("it is not a table"))
    }

    /// From the parts of another; `None` if no table has such.
    fn from_parts(slots: Flat<PairSlot>, bits: Flat<u64>) -> Option<Self> {
        // Probing ends at a free slot.
        let free = slots.iter().any(|slot| slot.key == EMPTY_PAIR);
        let sizes = slots.len().is_power_of_two() && bits.len().is_power_of_two();
        (free && sizes).then_some(Self { slots, bits })
    }

    /// Left, right and merge of every pair, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32, Merge)> {
        let used = self.slots.iter().filter(|slot| slot.key != EMPTY_PAIR);
        used.map(|slot| ((slot.key >> 32) as u32, slot.key as u32, slot.merge))
    }
}

impl<S: Deref<Target = [PairSlot]>, B: Deref<Target = [u64]>> PairTable<S, B> {
    #[inline]
    pub(crate) fn get(&self, left: u32, right: u32) -> Option<Merge> {
        let key = pair(left, right);
        let hash = fold(key ^ K0, K1);
        let (word, bit) = self.bit(hash);
        if self.bits[word] & bit == 0 {
            return None;
        }
        let mut at = hash as usize & (self.slots.len() - 1);
        loop {
            let slot = self.slots[at];
            if slot.key == key {
                return Some(slot.merge);
            }
            if slot.key == EMPTY_PAIR {
                return None;
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    #[inline]
    fn bit(&self, hash: u64) -> (usize, u64) {
        // The upper half, since the lower decides over the slot.
        let at = (hash >> 32) as usize;
        ((at / 64) & (self.bits.len() - 1), 1 << (at % 64))
    }
}

#[inline]
fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
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
                prop_assert_eq!(table.insert(key, id, resolve), old);
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

        #[test]
        fn pair_table_is_a_map(pairs in prop::collection::vec((0u32..6, 0u32..6), 0..60)) {
            let mut table = PairTableBuilder::with_capacity(pairs.len());
            let mut map = HashMap::new();
            for (rank, &(left, right)) in pairs.iter().enumerate() {
                let merge = Merge { rank: rank as u32, id: left + right };
                table.insert(left, right, merge);
                map.insert((left, right), merge);
            }
            let table = table.finish();
            let table = PairTable::from_parts(table.slots, table.bits).unwrap();
            for left in 0..7 {
                for right in 0..7 {
                    prop_assert_eq!(table.get(left, right), map.get(&(left, right)).copied());
                }
            }
        }
    }

    #[test]
    fn slots_of_no_table_are_refused() {
        let free = StringSlot { tag: 0, id: EMPTY };
        let full = StringSlot { tag: 0, id: 1 };
        let strings = |slots: &[StringSlot]| StringTable::from_slots(slots.to_vec().into());
        assert!(strings(&[full, free]).is_some());
        for slots in [&[full, full][..], &[full, full, free], &[]] {
            assert!(strings(slots).is_none());
        }
        let merge = Merge { rank: 0, id: 0 };
        let free = PairSlot {
            key: EMPTY_PAIR,
            merge,
        };
        let full = PairSlot { key: 1, merge };
        let pairs =
            |slots: &[PairSlot]| PairTable::from_parts(slots.to_vec().into(), vec![0].into());
        assert!(pairs(&[full, free]).is_some());
        for slots in [&[full, full][..], &[full, full, free], &[]] {
            assert!(pairs(slots).is_none());
        }
        let uneven = vec![0; 3];
        assert!(PairTable::from_parts(vec![full, free].into(), uneven.into()).is_none());
    }
}
