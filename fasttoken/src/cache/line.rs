//! The lines of the cache and their entries.

use super::{LongKey, Owner};
use crate::short_tokens::Key;
use bytemuck::{Pod, Zeroable};

/// The largest number of tokens of a short entry.
pub(crate) const SHORT_TOKENS: usize = 3;
/// The largest number of tokens of a long entry.
pub(super) const LONG_TOKENS: usize = 7;

/// The bits of a tag that hold the number of tokens.
const COUNT: u32 = 7;

/// A short entry: the tokens of a word of up to 15 bytes.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(32))]
pub(super) struct Short {
    key: [u64; 2],
    /// Up to three tokens, and the tag. An entry with a tag of zero is free.
    ids: [u32; 4],
}

/// A long entry: the tokens of a word of up to 31 bytes that is too long, or has too many tokens,
/// for a [`Short`] entry.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Long {
    key: [u64; 4],
    /// Up to seven tokens, and the tag.
    ids: [u32; 8],
}

/// A cache line of two short entries, the newer one first, or of one long entry.
///
/// The last byte of a long key has its highest bit set. The tag of a short entry, which is at the
/// same place, never has. So no entry is taken for one of the other kind.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [u64; 8]);

/// A short entry in the form that lines are compared with.
pub(crate) type ShortProbe = [u64; 4];

/// The compared bits of a short entry: its key and its owner.
pub(super) const COMPARED: ShortProbe = [u64::MAX, u64::MAX, 0, (!COUNT as u64) << 32];

impl Short {
    /// Creates an entry of the first three of `ids`.
    pub(super) fn new(owner: Owner, key: Key, ids: &[u32]) -> Self {
        let count = ids.len().min(SHORT_TOKENS);
        let mut four = [0; 4];
        four[..count].copy_from_slice(&ids[..count]);
        four[3] = owner.short_tag() | count as u32;
        Self {
            key: [key.low, key.high],
            ids: four,
        }
    }

    pub(super) fn is_free(&self) -> bool {
        self.ids[3] == 0
    }

    /// Returns true if the entry is free or has a single token, so that losing it costs little.
    fn is_cheap(&self) -> bool {
        self.ids[3] & COUNT == 1 || self.is_free()
    }

    /// Returns true if both entries are of the same word and owner.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.key == other.key && (self.ids[3] ^ other.ids[3]) & !COUNT == 0
    }

    /// Returns the tokens as the first elements of four numbers, and their number.
    #[inline(always)]
    pub(super) fn tokens(&self) -> (&[u32; 4], usize) {
        (&self.ids, (self.ids[3] & COUNT) as usize)
    }
}

impl Line {
    pub(super) fn of_shorts(shorts: [Short; 2]) -> Self {
        bytemuck::cast(shorts)
    }

    /// Creates a line with a long entry of the first [`LONG_TOKENS`] of `ids`.
    pub(super) fn of_long(owner: Owner, key: &LongKey, ids: &[u32]) -> Self {
        let count = ids.len().min(LONG_TOKENS);
        let mut eight = [0; 8];
        eight[..count].copy_from_slice(&ids[..count]);
        eight[7] = owner.long_tag() | count as u32;
        bytemuck::cast(Long {
            key: key.words,
            ids: eight,
        })
    }

    #[inline(always)]
    pub(super) fn is_long(&self) -> bool {
        self.0[3] >> 63 == 1
    }

    /// Returns the entries of a line that is not [long](Line::is_long).
    #[inline(always)]
    pub(super) fn shorts(&self) -> &[Short; 2] {
        bytemuck::cast_ref(self)
    }

    #[inline(always)]
    pub(super) fn shorts_mut(&mut self) -> &mut [Short; 2] {
        bytemuck::cast_mut(self)
    }

    /// Returns the position of a word's short entry.
    #[inline(always)]
    pub(super) fn find(&self, owner: Owner, key: Key) -> Option<usize> {
        let tag = owner.short_tag();
        let key = [key.low, key.high];
        let is = |entry: &Short| entry.key == key && entry.ids[3] & !COUNT == tag;
        self.shorts().iter().position(is)
    }

    /// Returns the tokens of a word, as the first elements of eight numbers, if the line is its
    /// long entry.
    #[inline(always)]
    pub(super) fn find_long(&self, owner: Owner, key: &LongKey) -> Option<(&[u32; 8], usize)> {
        let Long { key: own, ids } = bytemuck::cast_ref(self);
        let found = *own == key.words && ids[7] & !COUNT == owner.long_tag();
        found.then_some((ids, (ids[7] & COUNT) as usize))
    }

    /// Admits a short entry that was evicted from its own line, unless it is worth less than the
    /// entries here.
    pub(super) fn admit_short(&mut self, entry: Short) {
        if self.is_long() || entry.is_free() {
            return;
        }
        let [newer, older] = self.shorts_mut();
        if newer.is_free() {
            *newer = entry;
        } else if older.is_cheap() || !newer.is_cheap() && !entry.is_cheap() {
            *older = entry;
        } else if !entry.is_cheap() {
            *newer = entry;
        }
    }

    /// Admits a long entry that was evicted from its own line; `line` holds nothing else.
    pub(super) fn admit_long(&mut self, line: Self) {
        if self.is_long() || self.shorts().iter().all(Short::is_cheap) {
            *self = line;
        }
    }
}
