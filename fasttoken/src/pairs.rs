//! What pairs of neighbouring tokens merge to.
//!
//! ```text
//! slot, 8 bytes:   left token (20 bits) | right token (20 bits) | rank (24 bits)
//! line, 64 bytes:  eight slots, filled in order, all compared at once
//! ```
//!
//! Three ways answer, each cheaper than the next:
//!
//! - A square of ranks for the pairs of the first [`DENSE`] tokens, which are the single
//!   bytes and what is merged first of them. Every merge of a word begins there.
//! - A filter: two bits of one number for each pair that has a merge. Most of the pairs
//!   that are asked for have none, and this says so from the second-level cache.
//! - The lines, half as large as with keys and values apart.
//!
//! The hash is two multiplications of 32 bits, of which vectors do sixteen at once
//! (in `vector`): it need not be better than that, since a line that is full sends a look-up to
//! the next one, and a file with pairs that share their places is refused.
//!
//! In most files each merge makes the token after the one that the merge before it
//! made; then a rank says the token by itself.

mod build;
#[cfg(target_arch = "x86_64")]
pub(crate) mod vector;

use crate::image::ImageError;
use crate::image::format::{Reader, Section, Writer};
use crate::store::{Flat, Movable};
use bytemuck::{Pod, Zeroable};

/// In place of a rank: no merge.
pub(crate) const NO_RANK: u32 = u32::MAX;
/// Most merges of a file.
pub(crate) const RANK_MAX: usize = (1 << RANK_BITS) - 1;
/// Tokens from here on are in no merge.
pub(crate) const TOKEN_END: u32 = (1 << TOKEN_BITS) - 1;

const TOKEN_BITS: u32 = 20;
const RANK_BITS: u32 = 24;

/// Tokens of the square, one megabyte of ranks. Most of it is never looked at: the
/// letters of a script are neighbours in it.
const DENSE: u32 = 512;

/// Slots per cache line.
const SLOTS: usize = 8;

/// How many lines are looked at for one pair. Of the pairs of a vocabulary that nobody made
/// up, the last one finds a slot within ten.
const REACH: usize = 32;

/// Odd constants without structure: parts of the fractional parts of pi and e. Numbers of 32
/// bits, since there are vector instructions that multiply sixteen of them.
const FACTORS: [u32; 2] = [0x243F_6A89, 0xB7E1_5163];
/// Where the filter's number is in a hash, and the numbers of the two bits.
const WORD_SHIFT: u32 = 8;
const FILTER_SHIFTS: [u32; 2] = [22, 27];

const FREE: u64 = u64::MAX;

/// Eight slots.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct PairLine([u64; SLOTS]);

/// A pair of tokens that is being looked up.
#[derive(Debug, Clone, Copy, Default, Zeroable)]
pub(crate) struct Query {
    key: u64,
    line: usize,
    /// Whether it is a pair at all.
    wanted: bool,
}

/// From pairs of tokens to the rank of their merge, and from there to the token made.
#[derive(Debug)]
pub(crate) struct PairTable {
    lines: Flat<PairLine>,
    /// A power of two of numbers.
    filter: Flat<u32>,
    /// Rank of `left * DENSE + right`; empty for small models.
    dense: Flat<u32>,
    /// What the merge of each rank makes; empty if that is `rank + shift`.
    products: Flat<u32>,
    shift: u32,
    /// Whether some pair had several rules; not known of a table from an image.
    repeats: bool,
}

impl PairTable {
    /// [`PairTable::build`] for pairs that nobody chose.
    #[cfg(test)]
    pub(crate) fn new(rules: &[[u32; 3]]) -> Self {
        Self::build(rules).expect("pairs share no place")
    }

    pub(crate) fn write(&self, image: &mut Writer) {
        image.put(Section::Pairs, &self.lines);
        image.put(Section::PairBits, &self.filter);
        image.put(Section::DensePairs, &self.dense);
        image.put(Section::Products, &self.products);
        image.put(Section::PairFacts, &[self.shift]);
    }

    pub(crate) fn read(image: &Reader) -> Result<Self, ImageError> {
        let facts = image.get::<u32>(Section::PairFacts)?;
        let &[shift] = &*facts else {
            return Err(Section::PairFacts.invalid("there is not one of them"));
        };
        let this = Self {
            lines: image.get(Section::Pairs)?,
            filter: image.get(Section::PairBits)?,
            dense: image.get(Section::DensePairs)?,
            products: image.get(Section::Products)?,
            shift,
            repeats: false,
        };
        let this = this.checked();
        this.ok_or_else(|| Section::Pairs.invalid("it is not a table"))
    }

    /// `None` if no table is like this one. What else its contents say is checked when
    /// it is used.
    fn checked(self) -> Option<Self> {
        // Probing ends at a line that is not full.
        let open = self.lines.iter().any(|line| line.0[SLOTS - 1] == FREE);
        let square = self.dense.is_empty() || self.dense.len() == (DENSE * DENSE) as usize;
        (open && square && self.filter.len().is_power_of_two()).then_some(self)
    }

    /// All tables, those that merging reads most first.
    pub(crate) fn tables(&mut self) -> [&mut dyn Movable; 4] {
        [
            &mut self.filter,
            &mut self.dense,
            &mut self.lines,
            &mut self.products,
        ]
    }

