//! Parts of words that are merged later, many at a time ([`super::lanes`]).
//!
//! Until then a part has room for its tokens among those of the text, as many as it has
//! symbols. When enough parts have come together they are merged, and what follows moves up.

use super::Bpe;
#[cfg(target_arch = "x86_64")]
use super::lanes::{BLOCKS, LANES, Lanes};
use super::merge::{Merging, Symbols};
use super::parts::{AtOnce, FEW, Parts};
use crate::cache::{Cache, SHORT_TOKENS};
use crate::compare::Compare;
#[cfg(target_arch = "x86_64")]
use crate::compare::Vectors;
use crate::words::Key;
use std::ops::Range;

/// Most symbols of a part that waits; longer ones are merged at once.
pub(super) const SYMBOLS: usize = 16;

/// Parts for which merging is worth its while: several times sixteen, so that those of like
/// lengths are merged together.
const ENOUGH: usize = 64;
/// Most parts that wait; of a word that has more than the rest, those are merged at once.
const PARTS: usize = 2 * ENOUGH;

/// Fewest symbols of a part that waits.
const LEAST: usize = 5;

/// So many parts are merged one by one: a block of lanes takes as long as some of them.
#[cfg(target_arch = "x86_64")]
const ONE_BY_ONE: usize = 8;

/// A part whose tokens are not known yet.
#[derive(Debug, Clone, Copy)]
struct Part {
    /// Where it has room among the tokens.
    at: usize,
    /// How many symbols it has.
    len: usize,
    /// How many tokens, when it has been merged.
    tokens: usize,
    symbols: [u32; SYMBOLS],
    /// If it is remembered by itself.
    key: Option<(Key, u64)>,
}

/// A word with parts that wait.
#[derive(Debug, Clone)]
struct Word {
    /// Where its tokens begin.
    at: usize,
    /// Where they end.
    end: usize,
    /// The first part after it.
    parts_end: usize,
    /// Where it stands in the text.
    place: Range<usize>,
    key: (Key, u64),
}

/// Parts that wait, and their words.
#[derive(Debug)]
pub(super) struct Pending {
    parts: Vec<Part>,
    words: Vec<Word>,
    #[cfg(target_arch = "x86_64")]
    lanes: Lanes,
}

impl Default for Pending {
    fn default() -> Self {
        Self {
            parts: Vec::with_capacity(PARTS),
            words: Vec::with_capacity(PARTS),
            #[cfg(target_arch = "x86_64")]
            lanes: Lanes::EMPTY,
        }
    }
}

impl Parts for Pending {
    #[inline(always)]
    fn part(
        &mut self,
        bpe: &Bpe,
        word: &[u8],
        part: Range<usize>,
        symbols: &mut Symbols,
        rest: (&mut Cache, &mut Merging),
        out: &mut Vec<u32>,
    ) {
        // Parts of which a word has several are short, and merged as soon as put aside.
        let least = if part.len() < word.len() {
            FEW + 1
        } else {
            LEAST
        };
        let waits = self.parts.len() < PARTS && (least..=SYMBOLS).contains(&symbols.len);
        if waits {
            self.wait(bpe, word, part, symbols, rest.0, out);
        } else {
            AtOnce.part(bpe, word, part, symbols, rest, out);
        }
    }
}

impl Pending {
    /// [`Parts::part`] for a part that waits unless it is known.
    #[inline(never)]
    fn wait(
        &mut self,
        bpe: &Bpe,
        word: &[u8],
        part: Range<usize>,
        symbols: &mut Symbols,
        cache: &mut Cache,
        out: &mut Vec<u32>,
    ) {
        let len = std::mem::take(&mut symbols.len).min(SYMBOLS);
        let mut key = None;
        if part.len() < word.len() {
            match bpe.known_part(&word[part], cache, out) {
                Ok(()) => return,
                Err(new) => key = Some(new),
            }
        }
        let mut first = [0; SYMBOLS];
        first.copy_from_slice(&symbols.ids[..SYMBOLS]);
        self.parts.push(Part {
            at: out.len(),
            len,
            tokens: 0,
            symbols: first,
            key,
        });
        out.extend_from_slice(&first[..len]);
    }

    /// Forgets what a call left that a panic ended.
    pub(super) fn clear(&mut self) {
        self.parts.clear();
        self.words.clear();
    }

    /// Whether parts should be merged before the next word.
    pub(super) fn is_full(&self) -> bool {
        self.parts.len() >= ENOUGH
    }

    /// Appends the tokens of a word of which nobody knows any, or room for them. It stands at
    /// `place` of the text, which is `bytes`.
    pub(super) fn word(
        &mut self,
        bpe: &Bpe,
        bytes: &[u8],
        place: Range<usize>,
        key: (Key, u64),
        (cache, merging): (&mut Cache, &mut Merging),
        out: &mut Vec<u32>,
    ) {
        let (at, parts) = (out.len(), self.parts.len());
        let word = &bytes[place.clone()];
        bpe.merge_parts(word, (&mut *cache, merging), self, out);
        if self.parts.len() > parts {
            self.words.push(Word {
                at,
                end: out.len(),
                parts_end: self.parts.len(),
                place,
                key,
            });
        } else {
            bpe.remember(word, key, cache, &out[at..]);
        }
    }

