//! Ranks of sixteen pairs at a time, with AVX-512.
#![expect(unsafe_code, reason = "vector instructions chosen at run time")]

use super::{
    DENSE, FACTORS, FILTER_SHIFTS, FREE, NO_RANK, PairLine, PairTable, RANK_BITS, RANK_MAX, REACH,
    SLOTS, TOKEN_END, WORD_SHIFT, home, key, rank_of,
};
use std::arch::x86_64::*;

#[inline]
#[target_feature(enable = "avx512f")]
fn splat(value: u32) -> __m512i {
    _mm512_set1_epi32(value.cast_signed())
}

/// Pairs that are asked about together, at most.
pub(crate) const ASKED: usize = 256;

/// Ranks of many pairs, of which none waits for the memory of another: whoever asks gets the
/// answers later, for all at once.
#[derive(Debug)]
pub(crate) struct Questions {
    /// Answers, or [`NO_RANK`] where the lines will be looked at.
    ranks: [u32; ASKED],
    /// Tokens, hashes, and the places of the answers, of those that the lines answer.
    lefts: [u32; ASKED + LANES],
    rights: [u32; ASKED + LANES],
    hashes: [u32; ASKED + LANES],
    places: [u32; ASKED + LANES],
    count: usize,
}

/// Pairs in a vector.
const LANES: usize = 16;

impl Questions {
    pub(crate) const NONE: Self = Self {
        ranks: [NO_RANK; ASKED],
        lefts: [0; ASKED + LANES],
        rights: [0; ASKED + LANES],
        hashes: [0; ASKED + LANES],
        places: [0; ASKED + LANES],
        count: 0,
    };

    /// The answers to question `n`, after [`Questions::answer`].
    #[inline]
    pub(crate) fn ranks(&self, n: usize) -> &[u32; LANES] {
        let ranks = self.ranks[n * LANES..].first_chunk();
        ranks.expect("there are sixteen for each question")
    }

    /// Asks for [`PairTable::rank`] of the pairs in which `wanted` has a bit; the answers for
    /// others are [`NO_RANK`]. It is question `n`, and asked once before they are answered.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(crate) fn ask(
        &mut self,
        n: usize,
        pairs: &PairTable,
        left: __m512i,
        right: __m512i,
        wanted: u16,
    ) {
        let mut ranks = splat(NO_RANK);
        let either = _mm512_or_si512(left, right);
        let small = if pairs.dense.is_empty() { 0 } else { DENSE };
        let near = _mm512_mask_cmplt_epu32_mask(wanted, either, splat(small));
        if near != 0 {
            let at = _mm512_slli_epi32::<{ DENSE.trailing_zeros() }>(left);
            let at = _mm512_or_si512(at, right);
            let dense = pairs.dense.as_ptr().cast();
            debug_assert_eq!(pairs.dense.len(), (DENSE * DENSE) as usize, "checked");
            // SAFETY: both tokens of the pairs in `near` are below `DENSE`, and the square
            // has that many rows and columns.
            let found = unsafe { _mm512_mask_i32gather_epi32::<4>(ranks, near, at, dense) };
            // What an image says is not checked.
            let is = _mm512_mask_cmple_epu32_mask(near, found, splat(RANK_MAX as u32));
            ranks = _mm512_mask_mov_epi32(ranks, is, found);
        }
        let place = n * LANES;
        let Some(answers) = self.ranks[place..].first_chunk_mut() else {
            return;
        };
        store(answers, ranks);
        let far = wanted & !near;
        let far =
            _mm512_mask_cmplt_epu32_mask(far, _mm512_max_epu32(left, right), splat(TOKEN_END));
        if far == 0 {
            return;
        }
        let [a, b] = FACTORS.map(|factor| splat(factor));
        let hashes = _mm512_xor_si512(_mm512_mullo_epi32(left, a), _mm512_mullo_epi32(right, b));

        debug_assert!(pairs.filter.len().is_power_of_two(), "checked");
        let words = (pairs.filter.len() as u32).wrapping_sub(1);
        let at = _mm512_and_si512(_mm512_srli_epi32::<WORD_SHIFT>(hashes), splat(words));
        let filter = pairs.filter.as_ptr().cast();
        // SAFETY: there is a power of two of numbers, so a hash's lower bits are one's place.
        let bits = unsafe { _mm512_mask_i32gather_epi32::<4>(at, far, at, filter) };
        let low = splat(31);
        let first = _mm512_srli_epi32::<{ FILTER_SHIFTS[0] }>(hashes);
        let second = _mm512_srli_epi32::<{ FILTER_SHIFTS[1] }>(hashes);
        let first = _mm512_srlv_epi32(bits, _mm512_and_si512(first, low));
        let second = _mm512_srlv_epi32(bits, _mm512_and_si512(second, low));
        let set = _mm512_and_si512(first, second);
        let left_over = _mm512_mask_test_epi32_mask(far, set, splat(1));
        let lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        let places = _mm512_add_epi32(lane, splat(place as u32));
        let from = self.count;
        for (list, vector) in [
            (&mut self.lefts, left),
            (&mut self.rights, right),
            (&mut self.hashes, hashes),
            (&mut self.places, places),
        ] {
            if let Some(list) = list[from..].first_chunk_mut() {
                store(list, _mm512_maskz_compress_epi32(left_over, vector));
            }
        }
        // There is room for all questions that can be asked, each once.
        self.count = (from + left_over.count_ones() as usize).min(ASKED);
        for &hash in &self.hashes[from..self.count] {
            crate::prefetch::prefetch(&pairs.lines, home(hash, pairs.lines.len()));
        }
    }

    /// Answers all that was asked.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(crate) fn answer(&mut self, pairs: &PairTable) {
        let lists = self.lefts.iter().zip(&self.rights).zip(&self.hashes);
        for (((&left, &right), &hash), &place) in lists.zip(&self.places).take(self.count) {
            let rank = pairs.look_up_vector(key(left, right), home(hash, pairs.lines.len()));
            self.ranks[place as usize % ASKED] = rank;
        }
        self.count = 0;
    }
}

