//! Merging few symbols, which is what most words are.
//!
//! The pair that comes first is the least of an array of numbers, which vectors find in a
//! few steps: each number is a rank above a place, so that of equal ranks the leftmost pair
//! is the least. Symbols stay where they are; a bit says whether one is still there, and
//! neighbours are found by counting zeros.

mod together;

pub(crate) use together::{GROUP, Group};

use crate::pairs::{NO_RANK, PairTable, RANK_MAX};
use bytemuck::Zeroable;

/// Most symbols.
pub(crate) const FEW: usize = 64;

/// Numbers that are compared together.
const LANES: usize = 16;

/// Symbols and the pairs that they make.
#[derive(Debug, Clone, Copy, Zeroable)]
pub(crate) struct Symbols {
    ids: [u32; FEW],
    /// For each symbol that is there: the rank of its merge with the next one, above the
    /// symbol's place; or [`NO_PAIR`].
    pairs: [u32; FEW],
}

const NO_PAIR: u32 = u32::MAX;

/// `rank` may be larger than any rank: then there is no merge.
#[inline(always)]
fn pair(rank: u32, place: usize) -> u32 {
    if rank > RANK_MAX as u32 {
        NO_PAIR
    } else {
        (rank * FEW as u32) | place as u32
    }
}

impl Default for Symbols {
    fn default() -> Self {
        Self {
            ids: [0; FEW],
            pairs: [NO_PAIR; FEW],
        }
    }
}

impl Symbols {
    /// Begins with `ids`; `ranks` are as in [`Symbols::merge`]. Returns a bit for each symbol,
    /// and how many places pairs are looked for in.
    #[inline(always)]
    fn fill(&mut self, ids: &[u32], ranks: &[u32]) -> (u64, usize) {
        let count = ids.len().min(FEW);
        if count == 0 {
            return (0, 0);
        }
        for (symbol, id) in self.ids.iter_mut().zip(ids) {
            *symbol = *id;
        }
        let lanes = count.next_multiple_of(LANES);
        let pairs = self.pairs[..count - 1].iter_mut().zip(ranks);
        for (place, (pair_of, &rank)) in pairs.enumerate() {
            *pair_of = pair(rank, place);
        }
        self.pairs[count - 1..lanes].fill(NO_PAIR);
        (u64::MAX >> (FEW - count), lanes)
    }

    /// Merges `ids`, at most [`FEW`], of which `ranks` are the ranks of each with the next
    /// one, if there is one. A rank above all ranks is none. Calls `each` with the tokens that
    /// are left, in order.
    #[inline(always)]
    pub(crate) fn merge(
        &mut self,
        table: &PairTable,
        ids: &[u32],
        ranks: &[u32],
        mut each: impl FnMut(u32),
    ) {
        let (mut there, lanes) = self.fill(ids, ranks);
        loop {
            let first = self.first(lanes);
            if first == NO_PAIR {
                break;
            }
            let place = first as usize % FEW;
            let id = table.product(first / FEW as u32);
            let after = there & (u64::MAX << place << 1);
            let right = after.trailing_zeros() as usize % FEW;
            there &= !(1 << right);
            self.pairs[right] = NO_PAIR;
            self.ids[place] = id;
            let after = after & after.wrapping_sub(1);
            let rank = match after {
                0 => NO_RANK,
                _ => table.rank(id, self.ids[after.trailing_zeros() as usize % FEW]),
            };
            self.pairs[place] = pair(rank, place);
            let before = there & ((1 << place) - 1);
            if before != 0 {
                let left = before.ilog2() as usize % FEW;
                self.pairs[left] = pair(table.rank(self.ids[left], id), left);
            }
        }
        while there != 0 {
            each(self.ids[there.trailing_zeros() as usize % FEW]);
            there &= there - 1;
        }
    }

    /// The least pair.
    #[inline(always)]
    fn first(&self, lanes: usize) -> u32 {
        let (chunks, _) = self.pairs[..lanes].as_chunks::<LANES>();
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
            word in prop::collection::vec(0u32..4, 0..=FEW),
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
            let mut group = Group::zeroed();
            for _ in 0..2 {
                group.clear();
                group.push(&[], &[]);
                for n in 0..=alone.len().min(GROUP - 2) {
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
                for n in 1..=alone.len().min(GROUP - 2) {
                    found.clear();
                    let ranks = ranks.get(n..).unwrap_or_default();
                    symbols.merge(&table, &alone[n..], ranks, |id| found.push(id));
                    prop_assert_eq!(tokens(n + 1), found.clone());
                }
            }
        }
    }
}
