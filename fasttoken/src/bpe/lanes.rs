//! Merging of sixteen pieces at a time, with AVX-512.
//!
//! A new piece is merged pair by pair, and each merge decides the next one. Merged alone, a piece
//! waits for table memory and for branches that cannot be predicted. Sixteen pieces do not wait for
//! each other, nor do blocks of sixteen that take turns. With all tables in the processor's caches
//! this is only as fast as merging one by one; after another program used the caches, such as a
//! model, new English text takes three quarters of the time and Russian six sevenths.
//!
//! Each piece has a lane of the vectors. One vector holds the first symbols of all lanes, the next
//! vector the second symbols, and so on:
//!
//! ```text
//! ids[position][lane]    the symbols; a swallowed symbol leaves its position empty
//! keys[position][lane]   rank (24 bits) | position (4 bits) of the merge with the symbol
//!                        after it, so that the least one is the first and leftmost
//! alive[lane]            a bit for each position that still has its symbol
//! ```
#![expect(unsafe_code, reason = "vector instructions chosen at run time")]

use super::merge_batch::MAX_BATCHED_SYMBOLS;
use crate::compare::Vectors;
use crate::pairs::vector::{MAX_QUERIES, RankQueries, load, store};
use crate::pairs::{NO_RANK, PairTable};
use std::arch::x86_64::*;

/// The number of pieces in a block.
pub(super) const LANES: usize = 16;
/// The number of blocks that take turns. The table memory that one block asks for arrives while the
/// others are merged.
pub(super) const BLOCKS: usize = 4;
/// The number of bits of a symbol's position.
const POSITION_BITS: u32 = MAX_BATCHED_SYMBOLS.trailing_zeros();

const _: () =
    assert!(MAX_BATCHED_SYMBOLS * LANES <= MAX_QUERIES && 2 * BLOCKS * LANES <= MAX_QUERIES);

/// Sixteen pieces: their first symbols before merging, their tokens after it.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Block {
    pub(super) ids: [[u32; LANES]; MAX_BATCHED_SYMBOLS],
    keys: [[u32; LANES]; MAX_BATCHED_SYMBOLS],
    /// The number of symbols of each piece; 0 in lanes without a piece.
    pub(super) lens: [u32; LANES],
    /// A bit for each position whose symbol was not swallowed by a merge.
    pub(super) alive: [u32; LANES],
    /// The smallest key of each lane, which is the next merge.
    best: [u32; LANES],
}

/// The blocks and their pending rank queries.
#[derive(Debug)]
pub(super) struct Lanes {
    pub(super) blocks: [Block; BLOCKS],
    queries: RankQueries,
}

/// One merge in each lane of a block.
#[derive(Clone, Copy)]
struct MergeStep {
    /// A bit for each lane that has a merge left.
    active: u16,
    /// The position of the merge, the position of the symbol that it swallows, and the token that
    /// it makes.
    at: __m512i,
    swallowed: __m512i,
    made: __m512i,
    /// The position of the symbol before the merge, valid in lanes of `has_left`.
    left: __m512i,
    has_left: u16,
}

