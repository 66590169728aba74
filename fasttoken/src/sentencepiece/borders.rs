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

use super::META;
use super::table::{Table, pair};

/// Classes of the small table: ASCII, and `▁`.
const CLASSES: usize = 129;

/// The pairs of neighbouring characters that some rule joins.
#[derive(Debug)]
pub(super) struct Borders {
    /// For the characters that have a class: a row of bits per left character.
    small: Vec<[u64; 3]>,
    all: Table<u64>,
}

fn class(c: char) -> Option<usize> {
    match c {
        '\0'..='\x7F' => Some(c as usize),
        META => Some(CLASSES - 1),
        _ => None,
    }
}

impl Borders {
    /// `rules` are the left and right parts of all rules.
    pub(super) fn new<'a>(rules: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let mut pairs: Vec<(char, char)> = rules
            .filter_map(|(left, right)| Some((left.chars().next_back()?, right.chars().next()?)))
            .collect();
        pairs.sort_unstable();
        pairs.dedup();
        let mut this = Self {
            small: vec![[0; 3]; CLASSES],
            all: Table::with_capacity(pairs.len()),
        };
        for (left, right) in pairs {
            this.all
                .insert(pair(u32::from(left), u32::from(right)), (0, 0));
            if let (Some(left), Some(right)) = (class(left), class(right)) {
                this.small[left][right / 64] |= 1 << (right % 64);
            }
        }
        this
    }

    /// Whether some rule joins `left` with `right`.
    #[inline]
    pub(super) fn joins(&self, left: char, right: char) -> bool {
        match (class(left), class(right)) {
            (Some(left), Some(right)) => self.small[left][right / 64] >> (right % 64) & 1 != 0,
            _ => {
                let key = pair(u32::from(left), u32::from(right));
                self.all.get(key).is_some()
            }
        }
    }
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
            assert_eq!(borders.joins(left, right), joins, "{left}{right}");
        }
    }
}
