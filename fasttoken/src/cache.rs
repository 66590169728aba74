//! What each thread remembers between calls: words and their tokens.
//!
//! A line has two short words, or one that is long or of many tokens. A word is in the line
//! that its hash names, in the other line of that one's pair, or not there at all, so the cache
//! needs no upkeep and its size is fixed: 1.75 MiB per thread. What a newer word drives out of
//! its own line goes to the other one, unless what is there is worth more. Words of one token
//! are worth the least, since the table of words has them as well; others would be merged again.
//!
//! Words of both kinds share the memory as a text needs it. Long Russian words want as many
//! lines as there are, English and code have few: while each kind had half of them, four in
//! ten words that code merged were words that it had merged before, and a megabyte of English
//! took 1.2 times as long.
//!
//! Where Linux gives huge pages the caches of eight threads lie in seven of them ([`slot`]);
//! elsewhere a text takes the pages of its own words' lines. Entries name the tokenizer that
//! made them, so tokenizers share the memory of a thread, and threads hand it on.

mod line;
mod long_key;
mod slot;
mod thread;

use crate::compare::Compare;
use crate::words::{Key, WordTable};
use bytemuck::{Pod, Zeroable};
use line::{COMPARED, LONG_TOKENS, Line, Short};
pub(crate) use line::{SHORT_TOKENS, Wanted};
pub(crate) use long_key::LongKey;
pub(crate) use slot::Slot;
use std::mem;
use std::sync::atomic::{AtomicU32, Ordering};
pub(crate) use thread::MergeScratch;

/// Seven eighths of a huge page, so that eight threads take 1.84 MB each: a whole one for each
/// would be 2.10. Texts that were seen before take 1.04 times as long as with it, of English and
/// Korean 1.05 times, new ones 1.01 times. In small pages new English took 1.05 times as long,
/// Korean 1.15 times; with half of a huge page, what was seen before took 1.25 times as long.
const LINES: usize = 7 << 12;

/// In place of the number of tokens: they are more than a short entry has.
pub(crate) const MANY: u8 = 7;
/// In place of the number of tokens: they are not known.
const NEW: u8 = 8;

/// Names a tokenizer in entries; 0 for one that must not remember anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner(u32);

/// Owners share 31 bits with a bit for long entries and a number of tokens.
const OWNER_END: u32 = 1 << 27;

impl Owner {
    /// Remembers nothing.
    pub(crate) const NONE: Self = Self(0);

    /// A name that no other tokenizer of this process has.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let next = NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
            (next < OWNER_END).then_some(next + 1)
        });
        Self(next.unwrap_or(Self::NONE.0))
    }

    /// The tag of short entries, but for the number of their tokens.
    #[inline(always)]
    fn short_tag(self) -> u32 {
        self.0 << 4
    }

    /// The tag of long ones.
    #[inline(always)]
    fn long_tag(self) -> u32 {
        self.0 << 4 | 8
    }
}

/// The words that a thread knows. A thread gets one with its [`Slot`].
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(transparent)]
pub(crate) struct Cache([Line; LINES]);

/// The line that a hash names; with the last bit turned, the other one of its pair.
#[inline(always)]
fn home(hash: u64) -> usize {
    ((u64::from(hash as u32) * LINES as u64) >> 32) as usize
}

