//! Encoding of many words, most of which are in the thread's cache.
//!
//! How a word was found cannot be predicted: a branch on whether it has one token or several, or is
//! cached or new, costs more than the lookup. So words pass in groups through loops that do one
//! step for all of them, without such a branch:
//!
//! 1. keys and hashes ([`Group::fill`]);
//! 2. the lines of the thread's cache that the hashes name. Of ordinary text they have all
//!    but a few words in a hundred, and these are listed ([`Group::look_up`]);
//! 3. of those only, the other line of the cache and the table of words
//!    ([`Group::look_up_elsewhere`]);
//! 4. all tokens, in the order of the text: four are written for each word, and the next
//!    word's overwrite those that it does not have.
//!
//! Each of the first two steps prefetches the memory that the next one reads. In between, the
//! groups before are worked on.
//!
//! Single tokens are cached as well, although the word table has them. A table of a whole
//! vocabulary has few words of one text in each cache line, and words of several tokens would need
//! two lookups.

use super::{Bpe, Scratch, ThreadScratch};
use crate::cache::{Cache, LongKey, MANY_TOKENS, Owner, SHORT_TOKENS, ShortProbe};
use crate::compare::{Compare, Work};
use crate::pretokenize::PreTokens;
use crate::short_tokens::{Key, MAX_KEY_BYTES};
use crate::vocab::Vocab;
use bytemuck::Zeroable;
use std::ops::Range;

/// The number of words whose memory is prefetched before any of it is read: as many cache lines as
/// a processor can load at a time, a few dozen.
const GROUP_WORDS: usize = 64;

/// The largest number of cached tokens of a word, rounded up to a power of two.
const PADDED_TOKENS: usize = 8;

/// The number of tokens that are staged before they are appended: copying the tokens of a few words
/// at a time waits for the stores that wrote them.
const MAX_STAGED_TOKENS: usize = 1024;

/// Memory for three groups of words. It is kept between calls, because clearing it would take as
/// long as encoding a short text. It is allocated as zeros and never lies on a stack, which would
/// keep its 24 KB until the thread ends.
#[derive(Debug, Zeroable)]
pub(super) struct Groups {
    /// The current group and the next two.
    groups: [Group; 3],
    staged: [u32; MAX_STAGED_TOKENS],
}

/// A group of words that are looked up together.
#[derive(Debug, Zeroable)]
struct Group {
    probes: [Probe; GROUP_WORDS],
    /// The keys of words of more than [`MAX_KEY_BYTES`] bytes.
    longs: [LongKey; GROUP_WORDS],
    found: [[u32; 4]; GROUP_WORDS],
    /// The number of tokens of each word, or a value above [`SHORT_TOKENS`] that says how to look
    /// further.
    counts: [u8; GROUP_WORDS],
    /// The words that the first cache line lacks.
    missing: WordList,
}

#[derive(Debug, Clone, Copy, Zeroable)]
struct Probe {
    /// The key and the owner in the layout of a cache entry.
    wanted: ShortProbe,
    hash: u64,
}

impl Probe {
    #[inline(always)]
    fn key(&self) -> Key {
        let [low, high, ..] = self.wanted;
        Key { low, high }
    }
}

impl Group {
    /// Builds the keys of the words that end at `ends`, the first of which begins at `start`, and
    /// prefetches their cache lines. Returns the end of the last word.
    #[inline(always)]
    fn fill(
        &mut self,
        owner: Owner,
        cache: &Cache,
        bytes: &[u8],
        mut start: usize,
        ends: &[usize],
    ) -> usize {
        let places = self.probes.iter_mut().zip(&mut self.longs);
        for ((probe, long), &end) in places.zip(ends) {
            let key = Key::new(bytes, start, end);
            let hash = key.hash();
            cache.prefetch(hash);
            *probe = Probe {
                wanted: Cache::probe(owner, key, hash),
                hash,
            };
            if end - start > MAX_KEY_BYTES {
                *long = long_key(cache, bytes, start, end);
            }
            start = end;
        }
        start
    }

