//! Sets of characters: what one position of a pattern accepts.

use crate::unicode::{CATEGORIES, Class, HAN, classes};

/// A set of characters, tested in constant time for ASCII and for anything
/// given by categories alone.
///
/// Two sets are equal if they are known to have the same characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CharSet {
    /// Bit `c` for ASCII character `c`; negation applied.
    ascii: u128,
    /// Bit `class.index()`; negation applied when the set is all categories.
    by_class: u128,
    /// Explicit ranges beyond ASCII and beyond what `by_class` says, before negation.
    ranges: Vec<(char, char)>,
    /// Sets whose characters are in this set too, before negation.
    nested: Vec<Self>,
    /// Sets of which every one has to hold a character, before negation.
    intersected: Vec<Self>,
    negated: bool,
}

/// A part of a set as written in the pattern.
#[derive(Debug, Clone)]
pub(crate) enum Item {
    Range(char, char),
    /// `\p{..}`: bit per general category; `true` for `\P{..}`.
    Categories(u32, bool),
    /// `\s`; `true` for `\S`.
    Space(bool),
    /// `\p{Han}`; `true` for `\P{Han}`.
    Han(bool),
    /// A set inside of the set.
    Set(CharSet),
}

impl CharSet {
    pub(crate) fn new(items: &[Item], negated: bool) -> Self {
        let mut this = Self::empty(negated);
        let ranges = &mut this.ranges;
        for item in items {
            match item {
                Item::Range(low, high) => ranges.push((*low, *high)),
                Item::Categories(mask, outside) => {
                    this.by_class |= class_bits(|c| (mask >> c.category() & 1 == 1) != *outside);
                }
                Item::Space(outside) => this.by_class |= class_bits(|c| c.is_space() != *outside),
                Item::Han(false) => ranges.extend(HAN),
                Item::Han(true) => this.nested.push(Self::new(&[Item::Han(false)], true)),
                Item::Set(set) => this.nested.push(set.clone()),
            }
        }
        this.complete()
    }

    /// Creates the set of the characters that are in all of `sets`, or (`negated`) of all others.
    pub(crate) fn intersection(sets: Vec<Self>, negated: bool) -> Self {
        let mut this = Self::empty(negated);
        this.by_class = u128::MAX;
        this.intersected = sets;
        this.complete()
    }

    pub(crate) fn single(c: char) -> Self {
        Self::new(&[Item::Range(c, c)], false)
    }

    fn empty(negated: bool) -> Self {
        Self {
            ascii: 0,
            by_class: 0,
            ranges: Vec::new(),
            nested: Vec::new(),
            intersected: Vec::new(),
            negated,
        }
    }

    /// Sets the bits of ASCII, and brings sets of the same characters into the same form.
    fn complete(mut self) -> Self {
        for c in 0..128u8 {
            if self.contains_slowly(char::from(c)) {
                self.ascii |= 1 << c;
            }
        }
        self.ranges.retain(|(_, high)| !high.is_ascii());
        self.ranges.sort_unstable();
        let by_class_alone =
            self.ranges.is_empty() && self.nested.is_empty() && self.intersected.is_empty();
        if by_class_alone && self.negated {
            self.by_class = !self.by_class;
            self.negated = false;
        }
        self
    }

    /// Returns true if all characters of the set are ASCII.
    pub(crate) fn is_ascii(&self) -> bool {
        let by_class = self.by_class == 0 && !self.negated;
        by_class && self.ranges.is_empty() && self.nested.is_empty() && self.intersected.is_empty()
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
            || self.ranges.iter().any(|&(low, high)| low <= c && c <= high)
            || self.nested.iter().any(|set| set.contains(c));
        let listed = listed && self.intersected.iter().all(|set| set.contains(c));
        listed != self.negated
    }
}

fn class_bits(contains: impl Fn(Class) -> bool) -> u128 {
    (0..Class::COUNT)
        .filter(|&index| contains(Class::from_index(index)))
        .fold(0, |bits, index| bits | 1 << index)
}

/// Returns the bit mask of the general categories that `\p{name}` stands for.
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
