//! The table of merges: from a pair of tokens to the rank and the product of its merge.
//!
//! ```text
//! slot, 8 bytes:   left token (20 bits) | right token (20 bits) | rank (24 bits)
//! bucket, 64 bytes: eight slots, filled in order, all compared at once
//! ```
//!
//! A lookup has three stages, each cheaper than the next:
//!
//! - A square of ranks for the pairs of the first [`DENSE_TOKENS`] tokens, which are the single
//!   bytes and the products of the first merges. Every merge of a word begins there.
//! - A filter: two bits of one number for each pair with a merge. Most pairs that are looked up
//!   have none, and the filter says so from the second-level cache.
//! - The buckets, half as large as with keys and values apart.
//!
//! The hash is two multiplications of 32 bits. It need not be stronger: a full bucket sends a
//! lookup to the next bucket, and a file whose pairs share too few buckets is refused.
//!
//! In most files each merge makes the token after the product of the merge before; then the product
//! follows from the rank.

mod pair_table_builder;

use crate::ablation::FastPath;
use crate::format::CompiledError;
use crate::format::{Reader, Section, Writer};
use crate::store::{Flat, Relocatable};
use bytemuck::{Pod, Zeroable};

/// The rank of a pair without a merge.
pub(crate) const NO_RANK: u32 = u32::MAX;
/// The largest number of merges of a file.
pub(crate) const RANK_MAX: usize = (1 << RANK_BITS) - 1;
/// The first token that cannot be in a merge.
pub(crate) const TOKEN_END: u32 = (1 << TOKEN_BITS) - 1;

const TOKEN_BITS: u32 = 20;
const RANK_BITS: u32 = 24;

/// The number of tokens of the square, which takes one megabyte. Most of it is never read: the
/// letters of a script are neighbours in it.
const DENSE_TOKENS: u32 = 512;

/// The number of slots of a bucket, which fills a cache line.
const SLOTS: usize = 8;

/// The largest number of buckets that are probed for a pair. The pairs of real vocabularies find a
/// slot within ten.
const MAX_PROBED_BUCKETS: usize = 32;

/// Odd constants without structure: parts of the fractional parts of pi and e.
const FACTORS: [u32; 2] = [0x243F_6A89, 0xB7E1_5163];
/// The position in a hash of the index into the filter, and of the numbers of the two bits.
const WORD_SHIFT: u32 = 8;
const FILTER_SHIFTS: [u32; 2] = [22, 27];

const FREE: u64 = u64::MAX;

/// A cache line of eight slots.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct PairBucket([u64; SLOTS]);

/// A table from pairs of tokens to the rank of their merge, and from ranks to products.
#[derive(Debug)]
pub(crate) struct PairTable {
    buckets: Flat<PairBucket>,
    /// The filter, whose length is a power of two.
    filter: Flat<u32>,
    /// The ranks of `left * DENSE_TOKENS + right`; empty for small models.
    dense: Flat<u32>,
    /// The product of each rank; empty if it is `rank + shift`.
    products: Flat<u32>,
    shift: u32,
    /// True if some pair had several rules. Unknown, and false, for a table of a compiled
    /// tokenizer.
    repeats: bool,
}

impl PairTable {
    /// Builds a table of pairs that do not collide too often.
    #[cfg(test)]
    pub(crate) fn new(rules: &[[u32; 3]]) -> Self {
        Self::build(rules).expect("pairs share no place")
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.put(Section::Pairs, &self.buckets);
        writer.put(Section::PairBits, &self.filter);
        writer.put(Section::DensePairs, &self.dense);
        writer.put(Section::Products, &self.products);
        writer.put(Section::PairFacts, &[self.shift]);
    }

    pub(crate) fn read(reader: &Reader) -> Result<Self, CompiledError> {
        let facts = reader.get::<u32>(Section::PairFacts)?;
        let &[shift] = &*facts else {
            return Err(Section::PairFacts.invalid("there is not one of them"));
        };
        let this = Self {
            buckets: reader.get(Section::Pairs)?,
            filter: reader.get(Section::PairBits)?,
            dense: reader.get(Section::DensePairs)?,
            products: reader.get(Section::Products)?,
            shift,
            repeats: false,
        };
        let this = this.checked();
        this.ok_or_else(|| Section::Pairs.invalid("it is not a table"))
    }

    /// Returns the table, or `None` if its parts are not those of a table. Other contents are
    /// checked where they are used.
    fn checked(self) -> Option<Self> {
        // Probing ends at a bucket that is not full.
        let open = self
            .buckets
            .iter()
            .any(|bucket| bucket.0[SLOTS - 1] == FREE);
        let square =
            self.dense.is_empty() || self.dense.len() == (DENSE_TOKENS * DENSE_TOKENS) as usize;
        (open && square && self.filter.len().is_power_of_two()).then_some(self)
    }

