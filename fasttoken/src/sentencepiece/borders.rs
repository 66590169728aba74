//! Where a text can be cut without changing what its parts are merged to.
//!
//! A model of this family merges whole texts: nothing splits them into words first.
//! But a merge that joins the text before a place with the text after it has a left
//! part that ends in the character before the place, and a right part that begins with
//! the one after it. So where no rule has such parts, no merge ever crosses the place,
//! whatever else the text says, and both sides can be merged alone. These pairs of
//! characters are collected from the rules at load. Bytes and the unknown token are
//! part of no rule (load refuses a file where they are), so nothing crosses there.
//!
//! In real vocabularies no rule joins a letter with the `▁` after it, so texts fall
//! into words; and texts without blanks, such as Chinese, fall apart in many places.

use crate::image::ImageError;
use crate::image::format::{Reader, Section, Writer};
use crate::store::{Flat, Movable};

/// The pairs of neighbouring characters that some rule joins.
#[derive(Debug)]
pub(super) struct Borders {
    /// Of two ASCII characters: a row of bits per left one.
    ascii: Flat<[u64; 2]>,
    /// Two bits of a number for each other pair, by hash: one in some hundred that no rule
    /// joins is taken for joined, which costs time and changes nothing. Rules of Llama 2
    /// join 16,000 pairs, which a table of their characters would need ten times the
    /// memory for.
    filter: Flat<u64>,
}

impl Borders {
    /// `rules` are the left and right parts of all rules.
    pub(super) fn new<'a>(rules: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let mut pairs: Vec<(char, char)> = rules
            .filter_map(|(left, right)| Some((left.chars().next_back()?, right.chars().next()?)))
            .collect();
        pairs.sort_unstable();
        pairs.dedup();
        let mut ascii = vec![[0u64; 2]; ROWS];
        let mut filter = vec![0; (pairs.len() / 2 + 1).next_power_of_two()];
        for (left, right) in pairs {
            if left.is_ascii() && right.is_ascii() {
                ascii[left as usize][right as usize / 64] |= 1 << (right as usize % 64);
            } else {
                let (word, bits) = place(left, right, filter.len());
                filter[word] |= bits;
            }
        }
        Self {
            ascii: ascii.into(),
            filter: filter.into(),
        }
    }

    pub(super) fn write(&self, image: &mut Writer) {
        image.put(Section::BorderRows, &self.ascii);
        image.put(Section::BorderBits, &self.filter);
    }

    pub(super) fn read(image: &Reader) -> Result<Self, ImageError> {
        let this = Self {
            ascii: image.get(Section::BorderRows)?,
            filter: image.get(Section::BorderBits)?,
        };
        let is_one = this.ascii.len() == ROWS && this.filter.len().is_power_of_two();
        is_one
            .then_some(this)
            .ok_or_else(|| Section::BorderBits.invalid("it is not a filter"))
    }

    pub(super) fn tables(&mut self) -> [&mut dyn Movable; 2] {
        [&mut self.ascii, &mut self.filter]
    }

    /// Whether some rule may join `left` with `right`.
    #[inline(always)]
    pub(super) fn joins(&self, left: char, right: char) -> bool {
        if (left as u32 | right as u32) < 128 {
            let row = &self.ascii[left as usize];
            return row[right as usize / 64] >> (right as usize % 64) & 1 != 0;
        }
        let (word, bits) = place(left, right, self.filter.len());
        self.filter[word] & bits == bits
    }
}

/// Rows of ASCII characters.
const ROWS: usize = 128;

/// Which of `words` numbers, a power of two of them, a pair has, and which bits of it.
#[inline(always)]
fn place(left: char, right: char, words: usize) -> (usize, u64) {
    let pair = u64::from(u32::from(left)) << 32 | u64::from(u32::from(right));
    // The upper bits of a product depend on all of the factor.
    let hash = pair.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let word = (hash >> 44) as usize & (words - 1);
    (word, 1 << (hash >> 32 & 63) | 1 << (hash >> 38 & 63))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_those_of_the_rules() {
        let rules = [("ab", "c"), ("▁", "a"), ("é", "漢字"), ("x", "▁")];
        let borders = Borders::new(rules.into_iter());
        for (left, right, joins) in [
            ('b', 'c', true),
            ('a', 'b', false),
            ('▁', 'a', true),
            ('a', '▁', false),
            ('x', '▁', true),
            ('é', '漢', true),
            ('漢', '字', false),
            ('é', 'a', false),
        ] {
            // With so few pairs the filter is nearly empty, and right about these.
            assert_eq!(borders.joins(left, right), joins, "{left}{right}");
        }
    }
}
