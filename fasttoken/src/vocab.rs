//! The vocabulary of a byte-level model: tokens by id and by spelling.
//!
//! Spellings are not stored: a token is spelled by the byte-level alphabet, or, if it has
//! characters outside of the alphabet, as its piece.
//!
//! Every array may come from a forged compiled tokenizer, so nothing is trusted: ids, offsets and
//! lengths are checked where they are used, and probing ends after one round.

mod builder;
mod names;
mod piece_slot;

use crate::alphabet;
use crate::format::CompiledError;
use crate::format::{Reader, Section, Writer};
use crate::short_tokens::Key;
use crate::store::{Flat, Relocatable};
pub(crate) use builder::{Builder, Clash, Sought};
pub(crate) use names::{Names, Unindexed};
use piece_slot::{HIDDEN_SLOT, LEN, LONG, META, RAW_SLOT, SLOT, Slot};
use std::borrow::Cow;

/// The value that stands for a missing token in a table of tokens.
///
/// A byte without a token vanishes from its word, as in the reference: StarCoder lacks eleven
/// bytes that begin rare characters.
pub(crate) const NO_TOKEN: u32 = u32::MAX;

const PRESENT: u8 = 1;
const SPECIAL: u8 = 4;
const ADDED: u8 = 8;
/// Flag: the token is in the model's own vocabulary.
const MODEL: u8 = 16;
/// Flag: the token is spelled as its piece and not by the byte-level alphabet.
const RAW: u8 = 32;

/// The number of ids whose pieces are written together. They always fit into the memory that is
/// reserved for whole slots.
const BLOCK: usize = 128;

/// The vocabulary: the tokens of the model and the added ones.
#[derive(Debug)]
pub(crate) struct Vocab {
    slots: Flat<Slot>,
    long: Flat<u8>,
    flags: Flat<u8>,
    names: Names,
    /// The number of tokens, as the reference counts them.
    size: usize,
    /// Number of the model's own tokens.
    model_len: usize,
}

impl Vocab {
    fn view(&self) -> View<'_> {
        View {
            slots: &self.slots,
            long: &self.long,
            flags: &self.flags,
        }
    }

    pub(crate) fn tables(&mut self) -> [&mut dyn Relocatable; 4] {
        [
            &mut self.slots,
            &mut self.long,
            &mut self.flags,
            &mut self.names.entries,
        ]
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Returns the number of the model's own tokens.
    pub(crate) fn model_len(&self) -> usize {
        self.model_len
    }

    #[inline]
    fn flag(&self, id: u32, flag: u8) -> bool {
        self.flags.get(id as usize).is_some_and(|f| f & flag != 0)
    }

    /// Returns one more than the largest id.
    pub(crate) fn end(&self) -> u32 {
        self.flags.len() as u32
    }

    pub(crate) fn contains(&self, id: u32) -> bool {
        self.flag(id, PRESENT)
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.flag(id, SPECIAL)
    }

    pub(crate) fn is_added(&self, id: u32) -> bool {
        self.flag(id, ADDED)
    }

    /// Returns the ids of the model's own tokens that spell bytes, rising.
    pub(crate) fn words(&self) -> impl Iterator<Item = u32> {
        let ids = self.flags.iter().enumerate();
        ids.filter(|(_, flags)| *flags & (MODEL | RAW) == MODEL)
            .map(|(id, _)| id as u32)
    }

    /// Returns the bytes that decoding writes for `id`; empty for an unknown id.
    #[inline]
    pub(crate) fn piece(&self, id: u32) -> &[u8] {
        self.view().piece(id)
    }

    /// Returns [`Vocab::piece`], but empty for a hidden token if `skip_hidden`.
    #[inline]
    pub(crate) fn shown_piece(&self, id: u32, skip_hidden: bool) -> &[u8] {
        match self.slots.get(id as usize) {
            Some(slot) if !(skip_hidden && slot.0[META] & HIDDEN_SLOT != 0) => {
                slot.piece(&self.long)
            }
            _ => &[],
        }
    }

    /// Returns the key of [`Vocab::piece`].
    #[inline]
    pub(crate) fn key(&self, id: u32) -> Key {
        self.slots.get(id as usize).map_or(Key::NONE, Slot::key)
    }

    pub(crate) fn spelling(&self, id: u32) -> Option<Cow<'_, str>> {
        self.view().spelling(id)
    }

    /// Returns the id of a token in the model's own vocabulary.
    pub(crate) fn model_id(&self, spelling: &str) -> Option<u32> {
        self.view().model_id(&self.names, spelling)
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        let counts = [self.size, self.model_len, self.names.id_bits as usize];
        writer.put(Section::Counts, &counts.map(|count| count as u64));
        writer.put(Section::Slots, &self.slots);
        writer.put(Section::Long, &self.long);
        writer.put(Section::Flags, &self.flags);
        writer.put(Section::Names, &self.names.entries);
    }

    pub(crate) fn read(reader: &Reader) -> Result<Self, CompiledError> {
        let counts = reader.get::<u64>(Section::Counts)?;
        let (slots, flags) = (reader.get(Section::Slots)?, reader.get(Section::Flags)?);
        let entries: Flat<u32> = reader.get(Section::Names)?;
        let invalid = || Section::Counts.invalid("its numbers contradict each other");
        let [size, model_len, id_bits] = counts[..] else {
            return Err(invalid());
        };
        let ids = slots.len() as u64;
        if flags.len() != slots.len()
            || ids > u64::from(u32::MAX / 2)
            || model_len > size
            || size > ids
            || id_bits >= 32
            || !entries.len().is_power_of_two()
        {
            return Err(invalid());
        }
        Ok(Self {
            slots,
            long: reader.get(Section::Long)?,
            flags,
            names: Names {
                entries,
                id_bits: id_bits as u32,
            },
            size: size as usize,
            model_len: model_len as usize,
        })
    }

    /// Returns the pieces of `ids` in a row, without hidden tokens if `skip_hidden`.
    pub(crate) fn pieces(&self, ids: &[u32], skip_hidden: bool) -> Vec<u8> {
        // Tokens of common text have four bytes and a half on average. What a block takes beyond that
        // until it is done is reserved as well: to grow took up to half of the time of a short text.
        let usual = ids.len() * 5 + BLOCK * SLOT;
        let mut out = Vec::with_capacity(usual.min(ids.len() * SLOT));
        self.append_pieces(ids, skip_hidden, &mut out);
        out
    }

    fn append_pieces(&self, ids: &[u32], skip_hidden: bool, out: &mut Vec<u8>) {
        let slow = if skip_hidden {
            HIDDEN_SLOT | LONG
        } else {
            LONG
        };
        for block in ids.chunks(BLOCK) {
            let mut rest = block;
            while !rest.is_empty() {
                let start = out.len();
                out.resize(start + rest.len() * SLOT, 0);
                let (left, special) = copy_slots(&self.slots, rest, slow, &mut out[start..]);
                out.truncate(out.len() - left);
                let Some((slot, after)) = special else { break };
                if !(skip_hidden && slot.0[META] & HIDDEN_SLOT != 0) {
                    out.extend_from_slice(slot.piece(&self.long));
                }
                rest = after;
            }
        }
    }
}