    /// Merges all parts, puts their tokens into their room in `out`, and moves up what
    /// follows. `bytes` is the text.
    pub(super) fn finish<C: Compare>(
        &mut self,
        bpe: &Bpe,
        bytes: &[u8],
        cache: &mut Cache,
        out: &mut Vec<u32>,
    ) {
        let Some(first) = self.words.first() else {
            return;
        };
        for word in &self.words {
            cache.prefetch(word.key.1);
        }
        let mut moving = Moving {
            from: first.at,
            to: first.at,
        };
        self.merge::<C>(bpe);
        let mut parts = self.parts.iter();
        let mut done = 0;
        for word in &self.words {
            moving.up_to(word.at, out);
            let at = moving.to;
            for part in parts.by_ref().take(word.parts_end - done) {
                moving.up_to(part.at, out);
                let tokens = &part.symbols[..part.tokens];
                moving.put(tokens, part.len, out);
                if let Some((key, hash)) = part.key
                    && part.tokens <= SHORT_TOKENS
                {
                    cache.remember_short(bpe.parts_owner, key, hash, tokens);
                }
            }
            done = word.parts_end;
            moving.up_to(word.end, out);
            let text = &bytes[word.place.clone()];
            bpe.remember(text, word.key, cache, &out[at..moving.to]);
        }
        moving.up_to(out.len(), out);
        out.truncate(moving.to);
        self.clear();
    }

    fn merge<C: Compare>(&mut self, bpe: &Bpe) {
        #[cfg(target_arch = "x86_64")]
        if self.parts.len() > ONE_BY_ONE
            && let Some(vectors) = C::VECTORS
        {
            return self.merge_together(vectors, bpe);
        }
        for part in &mut self.parts {
            let mut symbols = Symbols::default();
            symbols.ids[..part.len].copy_from_slice(&part.symbols[..part.len]);
            part.tokens = bpe.merge_by_scan::<SYMBOLS>(&mut symbols.ids, part.len);
            part.symbols.copy_from_slice(&symbols.ids[..SYMBOLS]);
        }
    }

    /// Merges sixteen at a time, those of like lengths together: a lane waits for the longest.
    #[cfg(target_arch = "x86_64")]
    fn merge_together(&mut self, vectors: Vectors, bpe: &Bpe) {
        let mut starts = [0; SYMBOLS + 2];
        for part in &self.parts {
            starts[part.len + 1] += 1;
        }
        for len in 1..starts.len() {
            starts[len] += starts[len - 1];
        }
        let mut order = [0; PARTS];
        for (n, part) in self.parts.iter().enumerate() {
            order[starts[part.len]] = n as u8;
            starts[part.len] += 1;
        }
        for some in order[..self.parts.len()].chunks(LANES * BLOCKS) {
            let blocks = some.chunks(LANES).zip(&mut self.lanes.blocks);
            for (some, block) in blocks {
                block.lens = [0; LANES];
                for (lane, &n) in some.iter().enumerate() {
                    let part = &self.parts[usize::from(n)];
                    block.lens[lane] = part.len as u32;
                    for (ids, symbol) in block.ids.iter_mut().zip(&part.symbols[..part.len]) {
                        ids[lane] = *symbol;
                    }
                }
            }
            let blocks = some.len().div_ceil(LANES);
            self.lanes.merge_with(vectors, blocks, &bpe.pairs);
            for (some, block) in some.chunks(LANES).zip(&self.lanes.blocks) {
                for (lane, &n) in some.iter().enumerate() {
                    let part = &mut self.parts[usize::from(n)];
                    let mut left = block.alive[lane];
                    part.tokens = left.count_ones() as usize;
                    for token in &mut part.symbols[..part.tokens] {
                        *token = block.ids[left.trailing_zeros() as usize][lane];
                        left &= left - 1;
                    }
                }
            }
        }
    }
}

/// Moves tokens to where room was left.
struct Moving {
    from: usize,
    to: usize,
}

impl Moving {
    /// Those before `end`.
    fn up_to(&mut self, end: usize, out: &mut [u32]) {
        // A call for moving a few numbers costs more than moving them.
        while self.from < end {
            out[self.to] = out[self.from];
            self.to += 1;
            self.from += 1;
        }
    }

    /// Puts `tokens` there instead of the next `room` ones.
    fn put(&mut self, tokens: &[u32], room: usize, out: &mut [u32]) {
        out[self.to..self.to + tokens.len()].copy_from_slice(tokens);
        self.to += tokens.len();
        self.from += room;
    }
}
