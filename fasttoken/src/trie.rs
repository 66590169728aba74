//! A trie of byte strings in a double array: one load of memory for each byte of a text.
//!
//! The children of a node lie at the node's base with the bits of their byte flipped in, all in one
//! block of 256 units. A unit says which byte leads to it. No two nodes have one base, so a unit
//! that is reached by its byte from a base belongs to the node of that base.

mod trie_builder;

use crate::error::Error;
use crate::format::{CompiledError, Reader, Section, Writer};
use crate::store::Flat;
use bytemuck::{Pod, Zeroable};

/// A trie from byte strings to ids.
#[derive(Debug)]
pub(crate) struct Trie {
    units: Flat<Unit>,
}

/// A node: the byte that leads to it, the base of its children, and the id of its string.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Unit {
    /// The base in the upper 23 bits, [`USED`], and the byte.
    base: u32,
    id: u32,
}

/// The mark of a unit that is a node.
const USED: u32 = 0x100;
const BASE_SHIFT: u32 = 9;
/// Upper bound of the number of units.
const UNITS_MAX: usize = 1 << (32 - BASE_SHIFT);
/// The id of a node without a string.
const NONE: u32 = u32::MAX;

/// A place in a trie: the base of a node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place(u32);

impl Trie {
    /// Builds the trie of different strings, each with an id below `u32::MAX`.
    pub(crate) fn new<'a>(
        strings: impl Iterator<Item = (&'a str, u32)>,
        path: &str,
    ) -> Result<Self, Error> {
        let strings = strings.filter(|(string, _)| !string.is_empty());
        // By their first eight bytes, which are mostly enough.
        let mut sorted: Vec<(u64, &[u8], u32)> = strings
            .map(|(string, id)| (first_eight(string.as_bytes()), string.as_bytes(), id))
            .collect();
        sorted.sort_unstable();
        let strings: Vec<(&[u8], u32)> = sorted.into_iter().map(|(_, s, id)| (s, id)).collect();
        let units = trie_builder::units(&strings).ok_or_else(|| {
            Error::unsupported(
                path,
                format!("vocabulary whose trie has more than {UNITS_MAX} nodes"),
            )
        })?;
        Ok(Self {
            units: units.into(),
        })
    }

    pub(crate) fn write(&self, section: Section, writer: &mut Writer) {
        writer.put(section, &self.units);
    }

    /// Reads a trie of ids below `end`. A forged trie finds other strings, and nothing worse.
    pub(crate) fn read(reader: &Reader, section: Section, end: u32) -> Result<Self, CompiledError> {
        let units: Flat<Unit> = reader.get(section)?;
        let known = |unit: &Unit| unit.id < end || unit.id == NONE;
        if units.is_empty() || !units.iter().all(known) {
            return Err(section.invalid("it contradicts the other tables"));
        }
        Ok(Self { units })
    }

    /// Returns the place where every string begins.
    pub(crate) fn root(&self) -> Place {
        Place(self.units[0].base >> BASE_SHIFT)
    }

    /// Goes on by one byte. Returns the new place and the id of the string that ends there, or
    /// `None` if no string goes on that way.
    #[inline(always)]
    pub(crate) fn step(&self, place: Place, byte: u8) -> Option<(Place, Option<u32>)> {
        let unit = self.units.get(place.0 as usize ^ usize::from(byte))?;
        if unit.base & (USED | 0xFF) != USED | u32::from(byte) {
            return None;
        }
        let id = (unit.id != NONE).then_some(unit.id);
        Some((Place(unit.base >> BASE_SHIFT), id))
    }

    /// Returns the number of bytes and the id of the longest string after `place` that `bytes` begin
    /// with, of those for which `is_wanted` is true of both.
    #[inline(always)]
    pub(crate) fn longest(
        &self,
        mut place: Place,
        bytes: &[u8],
        is_wanted: impl Fn(usize, u32) -> bool,
    ) -> Option<(usize, u32)> {
        let mut longest = None;
        for (at, &byte) in bytes.iter().enumerate() {
            let Some((next, id)) = self.step(place, byte) else {
                break;
            };
            place = next;
            if let Some(id) = id.filter(|id| is_wanted(at + 1, *id)) {
                longest = Some((at + 1, id));
            }
        }
        longest
    }

    /// Returns the place after `bytes`, if some string begins with them.
    pub(crate) fn after(&self, bytes: &[u8]) -> Option<Place> {
        let mut place = self.root();
        for &byte in bytes {
            (place, _) = self.step(place, byte)?;
        }
        Some(place)
    }
}

/// Returns the first eight bytes, padded with zeros, as a number that orders as they do.
fn first_eight(string: &[u8]) -> u64 {
    let mut eight = [0; 8];
    let len = string.len().min(8);
    eight[..len].copy_from_slice(&string[..len]);
    u64::from_be_bytes(eight)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Returns every prefix of `text` that is a string, with its id.
    fn prefixes(trie: &Trie, text: &str) -> Vec<(usize, u32)> {
        let mut found = Vec::new();
        let mut place = trie.root();
        for (at, &byte) in text.as_bytes().iter().enumerate() {
            let Some((next, id)) = trie.step(place, byte) else {
                break;
            };
            place = next;
            found.extend(id.map(|id| (at + 1, id)));
        }
        found
    }

    fn check(strings: &BTreeMap<String, u32>, texts: &[String]) {
        let all = strings.iter().map(|(string, id)| (string.as_str(), *id));
        let trie = Trie::new(all, "$").unwrap();
        for text in texts.iter().chain(strings.keys()) {
            let expected: Vec<(usize, u32)> = (1..=text.len())
                .filter(|end| text.is_char_boundary(*end))
                .filter_map(|end| Some((end, *strings.get(&text[..end])?)))
                .collect();
            assert_eq!(prefixes(&trie, text), expected, "{text:?}");
            let begins = strings.keys().any(|s| !s.is_empty() && s.starts_with(text));
            let found = trie.after(text.as_bytes()).is_some();
            assert_eq!(found, begins || text.is_empty(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn prefixes_are_those_of_a_map(
            strings in prop::collection::btree_map("[a-cé漢\u{0}]{0,4}|\\PC{0,3}", 0u32..1000, 0..200),
            texts in prop::collection::vec("[a-cé漢\u{0}]{0,8}|\\PC{0,4}", 0..40),
        ) {
            check(&strings, &texts);
        }
    }

    #[test]
    fn many_strings_and_wide_nodes() {
        let mut strings = BTreeMap::new();
        for n in 0..30_000u32 {
            let string: String = [n % 251, n / 7 % 1000, n % 13]
                .iter()
                .filter_map(|code| char::from_u32(*code))
                .collect();
            strings.insert(string, n);
        }
        check(&strings, &[]);
        check(&BTreeMap::new(), &["a".to_owned(), String::new()]);
    }
}
