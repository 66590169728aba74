//! The cache of each thread: words and their tokens, kept between calls.
//!
//! A line holds two short words, or one word that is long or has many tokens. Lines come in pairs.
//! A word is in the line that its hash selects, in the other line of the pair, or not cached, so
//! the cache needs no upkeep and has a fixed size of 2 MiB per thread. A word that a newer word
//! evicts from its line moves to the other line of the pair, unless the entry there is worth more.
//! Words of one token are worth the least, since the word table has them as well; other words would
//! have to be merged again.
//!
//! Both kinds of words share the memory. Long Russian words take as many lines as there are,
//! English and code need few. With half of the lines for each kind, four in ten words that code
//! merged had been merged before, and a megabyte of English took 1.2 times as long.
//!
//! Where the system gives huge pages, a cache is one ([`cache_slot`]). Entries name the tokenizer that
//! made them, so tokenizers share the memory of a thread, and an ending thread hands its cache on.

mod cache_slot;
mod line;
mod long_key;

use crate::compare::Compare;
use crate::short_tokens::{Key, ShortTokenTable};
use bytemuck::{Pod, Zeroable};
pub(crate) use cache_slot::Slot;
pub use cache_slot::word_cache_bytes;
use line::{COMPARED, LONG_TOKENS, Line, Short};
pub(crate) use line::{SHORT_TOKENS, ShortProbe};
pub(crate) use long_key::LongKey;
use std::mem;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of lines: a huge page. In small pages new English took 1.05 times as long and new Korean
/// 1.15 times; with half of a huge page, known texts took 1.25 times as long.
const LINES: usize = 1 << 15;

/// A token count that says that the word has more tokens than a short entry holds.
pub(crate) const MANY_TOKENS: u8 = 7;
/// A token count that says that the tokens are unknown.
const UNKNOWN: u8 = 8;

/// The id of a tokenizer in cache entries; 0 for a tokenizer that must not cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner(u32);

/// The first invalid owner: owners share 31 bits with a bit for long entries and a number of
/// tokens.
const OWNER_END: u32 = 1 << 27;

impl Owner {
    /// The owner of words that are not cached.
    pub(crate) const NONE: Self = Self(0);

    /// Returns an id that no other tokenizer of this process has.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let next = NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
            (next < OWNER_END).then_some(next + 1)
        });
        Self(next.unwrap_or(Self::NONE.0))
    }

    /// Returns the tag of short entries with a token count of zero.
    #[inline(always)]
    fn short_tag(self) -> u32 {
        self.0 << 4
    }

    /// Returns the tag of long entries with a token count of zero.
    #[inline(always)]
    fn long_tag(self) -> u32 {
        self.0 << 4 | 8
    }
}

/// The cached words of a thread, which gets a cache with its [`Slot`].
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(transparent)]
pub(crate) struct Cache([Line; LINES]);

/// Returns the line that a hash selects. With its last bit flipped, it is the other line of the
/// pair.
#[inline(always)]
fn home(hash: u64) -> usize {
    ((u64::from(hash as u32) * LINES as u64) >> 32) as usize
}

