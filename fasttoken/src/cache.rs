//! What each thread remembers between calls: words and their tokens.
//!
//! A word is in the line that its hash names, in the other line of that one's pair, or not
//! there at all, so the caches need no upkeep and their size is fixed: 2 MiB per thread. What
//! a newer word drives out of its own line goes to the other one, from which it is gone for
//! good when that happens again; when it is found there, it goes back. There, words of one
//! token go first: they are in the table of words as well. With one place less,
//! of the 6,900 words of several tokens that a megabyte of English has, 500 were merged again
//! each time that it came back, for a tenth of its time, and 3,500 of 5,600 long Russian ones.
//!
//! Where Linux gives huge pages the caches lie in one, which is in memory as a whole from the
//! first word that is remembered; elsewhere a text takes the pages of its own words' lines.
//! Entries name the tokenizer that made them, so tokenizers share the memory of a thread.
//!
//! A thread's memory is taken when a call begins and given back when it ends; no lock or shared memory is involved.

use crate::bpe::Scratch;
use crate::compare::Compare;
use crate::store::Large;
use crate::words::{Key, WordTable};
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

impl Short {
    fn is_free(&self) -> bool {
        self.ids[3] == 0
    }

    /// Whether it is a word of one token.
    fn is_cheap(&self) -> bool {
        self.ids[3] & 7 == 1
    }

    #[inline(always)]
    fn known(&self) -> Known<'_> {
        match self.ids[3] as usize & 7 {
            tokens @ ..=SHORT_TOKENS => Known::Tokens(&self.ids, tokens),
            _ => Known::Elsewhere,
        }
    }
}

/// Most tokens of an entry for a short word.
pub(crate) const SHORT_TOKENS: usize = 3;
/// In place of the number of tokens: they are too many, and may be in a [`Long`].
pub(crate) const ELSEWHERE: u8 = 7;
/// In place of the number of tokens: they are not known.
const NEW: u8 = 8;

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
const LONGS: usize = 1 << 14;

/// What an entry for a short word is compared with, in the order of its parts.
pub(crate) type Wanted = [u64; 4];

impl Short {
    /// What of an entry is compared: its key and its owner.
    const COMPARED: Wanted = [u64::MAX, u64::MAX, 0, 0xFFFF_FFF8 << 32];
}

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

impl ShortLine {
    /// Makes room for what was driven out of its own line, unless it is the one to go.
    ///
    /// Words of one token go first: they are in the table of words, others would have to be
    /// merged again, for an eighth of the time of a megabyte of English that was just seen.
    fn take_in(&mut self, entry: Short) {
        let Self([newer, older]) = self;
        if newer.is_free() {
            *newer = entry;
        } else if older.is_free() || older.is_cheap() || !newer.is_cheap() && !entry.is_cheap() {
            *older = entry;
        } else if !entry.is_cheap() {
            *newer = entry;
        }
    }

    /// Which entry is that of a word.
    #[inline(always)]
    fn find(&self, owner: Owner, key: Key) -> Option<usize> {
        let is = |entry: &Short| entry.key == [key.low, key.high] && entry.ids[3] >> 3 == owner.0;
        self.0.iter().position(is)
    }
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

    /// Asks for the memory of what [`Cache::short`] reads after that.
    #[inline(always)]
    pub(crate) fn prefetch_other(&self, hash: u64) {
        crate::prefetch::prefetch(&self.0.shorts, (hash as usize % SHORT_LINES) ^ 1);
    }

    /// Asks for the memory of [`Cache::long`].
    #[inline(always)]
    pub(crate) fn prefetch_long(&self, key: &LongKey) {
        crate::prefetch::prefetch(&self.0.longs, key.hash as usize % LONGS);
    }

    /// What entries for a word have.
    #[inline(always)]
    pub(crate) fn wanted(owner: Owner, key: Key) -> Wanted {
        [key.low, key.high, 0, u64::from(owner.tag(0)) << 32]
    }

    /// The tokens of a short word and their number, if it is in the line that its hash
    /// names, without a branch on that. Any tokens and a number above [`SHORT_TOKENS`] if it
    /// is not there, or they are too many.
    #[inline(always)]
    pub(crate) fn first<C: Compare>(&self, wanted: &Wanted, hash: u64) -> (&[u32; 4], usize) {
        let ShortLine(entries) = &self.0.shorts[hash as usize % SHORT_LINES];
        let same = C::same(bytemuck::cast_ref(entries), wanted, &Short::COMPARED);
        let entry = &entries[usize::from(same & 1 == 0)];
        let tokens = entry.ids[3] as usize & 7;
        // Neither of them.
        (&entry.ids, tokens | usize::from(same == 0) << 3)
    }

