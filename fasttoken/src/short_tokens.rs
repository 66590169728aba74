//! A hash table of short words that are a single token.
//!
//! Most words are short: a [`Key`] holds up to 15 bytes and their number, and comparing two keys is
//! comparing two pairs of numbers. The table keeps words of up to 12 bytes with their id in 16
//! bytes, four to a cache line, and nearly every lookup reads one line. It is filled once, from the
//! most frequent token on, so that frequent words are in the line that their hash selects.

use crate::compare::Compare;
use crate::store::{Flat, Relocatable, ZeroedBuffer};
use crate::string_table::{K0, K1, fold};
use bytemuck::{Pod, Zeroable};

/// The largest number of bytes of a word with a key.
pub(crate) const MAX_KEY_BYTES: usize = 15;
/// The largest number of bytes of a word in the table.
const MAX_TOKEN_BYTES: usize = 12;
/// The first id that does not fit into a slot. Words of larger ids are looked up elsewhere.
const ID_END: u32 = 1 << 28;

/// A word of 1 to 15 bytes: bytes 0 to 7 in `low`, 8 to 14 in `high`, the length in
/// the upper byte of `high`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) low: u64,
    pub(crate) high: u64,
}

/// The mask of the bytes of a 16-byte load that belong to a word, for each length.
const KEY_MASKS: [(u64, u64); MAX_KEY_BYTES + 1] = {
    let mut keep = [(0, 0); MAX_KEY_BYTES + 1];
    let mut len = 0;
    while len <= MAX_KEY_BYTES {
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
    /// The key of a word without a key. No free slot equals it.
    pub(crate) const NONE: Self = Self {
        low: 0,
        high: 0xFF << 56,
    };

    /// Returns the key of `bytes[start..end]`, or [`Key::NONE`] if the range is empty or longer
    /// than 15 bytes.
    #[inline(always)]
    pub(crate) fn new(bytes: &[u8], start: usize, end: usize) -> Self {
        let len = end - start;
        if !(1..=MAX_KEY_BYTES).contains(&len) {
            return Self::NONE;
        }
        let Some(wide) = bytes[start..].first_chunk::<16>() else {
            return Self::near_end(&bytes[start..end]);
        };
        let wide = u128::from_le_bytes(*wide);
        let (low, high) = KEY_MASKS[len];
        Self {
            low: wide as u64 & low,
            high: (wide >> 64) as u64 & high | (len as u64) << 56,
        }
    }

    /// Returns the key of a word with fewer than 16 bytes from its start to the end of the text.
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
        fold(self.low ^ K0, self.high ^ K1)
    }
}

/// A word and its id: `low` holds bytes 0 to 7, `high` bytes 8 to 11 below the id (28 bits) and the
/// length (4 bits). A slot of zeros is free.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C, align(16))]
pub(crate) struct Slot {
    low: u64,
    high: u64,
}

/// A cache line of four slots, which are filled in order and compared at once: branches on the
/// matching slot would often be predicted wrongly.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Line([Slot; SLOTS]);

impl Line {
    /// Returns the low and the high half of each slot.
    #[inline(always)]
    pub(crate) fn halves(&self) -> &[u64; 2 * SLOTS] {
        bytemuck::cast_ref(&self.0)
    }
}

/// The number of slots per cache line.
const SLOTS: usize = 4;

/// The largest number of lines that are probed for a word. The words of real vocabularies find a
/// slot within twenty. Without a bound, words that were chosen to share a line would make a file
/// load, and its texts encode, in quadratic time.
const MAX_PROBED_LINES: usize = 32;

/// A table of words of at most 12 bytes that are a single token.
#[derive(Debug, Default)]
pub(crate) struct ShortTokenTable {
    lines: Flat<Line>,
}

impl ShortTokenTable {
    /// Returns true if the table can hold the word.
    #[inline]
    pub(crate) fn fits(key: Key, id: u32) -> bool {
        // The length of no key is above 15.
        (1..=MAX_TOKEN_BYTES as u64).contains(&(key.high >> 56)) && id < ID_END
    }

    /// Builds a table of words and ids, which come in falling order of frequency. Returns the ids
    /// of words that found no slot as well. Words and ids that do not fit are left out; `words`
    /// must not repeat a word.
    pub(crate) fn new(words: impl Iterator<Item = (Key, u32)> + Clone) -> (Self, Vec<u32>) {
        let words = words.filter(|(key, id)| Self::fits(*key, *id));
        let count = words.clone().count();
        if count == 0 {
            return (Self::default(), Vec::new());
        }
        // At 60 % full, one line in ten is full and sends lookups to the next one.
        let mut buffer: ZeroedBuffer<Line> = ZeroedBuffer::zeroed(count * 5 / (3 * SLOTS) + 1);
        let lines = &mut *buffer;
        // The lines of a large vocabulary are megabytes, so each is prefetched 32 words before
        // it is filled: with huge pages, 2 ms instead of 12 for Qwen 3.
        let mut ahead = words.clone();
        let mut ask = |lines: &[Line]| {
            if let Some((key, _)) = ahead.next() {
                crate::prefetch::prefetch(lines, home(key.hash(), lines.len()));
            }
        };
        for _ in 0..32 {
            ask(lines);
        }
        let mut crowded = Vec::new();
        for (key, id) in words {
            ask(lines);
            let mut at = home(key.hash(), lines.len());
            let mut free = lines[at].0.iter().position(|slot| slot.high == 0);
            let mut step = 1;
            while free.is_none() && step < MAX_PROBED_LINES {
                at = if at + 1 == lines.len() { 0 } else { at + 1 };
                free = lines[at].0.iter().position(|slot| slot.high == 0);
                step += 1;
            }
            let Some(free) = free else {
                crowded.push(id);
                continue;
            };
            lines[at].0[free] = Slot {
                low: key.low,
                high: compared(key) | u64::from(id) << 32,
            };
        }
        (
            Self {
                lines: buffer.into(),
            },
            crowded,
        )
    }

