//! Words that are one token, by a key that fits two registers.
//!
//! Most words are short: a key holds up to 15 bytes and their number, and comparing
//! two keys is comparing two numbers. The table keeps words of up to 12 bytes with
//! their id in 16 bytes, four to a cache line. It is filled once, from the most
//! frequent token on, so that look-ups of frequent words end at the first slot.

use crate::store::Flat;
use bytemuck::{Pod, Zeroable};

/// Longest word with a key.
pub(crate) const KEY_MAX: usize = 15;
/// Longest word in the table.
pub(crate) const WORD_MAX: usize = 12;
/// Larger ids do not fit into a slot; such words take the slower way.
const ID_END: u32 = 1 << 28;

/// A word of 1 to 15 bytes: bytes 0 to 7 in `low`, 8 to 14 in `high`, the length in
/// the upper byte of `high`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) low: u64,
    pub(crate) high: u64,
}

/// For each length, the bytes of a 16-byte load that belong to a word.
const KEEP: [(u64, u64); KEY_MAX + 1] = {
    let mut keep = [(0, 0); KEY_MAX + 1];
    let mut len = 0;
    while len <= KEY_MAX {
        keep[len] = if len < 8 {
            ((1 << (8 * len)) - 1, 0)
        } else {
            (u64::MAX, (1 << (8 * (len - 8))) - 1)
        };
        len += 1;
    }
    keep
};

impl Key {
    /// In place of the key of a word that has none. No free slot looks like it.
    pub(crate) const NONE: Self = Self {
        low: 0,
        high: 0xFF << 56,
    };

    /// The key of `bytes[start..end]`; [`Key::NONE`] if that is empty or longer than
    /// 15 bytes.
    #[inline(always)]
    pub(crate) fn new(bytes: &[u8], start: usize, end: usize) -> Self {
        let len = end - start;
        if !(1..=KEY_MAX).contains(&len) {
            return Self::NONE;
        }
        let Some(wide) = bytes[start..].first_chunk::<16>() else {
            return Self::near_end(&bytes[start..end]);
        };
        let wide = u128::from_le_bytes(*wide);
        let (low, high) = KEEP[len];
        Self {
            low: wide as u64 & low,
            high: (wide >> 64) as u64 & high | (len as u64) << 56,
        }
    }

    /// The key of a word with fewer than 16 bytes from its start to the text's end.
    #[inline]
    fn near_end(word: &[u8]) -> Self {
        let len = word.len();
        let four = |at: usize| {
            let bytes = word[at..at + 4].try_into().expect("four bytes");
            u64::from(u32::from_le_bytes(bytes))
        };
        let eight =
            |at: usize| u64::from_le_bytes(word[at..at + 8].try_into().expect("eight bytes"));
        let (low, high) = match len {
            ..4 => {
                let middle = u64::from(word[len / 2]) << (8 * (len / 2));
                let last = u64::from(word[len - 1]) << (8 * (len - 1));
                (u64::from(word[0]) | middle | last, 0)
            }
            4..8 => (four(0) | four(len - 4) << (8 * (len - 4)), 0),
            8 => (eight(0), 0),
            _ => (eight(0), eight(len - 8) >> (8 * (16 - len))),
        };
        Self {
            low,
            high: high | (len as u64) << 56,
        }
    }

    #[inline(always)]
    pub(crate) fn is_none(self) -> bool {
        self == Self::NONE
    }

    #[inline(always)]
    pub(crate) fn hash(self) -> u64 {
        // Odd constants without structure: the fractional parts of pi and e.
        let product = u128::from(self.low ^ 0x243F_6A88_85A3_08D3)
            * u128::from(self.high ^ 0xB7E1_5162_8AED_2A6B);
        product as u64 ^ (product >> 64) as u64
    }
}

/// A word and its id: bytes 0 to 7; bytes 8 to 11 below the id (28 bits) and the
/// length (4 bits). Free while all is zero.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C, align(16))]
pub(crate) struct Slot {
    low: u64,
    high: u64,
}

/// What of [`Slot::high`] is compared: all but the id.
const COMPARED: u64 = 0xF000_0000_FFFF_FFFF;

/// Words of at most 12 bytes that are one token.
#[derive(Debug, Default)]
pub(crate) struct WordTable {
    slots: Flat<Slot>,
}