    /// What is known of a short word.
    #[inline(always)]
    pub(crate) fn short(&self, owner: Owner, key: Key, hash: u64) -> Known<'_> {
        let home = hash as usize % SHORT_LINES;
        let find = |line: usize| {
            let line = &self.0.shorts[line];
            line.find(owner, key).map(|at| &line.0[at])
        };
        let entry = find(home).or_else(|| find(home ^ 1));
        entry.map_or(Known::Nothing, Short::known)
    }

    /// [`Cache::short`] for a word that is not in the line that its hash names. If the other
    /// line has it, it changes places with the older word of its own one: frequent words
    /// would be looked for in vain in their line each time.
    #[inline(always)]
    pub(crate) fn other(&mut self, owner: Owner, key: Key, hash: u64) -> Known<'_> {
        let home = hash as usize % SHORT_LINES;
        let lines = &mut self.0.shorts;
        let Some(at) = lines[home ^ 1].find(owner, key) else {
            return Known::Nothing;
        };
        let ShortLine([newer, older]) = lines[home];
        let entry = std::mem::replace(&mut lines[home ^ 1].0[at], older);
        lines[home] = ShortLine([entry, newer]);
        lines[home].0[0].known()
    }

    /// The tokens of a short word that [`Cache::first`] lacks, in `four`, and their number; or
    /// [`ELSEWHERE`]; or more than that. Single tokens come from the table, and are remembered:
    /// in a table of all words of a vocabulary, few of each line are in a text.
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
        match self.other(owner, key, hash) {
            Known::Tokens(known, tokens) => {
                *four = *known;
                return tokens as u8;
            }
            Known::Elsewhere => return ELSEWHERE,
            Known::Nothing => {}
        }
        let Some(id) = words.get::<C>(key, words.home(hash)) else {
            return NEW;
        };
        self.remember_short(owner, key, hash, &[id]);
        four[0] = id;
        1
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
            entry.ids[3] = owner.tag(ELSEWHERE.into());
        }
        let home = hash as usize % SHORT_LINES;
        let ShortLine(line) = &mut self.0.shorts[home];
        let [newer, older] = *line;
        let is = |old: &Short| old.key == entry.key && old.ids[3] >> 3 == owner.0;
        if newer.is_free() || is(&newer) {
            line[0] = entry;
            return few;
        }
        *line = [entry, newer];
        if !older.is_free() && !is(&older) {
            self.0.shorts[home ^ 1].take_in(older);
        }
        few
    }

    /// Tokens of a word of up to 31 bytes.
    #[inline]
    pub(crate) fn long(&self, owner: Owner, key: &LongKey) -> Option<&[u32]> {
        let (eight, tokens) = self.long_padded(owner, key)?;
        eight.get(..tokens)
    }

    /// [`Cache::long`] as the first of eight numbers.
    #[inline(always)]
    pub(crate) fn long_padded(&self, owner: Owner, key: &LongKey) -> Option<(&[u32; 8], usize)> {
        let home = key.hash as usize % LONGS;
        let find = |at: usize| {
            let entry = &self.0.longs[at];
            let tag = entry.ids[7];
            let found = entry.key == key.words && tag >> 3 == owner.0;
            found.then_some((&entry.ids, tag as usize & 7))
        };
        find(home).or_else(|| find(home ^ 1))
    }

    pub(crate) fn remember_long(&mut self, owner: Owner, key: &LongKey, ids: &[u32]) {
        if owner == Owner::NONE || ids.len() > LONG_TOKENS || key.is_none() {
            return;
        }
        let mut entry = Long {
            key: key.words,
            ids: [0; 8],
        };
        entry.ids[..ids.len()].copy_from_slice(ids);
        entry.ids[7] = owner.tag(ids.len());
        let home = key.hash as usize % LONGS;
        let longs = &mut self.0.longs;
        let old = std::mem::replace(&mut longs[home], entry);
        let same = old.key == entry.key && old.ids[7] >> 3 == owner.0;
        if !same && old.ids[7] != 0 {
            longs[home ^ 1] = old;
        }
    }
}

/// A word of 1 to 31 bytes: these, zeros, and the length in the last byte.
#[derive(Debug, Clone, Copy, Zeroable)]
pub(crate) struct LongKey {
    words: [u64; 4],
    hash: u64,
}

impl LongKey {
    /// In place of the key of a word that has none. No entry, not even a free one, has it.
    pub(crate) const NONE: Self = Self {
        words: [0, 0, 0, 0xFF << 56],
        hash: 0,
    };

