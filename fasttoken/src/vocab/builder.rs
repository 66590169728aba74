//! Builds a vocabulary from the tokens of a file.

use super::names::{hash_long, low};
use super::piece_slot::{HIDDEN_SLOT, META, RAW_SLOT, SLOT, Slot};
use super::{ADDED, MODEL, Names, PRESENT, RAW, SPECIAL, Unindexed, View, Vocab};
use crate::alphabet;
use crate::prefetch::prefetch;
use crate::short_tokens::Key;
use std::borrow::Cow;
use std::ops::Range;

/// A vocabulary under construction: the model's own tokens come first, then their index, then the
/// added tokens.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    slots: Vec<Slot>,
    long: Vec<u8>,
    flags: Vec<u8>,
    tokens: usize,
    scratch: Vec<u8>,
}

/// A lookup of a piece in progress.
#[derive(Debug, Clone)]
pub(crate) struct Sought {
    key: Key,
    hash: u64,
    range: Range<usize>,
}

impl Sought {
    /// Returns the range of the piece in its text.
    pub(crate) fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

/// The reason why a token cannot have an id.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Clash {
    /// The token has this id already.
    Same,
    /// Another token, of this spelling, has the id.
    Other(String),
}

impl Builder {
    fn view(&self) -> View<'_> {
        View {
            slots: &self.slots,
            long: &self.long,
            flags: &self.flags,
        }
    }

    /// Adds one of the model's own tokens. Room is made for all ids up to `id`.
    pub(crate) fn add_model(&mut self, token: &str, id: u32) -> Result<(), Clash> {
        match self.spelling(id) {
            None => {}
            Some(other) if other == token => return Err(Clash::Same),
            Some(other) => return Err(Clash::Other(other.into_owned())),
        }
        self.tokens += 1;
        self.set(token, id, PRESENT | MODEL);
        Ok(())
    }

    /// Reserves memory for `ids` ids.
    pub(crate) fn reserve(&mut self, ids: usize) {
        self.flags.reserve(ids);
        self.slots.reserve(ids);
    }

    /// Returns true if the alphabet spells the token `id` and its piece is this range of `text`.
    #[inline]
    pub(crate) fn is_word(&self, id: u32, text: &[u8], range: Range<usize>) -> bool {
        let at = id as usize;
        self.flags
            .get(at)
            .is_some_and(|f| f & (MODEL | RAW) == MODEL)
            && match Key::new(text, range.start, range.end) {
                Key::NONE => self.slots[at].piece(&self.long) == &text[range],
                key => self.slots[at].key() == key,
            }
    }

    /// Adds an added token, or marks a token of the model as one.
    pub(crate) fn add_added(&mut self, token: &str, id: u32, hidden: bool, special: bool) {
        let known = self.flags.get(id as usize).copied().unwrap_or_default();
        if known & PRESENT == 0 {
            self.set(token, id, PRESENT);
        }
        self.flags[id as usize] |= ADDED | if special { SPECIAL } else { 0 };
        if hidden {
            self.slots[id as usize].0[META] |= HIDDEN_SLOT;
        }
    }

    fn set(&mut self, token: &str, id: u32, flags: u8) {
        let end = id as usize + 1;
        if self.flags.len() < end {
            self.flags.resize(end, 0);
            self.slots.resize(end, Slot([0; SLOT]));
        }
        self.scratch.clear();
        let spelled = alphabet::append_bytes(token, &mut self.scratch);
        let (piece, raw) = if spelled {
            (&*self.scratch, 0)
        } else {
            (token.as_bytes(), RAW)
        };
        let mut slot = Slot::new(piece, &mut self.long);
        if raw != 0 {
            slot.0[META] |= RAW_SLOT;
        }
        self.slots[id as usize] = slot;
        self.flags[id as usize] = flags | raw;
    }

    /// Returns the spelling of a token.
    pub(crate) fn spelling(&self, id: u32) -> Option<Cow<'_, str>> {
        self.view().spelling(id)
    }

    /// Returns the number of the model's own tokens.
    pub(crate) fn model_len(&self) -> usize {
        self.tokens
    }

    /// Indexes the model's own tokens.
    pub(crate) fn index(&self) -> Result<Names, Unindexed> {
        Names::build(self.view())
    }

    /// Returns the id of one of the model's own tokens.
    pub(crate) fn model_id(&self, names: &Names, spelling: &str) -> Option<u32> {
        self.view().model_id(names, spelling)
    }

    /// Returns the id of the model's own token that spells `bytes` by the alphabet.
    #[inline]
    pub(crate) fn word_id(&self, names: &Names, bytes: &[u8]) -> Option<u32> {
        self.view().find(names, bytes, false)
    }

    /// Starts [`Builder::word_id`] in three steps, each of which prefetches the memory of the next.
    #[inline]
    pub(crate) fn seek(&self, names: &Names, text: &[u8], range: Range<usize>) -> Sought {
        let key = Key::new(text, range.start, range.end);
        let hash = match key {
            Key::NONE => hash_long(&text[range.clone()]),
            key => key.hash(),
        };
        prefetch(&names.entries, names.home(hash));
        Sought { key, hash, range }
    }

    /// Takes the second step of a lookup.
    #[inline]
    pub(crate) fn seek_slot(&self, names: &Names, sought: &Sought) {
        let entry = names.entries[names.home(sought.hash)];
        prefetch(&self.slots, (entry & low(names.id_bits)) as usize);
    }

    /// Takes the last step of a lookup.
    #[inline]
    pub(crate) fn found(&self, names: &Names, text: &[u8], sought: &Sought) -> Option<u32> {
        let is = |id: u32| {
            let slot = self.slots.get(id as usize);
            slot.is_some_and(|slot| {
                slot.0[META] & RAW_SLOT == 0
                    && match sought.key {
                        Key::NONE => slot.piece(&self.long) == &text[sought.range.clone()],
                        key => slot.key() == key,
                    }
            })
        };
        names.get_hashed(sought.hash, is)
    }

    /// Completes the vocabulary. `added` is the number of added tokens that the model lacks.
    pub(crate) fn finish(self, names: Names, added: usize) -> Vocab {
        Vocab {
            slots: self.slots.into(),
            long: self.long.into(),
            flags: self.flags.into(),
            names,
            size: self.tokens + added,
            model_len: self.tokens,
        }
    }
}