impl PairTable {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn look_up_vector(&self, key: u64, mut at: usize) -> u32 {
        let wanted = _mm512_set1_epi64((key << RANK_BITS).cast_signed());
        for _ in 0..REACH {
            let Some(PairLine(line)) = self.lines.get(at) else {
                break;
            };
            // SAFETY: a line is 64 readable bytes, and the load needs no alignment.
            let slots = unsafe { _mm512_loadu_si512(line.as_ptr().cast()) };
            let unlike = _mm512_xor_si512(slots, wanted);
            let is = _mm512_cmple_epu64_mask(unlike, _mm512_set1_epi64(RANK_MAX as i64));
            // Whether it is there cannot be predicted; that no line before it was full can.
            let rank = rank_of(line[is.trailing_zeros() as usize % SLOTS]);
            let rank = if is == 0 { NO_RANK } else { rank };
            if rank != NO_RANK || line[SLOTS - 1] == FREE {
                return rank;
            }
            at = if at + 1 == self.lines.len() {
                0
            } else {
                at + 1
            };
        }
        NO_RANK
    }

    /// [`PairTable::product`] of ranks up to [`RANK_MAX`].
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(crate) fn products(&self, ranks: __m512i, wanted: u16) -> __m512i {
        let made = _mm512_add_epi32(ranks, splat(self.shift));
        if self.products.is_empty() {
            return made;
        }
        let len = u32::try_from(self.products.len()).unwrap_or(u32::MAX);
        let known = _mm512_mask_cmplt_epu32_mask(wanted, ranks, splat(len));
        let products = self.products.as_ptr().cast();
        // SAFETY: the ranks in `known` are below the number of products, and no rank has the
        // upper bit set, which would be a sign.
        unsafe { _mm512_mask_i32gather_epi32::<4>(made, known, ranks, products) }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn load(numbers: &[u32; LANES]) -> __m512i {
    // SAFETY: they are 64 readable bytes, and the load needs no alignment.
    unsafe { _mm512_loadu_si512(numbers.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn store(numbers: &mut [u32; LANES], vector: __m512i) {
    // SAFETY: they are 64 bytes that are ours, and the store needs no alignment.
    unsafe { _mm512_storeu_si512(numbers.as_mut_ptr().cast(), vector) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[target_feature(enable = "avx512f")]
    fn ask(pairs: &PairTable, asked: &[[(u32, u32); LANES]], wanted: u16) -> Vec<[u32; LANES]> {
        let mut questions = Questions::NONE;
        for (n, asked) in asked.iter().enumerate() {
            let (left, right) = (asked.map(|pair| pair.0), asked.map(|pair| pair.1));
            questions.ask(n, pairs, load(&left), load(&right), wanted);
        }
        questions.answer(pairs);
        (0..asked.len()).map(|n| *questions.ranks(n)).collect()
    }

    #[target_feature(enable = "avx512f")]
    fn products(pairs: &PairTable, ranks: [u32; LANES]) -> [u32; LANES] {
        let mut made = [0; LANES];
        store(&mut made, pairs.products(load(&ranks), u16::MAX));
        made
    }

    proptest! {
        #[test]
        fn answers_are_those_of_the_table(
            seed in any::<u64>(),
            count in prop::sample::select(vec![0usize, 1, 40, 600, 5000]),
            far in prop::sample::select(vec![40u32, 600, 5000, TOKEN_END + 9]),
            in_order in any::<bool>(),
            wanted in any::<u16>(),
        ) {
            if !is_x86_feature_detected!("avx512f") {
                return Ok(());
            }
            let mut state = seed;
            let mut token = move || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) as u32 % far
            };
            let rules: Vec<[u32; 3]> = (0..count as u32)
                .map(|n| [token().min(TOKEN_END - 1), token().min(TOKEN_END - 1), if in_order { n + 7 } else { token() }])
                .collect();
            let pairs = PairTable::new(&rules);
            // Half of those that are asked for are there.
            let asked: Vec<[(u32, u32); LANES]> = (0..ASKED / LANES)
                .map(|n| std::array::from_fn(|lane| match rules.get((n * LANES + lane) * 7 % count.max(1)) {
                    Some(rule) if lane % 2 == 0 => (rule[0], rule[1]),
                    _ => (token(), token()),
                }))
                .collect();
            // SAFETY: just asked for.
            let answers = unsafe { ask(&pairs, &asked, wanted) };
            for (asked, answers) in asked.iter().zip(answers) {
                for lane in 0..LANES {
                    let expected = match wanted >> lane & 1 {
                        0 => NO_RANK,
                        _ => pairs.rank(asked[lane].0, asked[lane].1),
                    };
                    prop_assert_eq!(answers[lane], expected);
                }
            }
            let ranks = std::array::from_fn(|lane| lane as u32 * 97);
            // SAFETY: as above.
            let made = unsafe { products(&pairs, ranks) };
            prop_assert_eq!(made, ranks.map(|rank| pairs.product(rank)));
        }
    }
}
