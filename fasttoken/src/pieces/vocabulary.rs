//! The vocabulary of a model whose tokens are text: tokens by id and by spelling, and their
//! decoded bytes.
//!
//! Every array may come from a forged compiled tokenizer: ranges and text are checked where they
//! are used.

use super::decoder::Decoder;
use super::tokens::{Tokens, token_collides};
use crate::added::AddedTokens;
use crate::error::Error;
use crate::format::CompiledError;
use crate::format::{Reader, Section, Writer};
use crate::store::Flat;
use crate::string_table::{StringTable, StringTableBuilder};

const PRESENT: u8 = 1;
/// Flag: the token is left out of decoded text when special tokens are skipped.
const HIDDEN: u8 = 2;
const SPECIAL: u8 = 4;
const ADDED: u8 = 8;
/// Flag: decoding treats the token as a byte.
const BYTE: u8 = 16;
/// Flag: the token is in the model's own vocabulary.
const MODEL: u8 = 32;

/// The properties of one id while the vocabulary is built.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Info {
    pub(crate) hidden: bool,
    pub(crate) special: bool,
    pub(crate) added: bool,
    pub(crate) model: bool,
    /// True if decoding writes another spelling than the token has, so that lookups by that
    /// spelling skip it.
    pub(crate) renamed: bool,
}

/// Strings by id in one allocation.
#[derive(Debug)]
struct Arena {
    bytes: Flat<u8>,
    /// `ends[id]` closes the string of `id`.
    ends: Flat<u32>,
}

/// An [`Arena`] that is being filled.
#[derive(Default)]
struct ArenaBuilder {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl ArenaBuilder {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let end = u32::try_from(self.bytes.len()).expect("load bounds the vocabulary's text");
        self.ends.push(end);
    }

    fn finish(self) -> Arena {
        Arena {
            bytes: self.bytes.into(),
            ends: self.ends.into(),
        }
    }
}

impl Arena {
    #[inline]
    fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else {
            return &[];
        };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        let range = start as usize..end as usize;
        self.bytes.get(range).unwrap_or_default()
    }
}

#[derive(Debug)]
pub(crate) struct Vocab {
    spellings: Arena,
    pieces: Arena,
    flags: Flat<u8>,
    /// Ids by their spellings.
    names: StringTable,
    size: usize,
}

/// A [`Vocab`] that is being filled, in the order of ids.
#[derive(Default)]
pub(crate) struct Builder {
    spellings: ArenaBuilder,
    pieces: ArenaBuilder,
    flags: Vec<u8>,
    /// Ids that are looked up.
    named: Vec<u32>,
}

impl Builder {
    /// Adds the next id. `piece` appends what decoding writes for it, but for what it does to
    /// the first token and to runs of bytes, and says whether that is a byte.
    pub(crate) fn push(
        &mut self,
        spelling: &str,
        piece: impl FnOnce(&mut Vec<u8>) -> bool,
        info: Info,
    ) {
        if !info.renamed {
            self.named.push(self.flags.len() as u32);
        }
        self.spellings.push(spelling.as_bytes());
        let byte = piece(&mut self.pieces.bytes);
        self.pieces.push(&[]);
        let flag = |on: bool, flag: u8| if on { flag } else { 0 };
        self.flags.push(
            PRESENT
                | flag(info.hidden, HIDDEN)
                | flag(info.special, SPECIAL)
                | flag(info.added, ADDED)
                | flag(byte, BYTE)
                | flag(info.model, MODEL),
        );
    }

    /// Adds an id without a token.
    pub(crate) fn push_hole(&mut self) {
        self.spellings.push(&[]);
        self.pieces.push(&[]);
        self.flags.push(0);
    }

    /// Completes the vocabulary. `size` is the number of tokens as the reference counts them. On
    /// too many collisions, returns the id of the token without a slot.
    pub(crate) fn finish(self, size: usize) -> Result<Vocab, u32> {
        let spellings = self.spellings.finish();
        let mut names = StringTableBuilder::with_capacity(self.named.len());
        let resolve = |id: u32| spellings.get(id);
        for id in self.named {
            names.insert(resolve(id), id, resolve).map_err(|_| id)?;
        }
        Ok(Vocab {
            names: names.finish(),
            spellings,
            pieces: self.pieces.finish(),
            flags: self.flags.into(),
            size,
        })
    }
}

