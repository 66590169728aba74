//! The tokens of many words, most of which are remembered.
//!
//! What a word is cannot be predicted: a branch on whether it is one token or several, known
//! or new, costs more than looking it up. So words go in groups through loops that do one
//! thing to all of them, without a branch on what they are:
//!
//! 1. keys and hashes ([`Group::fill`]);
//! 2. the lines of the thread's cache that the hashes name. Of ordinary text they have all
//!    but a few words in a hundred, and these are listed ([`Group::look`]);
//! 3. of those only, the other line of the cache and the table of words
//!    ([`Group::look_further`]);
//! 4. all tokens, in the order of the text: four are written for each word, and the next
//!    word's overwrite those that it does not have.
//!
//! Each of the first two asks for the memory that the next one reads, and in between comes
//! what is to be done for the groups before.
//!
//! Single tokens are in the cache, too, although the table has them: a table of all words of
//! a vocabulary has few words of a text in each of its lines, and two look-ups for each word
//! of several tokens.

use super::{Bpe, Scratch};
use crate::cache::{Cache, LongKey, MANY, MergeScratch, Owner, SHORT_TOKENS, Wanted};
use crate::compare::{Compare, Work};
use crate::pretokenize::Words;
use crate::vocab::Vocab;
use crate::words::{KEY_MAX, Key};
use bytemuck::Zeroable;
use std::ops::Range;

/// Of so many words, enough are new for merging them together: of English ones, three in a
/// hundred. In a text of 700 bytes there are a few, and putting them aside took a tenth of its
/// time.
const WAITING: usize = 256;

/// Words for which memory is asked before any of it is read: as many lines as the processor
/// can have under way, a few dozen.
const GROUP: usize = 64;

/// Most tokens of a word that is remembered, and the next power of two.
const TOKENS: usize = 8;

/// Tokens that are gathered before they are appended: copying those of a few words at a
/// time waits for the moves that have just written them.
const STAGED: usize = 1024;

/// Words that are looked up together; kept between calls, since clearing them would take
/// as long as encoding a short text. They begin as zeros and never lie on a stack: that would
/// keep the 24 KB of them until the thread ends.
#[derive(Debug, Zeroable)]
pub(super) struct Groups {
    /// This group and the next two.
    groups: [Group; 3],
    staged: [u32; STAGED],
}

/// Words that will be looked up.
#[derive(Debug, Zeroable)]
struct Group {
    probes: [Probe; GROUP],
    /// Keys of those that are too long for others.
    longs: [LongKey; GROUP],
    found: [[u32; 4]; GROUP],
    /// Numbers of tokens, or what is in their place.
    counts: [u8; GROUP],
    /// Those that are not in their first line of the cache.
    absent: List,
}

#[derive(Debug, Clone, Copy, Zeroable)]
struct Probe {
    /// The key, and the owner as entries have it.
    wanted: Wanted,
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
    /// Makes the keys of words that end at `ends`, of which the first begins at `start`, and
    /// asks for what they will be compared with. Returns where the last one ends.
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
                wanted: Cache::wanted(owner, key, hash),
                hash,
            };
            if end - start > KEY_MAX {
                *long = long_key(cache, bytes, start, end);
            }
            start = end;
        }
        start
    }

    /// Looks for the first `words` of them in the cache, and asks for what those that it
    /// lacks will be compared with. `tokens` are those that are added tokens, whose places
    /// count from `first`.
    #[inline(always)]
    fn look<C: Compare>(
        &mut self,
        bpe: &Bpe,
        cache: &Cache,
        words: usize,
        first: usize,
        tokens: &[(usize, u32)],
    ) {
        let mut absent = List::EMPTY;
        for place in 0..words.min(GROUP) {
            let probe = &self.probes[place % GROUP];
            let (four, tokens) = cache.first::<C>(&probe.wanted);
            self.found[place % GROUP] = *four;
            self.counts[place % GROUP] = tokens as u8;
            absent.push_if(tokens > SHORT_TOKENS, place);
        }
        if !tokens.is_empty() {
            for (word, id) in tokens {
                let place = (word - first) % GROUP;
                self.found[place][0] = *id;
                self.counts[place] = 1;
            }
            // No word may be remembered as one of them.
            let mut words = List::EMPTY;
            for place in absent.iter() {
                let unknown = usize::from(self.counts[place]) > SHORT_TOKENS;
                words.push_if(unknown, place);
            }
            absent = words;
        }
        for place in absent.iter() {
            let hash = self.probes[place].hash;
            cache.prefetch_other(hash);
            bpe.words.prefetch(bpe.words.home(hash));
        }
        self.absent = absent;
    }

    /// Looks for the words that are absent in other places. Those that have none.
    #[inline(always)]
    fn look_further<C: Compare>(&mut self, bpe: &Bpe, cache: &mut Cache) -> List {
        let mut rare = List::EMPTY;
        for place in self.absent.iter() {
            let (tokens, four) = (&mut self.counts[place], &mut self.found[place]);
            let probe = &self.probes[place];
            let (key, hash) = (probe.key(), probe.hash);
            *tokens = cache.further::<C>(bpe.owner, &bpe.words, key, hash, four);
            rare.push_if(usize::from(*tokens) > SHORT_TOKENS, place);
        }
        rare
    }

    /// Stages tokens of some words after `count` others. Returns how many there are then.
    #[inline(always)]
    fn stage(&self, staged: &mut [u32; STAGED], mut count: usize, places: Range<usize>) -> usize {
        let found = &self.found[places.clone()];
        for (four, tokens) in found.iter().zip(&self.counts[places]) {
            staged[count..count + 4].copy_from_slice(four);
            count += usize::from(*tokens);
        }
        count
    }
}