impl Cache {
    /// Asks for the line that a hash names.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        crate::prefetch::prefetch(&self.0, home(hash));
    }

    /// Asks for the other line of its pair.
    #[inline(always)]
    pub(crate) fn prefetch_other(&self, hash: u64) {
        crate::prefetch::prefetch(&self.0, home(hash) ^ 1);
    }

    /// Asks for the line of a long word.
    #[inline(always)]
    pub(crate) fn prefetch_long(&self, key: &LongKey) {
        self.prefetch(key.hash);
    }

    /// What entries for a short word have, and in the part where those have tokens, the line
    /// that its hash names.
    #[inline(always)]
    pub(crate) fn wanted(owner: Owner, key: Key, hash: u64) -> Wanted {
        let tag = u64::from(owner.short_tag()) << 32;
        [key.low, key.high, home(hash) as u64, tag]
    }

    /// The tokens of a short word and their number, if they are few and in the line that its
    /// hash names, without a branch on that. Any tokens and a number above [`SHORT_TOKENS`] if
    /// not.
    #[inline(always)]
    pub(crate) fn first<C: Compare>(&self, wanted: &Wanted) -> (&[u32; 4], usize) {
        let line = &self.0[wanted[2] as usize];
        let same = C::same(&line.0, wanted, &COMPARED);
        let (ids, tokens) = line.shorts()[usize::from(same & 1 == 0)].tokens();
        // Neither of them.
        (ids, tokens | usize::from(same == 0) << 3)
    }

    /// The tokens of a short word, if they are few: the first so many of four numbers.
    #[inline(always)]
    pub(crate) fn short(&self, owner: Owner, key: Key, hash: u64) -> Option<(&[u32; 4], usize)> {
        let find = |line: usize| {
            let line = &self.0[line];
            line.find(owner, key).map(|at| line.shorts()[at].tokens())
        };
        find(home(hash)).or_else(|| find(home(hash) ^ 1))
    }

    /// [`Cache::short`] for a word that is not in the line that its hash names. If the other
    /// line has it, it changes places with the older word of its own one: frequent words
    /// would be looked for in vain in their line each time.
    #[inline(always)]
    fn other(&mut self, owner: Owner, key: Key, hash: u64) -> Option<(&[u32; 4], usize)> {
        let (home, other) = (home(hash), home(hash) ^ 1);
        let at = self.0[other].find(owner, key)?;
        if self.0[home].is_long() {
            return Some(self.0[other].shorts()[at].tokens());
        }
        let [newer, older] = *self.0[home].shorts();
        let entry = mem::replace(&mut self.0[other].shorts_mut()[at], older);
        self.0[home] = Line::of_shorts([entry, newer]);
        Some(self.0[home].shorts()[0].tokens())
    }

    /// The tokens of a short word that [`Cache::first`] lacks, in `four`, and their number; or
    /// [`MANY`] if a long entry has them; or more than that. Single tokens come from the table,
    /// and are remembered: in a table of all words of a vocabulary, few of each line are in a
    /// text.
    #[inline(always)]
    pub(crate) fn further<C: Compare>(
        &mut self,
        owner: Owner,
        words: &WordTable,
        key: Key,
        hash: u64,
        four: &mut [u32; 4],
    ) -> u8 {
        if key.is_none() {
            return NEW;
        }
        if let Some((known, tokens)) = self.other(owner, key, hash) {
            *four = *known;
            return tokens as u8;
        }
        let long = LongKey::of_short(key, hash);
        if self.long_padded(owner, &long).is_some() {
            return MANY;
        }
        let Some(id) = words.get::<C>(key, words.home(hash)) else {
            return NEW;
        };
        self.remember_short(owner, key, hash, &[id]);
        four[0] = id;
        1
    }

    /// Remembers the tokens of a short word, unless they are too many. Returns whether they
    /// were few enough.
    pub(crate) fn remember_short(
        &mut self,
        owner: Owner,
        key: Key,
        hash: u64,
        ids: &[u32],
    ) -> bool {
        let few = ids.len() <= SHORT_TOKENS;
        if key.is_none() || owner == Owner::NONE || !few {
            return few;
        }
        let entry = Short::new(owner, key, ids);
        let (home, other) = (home(hash), home(hash) ^ 1);
        let old = self.0[home];
        let [newer, older] = *old.shorts();
        if old.is_long() {
            self.0[home] = Line::default();
            self.0[home].take_in(entry);
            self.0[other].take_in_long(old);
        } else if newer.is_free() || newer.is_like(&entry) {
            self.0[home].shorts_mut()[0] = entry;
        } else {
            self.0[home] = Line::of_shorts([entry, newer]);
            if !older.is_like(&entry) {
                self.0[other].take_in(older);
            }
        }
        few
    }

    /// The tokens of a word that is too long for others, or has too many.
    #[inline]
    pub(crate) fn long(&self, owner: Owner, key: LongKey) -> Option<&[u32]> {
        let (eight, tokens) = self.long_padded(owner, &key)?;
        eight.get(..tokens)
    }

    /// [`Cache::long`] as the first so many of eight numbers.
    #[inline(always)]
    pub(crate) fn long_padded(&self, owner: Owner, key: &LongKey) -> Option<(&[u32; 8], usize)> {
        let find = |line: usize| self.0[line].find_long(owner, key);
        find(home(key.hash)).or_else(|| find(home(key.hash) ^ 1))
    }

    /// Remembers the tokens of a word that is too long for others, or has too many, unless
    /// they are too many for this as well.
    pub(crate) fn remember_long(&mut self, owner: Owner, key: &LongKey, ids: &[u32]) {
        if owner == Owner::NONE || ids.len() > LONG_TOKENS || key.is_none() {
            return;
        }
        let (home, other) = (home(key.hash), home(key.hash) ^ 1);
        let old = mem::replace(&mut self.0[home], Line::of_long(owner, key, ids));
        if !old.is_long() {
            for short in *old.shorts() {
                self.0[other].take_in(short);
            }
        } else if old.find_long(owner, key).is_none() {
            self.0[other].take_in_long(old);
        }
    }
}

#[cfg(test)]
mod tests;
