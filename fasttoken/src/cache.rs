//! What each thread remembers between calls: tokens of words that are not one token.
//!
//! A word is either in the one line that its hash names or not there at all, so the
//! caches need no upkeep and their size is fixed: 1.5 MiB per thread. Where Linux gives huge
//! pages they lie in one, which is 2 MiB and in memory as a whole from the first word that
//! is remembered; elsewhere a text takes the pages of its own words' lines. Entries name the
//! tokenizer that made them, so tokenizers share the memory of a thread.
//!
//! A thread's memory is taken when a call first meets such a word and given back when
//! the call ends; no lock or shared memory is involved.

use crate::bpe::Scratch;
use crate::store::Large;
use crate::words::Key;
use bytemuck::{Pod, Zeroable};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// Names a tokenizer in entries; 0 for one that must not remember anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner(u32);

/// Owners share 32 bits with a number of tokens.
const OWNER_END: u32 = 1 << 29;

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

    #[inline(always)]
    fn tag(self, tokens: usize) -> u32 {
        self.0 << 3 | tokens as u32
    }
}

/// Tokens of a word of up to 15 bytes.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(32))]
struct Short {
    key: [u64; 2],
    /// Up to three tokens, and the tag: the owner and the number of tokens.
    ids: [u32; 4],
}

/// Most tokens of an entry for a short word.
pub(crate) const SHORT_TOKENS: usize = 3;
/// In place of the number of tokens: they are too many, and may be in a [`Long`].
const ELSEWHERE: usize = 7;

/// The latest two short words of a hash, the newer one first: with one, frequent words
/// that share a place would drive each other out.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct ShortLine([Short; 2]);

const SHORT_LINES: usize = 1 << 14;

/// Tokens of a word of up to 31 bytes that is too long, or of too many tokens, for
/// [`Short`].
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Long {
    /// The bytes, zeros, and the length in the last byte.
    key: [u64; 4],
    /// Up to seven tokens, and the tag.
    ids: [u32; 8],
}

/// Longest word that is remembered.
pub(crate) const LONG_MAX: usize = 31;
/// Most tokens of an entry for a long word.
const LONG_TOKENS: usize = 7;
const LONGS: usize = 1 << 13;

/// What the cache says of a short word.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Known<'a> {
    Nothing,
    /// The first `n` of four numbers.
    Tokens(&'a [u32; 4], usize),
    /// It has more tokens than that, and may be in the cache of long words. A short word
    /// that is not known to be there is not looked up there.
    Elsewhere,
}

/// The two caches of a thread.
#[derive(Debug)]
pub(crate) struct Cache(Large<Memory>);

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Memory {
    shorts: [ShortLine; SHORT_LINES],
    longs: [Long; LONGS],
}

impl Default for Cache {
    fn default() -> Self {
        Self(Large::zeroed())
    }
}

impl Cache {
    /// Asks for the memory of [`Cache::short`].
    #[inline(always)]
    pub(crate) fn prefetch_short(&self, hash: u64) {
        crate::prefetch::prefetch(&self.0.shorts, hash as usize % SHORT_LINES);
    }

    /// What is known of a short word.
    #[inline(always)]
    pub(crate) fn short(&self, owner: Owner, key: Key, hash: u64) -> Known<'_> {
        let ShortLine([newer, older]) = &self.0.shorts[hash as usize % SHORT_LINES];
        let is = |entry: &Short| entry.key == [key.low, key.high] && entry.ids[3] >> 3 == owner.0;
        let entry = if is(newer) {
            newer
        } else if is(older) {
            older
        } else {
            return Known::Nothing;
        };
        match entry.ids[3] as usize & 7 {
            tokens @ ..=SHORT_TOKENS => Known::Tokens(&entry.ids, tokens),
            _ => Known::Elsewhere,
        }
    }

    /// Remembers the tokens of a short word, or that they are too many. Returns whether
    /// they were few enough.
    pub(crate) fn remember_short(
        &mut self,
        owner: Owner,
        key: Key,
        hash: u64,
        ids: &[u32],
    ) -> bool {
        if key.is_none() || owner == Owner::NONE {
            return ids.len() <= SHORT_TOKENS;
        }
        let few = ids.len() <= SHORT_TOKENS;
        let mut entry = Short {
            key: [key.low, key.high],
            ids: [0; 4],
        };
        if few {
            entry.ids[..ids.len()].copy_from_slice(ids);
            entry.ids[3] = owner.tag(ids.len());
        } else {
            entry.ids[3] = owner.tag(ELSEWHERE);
        }
        let ShortLine(line) = &mut self.0.shorts[hash as usize % SHORT_LINES];
        let [newer, older] = *line;
        let same = newer.key == entry.key && newer.ids[3] >> 3 == owner.0;
        *line = [entry, if same { older } else { newer }];
        few
    }

    /// Tokens of a word of up to 31 bytes.
    #[inline]
    pub(crate) fn long(&self, owner: Owner, key: &LongKey) -> Option<&[u32]> {
        let entry = &self.0.longs[key.hash as usize % LONGS];
        let tag = entry.ids[7];
        let found = entry.key == key.words && tag >> 3 == owner.0;
        found.then(|| &entry.ids[..tag as usize & 7])
    }

    pub(crate) fn remember_long(&mut self, owner: Owner, key: &LongKey, ids: &[u32]) {
        if owner == Owner::NONE || ids.len() > LONG_TOKENS {
            return;
        }
        let mut entry = Long {
            key: key.words,
            ids: [0; 8],
        };
        entry.ids[..ids.len()].copy_from_slice(ids);
        entry.ids[7] = owner.tag(ids.len());
        self.0.longs[key.hash as usize % LONGS] = entry;
    }
}