    fn is_none(&self) -> bool {
        self.words == Self::NONE.words
    }

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
        Some(Self::of_words(words))
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
        rest.high += 16 << 56;
        Self::of_words([first as u64, (first >> 64) as u64, rest.low, rest.high])
    }

    /// The key of a word that has a short one, too.
    #[inline(always)]
    pub(crate) fn of_short(key: Key) -> Self {
        let len = 0xFF << 56;
        Self::of_words([key.low, key.high & !len, 0, key.high & len])
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
        // A third one: the older one goes to the other line.
        assert!(cache.remember_short(owner, key(3), 5, &[30]));
        assert_eq!(short(&cache, owner, 1), Some(Some(vec![10])));
        assert_eq!(short(&cache, owner, 2), Some(Some(vec![23])));
        // The older one again: it is the newer one, and counts first.
        assert!(cache.remember_short(owner, key(2), 5, &[24]));
        assert_eq!(short(&cache, owner, 2), Some(Some(vec![24])));
        assert_eq!(short(&cache, owner, 1), Some(Some(vec![10])));
    }

    #[test]
    fn a_word_that_is_driven_out_goes_to_the_other_line_once() {
        let owner = Owner::new();
        let mut cache = Cache::default();
        let line = |cache: &Cache, at: usize| cache.0.shorts[at].0.map(|entry| entry.ids[0]);
        let insert = |cache: &mut Cache, hash: u64, n: u32| {
            cache.remember_short(owner, key(n.into()), hash, &[n]);
        };
        for n in 1..=4 {
            insert(&mut cache, 5, n);
        }
        assert_eq!((line(&cache, 4), line(&cache, 5)), ([1, 2], [4, 3]));
        insert(&mut cache, 5, 5);
        assert_eq!((line(&cache, 4), line(&cache, 5)), ([1, 3], [5, 4]));
        // The other line's own words drive it out for good.
        insert(&mut cache, 4, 6);
        assert_eq!((line(&cache, 4), line(&cache, 5)), ([6, 1], [5, 3]));
        // Found there: it changes places with the older word of its own line.
        assert!(matches!(
            cache.other(owner, key(3), 4),
            Known::Tokens([3, ..], 1)
        ));
        assert_eq!((line(&cache, 4), line(&cache, 5)), ([3, 6], [5, 1]));
        assert!(matches!(cache.other(owner, key(4), 4), Known::Nothing));
    }

    #[test]
    fn words_of_one_token_go_first() {
        let owner = Owner::new();
        let line = |cache: &Cache, at: usize| cache.0.shorts[at].0.map(|entry| entry.ids[0]);
        let insert = |cache: &mut Cache, hash: u64, n: u32, tokens: usize| {
            cache.remember_short(owner, key(n.into()), hash, &[n; SHORT_TOKENS][..tokens]);
        };
        // What the other line has, what comes there, and what it has then.
        for (newer, older, coming, after) in [
            (1, 1, 2, [10, 30]),
            (2, 1, 1, [10, 30]),
            (2, 1, 3, [10, 30]),
            (1, 3, 2, [30, 20]),
            (1, 3, 1, [10, 20]),
            (2, 2, 1, [10, 20]),
            (2, 2, 2, [10, 30]),
        ] {
            let mut cache = Cache::default();
            insert(&mut cache, 4, 20, older);
            insert(&mut cache, 4, 10, newer);
            assert_eq!(line(&cache, 4), [10, 20]);
            insert(&mut cache, 5, 30, coming);
            insert(&mut cache, 5, 31, 1);
            insert(&mut cache, 5, 32, 1);
            assert_eq!((line(&cache, 4), line(&cache, 5)), (after, [32, 31]));
        }
    }

    #[test]
    fn long_words_are_known_by_any_of_their_keys() {
        let owner = Owner::new();
        let mut cache = Cache::default();
        let text: Vec<u8> = (0..70).collect();
        for start in [0, 30, 66] {
            for end in start + 1..text.len() {
                let (word, short) = (&text[start..end], Key::new(&text, start, end));
                let ids = [end as u32; LONG_TOKENS];
                let key = if short.is_none() {
                    LongKey::of_long(&text, start, end)
                } else {
                    LongKey::of_short(short)
                };
                match LongKey::new(word) {
                    Some(same) => {
                        assert_eq!((key.words, key.hash), (same.words, same.hash));
                        cache.remember_long(owner, &key, &ids);
                        assert_eq!(cache.long(owner, &same), Some(&ids[..]));
                    }
                    None => assert_eq!(key.words, LongKey::NONE.words),
                }
            }
        }
        assert_eq!(cache.long(owner, &LongKey::NONE), None);
        assert_eq!(cache.long(Owner::NONE, &LongKey::NONE), None);
    }

    #[test]
    fn a_long_word_that_is_driven_out_goes_to_the_other_place_once() {
        let owner = Owner::new();
        let mut cache = Cache::default();
        let key = |n: u64, hash| LongKey {
            words: [n, 0, 0, 1 << 56],
            hash,
        };
        for n in 1..=3 {
            cache.remember_long(owner, &key(n, 5), &[n as u32]);
        }
        // Once more: it does not drive itself out.
        cache.remember_long(owner, &key(3, 5), &[3]);
        assert_eq!(cache.long(owner, &key(3, 5)), Some(&[3][..]));
        assert_eq!(cache.long(owner, &key(2, 5)), Some(&[2][..]));
        assert_eq!(cache.long(owner, &key(1, 5)), None);
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