    /// Returns all tables, in falling order of how often merging reads them.
    pub(crate) fn tables(&mut self) -> [&mut dyn Relocatable; 4] {
        [
            &mut self.filter,
            &mut self.dense,
            &mut self.buckets,
            &mut self.products,
        ]
    }

    /// Returns true if some pair had several rules, of which the last counts.
    pub(crate) fn has_repeats(&self) -> bool {
        self.repeats
    }

    /// Returns the left token, the right token and the rank of every merge, in no order.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32, u32)> {
        let slots = self.buckets.iter().flat_map(|bucket| &bucket.0);
        let used = slots.filter(|slot| **slot != FREE);
        used.map(|slot| {
            let key = slot >> RANK_BITS;
            let right = key as u32 & TOKEN_END;
            ((key >> TOKEN_BITS) as u32, right, rank_of(*slot))
        })
    }

    /// Returns the rank of the merge of two tokens, or [`NO_RANK`].
    #[inline(always)]
    pub(crate) fn rank(&self, left: u32, right: u32) -> u32 {
        if (left | right) < DENSE_TOKENS
            && FastPath::DensePairs.is_taken()
            && let Some(&rank) = self.dense.get((left * DENSE_TOKENS + right) as usize)
        {
            return rank;
        }
        if left.max(right) >= TOKEN_END {
            return NO_RANK;
        }
        let key = key(left, right);
        let hash = hash(left, right);
        let (word, bits) = filter_bits(hash, self.filter.len());
        if FastPath::PairFilter.is_taken()
            && self.filter.get(word).is_none_or(|word| word & bits != bits)
        {
            return NO_RANK;
        }
        self.look_up(key, home(hash, self.buckets.len()))
    }

    #[inline(always)]
    fn look_up(&self, key: u64, mut at: usize) -> u32 {
        for _ in 0..MAX_PROBED_BUCKETS {
            let Some(bucket) = self.buckets.get(at) else {
                break;
            };
            // The matching slot cannot be predicted, so all slots are compared.
            let mut found = NO_RANK;
            for slot in &bucket.0 {
                let rank = rank_of(*slot);
                found = if slot >> RANK_BITS == key {
                    rank
                } else {
                    found
                };
            }
            if found != NO_RANK || bucket.0[SLOTS - 1] == FREE {
                return found;
            }
            at = if at + 1 == self.buckets.len() {
                0
            } else {
                at + 1
            };
        }
        NO_RANK
    }

    /// Prefetches the memory that [`PairTable::rank`] reads, if it is far away.
    #[inline(always)]
    pub(crate) fn prefetch(&self, left: u32, right: u32) {
        if (left | right) < DENSE_TOKENS {
            // A prefetch without a read would take the place of one in flight.
            return;
        }
        let hash = hash(left, right);
        crate::prefetch::prefetch(&self.buckets, home(hash, self.buckets.len()));
    }

    /// Returns the token that a merge makes.
    #[inline(always)]
    pub(crate) fn product(&self, rank: u32) -> u32 {
        match self.products.get(rank as usize) {
            Some(product) => *product,
            None => rank.wrapping_add(self.shift),
        }
    }

    /// Returns the token that two tokens merge to.
    #[inline(always)]
    pub(crate) fn merged(&self, left: u32, right: u32) -> Option<u32> {
        let rank = self.rank(left, right);
        (rank != NO_RANK).then(|| self.product(rank))
    }
}

#[inline(always)]
fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << TOKEN_BITS | u64::from(right)
}

#[inline(always)]
fn rank_of(slot: u64) -> u32 {
    slot as u32 & RANK_MAX as u32
}

#[inline(always)]
fn hash(left: u32, right: u32) -> u32 {
    left.wrapping_mul(FACTORS[0]) ^ right.wrapping_mul(FACTORS[1])
}

/// Returns the bucket that the upper bits of a hash select.
#[inline(always)]
fn home(hash: u32, buckets: usize) -> usize {
    ((u64::from(hash) * buckets as u64) >> 32) as usize
}

/// Returns the index into a filter of `words` numbers, and the two bits, that the lower bits of a
/// hash select.
#[inline(always)]
fn filter_bits(hash: u32, words: usize) -> (usize, u32) {
    let word = (hash >> WORD_SHIFT) as usize & words.wrapping_sub(1);
    let bit = |from: u32| 1u32 << (hash >> from & 31);
    (word, bit(FILTER_SHIFTS[0]) | bit(FILTER_SHIFTS[1]))
}

#[cfg(test)]
mod pairs_tests;
