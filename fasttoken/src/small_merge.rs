//! Merging of up to 64 symbols, which covers most words.
//!
//! The next pair to merge is the minimum of an array of numbers, which vectors find in a few steps.
//! Each number is a rank above a position, so that of equal ranks the leftmost pair is the minimum.
//! Symbols keep their positions; a bit tells if a symbol is still there, and neighbours are found
//! by counting zeros.

mod batch;

pub(crate) use batch::{BATCH_WORDS, Batch};

use crate::pairs::{NO_RANK, PairTable, RANK_MAX};
use bytemuck::Zeroable;

/// The largest number of symbols.
pub(crate) const MAX_SYMBOLS: usize = 64;

/// The number of SIMD lanes: array elements that are compared together.
const LANES: usize = 16;

/// The symbols of a word and their pairs.
#[derive(Debug, Clone, Copy, Zeroable)]
pub(crate) struct Symbols {
    ids: [u32; MAX_SYMBOLS],
    /// For each symbol that is still there: the rank of its merge with the next symbol, above its
    /// position; or [`NO_PAIR`].
    pairs: [u32; MAX_SYMBOLS],
}

const NO_PAIR: u32 = u32::MAX;

/// Packs a rank and a position. A `rank` above [`RANK_MAX`] stands for no merge.
#[inline(always)]
fn pair(rank: u32, place: usize) -> u32 {
    if rank > RANK_MAX as u32 {
        NO_PAIR
    } else {
        (rank * MAX_SYMBOLS as u32) | place as u32
    }
}

impl Default for Symbols {
    fn default() -> Self {
        Self {
            ids: [0; MAX_SYMBOLS],
            pairs: [NO_PAIR; MAX_SYMBOLS],
        }
    }
}

impl Symbols {
    /// Starts with the symbols `ids`; `ranks` are as in [`Symbols::merge`]. Returns a bit for each
    /// symbol, and the number of symbols rounded up to a multiple of [`LANES`].
    #[inline(always)]
    fn fill(&mut self, ids: &[u32], ranks: &[u32]) -> (u64, usize) {
        let count = ids.len().min(MAX_SYMBOLS);
        if count == 0 {
            return (0, 0);
        }
        for (symbol, id) in self.ids.iter_mut().zip(ids) {
            *symbol = *id;
        }
        let padded_len = count.next_multiple_of(LANES);
        let pairs = self.pairs[..count - 1].iter_mut().zip(ranks);
        for (place, (pair_of, &rank)) in pairs.enumerate() {
            *pair_of = pair(rank, place);
        }
        self.pairs[count - 1..padded_len].fill(NO_PAIR);
        (u64::MAX >> (MAX_SYMBOLS - count), padded_len)
    }

    /// Merges `ids`, at most [`MAX_SYMBOLS`], and calls `each` with the tokens that are left, in
    /// order. `ranks` holds the rank of each symbol with the next one; a value above all ranks
    /// stands for no merge.
    #[inline(always)]
    pub(crate) fn merge(
        &mut self,
        table: &PairTable,
        ids: &[u32],
        ranks: &[u32],
        mut each: impl FnMut(u32),
    ) {
        let (mut there, padded_len) = self.fill(ids, ranks);
        loop {
            let first = self.first(padded_len);
            if first == NO_PAIR {
                break;
            }
            let place = first as usize % MAX_SYMBOLS;
            let id = table.product(first / MAX_SYMBOLS as u32);
            let after = there & (u64::MAX << place << 1);
            let right = after.trailing_zeros() as usize % MAX_SYMBOLS;
            there &= !(1 << right);
            self.pairs[right] = NO_PAIR;
            self.ids[place] = id;
            let after = after & after.wrapping_sub(1);
            let rank = match after {
                0 => NO_RANK,
                _ => table.rank(id, self.ids[after.trailing_zeros() as usize % MAX_SYMBOLS]),
            };
            self.pairs[place] = pair(rank, place);
            let before = there & ((1 << place) - 1);
            if before != 0 {
                let left = before.ilog2() as usize % MAX_SYMBOLS;
                self.pairs[left] = pair(table.rank(self.ids[left], id), left);
            }
        }
        while there != 0 {
            each(self.ids[there.trailing_zeros() as usize % MAX_SYMBOLS]);
            there &= there - 1;
        }
    }

    /// Returns the smallest packed pair among the first `padded_len`.
    #[inline(always)]
    fn first(&self, padded_len: usize) -> u32 {
        let (chunks, _) = self.pairs[..padded_len].as_chunks::<LANES>();
        let mut least = [NO_PAIR; LANES];
        for chunk in chunks {
            for (least, pair) in least.iter_mut().zip(chunk) {
                *least = (*least).min(*pair);
            }
        }
        least.into_iter().fold(NO_PAIR, u32::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn merging_is_the_definition(
            rules in prop::collection::vec((0u32..24, 0u32..24), 0..24),
            word in prop::collection::vec(0u32..4, 0..=MAX_SYMBOLS),
        ) {
            let rules: Vec<_> = (4..).zip(&rules).map(|(id, &(l, r))| [l, r, id]).collect();
            let table = PairTable::new(&rules);
            let rank = |ids: &[u32]| table.rank(ids[0], ids[1]);
            let ranks: Vec<u32> = word.windows(2).map(rank).collect();
            let mut found = Vec::new();
            let mut symbols = Symbols::default();
            // Nothing is carried over.
            for _ in 0..2 {
                found.clear();
                symbols.merge(&table, &word, &ranks, |id| found.push(id));
            }
            let alone = word.clone();
            let mut expected = word;
            while let Some((rank, at)) = (1..expected.len())
                .map(|at| (rank(&expected[at - 1..=at]), at))
                .filter(|(rank, _)| *rank != NO_RANK)
                .min()
            {
                expected.splice(at - 1..=at, [table.product(rank)]);
            }
            prop_assert_eq!(&found, &expected);
            // Together with parts of it, and with nothing.
            let mut group = Batch::zeroed();
            for _ in 0..2 {
                group.clear();
                group.push(&[], &[]);
                for n in 0..=alone.len().min(BATCH_WORDS - 2) {
                    group.push(&alone[n..], ranks.get(n..).unwrap_or_default());
                }
                group.merge(&table);
                let tokens = |n| {
                    let mut tokens = Vec::new();
                    group.tokens(n, |id| tokens.push(id));
                    tokens
                };
                prop_assert!(tokens(0).is_empty());
                prop_assert_eq!(tokens(1), expected.clone());
                for n in 1..=alone.len().min(BATCH_WORDS - 2) {
                    found.clear();
                    let ranks = ranks.get(n..).unwrap_or_default();
                    symbols.merge(&table, &alone[n..], ranks, |id| found.push(id));
                    prop_assert_eq!(tokens(n + 1), found.clone());
                }
            }
        }
    }
}