impl WordTable {
    /// Words and ids, the most frequent first. Words or ids that do not fit are left
    /// out; `words` must not repeat one.
    pub(crate) fn new<'a>(words: impl Iterator<Item = (&'a [u8], u32)> + Clone) -> Self {
        let fits = |(word, id): &(&[u8], u32)| (1..=WORD_MAX).contains(&word.len()) && *id < ID_END;
        let words = words.filter(fits);
        let count = words.clone().count();
        if count == 0 {
            return Self::default();
        }
        // At two thirds full, a hit looks at 1.5 slots of the same line on average.
        let mut slots = vec![Slot::default(); count + count / 2 + 1];
        for (word, id) in words {
            let key = Key::new(word, 0, word.len());
            let mut at = home(key.hash(), slots.len());
            while slots[at].high != 0 {
                at = (at + 1) % slots.len();
            }
            slots[at] = Slot {
                low: key.low,
                high: compared(key) | u64::from(id) << 32,
            };
        }
        Self {
            slots: slots.into(),
        }
    }

    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// From the slots of another; `None` if no table has such.
    pub(crate) fn from_slots(slots: Flat<Slot>) -> Option<Self> {
        // Probing ends at a free slot.
        let free = slots.is_empty() || slots.iter().any(|slot| slot.high == 0);
        free.then_some(Self { slots })
    }

    /// Asks for the memory that a look-up of a key with this hash will read first.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        crate::prefetch::prefetch(&self.slots, home(hash, self.slots.len()));
    }

    /// The token that the word is. `hash` is the key's.
    #[inline(always)]
    pub(crate) fn get(&self, key: Key, hash: u64) -> Option<u32> {
        let wanted = compared(key);
        let mut at = home(hash, self.slots.len());
        // Ends at a free slot, of which a third are.
        while let Some(slot) = self.slots.get(at) {
            if slot.low == key.low && slot.high & COMPARED == wanted {
                return Some((slot.high >> 32) as u32 & (ID_END - 1));
            }
            if slot.high == 0 {
                return None;
            }
            at = if at + 1 == self.slots.len() {
                0
            } else {
                at + 1
            };
        }
        None
    }
}

#[inline(always)]
fn home(hash: u64, slots: usize) -> usize {
    ((u128::from(hash) * slots as u128) >> 64) as usize
}

/// A key as slots have it. Keys of more than 12 bytes are in no slot, since no slot
/// has their length.
#[inline(always)]
fn compared(key: Key) -> u64 {
    key.high & 0xFFFF_FFFF | key.high >> 56 << 60
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn keys_are_words(bytes in prop::collection::vec(0u8..3, 0..40), cut in any::<(u8, u8)>()) {
            let start = usize::from(cut.0) % (bytes.len() + 1);
            let end = start + usize::from(cut.1) % (bytes.len() - start + 1);
            let word = &bytes[start..end];
            let key = Key::new(&bytes, start, end);
            prop_assert_eq!(key, Key::new(word, 0, word.len()));
            prop_assert_eq!(key.is_none(), word.is_empty() || word.len() > KEY_MAX);
            if !key.is_none() {
                let mut wide = [0; 16];
                wide[..word.len()].copy_from_slice(word);
                wide[15] = word.len() as u8;
                prop_assert_eq!(wide[..8].to_vec(), key.low.to_le_bytes());
                prop_assert_eq!(wide[8..].to_vec(), key.high.to_le_bytes());
            }
        }

        #[test]
        fn the_table_is_a_map(
            words in prop::collection::hash_set(prop::collection::vec(0u8..3, 0..16), 0..80),
            other in prop::collection::vec(0u8..3, 0..16),
        ) {
            let words: Vec<_> = words.into_iter().collect();
            let table = WordTable::new(words.iter().enumerate().map(|(id, w)| (&w[..], id as u32)));
            for word in words.iter().chain([&other]) {
                let key = Key::new(word, 0, word.len());
                let expected = words.iter().position(|w| w == word).map(|id| id as u32);
                let expected = expected.filter(|_| (1..=WORD_MAX).contains(&word.len()));
                prop_assert_eq!(table.get(key, key.hash()), expected);
            }
        }
    }

    #[test]
    fn ids_that_do_not_fit_are_left_out() {
        let table = WordTable::new([(&b"a"[..], ID_END - 1), (b"b", ID_END)].into_iter());
        let get = |word: &[u8]| {
            let key = Key::new(word, 0, word.len());
            table.get(key, key.hash())
        };
        assert_eq!((get(b"a"), get(b"b")), (Some(ID_END - 1), None));
    }
}