#[inline]
#[target_feature(enable = "avx512f")]
fn splat(value: usize) -> __m512i {
    _mm512_set1_epi32(value as i32)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn none() -> __m512i {
    _mm512_set1_epi32(NO_RANK.cast_signed())
}

/// Packs a rank and a position into a key. The rank [`NO_RANK`], and no other, gives the key
/// [`NO_RANK`].
#[inline]
#[target_feature(enable = "avx512f")]
fn key(ranks: &[u32; LANES], position: __m512i) -> __m512i {
    let ranks = load(ranks);
    let is = _mm512_cmpneq_epi32_mask(ranks, none());
    let key = _mm512_or_si512(_mm512_slli_epi32::<POSITION_BITS>(ranks), position);
    _mm512_mask_mov_epi32(none(), is, key)
}

/// Returns the position of the highest set bit in each lane.
#[inline]
#[target_feature(enable = "avx512f,avx512cd")]
fn highest(bits: __m512i) -> __m512i {
    _mm512_sub_epi32(splat(31), _mm512_lzcnt_epi32(bits))
}

/// Returns the lowest set bit of each lane.
#[inline]
#[target_feature(enable = "avx512f")]
fn lowest(bits: __m512i) -> __m512i {
    _mm512_and_si512(bits, _mm512_sub_epi32(_mm512_setzero_si512(), bits))
}

impl Block {
    const EMPTY: Self = Self {
        ids: [[0; LANES]; MAX_BATCHED_SYMBOLS],
        keys: [[NO_RANK; LANES]; MAX_BATCHED_SYMBOLS],
        lens: [0; LANES],
        alive: [0; LANES],
        best: [NO_RANK; LANES],
    };

    /// Returns the number of symbols of the longest piece.
    #[inline]
    fn longest(&self) -> usize {
        let longest = self.lens.iter().copied().max().unwrap_or(0) as usize;
        longest.min(MAX_BATCHED_SYMBOLS)
    }

    /// Looks up the merges of all neighbouring symbols before the first merge.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn find_first_merges(&mut self, pairs: &PairTable, queries: &mut RankQueries) {
        let (lens, longest) = (load(&self.lens), self.longest());
        for at in 1..longest {
            let (left, right) = (load(&self.ids[at - 1]), load(&self.ids[at]));
            let both = _mm512_cmpgt_epu32_mask(lens, splat(at));
            queries.add(at, pairs, left, right, both);
        }
        queries.resolve(pairs);
        let mut best = none();
        for at in 1..longest {
            let key = key(queries.ranks(at), splat(at - 1));
            store(&mut self.keys[at - 1], key);
            best = _mm512_min_epu32(best, key);
        }
        if let Some(last) = longest.checked_sub(1) {
            store(&mut self.keys[last], none());
        }
        store(&mut self.best, best);
        let one = splat(1);
        let alive = _mm512_sub_epi32(_mm512_sllv_epi32(one, lens), one);
        store(&mut self.alive, alive);
    }

    /// Merges the best pair of each lane, and adds queries `n` and `n + 1` for the two pairs that
    /// the new token is part of.
    #[inline]
    #[target_feature(enable = "avx512f,avx512cd")]
    fn merge(&mut self, n: usize, pairs: &PairTable, queries: &mut RankQueries) -> MergeStep {
        let (best, alive, one) = (load(&self.best), load(&self.alive), splat(1));
        let active = _mm512_cmpneq_epi32_mask(best, none());
        let at = _mm512_and_si512(best, splat(MAX_BATCHED_SYMBOLS - 1));
        let made = pairs.products(_mm512_srli_epi32::<POSITION_BITS>(best), active);
        // The symbols after and before it.
        let here = _mm512_sllv_epi32(one, at);
        let below = _mm512_and_si512(alive, _mm512_sub_epi32(here, one));
        let above = _mm512_andnot_si512(_mm512_or_si512(below, here), alive);
        let swallowed = _mm512_maskz_mov_epi32(active, lowest(above));
        let above = _mm512_andnot_si512(swallowed, above);
        store(&mut self.alive, _mm512_andnot_si512(swallowed, alive));
        let has_right = _mm512_mask_test_epi32_mask(active, above, above);
        let has_left = _mm512_mask_test_epi32_mask(active, below, below);
        let left = highest(below);
        let right = highest(lowest(above));
        queries.add(n, pairs, made, self.at(right, has_right), has_right);
        queries.add(n + 1, pairs, self.at(left, has_left), made, has_left);
        MergeStep {
            active,
            at,
            swallowed: highest(swallowed),
            made,
            left,
            has_left,
        }
    }

    /// Applies a merge of [`Block::merge`] to ids and keys, once its queries are resolved.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn apply_merges(&mut self, n: usize, round: MergeStep, queries: &RankQueries) {
        let after = key(queries.ranks(n), round.at);
        let before = key(queries.ranks(n + 1), round.left);
        let longest = self.longest();
        let mut best = none();
        let rows = self.ids.iter_mut().zip(&mut self.keys).take(longest);
        for (position, (ids, keys)) in rows.enumerate() {
            let position = splat(position);
            let here = _mm512_mask_cmpeq_epi32_mask(round.active, position, round.at);
            let gone = _mm512_mask_cmpeq_epi32_mask(round.active, position, round.swallowed);
            let left = _mm512_mask_cmpeq_epi32_mask(round.has_left, position, round.left);
            let mut key = load(keys);
            key = _mm512_mask_mov_epi32(key, here, after);
            key = _mm512_mask_mov_epi32(key, gone, none());
            key = _mm512_mask_mov_epi32(key, left, before);
            store(keys, key);
            store(ids, _mm512_mask_mov_epi32(load(ids), here, round.made));
            best = _mm512_min_epu32(best, key);
        }
        store(&mut self.best, best);
    }

    /// Returns the symbols at `positions` in the lanes of `wanted`, and zero in other lanes.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn at(&self, positions: __m512i, wanted: u16) -> __m512i {
        let lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        let at = _mm512_and_si512(positions, splat(MAX_BATCHED_SYMBOLS - 1));
        let at = _mm512_or_si512(_mm512_slli_epi32::<POSITION_BITS>(at), lane);
        let none = _mm512_setzero_si512();
        // SAFETY: `at` is below `MAX_BATCHED_SYMBOLS * LANES`, which is how many numbers there are.
        unsafe { _mm512_mask_i32gather_epi32::<4>(none, wanted, at, self.ids.as_ptr().cast()) }
    }
}