impl Vocab {
    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.put(Section::Spellings, &self.spellings.bytes);
        writer.put(Section::SpellingEnds, &self.spellings.ends);
        writer.put(Section::Pieces, &self.pieces.bytes);
        writer.put(Section::PieceEnds, &self.pieces.ends);
        writer.put(Section::Flags, &self.flags);
        writer.put(Section::Names, self.names.slots());
    }

    /// Reads a vocabulary of `size` tokens, as the reference counts them.
    pub(crate) fn read(reader: &Reader, size: usize) -> Result<Self, CompiledError> {
        let names = StringTable::from_slots(reader.get(Section::Names)?);
        let this = Self {
            spellings: Arena {
                bytes: reader.get(Section::Spellings)?,
                ends: reader.get(Section::SpellingEnds)?,
            },
            pieces: Arena {
                bytes: reader.get(Section::Pieces)?,
                ends: reader.get(Section::PieceEnds)?,
            },
            flags: reader.get(Section::Flags)?,
            names: names.ok_or_else(|| Section::Names.invalid("it is not a table"))?,
            size,
        };
        let ids = this.flags.len();
        let same = this.spellings.ends.len() == ids && this.pieces.ends.len() == ids;
        let bounded = ids <= u32::MAX as usize / 2 && size <= ids;
        if !(same && bounded) {
            return Err(Section::Flags.invalid("it contradicts the other tables"));
        }
        Ok(this)
    }

    /// Returns the model's own tokens.
    pub(crate) fn model_tokens(&self) -> impl Iterator<Item = (&str, u32)> {
        let ids = 0..self.flags.len() as u32;
        let own = ids.filter(|id| self.flag(*id, MODEL));
        own.filter_map(|id| Some((self.spelling(id)?, id)))
    }

    /// Returns true if the token is the model's own.
    pub(crate) fn is_model(&self, id: u32) -> bool {
        self.flag(id, MODEL)
    }

    #[inline]
    fn flag(&self, id: u32, flag: u8) -> bool {
        self.flags.get(id as usize).is_some_and(|f| f & flag != 0)
    }

    /// Returns the number of tokens, as the reference counts them.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Returns one more than the largest id.
    pub(crate) fn end(&self) -> u32 {
        self.flags.len() as u32
    }

    pub(crate) fn contains(&self, id: u32) -> bool {
        self.flag(id, PRESENT)
    }

    #[inline]
    pub(crate) fn is_hidden(&self, id: u32) -> bool {
        self.flag(id, HIDDEN)
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.flag(id, SPECIAL)
    }

    #[inline]
    pub(crate) fn is_added(&self, id: u32) -> bool {
        self.flag(id, ADDED)
    }

    #[inline]
    pub(crate) fn is_byte(&self, id: u32) -> bool {
        self.flag(id, BYTE)
    }

    #[inline]
    pub(crate) fn piece(&self, id: u32) -> &[u8] {
        self.pieces.get(id)
    }

    pub(crate) fn spelling(&self, id: u32) -> Option<&str> {
        let bytes = self.contains(id).then(|| self.spellings.get(id))?;
        // The spelling was a string, except in a forged compiled tokenizer.
        std::str::from_utf8(bytes).ok()
    }

    pub(crate) fn id(&self, spelling: &str) -> Option<u32> {
        let resolve = |id| self.spellings.get(id);
        self.names.get(spelling.as_bytes(), resolve)
    }
}

/// Puts the tokens of a model and the added ones together.
pub(crate) fn vocabulary(
    tokens: &Tokens,
    added: &AddedTokens,
    decoder: &Decoder,
) -> Result<Vocab, Error> {
    let added_end = added.tokens.last().map_or(0, |(id, _)| *id as usize + 1);
    let end = tokens.id_end().max(added_end) as u32;
    let mut builder = Builder::default();
    let special = added.special_contents.iter();
    let mut special: Vec<u32> = special.filter_map(|token| tokens.id(token)).collect();
    special.sort_unstable();
    let mut rest = added.tokens.iter().peekable();
    for id in 0..end {
        let model = tokens.get(id);
        let Some((_, token)) = rest.next_if(|(next, _)| *next == id) else {
            let Some(token) = model else {
                builder.push_hole();
                continue;
            };
            let info = Info {
                hidden: special.binary_search(&id).is_ok(),
                model: true,
                ..Info::default()
            };
            builder.push(token, |out| decoder.push_piece(token, out), info);
            continue;
        };
        if let Some(other) = model.filter(|other| *other != token.content) {
            // Happens where the vocabulary has holes: the next free id is not free.
            return Err(Error::DuplicateId {
                id,
                first: other.to_owned(),
                second: token.content.clone(),
            });
        }
        // Decoding writes an added token in its normalized form.
        let form = added.normalized_forms.get(&id);
        let spelling = form.unwrap_or(&token.content);
        let info = Info {
            hidden: added.special_contents.contains(spelling),
            special: token.special,
            added: true,
            model: model.is_some(),
            renamed: form.is_some(),
        };
        builder.push(spelling, |out| decoder.push_piece(spelling, out), info);
    }
    let contents = added.ids.keys();
    let new = contents.filter(|content| tokens.id(content).is_none());
    let vocab = builder.finish(tokens.len() + new.count());
    vocab.map_err(|id| token_collides(tokens.get(id).unwrap_or_default()))
}
