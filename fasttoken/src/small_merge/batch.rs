//! Merging of several words at once.
//!
//! A merge step reads the product of a pair and then the ranks of the pairs around it, which may be
//! far away in memory. Word by word, this took 1,200 cycles for a new Russian word of nine
//! characters under Llama 2's vocabulary, most of them spent waiting. Here each half of a step is
//! taken for all words before the next half, whose memory it prefetches. There are no branches on
//! the data, which would often be predicted wrongly.

use super::{MAX_SYMBOLS, NO_PAIR, Symbols, pair};
use crate::pairs::{PairTable, Query};
use bytemuck::Zeroable;

/// The largest number of words of a batch.
pub(crate) const BATCH_WORDS: usize = 32;

/// A batch of words that are merged together.
#[derive(Debug, Clone, Zeroable)]
pub(crate) struct Batch {
    words: [Word; BATCH_WORDS],
    count: usize,
}

#[derive(Debug, Clone, Copy, Zeroable)]
struct Word {
    symbols: Symbols,
    /// A bit for each symbol that was not swallowed by a merge.
    there: u64,
    /// The number of symbols at first, rounded up to whole vectors.
    padded_len: usize,
    /// The packed pair that is merged next.
    first: u32,
    /// The queries for the two pairs that the last merge created, with the symbol before it and the
    /// symbol after it.
    asked: [Query; 2],
    places: [u8; 2],
}

impl Word {
    /// Finds the next pair and prefetches its product. Returns false if there is none.
    #[inline(always)]
    fn look(&mut self, table: &PairTable) -> bool {
        self.first = self.symbols.first(self.padded_len);
        if self.first == NO_PAIR {
            return false;
        }
        table.prefetch_product(self.first / MAX_SYMBOLS as u32);
        true
    }

    /// Merges the next pair, and starts the lookups of the two new pairs.
    #[inline(always)]
    fn join(&mut self, table: &PairTable) {
        let Symbols { ids, pairs } = &mut self.symbols;
        let place = self.first as usize % MAX_SYMBOLS;
        let id = table.product(self.first / MAX_SYMBOLS as u32);
        let after = self.there & (u64::MAX << place << 1);
        let right = after.trailing_zeros() as usize % MAX_SYMBOLS;
        self.there &= !(1 << right);
        ids[place] = id;
        pairs[right] = NO_PAIR;
        // A missing neighbour is replaced by some other symbol, whose query is not wanted.
        // Only the first symbol lacks a left neighbour: then both places are the same.
        let after = after & after.wrapping_sub(1);
        let next = ids[after.trailing_zeros() as usize % MAX_SYMBOLS];
        let before = self.there & ((1 << place) - 1);
        let left = (before | 1).ilog2() as usize % MAX_SYMBOLS;
        self.places = [left as u8, place as u8];
        self.asked = [
            table.query(ids[left], id, before != 0),
            table.query(id, next, after != 0),
        ];
        for query in &self.asked {
            table.prefetch_bucket(query);
        }
    }

    /// Stores the results of those lookups.
    #[inline(always)]
    fn enter(&mut self, table: &PairTable) {
        for (place, query) in self.places.iter().zip(&self.asked) {
            let place = usize::from(*place) % MAX_SYMBOLS;
            self.symbols.pairs[place] = pair(table.find(query), place);
        }
    }
}

impl Batch {
    /// Empties the batch.
    pub(crate) fn clear(&mut self) {
        self.count = 0;
    }

    /// Adds a word of at most [`MAX_SYMBOLS`] symbols; `ranks` are as in [`Symbols::merge`]. The
    /// batch must not be full.
    #[inline(always)]
    pub(crate) fn push(&mut self, ids: &[u32], ranks: &[u32]) {
        let word = &mut self.words[self.count % BATCH_WORDS];
        self.count += 1;
        (word.there, word.padded_len) = word.symbols.fill(ids, ranks);
    }

    /// Merges all words.
    #[inline(always)]
    pub(crate) fn merge(&mut self, table: &PairTable) {
        let words = &mut self.words[..self.count];
        // The words that still have a pair to merge.
        let mut rest = [0u8; BATCH_WORDS];
        let mut left = 0;
        for (n, word) in words.iter_mut().enumerate() {
            rest[left % BATCH_WORDS] = n as u8;
            left += usize::from(word.look(table));
        }
        while left > 0 {
            for n in &rest[..left] {
                words[usize::from(*n)].join(table);
            }
            let mut kept = 0;
            for at in 0..left {
                let n = rest[at];
                let word = &mut words[usize::from(n)];
                word.enter(table);
                rest[kept] = n;
                kept += usize::from(word.look(table));
            }
            left = kept;
        }
    }

    /// Calls `each` with the tokens of a word, in order.
    #[inline(always)]
    pub(crate) fn tokens(&self, word: usize, mut each: impl FnMut(u32)) {
        let Word { symbols, there, .. } = &self.words[word];
        let mut there = *there;
        while there != 0 {
            each(symbols.ids[there.trailing_zeros() as usize % MAX_SYMBOLS]);
            there &= there - 1;
        }
    }
}