impl Lanes {
    pub(super) const EMPTY: Self = Self {
        blocks: [Block::EMPTY; BLOCKS],
        queries: RankQueries::NONE,
    };

    /// Merges the pieces of the first `blocks` blocks. The result for each piece is that of merging
    /// it alone.
    pub(super) fn merge_with(&mut self, _: Vectors, blocks: usize, pairs: &PairTable) {
        // SAFETY: who has `Vectors` has seen that the machine has these instructions.
        unsafe { self.merge(blocks, pairs) }
    }

    #[target_feature(enable = "avx512f,avx512cd")]
    fn merge(&mut self, blocks: usize, pairs: &PairTable) {
        let Self {
            blocks: all,
            queries,
        } = self;
        let blocks = &mut all[..blocks.min(BLOCKS)];
        for block in &mut *blocks {
            block.find_first_merges(pairs, queries);
        }
        let zero = _mm512_setzero_si512();
        let idle = MergeStep {
            active: 0,
            at: zero,
            swallowed: zero,
            made: zero,
            left: zero,
            has_left: 0,
        };
        // Each round makes the words that have a merge shorter by one.
        for _ in 1..MAX_BATCHED_SYMBOLS {
            let mut rounds = [idle; BLOCKS];
            let mut active = 0;
            for (n, (block, round)) in blocks.iter_mut().zip(&mut rounds).enumerate() {
                if _mm512_cmpneq_epi32_mask(load(&block.best), none()) != 0 {
                    *round = block.merge(2 * n, pairs, queries);
                    active |= round.active;
                }
            }
            if active == 0 {
                break;
            }
            queries.resolve(pairs);
            for (n, (block, round)) in blocks.iter_mut().zip(rounds).enumerate() {
                if round.active != 0 {
                    block.apply_merges(2 * n, round, queries);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::merge::Symbols;
    use super::super::{Bpe, NO_TOKEN};
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lanes_are_words_merged_alone(
            seed in any::<u64>(),
            bytes in 1u8..5,
            count in prop::sample::select(vec![0u32, 3, 30, 300, 2000]),
            // All in order, or each token made by several rules.
            in_order in any::<bool>(),
            lens in prop::collection::vec(0..=MAX_BATCHED_SYMBOLS, 1..=BLOCKS * LANES),
        ) {
            let detected = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512cd");
            if !detected {
                return Ok(());
            }
            let mut state = seed;
            let mut below = move |end: u32| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) as u32 % end
            };
            let first = u32::from(bytes);
            let rules: Vec<[u32; 3]> = (0..count)
                .map(|n| {
                    let made = if in_order { first + n } else { first + n / 2 };
                    [below(first + n.min(900)), below(first + n.min(20)), made]
                })
                .collect();
            let bpe = Bpe::new([NO_TOKEN; 256], PairTable::new(&rules));
            let words: Vec<Vec<u32>> = lens.iter().map(|len| (0..*len).map(|_| below(first)).collect()).collect();

            let mut lanes = Lanes::EMPTY;
            // What an earlier batch left.
            for block in &mut lanes.blocks {
                block.ids = [[1; LANES]; MAX_BATCHED_SYMBOLS];
                block.keys = [[5; LANES]; MAX_BATCHED_SYMBOLS];
                block.best = [5; LANES];
                block.alive = [7; LANES];
            }
            for (some, block) in words.chunks(LANES).zip(&mut lanes.blocks) {
                for (lane, word) in some.iter().enumerate() {
                    block.lens[lane] = word.len() as u32;
                    for (ids, symbol) in block.ids.iter_mut().zip(word) {
                        ids[lane] = *symbol;
                    }
                }
            }
            // SAFETY: just asked for.
            unsafe { lanes.merge(words.len().div_ceil(LANES), &bpe.pairs) };
            for (some, block) in words.chunks(LANES).zip(&lanes.blocks) {
                for (lane, word) in some.iter().enumerate() {
                    let alive = block.alive[lane];
                    let positions = (0..MAX_BATCHED_SYMBOLS).filter(|at| alive >> at & 1 == 1);
                    let merged: Vec<u32> = positions.map(|at| block.ids[at][lane]).collect();
                    let mut alone = Symbols::default();
                    alone.ids[..word.len()].copy_from_slice(word);
                    let len = bpe.merge_by_scan::<MAX_BATCHED_SYMBOLS>(&mut alone.ids, word.len());
                    prop_assert_eq!(&merged, &alone.ids[..len]);
                }
            }
        }
    }
}
