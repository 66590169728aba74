//! The keys of long words and of words of many tokens.

use crate::short_tokens::{Key, MAX_KEY_BYTES};
use bytemuck::Zeroable;

/// The largest number of bytes of a word with a long key.
const LONG_MAX: usize = 31;

/// The bit that is set in the last byte of each key.
const MARK: u64 = 0x80 << 56;

/// The key of a word of 1 to 31 bytes: its bytes, zeros, and in the last byte the length and
/// [`MARK`].
#[derive(Debug, Clone, Copy, Zeroable)]
pub(crate) struct LongKey {
    pub(super) words: [u64; 4],
    pub(super) hash: u64,
}

impl LongKey {
    /// The key of a word without a key. No entry, not even a free one, has it.
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
        Some(if word.len() > MAX_KEY_BYTES {
            Self::of_long(word, 0, word.len())
        } else {
            let key = Key::new(word, 0, word.len());
            Self::of_short(key, key.hash())
        })
    }

    /// Returns the key of `bytes[start..end]`, which is too long for a [`Key`], or
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
        // The upper byte of `rest.high` holds the length of the rest.
        rest.high += MARK | 16 << 56;
        Self::of_words([first as u64, (first >> 64) as u64, rest.low, rest.high])
    }

    /// Returns the long key of a word with a short key. It keeps the hash of the short key, so both
    /// entries of the word are in the same lines.
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