/// A word of 1 to 31 bytes.
pub(crate) struct LongKey {
    words: [u64; 4],
    hash: u64,
}

impl LongKey {
    #[inline]
    pub(crate) fn new(word: &[u8]) -> Option<Self> {
        if !(1..=LONG_MAX).contains(&word.len()) {
            return None;
        }
        let mut padded = [0; 32];
        padded[..word.len()].copy_from_slice(word);
        padded[31] = word.len() as u8;
        let words: [u64; 4] = std::array::from_fn(|n| {
            let bytes = padded[8 * n..8 * n + 8].try_into();
            u64::from_le_bytes(bytes.expect("eight of 32 bytes"))
        });
        let half = |low, high| Key { low, high }.hash();
        let hash = Key {
            low: half(words[0], words[1]),
            high: half(words[2], words[3]),
        };
        let hash = hash.hash();
        Some(Self { words, hash })
    }
}

thread_local! {
    static MEMORY: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// A thread's memory while a call uses it.
#[derive(Debug)]
pub(crate) struct MergeScratch(Option<Box<Scratch>>);

impl Default for MergeScratch {
    /// Takes the memory of this thread. A call inside of a call makes its own.
    fn default() -> Self {
        Self(MEMORY.try_with(Cell::take).unwrap_or_default())
    }
}

impl MergeScratch {
    #[inline]
    pub(crate) fn get(&mut self) -> &mut Scratch {
        self.0.get_or_insert_default()
    }
}

impl Drop for MergeScratch {
    fn drop(&mut self) {
        if let Some(mut scratch) = self.0.take() {
            scratch.shrink();
            // A thread that is ending has no place for it any more.
            let _ = MEMORY.try_with(|memory| memory.set(Some(scratch)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u64) -> Key {
        Key { low: n, high: 7 }
    }

    /// The tokens that are known, or `None` for those that are elsewhere.
    fn short(cache: &Cache, owner: Owner, n: u64) -> Option<Option<Vec<u32>>> {
        match cache.short(owner, key(n), 5) {
            Known::Nothing => None,
            Known::Tokens(four, tokens) => Some(Some(four[..tokens].to_vec())),
            Known::Elsewhere => Some(None),
        }
    }

    #[test]
    fn the_latest_two_words_of_a_line_are_known() {
        let owner = Owner::new();
        let mut cache = Cache::default();
        assert_eq!(short(&cache, owner, 1), None);
        assert!(cache.remember_short(owner, key(1), 5, &[10]));
        assert!(cache.remember_short(owner, key(2), 5, &[20, 21, 22]));
        assert_eq!(short(&cache, owner, 1), Some(Some(vec![10])));
        assert_eq!(short(&cache, owner, 2), Some(Some(vec![20, 21, 22])));
        // The newer one again: the older one stays.
        assert!(cache.remember_short(owner, key(2), 5, &[23]));
        assert_eq!(short(&cache, owner, 2), Some(Some(vec![23])));
        assert_eq!(short(&cache, owner, 1), Some(Some(vec![10])));
        // A third one: the older one goes.
        assert!(cache.remember_short(owner, key(3), 5, &[30]));
        assert_eq!(short(&cache, owner, 1), None);
        assert_eq!(short(&cache, owner, 2), Some(Some(vec![23])));
        // The older one again: it is the newer one, and counts first.
        assert!(cache.remember_short(owner, key(2), 5, &[24]));
        assert_eq!(short(&cache, owner, 2), Some(Some(vec![24])));
    }

    #[test]
    fn words_of_many_tokens_are_elsewhere() {
        let owner = Owner::new();
        let mut cache = Cache::default();
        assert!(!cache.remember_short(owner, key(1), 5, &[1, 2, 3, 4]));
        assert_eq!(short(&cache, owner, 1), Some(None));
        assert!(cache.remember_short(owner, key(2), 5, &[]));
        assert_eq!(short(&cache, owner, 2), Some(Some(vec![])));
    }

    #[test]
    fn owners_do_not_see_each_others_words() {
        let (ours, theirs) = (Owner::new(), Owner::new());
        let mut cache = Cache::default();
        cache.remember_short(ours, key(1), 5, &[1]);
        assert_eq!(short(&cache, theirs, 1), None);
        // The same word of another owner is another word.
        cache.remember_short(theirs, key(1), 5, &[2]);
        assert_eq!(short(&cache, ours, 1), Some(Some(vec![1])));
        assert_eq!(short(&cache, theirs, 1), Some(Some(vec![2])));
        cache.remember_short(Owner::NONE, key(2), 5, &[3]);
        assert_eq!(short(&cache, Owner::NONE, 2), None);
    }
}
