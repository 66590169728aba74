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

#[cfg(target_arch = "x86_64")]
pub(crate) mod vector;

use crate::image::ImageError;
use crate::image::format::{Reader, Section, Writer};
use crate::store::{Flat, Movable, Room};
use crate::table::Crowded;
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

    /// Left token, right token and product of each rule, in the order of ranks. Of two
    /// rules for one pair, the later wins. There must be at most [`RANK_MAX`] of them,
    /// and the tokens below [`TOKEN_END`].
    ///
    /// # Errors
    /// Where pairs were chosen to share their place in the table.
    pub(crate) fn build(rules: &[[u32; 3]]) -> Result<Self, Crowded> {
        // At 60 % full, one line in nine is full and sends look-ups to the next one.
        let mut room: Room<PairLine> = Room::zeroed(rules.len() * 5 / (3 * SLOTS) + 1);
        let lines = &mut *room;
        lines.fill(PairLine([FREE; SLOTS]));
        let mut filter = vec![0u32; (rules.len() / 6 + 1).next_power_of_two()];
        let side = if rules.len() < DENSE as usize {
            0
        } else {
            DENSE
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
        // Each line is asked for before its pair is put there.
        let mut ahead = rules.iter();
        let mut ask = |lines: &[PairLine]| {
            if let Some(&[left, right, _]) = ahead.next() {
                crate::prefetch::prefetch(lines, home(hash(left, right), lines.len()));
            }
        };
        for _ in 0..32 {
            ask(lines);
        }
        for (rank, &[left, right, _]) in rules.iter().enumerate() {
            ask(lines);
            let key = key(left, right);
            let hash = hash(left, right);
            let (word, bits) = filter_bits(hash, filter.len());
            filter[word] |= bits;
            if left < side && right < side {
                dense[(left * side + right) as usize] = rank as u32;
            }
            let mut at = home(hash, lines.len());
            let ours = |slot: &u64| *slot == FREE || *slot >> RANK_BITS == key;
            let mut found = lines[at].0.iter().position(ours);
            let mut step = 1;
            while found.is_none() && step < REACH {
                at = if at + 1 == lines.len() { 0 } else { at + 1 };
                found = lines[at].0.iter().position(ours);
                step += 1;
            }
            let slot = &mut lines[at].0[found.ok_or(Crowded)?];
            repeats |= *slot != FREE;
            *slot = key << RANK_BITS | rank as u64;
        }
        Ok(Self {
            lines: room.into(),
            filter: filter.into(),
            dense: dense.into(),
            products: products.into(),
            shift: first,
            repeats,
        })
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
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn check(rules: &[[u32; 3]], tokens: &[u32]) {
        let mut map = HashMap::new();
        for (rank, &[left, right, product]) in rules.iter().enumerate() {
            map.insert((left, right), (rank as u32, product));
        }
        let table = PairTable::new(rules).checked().expect("made just now");
        for &left in tokens {
            for &right in tokens {
                let expected = map.get(&(left, right)).copied();
                let rank = table.rank(left, right);
                assert_eq!(rank, expected.map_or(NO_RANK, |merge| merge.0));
                let product = expected.map(|merge| merge.1);
                assert_eq!(table.merged(left, right), product);
            }
        }
        let mut all: Vec<_> = table.iter().collect();
        all.sort_unstable();
        let mut expected: Vec<_> = map.iter().map(|((l, r), (n, _))| (*l, *r, *n)).collect();
        expected.sort_unstable();
        assert_eq!(all, expected);
    }

    proptest! {
        #[test]
        fn the_table_is_a_map(
            pairs in prop::collection::vec((0u32..6, 0u32..6), 0..60),
            shifted in any::<bool>(),
        ) {
            let product = |(rank, pair): (usize, &(u32, u32))| {
                let id = if shifted { 300 + rank as u32 } else { pair.0 };
                [pair.0, pair.1, id]
            };
            let rules: Vec<_> = pairs.iter().enumerate().map(product).collect();
            check(&rules, &[0, 1, 2, 3, 4, 5, 6, TOKEN_END - 1, TOKEN_END, u32::MAX]);
        }
    }

    #[test]
    fn pairs_that_share_a_line_are_crowded() {
        // As many as the table for so many rules holds in one place, and one more.
        let lines = |rules: usize| rules * 5 / (3 * SLOTS) + 1;
        let room = REACH * SLOTS;
        let total = 4 * room;
        let in_front = |&[left, right, _]: &[u32; 3]| home(hash(left, right), lines(total)) == 3;
        let all = (0..TOKEN_END).map(|n| [n % 1000 + DENSE, n / 1000 + DENSE, n]);
        let mut rules: Vec<_> = all.clone().filter(in_front).take(room + 1).collect();
        assert_eq!(rules.len(), room + 1);
        // Others far from there make the table as large as that.
        let far = |rule: &[u32; 3]| home(hash(rule[0], rule[1]), lines(total)) > 60;
        rules.extend(all.filter(far).take(total - rules.len()));
        assert_eq!(PairTable::build(&rules).err(), Some(Crowded));
        rules[room] = [1, 2, 3];
        let table = PairTable::build(&rules).expect("there is room");
        for rank in [0, room - 1, room, total - 1] {
            assert_eq!(table.rank(rules[rank][0], rules[rank][1]), rank as u32);
        }
    }

    #[test]
    fn the_square_and_the_lines_agree() {
        let near = |n: u32| n % 37 * 14;
        let far = |n: u32| TOKEN_END - 1 - n % 41;
        let rules: Vec<_> = (0..4000u32)
            .map(|n| match n % 3 {
                0 => [near(n), near(n / 37), n],
                1 => [near(n), far(n / 37), n],
                _ => [far(n), far(n / 41), n],
            })
            .collect();
        let tokens: Vec<_> = (0..41)
            .flat_map(|n| [near(n), far(n), near(n) + 1])
            .collect();
        check(&rules, &tokens);
    }

    #[test]
    fn lines_of_no_table_are_refused() {
        let table = |slots: &[u64; SLOTS], filter: usize, dense: usize| PairTable {
            lines: vec![PairLine(*slots)].into(),
            filter: vec![0; filter].into(),
            dense: vec![0; dense].into(),
            products: Flat::default(),
            shift: 0,
            repeats: false,
        };
        let open = [1, FREE, FREE, FREE, FREE, FREE, FREE, FREE];
        assert!(table(&open, 2, 0).checked().is_some());
        assert!(table(&[1; SLOTS], 2, 0).checked().is_none());
        assert!(table(&open, 3, 0).checked().is_none());
        assert!(table(&open, 0, 0).checked().is_none());
        assert!(table(&open, 2, 7).checked().is_none());
    }
}
