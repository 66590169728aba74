//! The ids of a word, for models that have a token or bytes for every character.
//!
//! A word, which may be a whole text, is cut where no rule joins two characters
//! ([`super::borders`]). Most pieces are a word of a language with the blank before it, or
//! one character of a script with few tokens. So a text goes in runs of a few hundred
//! characters through loops that do one thing to all of them:
//!
//! 1. what each character is, and whether something joins it with the one before it, without
//!    a branch on either ([`Pieces::read`]);
//! 2. keys of the pieces of several characters ([`Pieces::seek`]);
//! 3. what the thread remembers of these ([`crate::cache`]), or the table of words
//!    ([`Pieces::look`]);
//! 4. all ids, in the order of the text. What is not known is merged, beginning with the
//!    ranks of pairs of characters, which cutting has found ([`Pieces::put`]).
//!
//! The last piece of a run waits for the next one, unless it is longer than what runs have
//! room for.

use super::borders::ASK;
use super::letters::{Letter, META_BYTES, code, push_swapped};
use super::merge::{Model, NO_ID, Scratch};
use crate::cache::{Cache, ELSEWHERE, LongKey, MergeScratch, SHORT_TOKENS, Wanted};
use crate::compare::{self, Compare, Work};
use crate::merging::{FEW, Symbols};
use crate::pairs::NO_RANK;
use crate::words::{KEY_MAX, Key};

/// Bytes that are looked at together, and zeros after a text that let its last ones be.
const WINDOW: usize = 64;
/// So that the first bytes of a character can be read in one move.
const MARGIN: usize = 3;

/// Characters of a run.
const RUN: usize = 4 * WINDOW;
/// Ids of a run: a character is up to four bytes, and moves are of eight.
const STAGED: usize = 4 * RUN + TOKENS;

/// Most tokens of a piece that is remembered, and the next power of two.
const TOKENS: usize = 8;

/// The characters of a run and the pieces that they make; kept between calls.
#[derive(Debug)]
pub(crate) struct Pieces {
    /// The text, in the spelling of [`super::letters`], and zeros.
    text: Vec<u8>,
    /// Of characters, of which there are `count`: their tokens, or [`NO_ID`]; the ranks of
    /// rules that join each with the next one; and where each begins.
    ids: [u32; RUN],
    ranks: [u32; RUN],
    starts: [usize; RUN + 1],
    count: usize,
    /// Numbers of the characters with which pieces begin, of which there are `cuts`.
    firsts: [u16; RUN + 1],
    cuts: usize,
    /// The last character that was read.
    last: (u32, Letter),
    /// Of pieces of several characters, in order.
    probes: [Probe; RUN / 2],
    longs: [LongKey; RUN / 2],
    found: [[u32; 4]; RUN / 2],
    tokens: [u8; RUN / 2],
    /// Those that are not where the cache has them first.
    absent: [u8; RUN / 2],
    staged: [u32; STAGED],
    symbols: Symbols,
}

#[derive(Debug, Clone, Copy)]
struct Probe {
    /// The key, and the owner as entries have it.
    wanted: Wanted,
    hash: u64,
}

impl Default for Pieces {
    fn default() -> Self {
        let probe = Probe {
            wanted: [0; 4],
            hash: 0,
        };
        Self {
            text: Vec::new(),
            ids: [0; RUN],
            ranks: [0; RUN],
            starts: [0; RUN + 1],
            count: 0,
            firsts: [0; RUN + 1],
            cuts: 0,
            last: (0, Letter::NONE),
            probes: [probe; RUN / 2],
            longs: [LongKey::NONE; RUN / 2],
            found: [[0; 4]; RUN / 2],
            tokens: [0; RUN / 2],
            absent: [0; RUN / 2],
            staged: [0; STAGED],
            symbols: Symbols::default(),
        }
    }
}

