//! Merging several words at once.
//!
//! A step of merging reads what a pair makes and then the ranks of the pairs around that, which
//! may be far away in memory. Word by word, that was 1,200 cycles for a new Russian word of
//! Llama 2's vocabulary, of nine characters, and most of them were spent waiting. Here each
//! half of a step is taken for all words before the next one, and asks for the memory of that.
//! There are no branches on what is found, which would often be predicted wrongly.

use super::{FEW, NO_PAIR, Symbols, pair};
use crate::pairs::{PairTable, Query};
use bytemuck::Zeroable;

/// Most words.
pub(crate) const GROUP: usize = 32;

/// Words that are merged at once.
#[derive(Debug, Clone, Zeroable)]
pub(crate) struct Group {
    words: [Word; GROUP],
    count: usize,
}

#[derive(Debug, Clone, Copy, Zeroable)]
struct Word {
    symbols: Symbols,
    /// A bit for each symbol that is there.
    there: u64,
    /// Places that pairs are looked for in.
    lanes: usize,
    /// The pair that is merged next.
    first: u32,
    /// The pairs that the last merge made, with the symbol before it and the one after it, and
    /// the places of the left ones.
    asked: [Query; 2],
    places: [u8; 2],
}

impl Word {
    /// Finds the pair that comes first and asks for what it makes. Returns whether there is one.
    #[inline(always)]
    fn look(&mut self, table: &PairTable) -> bool {
        self.first = self.symbols.first(self.lanes);
        if self.first == NO_PAIR {
            return false;
        }
        table.prefetch_product(self.first / FEW as u32);
        true
    }

    /// Merges the first pair, and asks whether those around it may have a merge.
    #[inline(always)]
    fn join(&mut self, table: &PairTable) {
        let Symbols { ids, pairs } = &mut self.symbols;
        let place = self.first as usize % FEW;
        let id = table.product(self.first / FEW as u32);
        let after = self.there & (u64::MAX << place << 1);
        let right = after.trailing_zeros() as usize % FEW;
        self.there &= !(1 << right);
        ids[place] = id;
        pairs[right] = NO_PAIR;
        // Where there is no neighbour, some other symbol is taken for it and not asked for.
        // Only the first symbol has none before it: then both places are the same.
        let after = after & after.wrapping_sub(1);
        let next = ids[after.trailing_zeros() as usize % FEW];
        let before = self.there & ((1 << place) - 1);
        let left = (before | 1).ilog2() as usize % FEW;
        self.places = [left as u8, place as u8];
        self.asked = [
            table.query(ids[left], id, before != 0),
            table.query(id, next, after != 0),
        ];
        for query in &self.asked {
            table.prefetch_line(query);
        }
    }

    /// Enters what was asked for.
    #[inline(always)]
    fn enter(&mut self, table: &PairTable) {
        for (place, query) in self.places.iter().zip(&self.asked) {
            let place = usize::from(*place) % FEW;
            self.symbols.pairs[place] = pair(table.find(query), place);
        }
    }
}

impl Group {
    /// Takes no words.
    pub(crate) fn clear(&mut self) {
        self.count = 0;
    }

    /// Adds a word, at most [`FEW`] symbols; `ranks` are as in [`Symbols::merge`]. There must
    /// be room.
    #[inline(always)]
    pub(crate) fn push(&mut self, ids: &[u32], ranks: &[u32]) {
        let word = &mut self.words[self.count % GROUP];
        self.count += 1;
        (word.there, word.lanes) = word.symbols.fill(ids, ranks);
    }

    /// Merges all words.
    #[inline(always)]
    pub(crate) fn merge(&mut self, table: &PairTable) {
        let words = &mut self.words[..self.count];
        // Those that are not done.
        let mut rest = [0u8; GROUP];
        let mut left = 0;
        for (n, word) in words.iter_mut().enumerate() {
            rest[left % GROUP] = n as u8;
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
            each(symbols.ids[there.trailing_zeros() as usize % FEW]);
            there &= there - 1;
        }
    }
}
