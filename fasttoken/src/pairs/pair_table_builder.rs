//! Loading: fills the table of merges.

use super::{
    DENSE_TOKENS, FREE, MAX_PROBED_BUCKETS, NO_RANK, PairBucket, PairTable, RANK_BITS, SLOTS,
    filter_bits, hash, home, key,
};
use crate::store::ZeroedBuffer;
use crate::string_table::TooManyCollisions;

impl PairTable {
    /// Builds a table from the left token, the right token and the product of each rule, in the
    /// order of ranks. Of two rules for one pair, the later wins. There must be at most
    /// [`super::RANK_MAX`] rules, and their tokens must be below [`super::TOKEN_END`].
    ///
    /// # Errors
    /// Where pairs were chosen to share their place in the table.
    pub(crate) fn build(rules: &[[u32; 3]]) -> Result<Self, TooManyCollisions> {
        // At 60 % full, one bucket in nine is full and sends lookups to the next one.
        let mut buffer: ZeroedBuffer<PairBucket> =
            ZeroedBuffer::zeroed(rules.len() * 5 / (3 * SLOTS) + 1);
        let buckets = &mut *buffer;
        buckets.fill(PairBucket([FREE; SLOTS]));
        let mut filter = vec![0u32; (rules.len() / 6 + 1).next_power_of_two()];
        let side = if rules.len() < DENSE_TOKENS as usize {
            0
        } else {
            DENSE_TOKENS
        };
        let mut dense = vec![NO_RANK; (side * side) as usize];
        let first = rules.first().map_or(0, |rule| rule[2]);
        let in_order =
            |(rank, rule): (usize, &[u32; 3])| rule[2] == first.wrapping_add(rank as u32);
        let products = if rules.iter().enumerate().all(in_order) {
            Vec::new()
        } else {
            rules.iter().map(|rule| rule[2]).collect()
        };
        let mut repeats = false;
        // Each bucket is prefetched before its pair is stored.
        let mut ahead = rules.iter();
        let mut ask = |buckets: &[PairBucket]| {
            if let Some(&[left, right, _]) = ahead.next() {
                crate::prefetch::prefetch(buckets, home(hash(left, right), buckets.len()));
            }
        };
        for _ in 0..32 {
            ask(buckets);
        }
        for (rank, &[left, right, _]) in rules.iter().enumerate() {
            ask(buckets);
            let key = key(left, right);
            let hash = hash(left, right);
            let (word, bits) = filter_bits(hash, filter.len());
            filter[word] |= bits;
            if left < side && right < side {
                dense[(left * side + right) as usize] = rank as u32;
            }
            let mut at = home(hash, buckets.len());
            let ours = |slot: &u64| *slot == FREE || *slot >> RANK_BITS == key;
            let mut found = buckets[at].0.iter().position(ours);
            let mut step = 1;
            while found.is_none() && step < MAX_PROBED_BUCKETS {
                at = if at + 1 == buckets.len() { 0 } else { at + 1 };
                found = buckets[at].0.iter().position(ours);
                step += 1;
            }
            let slot = &mut buckets[at].0[found.ok_or(TooManyCollisions)?];
            repeats |= *slot != FREE;
            *slot = key << RANK_BITS | rank as u64;
        }
        Ok(Self {
            buckets: buffer.into(),
            filter: filter.into(),
            dense: dense.into(),
            products: products.into(),
            shift: first,
            repeats,
        })
    }
}