/// The bits of bytes that begin a character.
#[inline(always)]
fn beginnings(window: &[u8; WINDOW]) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    /// Moves bit `8 n` to bit `56 + n`.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    let (eights, _) = window.as_chunks::<8>();
    let mut bits = 0;
    for (n, eight) in eights.iter().enumerate() {
        let bytes = u64::from_le_bytes(*eight);
        let begins = (!(bytes >> 7) | bytes >> 6) & ONES;
        bits |= (begins.wrapping_mul(GATHER) >> 56) << (8 * n);
    }
    bits
}

impl Pieces {
    /// Where the text ends.
    fn end(&self) -> usize {
        self.text.len().saturating_sub(WINDOW + MARGIN)
    }

    /// Reads characters from `at` on until there is no room for another window of them.
    /// Returns where the next one begins.
    ///
    /// A function of its own, since it needs all registers.
    #[inline(never)]
    fn read(&mut self, model: &Model, mut at: usize) -> usize {
        let end = self.end();
        let (letters, borders) = (model.letters.view(), model.borders.view());
        let Self {
            text,
            ids,
            ranks,
            starts,
            firsts,
            ..
        } = self;
        let (mut count, mut cuts, mut last) = (self.count, self.cuts, self.last);
        while at < end && count <= RUN - WINDOW {
            let Some(window) = text[at..].first_chunk::<{ WINDOW + MARGIN }>() else {
                break;
            };
            let first = window.first_chunk().expect("it is longer");
            let mut begins = beginnings(first);
            if end - at < WINDOW {
                begins &= (1 << (end - at)) - 1;
            }
            while begins != 0 {
                let n = begins.trailing_zeros() as usize % WINDOW;
                begins &= begins - 1;
                let code = code([window[n], window[n + 1], window[n + 2], window[n + 3]]);
                let next = (code, letters.get(code));
                let mut rank = borders.rank(last.1, next.1);
                if rank == ASK {
                    rank = model.borders.ask(&model.pairs, last, next);
                }
                // The place before the first is never read.
                ranks[count.wrapping_sub(1) % RUN] = rank;
                ids[count % RUN] = next.1.id;
                starts[count % RUN] = at + n;
                firsts[cuts % RUN] = count as u16;
                cuts += usize::from(rank == NO_RANK);
                count += 1;
                last = next;
            }
            at += WINDOW;
        }
        (self.count, self.cuts, self.last) = (count, cuts, last);
        at.min(end)
    }

    /// Makes the keys of the first `pieces`, and asks for what they will be compared with.
    /// Returns how many there are.
    #[inline(always)]
    fn seek(&mut self, model: &Model, cache: &Cache, pieces: usize) -> usize {
        let mut probes = 0;
        let firsts = self.firsts[..pieces + 1].windows(2);
        for ends in firsts {
            let (first, next) = (usize::from(ends[0]), usize::from(ends[1]));
            if next - first < 2 {
                continue;
            }
            let (start, end) = (self.starts[first % RUN], self.starts[next]);
            let key = Key::new(&self.text, start, end);
            let hash = key.hash();
            cache.prefetch_short(hash);
            let at = probes % (RUN / 2);
            self.probes[at] = Probe {
                wanted: Cache::wanted(model.owner, key),
                hash,
            };
            if end - start > KEY_MAX {
                let long = LongKey::of_long(&self.text, start, end);
                cache.prefetch_long(&long);
                self.longs[at] = long;
            }
            probes += 1;
        }
        probes
    }

