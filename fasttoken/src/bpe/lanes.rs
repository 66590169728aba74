//! Merging sixteen words at a time, with AVX-512.
//!
//! A word that nobody has seen is merged pair by pair, and each merge decides over the next:
//! one after the other they wait for the tables' memory, and for branches that cannot be
//! predicted. Sixteen words do not wait for each other, nor do blocks of sixteen that take
//! turns. While everything is in the caches that is only as fast as one word after the other;
//! where something else had them before, such as a model, fresh English takes three quarters of
//! the time, and Russian six sevenths.
//!
//! Each word has a lane of vectors, of which one is for the first symbols of all, one for the
//! second ones, and so on:
//!
//! ```text
//! ids[position][lane]    the symbols; one that was swallowed leaves its place empty
//! keys[position][lane]   rank (24 bits) | position (4 bits) of the merge with the symbol
//!                        after it, so that the least one is the first and leftmost
//! alive[lane]            a bit for each position that still has its symbol
//! ```
#![expect(unsafe_code, reason = "vector instructions chosen at run time")]

use super::pending::SYMBOLS;
use crate::compare::Vectors;
use crate::pairs::vector::{ASKED, Questions, load, store};
use crate::pairs::{NO_RANK, PairTable};
use std::arch::x86_64::*;

/// Words in a block.
pub(super) const LANES: usize = 16;
/// Blocks that take turns: what one asks of the tables comes while the others are at work.
pub(super) const BLOCKS: usize = 4;
/// Bits of a position.
const POSITION: u32 = SYMBOLS.trailing_zeros();

const _: () = assert!(SYMBOLS * LANES <= ASKED && 2 * BLOCKS * LANES <= ASKED);

/// The symbols with which the words of sixteen lanes begin, and then those they end with.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Block {
    pub(super) ids: [[u32; LANES]; SYMBOLS],
    keys: [[u32; LANES]; SYMBOLS],
    /// How many symbols each word has; 0 in lanes without one.
    pub(super) lens: [u32; LANES],
    /// Positions that have their symbol.
    pub(super) alive: [u32; LANES],
    /// The least of the keys.
    best: [u32; LANES],
}

/// Blocks, and what they ask.
#[derive(Debug)]
pub(super) struct Lanes {
    pub(super) blocks: [Block; BLOCKS],
    questions: Questions,
}

/// What a block does in a round.
#[derive(Clone, Copy)]
struct Round {
    /// Words with a merge.
    active: u16,
    /// Where it is, the symbol it swallows and the one it makes.
    at: __m512i,
    swallowed: __m512i,
    made: __m512i,
    /// The symbol before it, where there is one.
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

/// A rank of [`NO_RANK`] makes the key [`NO_RANK`], and none other does.
#[inline]
#[target_feature(enable = "avx512f")]
fn key(ranks: &[u32; LANES], position: __m512i) -> __m512i {
    let ranks = load(ranks);
    let is = _mm512_cmpneq_epi32_mask(ranks, none());
    let key = _mm512_or_si512(_mm512_slli_epi32::<POSITION>(ranks), position);
    _mm512_mask_mov_epi32(none(), is, key)
}

/// Positions of the highest bits.
#[inline]
#[target_feature(enable = "avx512f,avx512cd")]
fn highest(bits: __m512i) -> __m512i {
    _mm512_sub_epi32(splat(31), _mm512_lzcnt_epi32(bits))
}

/// The lowest bits.
#[inline]
#[target_feature(enable = "avx512f")]
fn lowest(bits: __m512i) -> __m512i {
    _mm512_and_si512(bits, _mm512_sub_epi32(_mm512_setzero_si512(), bits))
}

impl Block {
    const EMPTY: Self = Self {
        ids: [[0; LANES]; SYMBOLS],
        keys: [[NO_RANK; LANES]; SYMBOLS],
        lens: [0; LANES],
        alive: [0; LANES],
        best: [NO_RANK; LANES],
    };

    /// Most symbols of a word.
    #[inline]
    fn longest(&self) -> usize {
        let longest = self.lens.iter().copied().max().unwrap_or(0) as usize;
        longest.min(SYMBOLS)
    }

