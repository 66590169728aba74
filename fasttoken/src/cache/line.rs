//! Lines of the cache, and what is in them.

use super::{LongKey, Owner};
use crate::words::Key;
use bytemuck::{Pod, Zeroable};

/// Most tokens of a short entry.
pub(crate) const SHORT_TOKENS: usize = 3;
/// Most tokens of a long one.
pub(super) const LONG_TOKENS: usize = 7;

/// The bits of a tag that count tokens.
const COUNT: u32 = 7;

/// Tokens of a word of up to 15 bytes.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(32))]
pub(super) struct Short {
    key: [u64; 2],
    /// Up to three tokens, and the tag. Free while that is zero.
    ids: [u32; 4],
}

/// Tokens of a word of up to 31 bytes that is too long, or of too many tokens, for a [`Short`].
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Long {
    key: [u64; 4],
    /// Up to seven tokens, and the tag.
    ids: [u32; 8],
}

/// Two short entries, the newer one first, or a long one.
///
/// They are told apart by the last byte of the long one's key, which has its highest bit set:
/// there, a tag of a short entry has none. So no entry is ever taken for one of the other kind.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [u64; 8]);

/// What a short entry is compared with, in the order of its parts.
pub(crate) type Wanted = [u64; 4];

/// What of a short entry is compared: its key and its owner.
pub(super) const COMPARED: Wanted = [u64::MAX, u64::MAX, 0, (!COUNT as u64) << 32];

impl Short {
    /// The first three of `ids` at most.
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

    /// Whether it is a word of one token, or none.
    fn is_cheap(&self) -> bool {
        self.ids[3] & COUNT == 1 || self.is_free()
    }

    /// Whether they are of the same word and owner.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.key == other.key && (self.ids[3] ^ other.ids[3]) & !COUNT == 0
    }

    /// Its tokens, the first so many of four numbers.
    #[inline(always)]
    pub(super) fn tokens(&self) -> (&[u32; 4], usize) {
        (&self.ids, (self.ids[3] & COUNT) as usize)
    }
}

impl Line {
    pub(super) fn of_shorts(shorts: [Short; 2]) -> Self {
        bytemuck::cast(shorts)
    }

    /// A long entry of at most [`LONG_TOKENS`] tokens.
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

    /// What it has, unless it [is long](Line::is_long).
    #[inline(always)]
    pub(super) fn shorts(&self) -> &[Short; 2] {
        bytemuck::cast_ref(self)
    }

    #[inline(always)]
    pub(super) fn shorts_mut(&mut self) -> &mut [Short; 2] {
        bytemuck::cast_mut(self)
    }

    /// Which of its short entries is that of a word.
    #[inline(always)]
    pub(super) fn find(&self, owner: Owner, key: Key) -> Option<usize> {
        let tag = owner.short_tag();
        let key = [key.low, key.high];
        let is = |entry: &Short| entry.key == key && entry.ids[3] & !COUNT == tag;
        self.shorts().iter().position(is)
    }

    /// The tokens of a word, if it is the long entry of that: the first so many of eight
    /// numbers.
    #[inline(always)]
    pub(super) fn find_long(&self, owner: Owner, key: &LongKey) -> Option<(&[u32; 8], usize)> {
        let Long { key: own, ids } = bytemuck::cast_ref(self);
        let found = *own == key.words && ids[7] & !COUNT == owner.long_tag();
        found.then_some((ids, (ids[7] & COUNT) as usize))
    }

    /// Makes room for a short entry that was driven out of its own line, unless it is the one
    /// to go.
    pub(super) fn take_in(&mut self, entry: Short) {
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

    /// The same for a long one, which is all that `line` has.
    pub(super) fn take_in_long(&mut self, line: Self) {
        if self.is_long() || self.shorts().iter().all(Short::is_cheap) {
            *self = line;
        }
    }
}