    pub(crate) fn table(&mut self) -> &mut dyn Relocatable {
        &mut self.lines
    }

    pub(crate) fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// Creates a table from stored lines, or returns `None` if they are not those of a table.
    pub(crate) fn from_lines(lines: Flat<Line>) -> Option<Self> {
        // Lookups end at a line that is not full.
        let open = lines.iter().any(|line| line.0[SLOTS - 1].high == 0);
        (lines.is_empty() || open).then_some(Self { lines })
    }

    /// Returns the first line that is probed for a hash.
    #[inline(always)]
    pub(crate) fn home(&self, hash: u64) -> usize {
        home(hash, self.lines.len())
    }

    /// Prefetches a line.
    #[inline(always)]
    pub(crate) fn prefetch(&self, line: usize) {
        crate::prefetch::prefetch(&self.lines, line);
    }

    /// Returns the token of a word. `line` is the home of the key's hash.
    #[inline(always)]
    pub(crate) fn get<C: Compare>(&self, key: Key, mut line: usize) -> Option<u32> {
        let wanted = [key.low, compared(key)];
        // Ends at a line that is not full.
        for _ in 0..MAX_PROBED_LINES {
            let slots = self.lines.get(line)?;
            let found = C::matches(slots.halves(), wanted);
            if found != 0 {
                let high = slots.halves()[(found.trailing_zeros() as usize | 1) % (2 * SLOTS)];
                return Some((high >> 32) as u32 & (ID_END - 1));
            }
            if slots.halves()[2 * SLOTS - 1] == 0 {
                return None;
            }
            line = if line + 1 == self.lines.len() {
                0
            } else {
                line + 1
            };
        }
        None
    }
}

#[inline(always)]
fn home(hash: u64, lines: usize) -> usize {
    ((u128::from(hash) * lines as u128) >> 64) as usize
}

/// Returns the upper half of a key in the layout of a slot. Keys of more than 12 bytes match no
/// slot, since no slot has their length.
#[inline(always)]
fn compared(key: Key) -> u64 {
    key.high & 0xFFFF_FFFF | key.high >> 56 << 60
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::Scalar;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn keys_are_words(bytes in prop::collection::vec(0u8..3, 0..40), cut in any::<(u8, u8)>()) {
            let start = usize::from(cut.0) % (bytes.len() + 1);
            let end = start + usize::from(cut.1) % (bytes.len() - start + 1);
            let word = &bytes[start..end];
            let key = Key::new(&bytes, start, end);
            prop_assert_eq!(key, Key::new(word, 0, word.len()));
            prop_assert_eq!(key.is_none(), word.is_empty() || word.len() > MAX_KEY_BYTES);
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
            let all = words.iter().enumerate();
            let (table, crowded) =
                ShortTokenTable::new(all.map(|(id, w)| (Key::new(w, 0, w.len()), id as u32)));
            prop_assert!(crowded.is_empty());
            for word in words.iter().chain([&other]) {
                let key = Key::new(word, 0, word.len());
                let expected = words.iter().position(|w| w == word).map(|id| id as u32);
                let expected = expected.filter(|_| (1..=MAX_TOKEN_BYTES).contains(&word.len()));
                for found in crate::compare::tests::every_way(&table, key) {
                    prop_assert_eq!(found, expected);
                }
            }
        }
    }

    #[test]
    fn ids_that_do_not_fit_are_left_out() {
        let key = |word: &[u8]| Key::new(word, 0, word.len());
        let words = [(key(b"a"), ID_END - 1), (key(b"b"), ID_END)];
        let (table, _) = ShortTokenTable::new(words.into_iter());
        let get = |word: &[u8]| {
            let key = Key::new(word, 0, word.len());
            table.get::<Scalar>(key, table.home(key.hash()))
        };
        assert_eq!((get(b"a"), get(b"b")), (Some(ID_END - 1), None));
    }

    #[test]
    fn words_that_share_a_line_are_bounded() {
        // Bytes that make a factor of the hash zero, whatever the others are.
        let key = |n: u32| Key {
            low: 0x243F_6A88_85A3_08D3,
            high: u64::from(n) | 12 << 56,
        };
        let (table, crowded) = ShortTokenTable::new((0..100_000).map(|n| (key(n), n)));
        let held = (MAX_PROBED_LINES * SLOTS) as u32;
        assert!(crowded.iter().copied().eq(held..100_000));
        for n in [0, held - 1, held, 99_999] {
            let found = table.get::<Scalar>(key(n), table.home(key(n).hash()));
            assert_eq!(found, (n < held).then_some(n));
        }
    }
}