/// The key of a word that is too long for others, whose memory it asks for.
#[inline(never)]
fn long_key(cache: &Cache, bytes: &[u8], start: usize, end: usize) -> LongKey {
    // Clauses are not remembered as wholes.
    if super::is_clause(&bytes[start..end]) {
        return LongKey::NONE;
    }
    let key = LongKey::of_long(bytes, start, end);
    cache.prefetch_long(&key);
    key
}

/// Some words of a group, in order.
#[derive(Debug, Zeroable)]
struct List {
    places: [u8; GROUP],
    len: usize,
}

impl List {
    const EMPTY: Self = Self {
        places: [0; GROUP],
        len: 0,
    };

    /// Adds a word if that `is` so; costs the same if it is not.
    #[inline(always)]
    fn push_if(&mut self, is: bool, place: usize) {
        self.places[self.len % GROUP] = place as u8;
        self.len += usize::from(is);
    }

    #[inline(always)]
    fn iter(&self) -> impl Iterator<Item = usize> {
        let places = self.places.iter().take(self.len);
        places.map(|place| usize::from(*place) % GROUP)
    }
}

/// [`Bpe::encode_words`], to be compiled for several instruction sets.
pub(super) struct EncodeWords<'a, 'w> {
    pub(super) bpe: &'a Bpe,
    pub(super) words: &'a Words<'w>,
    pub(super) vocab: &'a Vocab,
    pub(super) scratch: &'a mut MergeScratch,
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
            pending,
            groups,
            ..
        } = scratch.get();
        // Its memory is found once, not for each word.
        let cache: &mut Cache = cache;
        let wait = C::LANES && words.ends.len() >= WAITING;
        pending.clear();
        groups.groups[0].absent = List::EMPTY;
        let Groups {
            groups: [now, next, last],
            staged,
        } = &mut **groups;
        let owner = bpe.owner;
        let (mut now, mut next, mut last) = (now, next, last);
        // The ends of the words of these, and where the first of each begins.
        let (mut now_ends, mut next_ends): (&[usize], &[usize]) = (&[], &[]);
        let (mut now_start, mut next_start, mut start) = (words.start, words.start, words.start);
        // How many are staged.
        let mut count = 0;
        let mut chunks = words.ends.chunks(GROUP);
        // The added tokens that were not looked at yet, and the word that `next` begins with.
        let (mut tokens, mut first) = (words.tokens, 0);
        loop {
            let ends = chunks.next().unwrap_or_default();
            let end = last.fill(owner, cache, bytes, start, ends);
            let after = first + next_ends.len();
            let (own, rest) = tokens.split_at(tokens.partition_point(|(word, _)| *word < after));
            next.look::<C>(bpe, cache, next_ends.len(), first, own);
            (tokens, first) = (rest, after);

            let rare = now.look_further::<C>(bpe, cache);
            if count > STAGED - GROUP * TOKENS {
                out.extend_from_slice(&staged[..count]);
                count = 0;
            }
            let mut done = 0;
            for place in rare.iter() {
                count = now.stage(staged, count, done..place);
                done = place + 1;
                let (key, hash) = (now.probes[place].key(), now.probes[place].hash);
                let long = if key.is_none() {
                    now.longs[place]
                } else if now.counts[place] == MANY {
                    LongKey::of_short(key, hash)
                } else {
                    LongKey::NONE
                };
                if let Some((eight, tokens)) = cache.long_padded(owner, &long) {
                    staged[count..count + TOKENS].copy_from_slice(eight);
                    count += tokens;
                    continue;
                }
                out.extend_from_slice(&staged[..count]);
                count = 0;
                let from = match place.checked_sub(1) {
                    Some(before) => now_ends[before],
                    None => now_start,
                };
                let word = (bytes, from..now_ends[place]);
                let probe = (key, hash);
                if !wait {
                    let rest = (&mut *cache, &mut *merging, &mut *ids);
                    bpe.encode_rare(&bytes[word.1], probe, vocab, rest, out);
                    continue;
                }
                let rest = (&mut *cache, &mut *merging, &mut **pending);
                bpe.encode_later(word, probe, vocab, rest, out);
                if pending.is_full() {
                    pending.finish::<C>(bpe, bytes, cache, out);
                }
            }
            count = now.stage(staged, count, done..now_ends.len());

            if ends.is_empty() && next_ends.is_empty() {
                break;
            }
            (now, next, last) = (next, last, now);
            (now_ends, next_ends) = (next_ends, ends);
            (now_start, next_start, start) = (next_start, start, end);
        }
        pending.finish::<C>(bpe, bytes, cache, out);
        out.extend_from_slice(&staged[..count]);
    }
}