    /// Looks up the merges with which the words begin.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn begin(&mut self, pairs: &PairTable, questions: &mut Questions) {
        let (lens, longest) = (load(&self.lens), self.longest());
        for at in 1..longest {
            let (left, right) = (load(&self.ids[at - 1]), load(&self.ids[at]));
            let both = _mm512_cmpgt_epu32_mask(lens, splat(at));
            questions.ask(at, pairs, left, right, both);
        }
        questions.answer(pairs);
        let mut best = none();
        for at in 1..longest {
            let key = key(questions.ranks(at), splat(at - 1));
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

    /// Merges the best pair of each word and asks about what meets then, as questions `n` and
    /// `n + 1`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512cd")]
    fn merge(&mut self, n: usize, pairs: &PairTable, questions: &mut Questions) -> Round {
        let (best, alive, one) = (load(&self.best), load(&self.alive), splat(1));
        let active = _mm512_cmpneq_epi32_mask(best, none());
        let at = _mm512_and_si512(best, splat(SYMBOLS - 1));
        let made = pairs.products(_mm512_srli_epi32::<POSITION>(best), active);
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
        questions.ask(n, pairs, made, self.at(right, has_right), has_right);
        questions.ask(n + 1, pairs, self.at(left, has_left), made, has_left);
        Round {
            active,
            at,
            swallowed: highest(swallowed),
            made,
            left,
            has_left,
        }
    }

    /// Enters what [`Block::merge`] did, and the answers.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn enter(&mut self, n: usize, round: Round, questions: &Questions) {
        let after = key(questions.ranks(n), round.at);
        let before = key(questions.ranks(n + 1), round.left);
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

    /// The symbols at `positions`, of the lanes in `wanted`; zero in others.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn at(&self, positions: __m512i, wanted: u16) -> __m512i {
        let lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        let at = _mm512_and_si512(positions, splat(SYMBOLS - 1));
        let at = _mm512_or_si512(_mm512_slli_epi32::<POSITION>(at), lane);
        let none = _mm512_setzero_si512();
        // SAFETY: `at` is below `SYMBOLS * LANES`, which is how many numbers there are.
        unsafe { _mm512_mask_i32gather_epi32::<4>(none, wanted, at, self.ids.as_ptr().cast()) }
    }
}

impl Lanes {
    pub(super) const EMPTY: Self = Self {
        blocks: [Block::EMPTY; BLOCKS],
        questions: Questions::NONE,
    };

    /// Merges the words of the first `blocks` blocks, each as if it were alone.
    pub(super) fn merge_with(&mut self, _: Vectors, blocks: usize, pairs: &PairTable) {
        // SAFETY: who has `Vectors` has seen that the machine has these instructions.
        unsafe { self.merge(blocks, pairs) }
    }

    #[target_feature(enable = "avx512f,avx512cd")]
    fn merge(&mut self, blocks: usize, pairs: &PairTable) {
        let Self {
            blocks: all,
            questions,
        } = self;
        let blocks = &mut all[..blocks.min(BLOCKS)];
        for block in &mut *blocks {
            block.begin(pairs, questions);
        }
        let zero = _mm512_setzero_si512();
        let idle = Round {
            active: 0,
            at: zero,
            swallowed: zero,
            made: zero,
            left: zero,
            has_left: 0,
        };
        // Each round makes the words that have a merge shorter by one.
        for _ in 1..SYMBOLS {
            let mut rounds = [idle; BLOCKS];
            let mut active = 0;
            for (n, (block, round)) in blocks.iter_mut().zip(&mut rounds).enumerate() {
                if _mm512_cmpneq_epi32_mask(load(&block.best), none()) != 0 {
                    *round = block.merge(2 * n, pairs, questions);
                    active |= round.active;
                }
            }
            if active == 0 {
                break;
            }
            questions.answer(pairs);
            for (n, (block, round)) in blocks.iter_mut().zip(rounds).enumerate() {
                if round.active != 0 {
                    block.enter(2 * n, round, questions);
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
            lens in prop::collection::vec(0..=SYMBOLS, 1..=BLOCKS * LANES),
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
                block.ids = [[1; LANES]; SYMBOLS];
                block.keys = [[5; LANES]; SYMBOLS];
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
                    let positions = (0..SYMBOLS).filter(|at| alive >> at & 1 == 1);
                    let merged: Vec<u32> = positions.map(|at| block.ids[at][lane]).collect();
                    let mut alone = Symbols::default();
                    alone.ids[..word.len()].copy_from_slice(word);
                    let len = bpe.merge_by_scan::<SYMBOLS>(&mut alone.ids, word.len());
                    prop_assert_eq!(&merged, &alone.ids[..len]);
                }
            }
        }
    }
}
