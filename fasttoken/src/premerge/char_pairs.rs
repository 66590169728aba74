//! Pairs of characters that merge to one token first, where the second character alone is not
//! premerged.
//!
//! A rule of low rank that joins the text before a character with its first byte excludes the
//! character there, which is then merged from bytes. In Qwen 3's vocabulary a space and `о`, `а` or
//! `е` do so with the first byte of some 60 Cyrillic letters, and nearly every Russian word begins
//! like that. But then both characters together usually are certain to become one token, by the
//! proof of [`super`]: `о` takes the first byte of `л`, and then the second. Merging can begin from
//! such a pair as well. Two new Russian words have three such pairs, and begin with 8.6 symbols
//! instead of 11.6. Merging was a third of the time of new Russian text; these pairs made that text
//! 1.09 times as fast.

use super::premerge_builder::{self, entry};
use super::proof::{Context, Exclusions, Rules};
use super::{NOT_PREMERGED, TOKEN, decode};
use crate::ablation::FastPath;
use crate::format::CompiledError;
use crate::format::{Reader, Section, Writer};
use crate::store::{Flat, Relocatable};
use crate::vocab::Vocab;

/// The largest number of bytes of both characters. The proof covers the rules of no longer symbols.
pub(super) const BYTES_MAX: usize = 4;
/// The only ASCII character that a pair can begin with. The proof does not cover the rules of
/// others.
pub(super) const ASCII: &[u8] = b" ";
/// Upper bound of pairs. Vocabularies of published models have some hundred.
const COUNT_MAX: usize = 1 << 12;
/// The number of slots that are probed for a pair. A pair that would need more is left out.
const PROBES: usize = 16;

/// A free slot.
const FREE: u64 = u64::MAX;

/// A hash table from pairs of characters to their entries.
#[derive(Debug, Default)]
pub(super) struct CharPairs {
    /// The entries: both characters (11 and 16 bits) above the value (32 bits), which has the
    /// layout of a single character's entry. The length is zero or a power of two.
    slots: Flat<u64>,
}

/// A [`CharPairs`] under construction.
#[derive(Debug, Default)]
pub(super) struct Builder {
    /// The key of both characters, and the entry.
    entries: Vec<(u32, u32)>,
}

impl Builder {
    /// Returns true if another pair fits.
    pub(super) fn has_capacity(&self) -> bool {
        self.entries.len() < COUNT_MAX
    }

    /// Adds a pair, which must be new.
    pub(super) fn add(&mut self, left: u32, right: u32, entry: u32) {
        self.entries.push((key(left, right), entry));
    }

    pub(super) fn finish(self) -> CharPairs {
        // At most half of the slots are used.
        let mut slots = match self.entries.len() {
            0 => Vec::new(),
            count => vec![FREE; (2 * count).next_power_of_two()],
        };
        for (key, entry) in self.entries {
            let mut probes = probes(key, slots.len());
            if let Some(at) = probes.find(|at| slots[*at] == FREE) {
                slots[at] = u64::from(key) << 32 | u64::from(entry);
            }
        }
        CharPairs {
            slots: slots.into(),
        }
    }
}

impl CharPairs {
    /// Returns the entry of two characters, or [`NOT_PREMERGED`].
    #[inline(always)]
    pub(super) fn get(&self, left: u32, right: u32) -> u32 {
        if left >= 0x800 || right >= 0x1_0000 || self.slots.is_empty() {
            return NOT_PREMERGED;
        }
        let key = key(left, right);
        for at in probes(key, self.slots.len()) {
            match self.slots.get(at) {
                Some(slot) if *slot != FREE && (slot >> 32) as u32 == key => return *slot as u32,
                Some(slot) if *slot != FREE => {}
                _ => break,
            }
        }
        NOT_PREMERGED
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        writer.put(Section::CharPairs, &self.slots);
    }

    pub(super) fn read(reader: &Reader) -> Result<Self, CompiledError> {
        Self::from_slots(reader.get(Section::CharPairs)?)
            .ok_or_else(|| Section::CharPairs.invalid("it is not a table"))
    }

    /// Creates a table from stored slots, or returns `None` if their number is not that of a table.
    pub(super) fn from_slots(slots: Flat<u64>) -> Option<Self> {
        (slots.is_empty() || slots.len().is_power_of_two()).then_some(Self { slots })
    }

    pub(super) fn table(&mut self) -> &mut dyn Relocatable {
        &mut self.slots
    }
}

impl Rules<'_> {
    /// Finds the pairs whose second character is premerged, except after the first.
    pub(super) fn char_pairs(
        &self,
        made: &mut premerge_builder::Builder,
        ids: &[u32],
        vocab: &Vocab,
    ) -> CharPairs {
        let mut char_pairs = Builder::default();
        for &id in ids {
            let piece = vocab.piece(id);
            if !(3..=BYTES_MAX).contains(&piece.len())
                || !FastPath::CharPairs.is_taken()
                || !made.has_capacity()
                || !char_pairs.has_capacity()
            {
                continue;
            }
            let Some((left, len)) = decode(piece, 0) else {
                continue;
            };
            let first = &piece[..len];
            if (len > 1 || first == ASCII)
                && let Some((right, rest)) = decode(piece, len)
                && len + rest == piece.len()
                && rest > 1
                && id <= TOKEN
                && made.excludes(right, (first[len - 1], left))
                && let Some((exclusions, symbols)) = self.prove(piece)
                && *symbols == [id]
                && let Some(context) = context(exclusions)
            {
                char_pairs.add(left, right, entry(made.name(context), id));
            }
        }
        char_pairs.finish()
    }
}

/// Returns the context of a pair, or `None` if the pair depends on the text after it.
pub(super) fn context(exclusions: Exclusions) -> Option<Context> {
    let Exclusions { context, followers } = exclusions;
    (followers.is_empty() && context.facts == 0).then_some(context)
}

#[inline(always)]
fn key(left: u32, right: u32) -> u32 {
    left << 16 | right
}

/// Returns the slots that a key can have in a table of `slots` slots, a power of two.
#[inline(always)]
fn probes(key: u32, slots: usize) -> impl Iterator<Item = usize> {
    let home = (u64::from(key).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize;
    (home..home + PROBES).map(move |at| at & (slots - 1))
}