    /// Looks up the first `words` words in their first cache line, and prefetches the other places
    /// of the words that are not there. `tokens` lists added tokens by word number, counted like
    /// `first`.
    #[inline(always)]
    fn look_up<C: Compare>(
        &mut self,
        bpe: &Bpe,
        cache: &Cache,
        words: usize,
        first: usize,
        tokens: &[(usize, u32)],
    ) {
        let mut missing = WordList::EMPTY;
        for place in 0..words.min(GROUP_WORDS) {
            let probe = &self.probes[place % GROUP_WORDS];
            let (four, tokens) = cache.find_in_home::<C>(&probe.wanted);
            self.found[place % GROUP_WORDS] = *four;
            self.counts[place % GROUP_WORDS] = tokens as u8;
            missing.push_if(tokens > SHORT_TOKENS, place);
        }
        if !tokens.is_empty() {
            for (word, id) in tokens {
                let place = (word - first) % GROUP_WORDS;
                self.found[place][0] = *id;
                self.counts[place] = 1;
            }
            // An added token must not be cached as a word.
            let mut words = WordList::EMPTY;
            for place in missing.iter() {
                let unknown = usize::from(self.counts[place]) > SHORT_TOKENS;
                words.push_if(unknown, place);
            }
            missing = words;
        }
        for place in missing.iter() {
            let hash = self.probes[place].hash;
            cache.prefetch_other(hash);
            bpe.words.prefetch(bpe.words.home(hash));
        }
        self.missing = missing;
    }

    /// Looks up the missing words in the other cache line and in the word table. Returns the words
    /// that are new or have many tokens.
    #[inline(always)]
    fn look_up_elsewhere<C: Compare>(&mut self, bpe: &Bpe, cache: &mut Cache) -> WordList {
        let mut rare = WordList::EMPTY;
        for place in self.missing.iter() {
            let (tokens, four) = (&mut self.counts[place], &mut self.found[place]);
            let probe = &self.probes[place];
            let (key, hash) = (probe.key(), probe.hash);
            *tokens = cache.find_elsewhere::<C>(bpe.owner, &bpe.words, key, hash, four);
            rare.push_if(usize::from(*tokens) > SHORT_TOKENS, place);
        }
        rare
    }

    /// Returns the key under which the cache may have the tokens of a long word or a word of many
    /// tokens.
    #[inline(always)]
    fn long_key(&self, place: usize) -> LongKey {
        let (key, hash) = (self.probes[place].key(), self.probes[place].hash);
        if key.is_none() {
            self.longs[place]
        } else if self.counts[place] == MANY_TOKENS {
            LongKey::of_short(key, hash)
        } else {
            LongKey::NONE
        }
    }

    /// Stages the tokens of the words `places` after `count` staged tokens. Returns the new number
    /// of staged tokens.
    #[inline(always)]
    fn stage(
        &self,
        staged: &mut [u32; MAX_STAGED_TOKENS],
        mut count: usize,
        places: Range<usize>,
    ) -> usize {
        let found = &self.found[places.clone()];
        for (four, tokens) in found.iter().zip(&self.counts[places]) {
            staged[count..count + 4].copy_from_slice(four);
            count += usize::from(*tokens);
        }
        count
    }
}

/// Returns the range of a word of a group, the first of which begins at `start`.
#[inline(always)]
fn word_range(ends: &[usize], start: usize, place: usize) -> Range<usize> {
    let from = match place.checked_sub(1) {
        Some(before) => ends[before],
        None => start,
    };
    from..ends[place]
}

/// Returns the key of a long word, and prefetches its cache line.
#[inline(never)]
fn long_key(cache: &Cache, bytes: &[u8], start: usize, end: usize) -> LongKey {
    // Clauses are not cached as a whole.
    if super::is_clause(&bytes[start..end]) {
        return LongKey::NONE;
    }
    let key = LongKey::of_long(bytes, start, end);
    cache.prefetch_long(&key);
    key
}