impl Cache {
    /// Prefetches the line that a hash selects.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        crate::prefetch::prefetch(&self.0, home(hash));
    }

    /// Prefetches the other line of the pair that a hash selects.
    #[inline(always)]
    pub(crate) fn prefetch_other(&self, hash: u64) {
        crate::prefetch::prefetch(&self.0, home(hash) ^ 1);
    }

    /// Prefetches the line of a long word.
    #[inline(always)]
    pub(crate) fn prefetch_long(&self, key: &LongKey) {
        self.prefetch(key.hash);
    }

    /// Returns a short word's entry without tokens. In place of its tokens it holds the line that
    /// the hash selects.
    #[inline(always)]
    pub(crate) fn probe(owner: Owner, key: Key, hash: u64) -> ShortProbe {
        let tag = u64::from(owner.short_tag()) << 32;
        [key.low, key.high, home(hash) as u64, tag]
    }

    /// Returns the tokens of a short word and their number if the line that its hash selects has
    /// it, without a branch on that. Otherwise returns any tokens and a number above
    /// [`SHORT_TOKENS`].
    #[inline(always)]
    pub(crate) fn find_in_home<C: Compare>(&self, wanted: &ShortProbe) -> (&[u32; 4], usize) {
        let line = &self.0[wanted[2] as usize];
        let same = C::same(&line.0, wanted, &COMPARED);
        let (ids, tokens) = line.shorts()[usize::from(same & 1 == 0)].tokens();
        // Neither entry matches.
        (ids, tokens | usize::from(same == 0) << 3)
    }

    /// Returns the tokens of a short word, as the first elements of four numbers, if it has a short
    /// entry.
    #[inline(always)]
    pub(crate) fn short(&self, owner: Owner, key: Key, hash: u64) -> Option<(&[u32; 4], usize)> {
        let find = |line: usize| {
            let line = &self.0[line];
            line.find(owner, key).map(|at| line.shorts()[at].tokens())
        };
        find(home(hash)).or_else(|| find(home(hash) ^ 1))
    }

    /// Returns the tokens of a short word that its own line lacks, if the other line of the pair
    /// has it. The word then trades places with the older word of its own line, so that a frequent
    /// word is not missed in its line each time.
    #[inline(always)]
    fn find_in_neighbour(
        &mut self,
        owner: Owner,
        key: Key,
        hash: u64,
    ) -> Option<(&[u32; 4], usize)> {
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

    /// Looks up a short word that [`Cache::find_in_home`] did not find. Writes its tokens to `four`
    /// and returns their number, or [`MANY_TOKENS`] if the word has a long entry, or a larger
    /// number if the tokens are unknown. A single token that comes from the table is cached: the
    /// table of a whole vocabulary has few words of one text in each cache line.
    #[inline(always)]
    pub(crate) fn find_elsewhere<C: Compare>(
        &mut self,
        owner: Owner,
        words: &ShortTokenTable,
        key: Key,
        hash: u64,
        four: &mut [u32; 4],
    ) -> u8 {
        if key.is_none() {
            return UNKNOWN;
        }
        if let Some((known, tokens)) = self.find_in_neighbour(owner, key, hash) {
            *four = *known;
            return tokens as u8;
        }
        let long = LongKey::of_short(key, hash);
        if self.long_padded(owner, &long).is_some() {
            return MANY_TOKENS;
        }
        let Some(id) = words.get::<C>(key, words.home(hash)) else {
            return UNKNOWN;
        };
        self.insert_short(owner, key, hash, &[id]);
        four[0] = id;
        1
    }

    /// Caches the tokens of a short word, unless they are too many. Returns true if they were few
    /// enough.
    pub(crate) fn insert_short(&mut self, owner: Owner, key: Key, hash: u64, ids: &[u32]) -> bool {
        let fits = ids.len() <= SHORT_TOKENS;
        if key.is_none() || owner == Owner::NONE || !fits {
            return fits;
        }
        let entry = Short::new(owner, key, ids);
        let (home, other) = (home(hash), home(hash) ^ 1);
        let old = self.0[home];
        let [newer, older] = *old.shorts();
        if old.is_long() {
            self.0[home] = Line::default();
            self.0[home].admit_short(entry);
            self.0[other].admit_long(old);
        } else if newer.is_free() || newer.is_like(&entry) {
            self.0[home].shorts_mut()[0] = entry;
        } else {
            self.0[home] = Line::of_shorts([entry, newer]);
            if !older.is_like(&entry) {
                self.0[other].admit_short(older);
            }
        }
        fits
    }

    /// Returns the tokens of a long word or a word of many tokens.
    #[inline]
    pub(crate) fn long(&self, owner: Owner, key: LongKey) -> Option<&[u32]> {
        let (eight, tokens) = self.long_padded(owner, &key)?;
        eight.get(..tokens)
    }

    /// Returns the tokens of [`Cache::long`] as the first elements of eight numbers.
    #[inline(always)]
    pub(crate) fn long_padded(&self, owner: Owner, key: &LongKey) -> Option<(&[u32; 8], usize)> {
        let find = |line: usize| self.0[line].find_long(owner, key);
        find(home(key.hash)).or_else(|| find(home(key.hash) ^ 1))
    }

    /// Caches the tokens of a long word or a word of many tokens, unless a long entry cannot hold
    /// them.
    pub(crate) fn insert_long(&mut self, owner: Owner, key: &LongKey, ids: &[u32]) {
        if owner == Owner::NONE || ids.len() > LONG_TOKENS || key.is_none() {
            return;
        }
        let (home, other) = (home(key.hash), home(key.hash) ^ 1);
        let old = mem::replace(&mut self.0[home], Line::of_long(owner, key, ids));
        if !old.is_long() {
            for short in *old.shorts() {
                self.0[other].admit_short(short);
            }
        } else if old.find_long(owner, key).is_none() {
            self.0[other].admit_long(old);
        }
    }
}

#[cfg(test)]
mod cache_tests;