/// Copies the slots of `ids` to `target`, each to where the piece before it ends, up to a slot with a
/// flag of `special`. Returns the number of bytes that are left of `target`, and that slot with the
/// ids after it.
// Not inlined, so that all variables have registers: some of them on the stack, an id took half as
// many instructions again, and up to a fifth more time by where in memory the code came to lie.
#[inline(never)]
fn copy_slots<'a>(
    slots: &'a [Slot],
    ids: &'a [u32],
    special: u8,
    mut target: &mut [u8],
) -> (usize, Option<(&'a Slot, &'a [u32])>) {
    let mut ids = ids.iter();
    while let Some(&id) = ids.next() {
        let Some(slot) = slots.get(id as usize) else {
            continue;
        };
        let meta = slot.0[META];
        if meta & special != 0 {
            return (target.len(), Some((slot, ids.as_slice())));
        }
        target[..SLOT].copy_from_slice(&slot.0);
        target = &mut target[usize::from(meta & LEN)..];
    }
    (target.len(), None)
}

/// The arrays of a vocabulary, complete or under construction.
#[derive(Clone, Copy)]
struct View<'a> {
    slots: &'a [Slot],
    long: &'a [u8],
    flags: &'a [u8],
}

impl<'a> View<'a> {
    #[inline]
    fn piece(self, id: u32) -> &'a [u8] {
        match self.slots.get(id as usize) {
            Some(slot) => slot.piece(self.long),
            None => &[],
        }
    }

    fn spelling(self, id: u32) -> Option<Cow<'a, str>> {
        let flags = *self.flags.get(id as usize)?;
        if flags & PRESENT == 0 {
            None
        } else if flags & RAW == 0 {
            Some(alphabet::spell(self.piece(id)))
        } else {
            // The piece was a string, except in a forged compiled tokenizer.
            std::str::from_utf8(self.piece(id)).ok().map(Cow::Borrowed)
        }
    }

    /// Returns the model's own token of a piece that is spelled as it is (`raw`) or by the
    /// alphabet.
    #[inline]
    fn find(self, names: &Names, piece: &[u8], raw: bool) -> Option<u32> {
        let wanted = if raw { RAW_SLOT } else { 0 };
        names.get(piece, |id| {
            let slot = self.slots.get(id as usize);
            slot.is_some_and(|slot| {
                slot.0[META] & RAW_SLOT == wanted && slot.piece(self.long) == piece
            })
        })
    }

    fn model_id(self, names: &Names, spelling: &str) -> Option<u32> {
        let mut bytes = Vec::new();
        if alphabet::append_bytes(spelling, &mut bytes) {
            self.find(names, &bytes, false)
        } else {
            self.find(names, spelling.as_bytes(), true)
        }
    }
}