    /// Looks up the first `probes` pieces of several characters.
    #[inline(always)]
    fn look<C: Compare>(&mut self, model: &Model, cache: &mut Cache, probes: usize) {
        let mut absent = 0;
        for at in 0..probes.min(RUN / 2) {
            let probe = &self.probes[at];
            let (four, tokens) = cache.first::<C>(&probe.wanted, probe.hash);
            self.found[at] = *four;
            self.tokens[at] = tokens as u8;
            self.absent[absent % (RUN / 2)] = at as u8;
            absent += usize::from(tokens > SHORT_TOKENS);
        }
        let absent = &self.absent[..absent];
        for &at in absent {
            let at = usize::from(at) % (RUN / 2);
            let Probe { wanted, hash } = &self.probes[at];
            if self.tokens[at] == ELSEWHERE {
                self.longs[at] = LongKey::of_short(key_of(wanted));
                cache.prefetch_long(&self.longs[at]);
            } else {
                cache.prefetch_other(*hash);
                model.words.prefetch(model.words.home(*hash));
            }
        }
        for &at in absent {
            let at = usize::from(at) % (RUN / 2);
            let Probe { wanted, hash } = &self.probes[at];
            let key = key_of(wanted);
            if self.tokens[at] == ELSEWHERE {
                continue;
            }
            let four = &mut self.found[at];
            self.tokens[at] = cache.further::<C>(model.owner, &model.words, key, *hash, four);
            if self.tokens[at] == ELSEWHERE {
                self.longs[at] = LongKey::of_short(key);
            }
        }
    }

    /// Appends the ids of the first `pieces`.
    #[inline(always)]
    fn put(
        &mut self,
        model: &Model,
        cache: &mut Cache,
        scratch: &mut Scratch,
        pieces: usize,
        out: &mut Vec<u32>,
    ) {
        let (mut len, mut probe) = (0, 0);
        for ends in self.firsts[..pieces + 1].windows(2) {
            let (first, next) = (usize::from(ends[0]) % RUN, usize::from(ends[1]));
            if next - first == 1 {
                let id = self.ids[first];
                if id != NO_ID {
                    self.staged[len] = id;
                    len += 1;
                    continue;
                }
                let character = &self.text[self.starts[first]..self.starts[next]];
                for &byte in of_character(character) {
                    self.staged[len] = model.bytes[usize::from(byte)];
                    len += 1;
                }
                continue;
            }
            let at = probe % (RUN / 2);
            probe += 1;
            let tokens = self.tokens[at];
            if usize::from(tokens) <= SHORT_TOKENS {
                // All four in one move; those after the last token are overwritten.
                self.staged[len..len + 4].copy_from_slice(&self.found[at]);
                len += usize::from(tokens);
                continue;
            }
            let Probe { wanted, hash } = &self.probes[at];
            let key = key_of(wanted);
            let mut long = self.longs[at];
            if (key.is_none() || tokens == ELSEWHERE)
                && let Some((eight, tokens)) = cache.long_padded(model.owner, &long)
            {
                self.staged[len..len + TOKENS].copy_from_slice(eight);
                len += tokens;
                continue;
            }
            let before = len;
            let (ids, ranks) = (&self.ids[first..next], &self.ranks[first..next]);
            let staged = &mut self.staged;
            let each = |id| {
                staged[len] = id;
                len += 1;
            };
            if ids.len() <= FEW {
                self.symbols.merge(&model.pairs, ids, ranks, each);
            } else {
                model.merge_many(ids.iter().copied(), scratch, each);
            }
            let ids = &self.staged[before..len];
            if !cache.remember_short(model.owner, key, *hash, ids) || key.is_none() {
                if !key.is_none() {
                    long = LongKey::of_short(key);
                }
                cache.remember_long(model.owner, &long, ids);
            }
        }
        out.extend_from_slice(&self.staged[..len]);
    }

    /// Keeps the last piece, which may go on.
    #[inline(always)]
    fn keep_last(&mut self) {
        let first = self
            .cuts
            .checked_sub(1)
            .map_or(0, |last| usize::from(self.firsts[last]));
        let (first, count) = (first.min(RUN), self.count.min(RUN));
        self.ids.copy_within(first..count, 0);
        self.ranks.copy_within(first..count, 0);
        self.starts.copy_within(first..count, 0);
        self.count = count - first;
        self.firsts[0] = 0;
        self.cuts = 1;
    }