    /// Whether some pair had several rules, of which the last counts.
    pub(crate) fn has_repeats(&self) -> bool {
        self.repeats
    }

    /// Left token, right token and rank of every merge, in no order.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32, u32)> {
        let slots = self.lines.iter().flat_map(|line| &line.0);
        let used = slots.filter(|slot| **slot != FREE);
        used.map(|slot| {
            let key = slot >> RANK_BITS;
            let right = key as u32 & TOKEN_END;
            ((key >> TOKEN_BITS) as u32, right, rank_of(*slot))
        })
    }

    /// The rank of the merge of two tokens, or [`NO_RANK`].
    #[inline(always)]
    pub(crate) fn rank(&self, left: u32, right: u32) -> u32 {
        if (left | right) < DENSE
            && let Some(&rank) = self.dense.get((left * DENSE + right) as usize)
        {
            return rank;
        }
        if left.max(right) >= TOKEN_END {
            return NO_RANK;
        }
        let key = key(left, right);
        let hash = hash(left, right);
        let (word, bits) = filter_bits(hash, self.filter.len());
        if self.filter.get(word).is_none_or(|word| word & bits != bits) {
            return NO_RANK;
        }
        self.look_up(key, home(hash, self.lines.len()))
    }

    /// Begins a look-up: [`PairTable::prefetch_line`], then [`PairTable::find`]. `wanted` says
    /// whether there is a pair at all.
    ///
    /// The square and the filter are left out: they are as far away as the lines.
    #[inline(always)]
    pub(crate) fn query(&self, left: u32, right: u32, wanted: bool) -> Query {
        let key = key(left, right);
        Query {
            key,
            line: home(hash(left, right), self.lines.len()),
            wanted: wanted & (left.max(right) < TOKEN_END),
        }
    }

    /// Asks for the memory of [`PairTable::find`].
    #[inline(always)]
    pub(crate) fn prefetch_line(&self, query: &Query) {
        crate::prefetch::prefetch(&self.lines, query.line);
    }

    /// The rank of the merge, or [`NO_RANK`].
    #[inline(always)]
    pub(crate) fn find(&self, query: &Query) -> u32 {
        const FOUND: u64 = 1 << RANK_BITS;
        let Some(PairLine(slots)) = self.lines.get(query.line) else {
            return NO_RANK;
        };
        // No two slots have the same key.
        let found = slots.iter().fold(0, |found, slot| {
            let is = slot >> RANK_BITS == query.key;
            found | if is { slot & (FOUND - 1) | FOUND } else { 0 }
        });
        if (found == 0) & query.wanted & (slots[SLOTS - 1] != FREE) {
            return self.look_up(query.key, query.line);
        }
        let rank = (found & (FOUND - 1)) as u32;
        if (found != 0) & query.wanted {
            rank
        } else {
            NO_RANK
        }
    }

    /// Asks for the memory of [`PairTable::product`].
    #[inline(always)]
    pub(crate) fn prefetch_product(&self, rank: u32) {
        crate::prefetch::prefetch(&self.products, rank as usize);
    }

    #[inline(always)]
    fn look_up(&self, key: u64, mut at: usize) -> u32 {
        for _ in 0..REACH {
            let Some(line) = self.lines.get(at) else {
                break;
            };
            // Which slot it is cannot be predicted, so all are looked at.
            let mut found = NO_RANK;
            for slot in &line.0 {
                let rank = rank_of(*slot);
                found = if slot >> RANK_BITS == key {
                    rank
                } else {
                    found
                };
            }
            if found != NO_RANK || line.0[SLOTS - 1] == FREE {
                return found;
            }
            at = if at + 1 == self.lines.len() {
                0
            } else {
                at + 1
            };
        }
        NO_RANK
    }

    /// Asks for the memory that [`PairTable::rank`] will read, if it is far away.
    #[inline(always)]
    pub(crate) fn prefetch(&self, left: u32, right: u32) {
        if (left | right) < DENSE {
            // What nobody will read would take the place of what is on its way.
            return;
        }
        let hash = hash(left, right);
        crate::prefetch::prefetch(&self.lines, home(hash, self.lines.len()));
    }

    /// The token that a merge makes.
    #[inline(always)]
    pub(crate) fn product(&self, rank: u32) -> u32 {
        match self.products.get(rank as usize) {
            Some(product) => *product,
            None => rank.wrapping_add(self.shift),
        }
    }

    /// What two tokens merge to.
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

/// The upper bits of the hash decide over the line.
#[inline(always)]
fn home(hash: u32, lines: usize) -> usize {
    ((u64::from(hash) * lines as u64) >> 32) as usize
}

/// The lower bits decide over the filter: which of `words` numbers, and two bits of it.
#[inline(always)]
fn filter_bits(hash: u32, words: usize) -> (usize, u32) {
    let word = (hash >> WORD_SHIFT) as usize & words.wrapping_sub(1);
    let bit = |from: u32| 1u32 << (hash >> from & 31);
    (word, bit(FILTER_SHIFTS[0]) | bit(FILTER_SHIFTS[1]))
}

#[cfg(test)]
mod tests;
