//! Two characters that merge first where the second one alone is no atom.
//!
//! A rule that joins what is before a character with its first byte, early, excludes the
//! character there, and it is merged from bytes. In Qwen 3's vocabulary a space and `о`,
//! `а` or `е` do so with the first byte of some 60 Cyrillic letters, and nearly every
//! Russian word begins like that. But then the two characters together are usually certain
//! to become one token, by the same proof as for one character ([`super`]): `о` takes the
//! first byte of `л`, and then the second. These are *doubles*, from which merging begins
//! too: there are three of them in two new Russian words, which begin with 8.6 tokens
//! instead of 11.6. Merging them was a third of all time with fresh Russian text; this made
//! that text 1.09 times as fast.

use super::build::{self, entry};
use super::rules::{Bounds, Context, Rules};
use super::{NO_ATOM, TOKEN, decode};
use crate::image::ImageError;
use crate::image::format::{Reader, Section, Writer};
use crate::store::{Flat, Movable};
use crate::vocab::Vocab;

/// Most bytes of both characters: the proof looks at the rules of no longer symbols.
pub(super) const BYTES_MAX: usize = 4;
/// The only first character of one byte: of others, the proof does not look at the rules.
pub(super) const ASCII: &[u8] = b" ";
/// Most doubles, of which vocabularies that models use have some hundred.
const COUNT_MAX: usize = 1 << 12;
/// Slots that are looked at for one double; one that would need more is left out.
const PROBES: usize = 16;

/// In place of both characters and their entry.
const FREE: u64 = u64::MAX;

/// The doubles of a vocabulary, by their characters.
#[derive(Debug, Default)]
pub(super) struct Doubles {
    /// Both characters (11 and 16 bits) above the entry (32 bits), which is like that of
    /// one character. Empty, or a power of two of them.
    slots: Flat<u64>,
}

/// Doubles that are being gathered.
#[derive(Debug, Default)]
pub(super) struct Builder {
    /// Both characters, and the entry.
    entries: Vec<(u32, u32)>,
}

impl Builder {
    /// Whether there is room for one more.
    pub(super) fn has_room(&self) -> bool {
        self.entries.len() < COUNT_MAX
    }

    /// Adds a double that is not there yet.
    pub(super) fn add(&mut self, left: u32, right: u32, entry: u32) {
        self.entries.push((key(left, right), entry));
    }

    pub(super) fn finish(self) -> Doubles {
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
        Doubles {
            slots: slots.into(),
        }
    }
}

impl Doubles {
    /// The entry of two characters, or [`NO_ATOM`].
    #[inline(always)]
    pub(super) fn get(&self, left: u32, right: u32) -> u32 {
        if left >= 0x800 || right >= 0x1_0000 || self.slots.is_empty() {
            return NO_ATOM;
        }
        let key = key(left, right);
        for at in probes(key, self.slots.len()) {
            match self.slots.get(at) {
                Some(slot) if *slot != FREE && (slot >> 32) as u32 == key => return *slot as u32,
                Some(slot) if *slot != FREE => {}
                _ => break,
            }
        }
        NO_ATOM
    }

    pub(super) fn write(&self, image: &mut Writer) {
        image.put(Section::AtomDoubles, &self.slots);
    }

    pub(super) fn read(image: &Reader) -> Result<Self, ImageError> {
        Self::from_slots(image.get(Section::AtomDoubles)?)
            .ok_or_else(|| Section::AtomDoubles.invalid("it is not a table"))
    }

    /// From the slots of another; `None` if no table has such.
    pub(super) fn from_slots(slots: Flat<u64>) -> Option<Self> {
        (slots.is_empty() || slots.len().is_power_of_two()).then_some(Self { slots })
    }

    pub(super) fn table(&mut self) -> &mut dyn Movable {
        &mut self.slots
    }
}

impl Rules<'_> {
    /// The atoms of two characters, of which the second one is an atom but for the first.
    pub(super) fn doubles(&self, made: &mut build::Builder, ids: &[u32], vocab: &Vocab) -> Doubles {
        let mut doubles = Builder::default();
        for &id in ids {
            let piece = vocab.piece(id);
            if !(3..=BYTES_MAX).contains(&piece.len()) || !made.has_room() || !doubles.has_room() {
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
                && let Some((bounds, symbols)) = self.atom(piece)
                && *symbols == [id]
                && let Some(context) = context(bounds)
            {
                doubles.add(left, right, entry(made.name(context), id));
            }
        }
        doubles.finish()
    }
}

/// The context of a double that its left side alone decides; `None` if there is more.
pub(super) fn context(bounds: Bounds) -> Option<Context> {
    let Bounds { context, followers } = bounds;
    (followers.is_empty() && context.facts == 0).then_some(context)
}

#[inline(always)]
fn key(left: u32, right: u32) -> u32 {
    left << 16 | right
}

/// Where a key can be in a table of so many slots, a power of two.
#[inline(always)]
fn probes(key: u32, slots: usize) -> impl Iterator<Item = usize> {
    let home = (u64::from(key).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize;
    (home..home + PROBES).map(move |at| at & (slots - 1))
}