/// A rising list of words of a group.
#[derive(Debug, Zeroable)]
struct WordList {
    places: [u8; GROUP_WORDS],
    len: usize,
}

impl WordList {
    const EMPTY: Self = Self {
        places: [0; GROUP_WORDS],
        len: 0,
    };

    /// Adds a word if `is` holds; costs the same if not.
    #[inline(always)]
    fn push_if(&mut self, is: bool, place: usize) {
        self.places[self.len % GROUP_WORDS] = place as u8;
        self.len += usize::from(is);
    }

    #[inline(always)]
    fn iter(&self) -> impl Iterator<Item = usize> {
        let places = self.places.iter().take(self.len);
        places.map(|place| usize::from(*place) % GROUP_WORDS)
    }
}

/// The work of [`Bpe::encode_words`], compiled for several instruction sets.
pub(super) struct EncodeWords<'a, 'w> {
    pub(super) bpe: &'a Bpe,
    pub(super) words: &'a PreTokens<'w>,
    pub(super) vocab: &'a Vocab,
    pub(super) scratch: &'a mut ThreadScratch,
    pub(super) out: &'a mut Vec<u32>,
}

impl Work for EncodeWords<'_, '_> {
    #[inline(always)]
    fn run<C: Compare>(self) {
        let Self {
            bpe,
            words,
            vocab,
            scratch,
            out,
        } = self;
        let bytes = words.text.as_bytes();
        let Scratch {
            cache,
            merging,
            ids,
            groups,
            ..
        } = scratch.get();
        // Dereferenced once, not for each word.
        let cache: &mut Cache = cache;
        groups.groups[0].missing = WordList::EMPTY;
        let Groups {
            groups: [now, next, last],
            staged,
        } = &mut **groups;
        let owner = bpe.owner;
        let (mut now, mut next, mut last) = (now, next, last);
        // The ends of the words of both groups, and the start of their first words.
        let (mut now_ends, mut next_ends): (&[usize], &[usize]) = (&[], &[]);
        let (mut now_start, mut next_start, mut start) = (words.start, words.start, words.start);
        // The number of staged tokens.
        let mut count = 0;
        let mut chunks = words.ends.chunks(GROUP_WORDS);
        // The added tokens of later groups, and the number of the first word of `next`.
        let (mut tokens, mut first) = (words.tokens, 0);
        loop {
            let ends = chunks.next().unwrap_or_default();
            let end = last.fill(owner, cache, bytes, start, ends);
            let after = first + next_ends.len();
            let (own, rest) = tokens.split_at(tokens.partition_point(|(word, _)| *word < after));
            next.look_up::<C>(bpe, cache, next_ends.len(), first, own);
            (tokens, first) = (rest, after);

            let rare = now.look_up_elsewhere::<C>(bpe, cache);
            if count > MAX_STAGED_TOKENS - GROUP_WORDS * PADDED_TOKENS {
                out.extend_from_slice(&staged[..count]);
                count = 0;
            }
            let mut done = 0;
            for place in rare.iter() {
                count = now.stage(staged, count, done..place);
                done = place + 1;
                let long = now.long_key(place);
                if let Some((eight, tokens)) = cache.long_padded(owner, &long) {
                    staged[count..count + PADDED_TOKENS].copy_from_slice(eight);
                    count += tokens;
                    continue;
                }
                out.extend_from_slice(&staged[..count]);
                count = 0;
                let probe = (now.probes[place].key(), now.probes[place].hash);
                let word = &bytes[word_range(now_ends, now_start, place)];
                let rest = (&mut *cache, &mut *merging, &mut *ids);
                bpe.encode_uncached(word, probe, vocab, rest, out);
            }
            count = now.stage(staged, count, done..now_ends.len());

            if ends.is_empty() && next_ends.is_empty() {
                break;
            }
            (now, next, last) = (next, last, now);
            (now_ends, next_ends) = (next_ends, ends);
            (now_start, next_start, start) = (next_start, start, end);
        }
        out.extend_from_slice(&staged[..count]);
    }
}
