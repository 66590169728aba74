//! Keys of words that are too long, or of too many tokens, for others.

use crate::words::{KEY_MAX, Key};
use bytemuck::Zeroable;

/// Longest word that has one.
const LONG_MAX: usize = 31;

/// Set in the last byte of each key.
const MARK: u64 = 0x80 << 56;

/// A word of 1 to 31 bytes: these, zeros, and in the last byte the length and [`MARK`].
#[derive(Debug, Clone, Copy, Zeroable)]
pub(crate) struct LongKey {
    pub(super) words: [u64; 4],
    pub(super) hash: u64,
}

impl LongKey {
    /// In place of the key of a word that has none. No entry, not even a free one, has it.
    pub(crate) const NONE: Self = Self {
        words: [0, 0, 0, 0xFF << 56],
        hash: 0,
    };

    pub(super) fn is_none(&self) -> bool {
        self.words == Self::NONE.words
    }

    #[inline]
    pub(crate) fn new(word: &[u8]) -> Option<Self> {
        if !(1..=LONG_MAX).contains(&word.len()) {
            return None;
        }
        Some(if word.len() > KEY_MAX {
            Self::of_long(word, 0, word.len())
        } else {
            let key = Key::new(word, 0, word.len());
            Self::of_short(key, key.hash())
        })
    }

    /// The key of `bytes[start..end]`, which is longer than a [`Key`] can be;
    /// [`LongKey::NONE`] if it has more than 31 bytes.
    #[inline(always)]
    pub(crate) fn of_long(bytes: &[u8], start: usize, end: usize) -> Self {
        let first = bytes[start..end].first_chunk::<16>();
        let (Some(first), false) = (first, end - start > LONG_MAX) else {
            return Self::NONE;
        };
        let first = u128::from_le_bytes(*first);
        let mut rest = Key { low: 0, high: 0 };
        if end - start > 16 {
            rest = Key::new(bytes, start + 16, end);
        }
        // The length of the rest is there.
        rest.high += MARK | 16 << 56;
        Self::of_words([first as u64, (first >> 64) as u64, rest.low, rest.high])
    }

    /// The key of a word that has a short one, too, and its hash: what is remembered of it is in
    /// the same lines, however many its tokens are.
    #[inline(always)]
    pub(crate) fn of_short(key: Key, hash: u64) -> Self {
        let len = 0xFF << 56;
        let words = [key.low, key.high & !len, 0, key.high & len | MARK];
        Self { words, hash }
    }

    #[inline(always)]
    fn of_words(words: [u64; 4]) -> Self {
        let half = |low, high| Key { low, high }.hash();
        let hash = Key {
            low: half(words[0], words[1]),
            high: half(words[2], words[3]),
        };
        let hash = hash.hash();
        Self { words, hash }
    }
}