    /// Appends the ids of the piece that waits, which is too long for a run. Returns where
    /// the next one begins.
    #[cold]
    #[inline(never)]
    fn put_long(
        &mut self,
        model: &Model,
        scratch: &mut Scratch,
        from: usize,
        out: &mut Vec<u32>,
    ) -> usize {
        let end = self.end();
        let mut ids = self.ids[..self.count].to_vec();
        let mut at = from;
        while at < end {
            let four = self.text[at..].first_chunk::<4>();
            let four = four.expect("the text ends with more zeros");
            let width = match four[0] {
                0x80..0xC0 => {
                    at += 1;
                    continue;
                }
                0x00..0x80 => 1,
                0xC0..0xE0 => 2,
                0xE0..0xF0 => 3,
                _ => 4,
            };
            let code = code(*four);
            let next = (code, model.letters.get(code));
            if model.borders.rank(&model.pairs, self.last, next) == NO_RANK {
                break;
            }
            ids.push(next.1.id);
            self.last = next;
            at += width;
        }
        model.merge_many(ids.into_iter(), scratch, |id| out.push(id));
        (self.count, self.cuts, self.last) = (0, 0, (0, Letter::NONE));
        at.min(end)
    }

    /// Gives back what a text longer than `kept` took.
    pub(crate) fn shrink(&mut self, kept: usize) {
        if self.text.capacity() > kept {
            self.text = Vec::new();
        }
    }
}

#[inline(always)]
fn key_of(&[low, high, ..]: &Wanted) -> Key {
    Key { low, high }
}

/// The bytes of a character that is spelled as in texts.
#[inline(always)]
fn of_character(spelled: &[u8]) -> &[u8] {
    match spelled {
        b" " => &META_BYTES,
        other if *other == META_BYTES => b" ",
        other => other,
    }
}

/// Encodes pieces of a text; compiled for several instruction sets.
struct EncodePieces<'a> {
    model: &'a Model,
    pieces: &'a mut Pieces,
    cache: &'a mut Cache,
    scratch: &'a mut Scratch,
    out: &'a mut Vec<u32>,
}

impl Work for EncodePieces<'_> {
    #[inline(always)]
    fn run<C: Compare>(self) {
        let Self {
            model,
            pieces,
            cache,
            scratch,
            out,
        } = self;
        let end = pieces.end();
        (pieces.count, pieces.cuts, pieces.last) = (0, 0, (0, Letter::NONE));
        let mut at = 0;
        loop {
            at = pieces.read(model, at);
            let whole = if at == end {
                pieces.firsts[pieces.cuts] = pieces.count as u16;
                pieces.starts[pieces.count] = end;
                pieces.cuts
            } else {
                pieces.cuts - 1
            };
            let probes = pieces.seek(model, cache, whole);
            pieces.look::<C>(model, cache, probes);
            pieces.put(model, cache, scratch, whole, out);
            if at == end {
                break;
            }
            pieces.keep_last();
            if pieces.count > RUN - WINDOW {
                at = pieces.put_long(model, scratch, at, out);
            }
        }
    }
}

impl Model {
    /// Whether [`Model::encode_word`] may be asked.
    pub(super) fn is_simple(&self) -> bool {
        self.complete && self.whole.is_none()
    }

    /// Appends the ids of a word.
    pub(super) fn encode_word(
        &self,
        word: &str,
        memory: &mut MergeScratch,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) {
        self.encode_spelled(memory, scratch, out, |text| push_swapped(word, text));
    }

    /// Appends the ids of the text that `push` appends in the spelling of texts.
    pub(super) fn encode_spelled(
        &self,
        memory: &mut MergeScratch,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
        push: impl FnOnce(&mut Vec<u8>),
    ) {
        let (cache, pieces) = memory.get().pieces();
        pieces.text.clear();
        push(&mut pieces.text);
        let len = pieces.text.len();
        pieces.text.resize(len + WINDOW + MARGIN, 0);
        compare::run(EncodePieces {
            model: self,
            pieces,
            cache,
            scratch,
            out,
        });
    }
}
