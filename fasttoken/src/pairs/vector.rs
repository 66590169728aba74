//! Rank lookups of sixteen pairs at a time, with AVX-512.
#![expect(unsafe_code, reason = "vector instructions chosen at run time")]

use super::{
    DENSE_TOKENS, FACTORS, FILTER_SHIFTS, FREE, MAX_PROBED_BUCKETS, NO_RANK, PairBucket, PairTable,
    RANK_BITS, RANK_MAX, SLOTS, TOKEN_END, WORD_SHIFT, home, key, rank_of,
};
use std::arch::x86_64::*;

#[inline]
#[target_feature(enable = "avx512f")]
fn splat(value: u32) -> __m512i {
    _mm512_set1_epi32(value.cast_signed())
}

/// The largest number of pairs that are looked up together.
pub(crate) const MAX_QUERIES: usize = 256;

/// A batch of rank lookups, none of which waits for the memory of another. Queries are added first
/// and resolved together later.
#[derive(Debug)]
pub(crate) struct RankQueries {
    /// The ranks found so far, or [`NO_RANK`] where the buckets are still to be read.
    ranks: [u32; MAX_QUERIES],
    /// The tokens, the hash, and the position in `ranks` of each query that the buckets resolve.
    lefts: [u32; MAX_QUERIES + LANES],
    rights: [u32; MAX_QUERIES + LANES],
    hashes: [u32; MAX_QUERIES + LANES],
    places: [u32; MAX_QUERIES + LANES],
    count: usize,
}

/// The number of pairs in a vector.
const LANES: usize = 16;

impl RankQueries {
    pub(crate) const NONE: Self = Self {
        ranks: [NO_RANK; MAX_QUERIES],
        lefts: [0; MAX_QUERIES + LANES],
        rights: [0; MAX_QUERIES + LANES],
        hashes: [0; MAX_QUERIES + LANES],
        places: [0; MAX_QUERIES + LANES],
        count: 0,
    };

    /// Returns the ranks of query `n`, after [`RankQueries::resolve`].
    #[inline]
    pub(crate) fn ranks(&self, n: usize) -> &[u32; LANES] {
        let ranks = self.ranks[n * LANES..].first_chunk();
        ranks.expect("there are sixteen for each question")
    }

    /// Adds query `n`: the [`PairTable::rank`] of the pairs in which `wanted` has a bit, and
    /// [`NO_RANK`] for others. Each number is added once before the queries are resolved.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(crate) fn add(
        &mut self,
        n: usize,
        pairs: &PairTable,
        left: __m512i,
        right: __m512i,
        wanted: u16,
    ) {
        let mut ranks = splat(NO_RANK);
        let either = _mm512_or_si512(left, right);
        let small = if pairs.dense.is_empty() {
            0
        } else {
            DENSE_TOKENS
        };
        let near = _mm512_mask_cmplt_epu32_mask(wanted, either, splat(small));
        if near != 0 {
            let at = _mm512_slli_epi32::<{ DENSE_TOKENS.trailing_zeros() }>(left);
            let at = _mm512_or_si512(at, right);
            let dense = pairs.dense.as_ptr().cast();
            debug_assert_eq!(
                pairs.dense.len(),
                (DENSE_TOKENS * DENSE_TOKENS) as usize,
                "checked"
            );
            // SAFETY: both tokens of the pairs in `near` are below `DENSE_TOKENS`, and the square
            // has that many rows and columns.
            let found = unsafe { _mm512_mask_i32gather_epi32::<4>(ranks, near, at, dense) };
            // The ranks of a compiled tokenizer are not checked before.
            let is = _mm512_mask_cmple_epu32_mask(near, found, splat(RANK_MAX as u32));
            ranks = _mm512_mask_mov_epi32(ranks, is, found);
        }
        let place = n * LANES;
        let Some(ranks_out) = self.ranks[place..].first_chunk_mut() else {
            return;
        };
        store(ranks_out, ranks);
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
        // There is room for all queries, each of which is added once.
        self.count = (from + left_over.count_ones() as usize).min(MAX_QUERIES);
        for &hash in &self.hashes[from..self.count] {
            crate::prefetch::prefetch(&pairs.buckets, home(hash, pairs.buckets.len()));
        }
    }

    /// Resolves all queries.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(crate) fn resolve(&mut self, pairs: &PairTable) {
        let lists = self.lefts.iter().zip(&self.rights).zip(&self.hashes);
        for (((&left, &right), &hash), &place) in lists.zip(&self.places).take(self.count) {
            let rank = pairs.look_up_vector(key(left, right), home(hash, pairs.buckets.len()));
            self.ranks[place as usize % MAX_QUERIES] = rank;
        }
        self.count = 0;
    }
}

impl PairTable {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn look_up_vector(&self, key: u64, mut at: usize) -> u32 {
        let wanted = _mm512_set1_epi64((key << RANK_BITS).cast_signed());
        for _ in 0..MAX_PROBED_BUCKETS {
            let Some(PairBucket(bucket)) = self.buckets.get(at) else {
                break;
            };
            // SAFETY: a line is 64 readable bytes, and the load needs no alignment.
            let slots = unsafe { _mm512_loadu_si512(bucket.as_ptr().cast()) };
            let unlike = _mm512_xor_si512(slots, wanted);
            let is = _mm512_cmple_epu64_mask(unlike, _mm512_set1_epi64(RANK_MAX as i64));
            // A match cannot be predicted; that no bucket before it was full can.
            let rank = rank_of(bucket[is.trailing_zeros() as usize % SLOTS]);
            let rank = if is == 0 { NO_RANK } else { rank };
            if rank != NO_RANK || bucket[SLOTS - 1] == FREE {
                return rank;
            }
            at = if at + 1 == self.buckets.len() {
                0
            } else {
                at + 1
            };
        }
        NO_RANK
    }

    /// Returns the [`PairTable::product`] of each rank up to [`RANK_MAX`].
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
    fn add(pairs: &PairTable, asked: &[[(u32, u32); LANES]], wanted: u16) -> Vec<[u32; LANES]> {
        let mut queries = RankQueries::NONE;
        for (n, asked) in asked.iter().enumerate() {
            let (left, right) = (asked.map(|pair| pair.0), asked.map(|pair| pair.1));
            queries.add(n, pairs, load(&left), load(&right), wanted);
        }
        queries.resolve(pairs);
        (0..asked.len()).map(|n| *queries.ranks(n)).collect()
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
            let asked: Vec<[(u32, u32); LANES]> = (0..MAX_QUERIES / LANES)
                .map(|n| std::array::from_fn(|lane| match rules.get((n * LANES + lane) * 7 % count.max(1)) {
                    Some(rule) if lane % 2 == 0 => (rule[0], rule[1]),
                    _ => (token(), token()),
                }))
                .collect();
            // SAFETY: just asked for.
            let ranks_out = unsafe { add(&pairs, &asked, wanted) };
            for (asked, ranks_out) in asked.iter().zip(ranks_out) {
                for lane in 0..LANES {
                    let expected = match wanted >> lane & 1 {
                        0 => NO_RANK,
                        _ => pairs.rank(asked[lane].0, asked[lane].1),
                    };
                    prop_assert_eq!(ranks_out[lane], expected);
                }
            }
            let ranks = std::array::from_fn(|lane| lane as u32 * 97);
            // SAFETY: as above.
            let made = unsafe { products(&pairs, ranks) };
            prop_assert_eq!(made, ranks.map(|rank| pairs.product(rank)));
        }
    }
}
