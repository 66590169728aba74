//! Sets of characters: what one position of a pattern accepts.

use crate::unicode::{CATEGORIES, Class, classes};

/// A set of characters, tested in constant time for ASCII and for anything
/// given by categories alone.
#[derive(Debug, Clone)]
pub(crate) struct CharSet {
    /// Bit `c` for ASCII character `c`; negation applied.
    ascii: u128,
    /// Bit `class.index()`; negation applied when the set is all categories.
    by_class: u128,
    /// Explicit ranges beyond what `by_class` says, before negation.
    ranges: Vec<(char, char)>,
    negated: bool,
}

/// One part of a set as written in the pattern.
#[derive(Debug, Clone)]
pub(crate) enum Item {
    Range(char, char),
    /// `\p{..}`: bit per general category; `true` for `\P{..}`.
    Categories(u32, bool),
    /// `\s`; `true` for `\S`.
    Space(bool),
}

impl CharSet {
    pub(crate) fn new(items: &[Item], negated: bool) -> Self {
        let mut by_class = 0u128;
        let mut ranges = Vec::new();
        for item in items {
            match *item {
                Item::Range(low, high) => ranges.push((low, high)),
                Item::Categories(mask, outside) => {
                    by_class |= class_bits(|c| (mask >> c.category() & 1 == 1) != outside);
                }
                Item::Space(outside) => by_class |= class_bits(|c| c.is_space() != outside),
            }
        }
        ranges.sort_unstable();
        let mut this = Self {
            ascii: 0,
            by_class,
            ranges,
            negated,
        };
        for c in 0..128u8 {
            if this.contains_slowly(char::from(c)) {
                this.ascii |= 1 << c;
            }
        }
        this
    }

    pub(crate) fn single(c: char) -> Self {
        Self::new(&[Item::Range(c, c)], false)
    }

    #[inline]
    pub(crate) fn contains(&self, c: char) -> bool {
        if c.is_ascii() {
            self.ascii >> (c as u32) & 1 == 1
        } else {
            self.contains_slowly(c)
        }
    }

    fn contains_slowly(&self, c: char) -> bool {
        let listed = self.by_class >> classes().class(c).index() & 1 == 1
            || self.ranges.iter().any(|&(low, high)| low <= c && c <= high);
        listed != self.negated
    }
}

fn class_bits(contains: impl Fn(Class) -> bool) -> u128 {
    (0..Class::COUNT)
        .filter(|&index| contains(Class::from_index(index)))
        .fold(0, |bits, index| bits | 1 << index)
}

/// Bit mask of the general categories that `\p{name}` stands for.
pub(crate) fn category_mask(name: &str) -> Option<u32> {
    if name.is_empty() || name.len() > 2 {
        return None;
    }
    let mask = CATEGORIES
        .iter()
        .enumerate()
        .filter(|(_, category)| category.starts_with(name))
        .fold(0, |mask, (n, _)| mask | 1 << n);
    // `\p{C}` and `\p{Cn}` would have to speak about surrogates; nothing uses them.
    (mask != 0).then_some(mask)
}
