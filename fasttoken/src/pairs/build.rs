//! Filling the table of pairs.

use super::{
    DENSE, FREE, NO_RANK, PairLine, PairTable, RANK_BITS, REACH, SLOTS, filter_bits, hash, home,
    key,
};
use crate::store::Room;
use crate::table::Crowded;

impl PairTable {
    /// Left token, right token and product of each rule, in the order of ranks. Of two
    /// rules for one pair, the later wins. There must be at most [`super::RANK_MAX`] of them,
    /// and the tokens below [`super::TOKEN_END`].
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
}
