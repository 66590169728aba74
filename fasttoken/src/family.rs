//! The families of models, behind one interface.

use crate::added::{AddedTokens, Recognise};
use crate::byte_level::{ByteLevel, HeldBytes};
use crate::collect::{Collect, Collected};
use crate::format::Writer;
use crate::pieces;
use crate::spm::{self, Spm};
use crate::text_model::TextModel;
use crate::text_walk::TextSteps;
use std::borrow::Cow;
use std::ops::ControlFlow;

/// A model with its vocabulary, and with its own way from a text to words and from ids to a text.
#[derive(Debug)]
pub(crate) enum Family {
    /// Byte-level BPE.
    ByteLevel(Box<ByteLevel>),
    /// WordPiece, Unigram and BPE of characters of a `tokenizer.json`.
    Text(Box<TextModel>),
    /// BPE and Unigram of a SentencePiece `.model` file.
    Spm(Box<Spm>),
}

/// The state of decoding id by id, of any family.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stream {
    bytes: HeldBytes,
    pieces: pieces::Stream,
    spm: spm::Stream,
}

/// Calls a method that all families have.
macro_rules! each {
    ($self:ident, $family:ident => $call:expr) => {
        match $self {
            Self::ByteLevel($family) => $call,
            Self::Text($family) => $call,
            Self::Spm($family) => $call,
        }
    };
}

impl Family {
    /// Appends the ids of `text`. If `plain`, text does not become added tokens.
    pub(crate) fn encode(
        &self,
        steps: TextSteps<'_>,
        text: &str,
        mode: (Recognise, bool),
        out: &mut Vec<u32>,
    ) {
        each!(self, family => family.encode(steps, text, mode, out));
    }

    /// Returns the first `max` ids of `text`, and the number of bytes that they cover.
    pub(crate) fn prefix(&self, steps: TextSteps<'_>, text: &str, max: usize) -> (Vec<u32>, usize) {
        each!(self, family => family.prefix(steps, text, max, self.has_safe_cuts()))
    }

    /// Collects the ids of `text` with their offsets. Breaks if a limit was reached.
    pub(crate) fn collect(
        &self,
        steps: TextSteps<'_>,
        text: &str,
        collected: &mut Collected<'_>,
    ) -> ControlFlow<()> {
        each!(self, family => family.collect(steps, text, collected))
    }

    /// Returns true if texts can be cut at the places of [`crate::window`].
    pub(crate) fn has_safe_cuts(&self) -> bool {
        matches!(self, Self::ByteLevel(model) if model.safe_cuts)
    }

    /// Returns the text of `ids`.
    pub(crate) fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        match self {
            Self::ByteLevel(family) => {
                String::from_utf8(family.decode_bytes(ids, skip_special_tokens))
                    .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
            }
            Self::Text(family) => family.decode(ids, skip_special_tokens),
            Self::Spm(family) => family.decode(ids, skip_special_tokens),
        }
    }

    /// Returns the bytes of `ids`, which need not be UTF-8.
    pub(crate) fn decode_bytes(&self, ids: &[u32], skip_special_tokens: bool) -> Vec<u8> {
        each!(self, family => family.decode_bytes(ids, skip_special_tokens))
    }

    /// Appends the text that `id` completes.
    #[inline]
    pub(crate) fn push(&self, state: &mut Stream, id: u32, skip: bool, out: &mut String) {
        match self {
            Self::ByteLevel(family) => state.bytes.push(family.vocab.shown_piece(id, skip), out),
            Self::Text(family) => family.push(&mut state.pieces, id, skip, out),
            Self::Spm(family) => family.push(&mut state.spm, id, skip, out),
        }
    }

    /// Ends a text that was decoded id by id.
    pub(crate) fn finish(&self, state: &mut Stream, out: &mut String) {
        match self {
            Self::ByteLevel(_) => state.bytes.finish(out),
            Self::Text(family) => family.finish(&mut state.pieces, out),
            Self::Spm(family) => family.finish(&mut state.spm, out),
        }
    }

    pub(crate) fn contains(&self, id: u32) -> bool {
        each!(self, family => family.vocab.contains(id))
    }

    pub(crate) fn piece(&self, id: u32) -> &[u8] {
        each!(self, family => family.vocab.piece(id))
    }

    pub(crate) fn spelling(&self, id: u32) -> Option<Cow<'_, str>> {
        match self {
            Self::ByteLevel(family) => family.vocab.spelling(id),
            Self::Text(family) => family.vocab.spelling(id).map(Cow::Borrowed),
            Self::Spm(family) => family.vocab.spelling(id).map(Cow::Borrowed),
        }
    }

    /// Returns the id of a token that is not looked up as an added token.
    pub(crate) fn id(&self, added: &AddedTokens, token: &str) -> Option<u32> {
        let id = match self {
            Self::ByteLevel(family) => return family.vocab.model_id(token),
            Self::Text(family) => family.vocab.id(token)?,
            Self::Spm(family) => family.vocab.id(token)?,
        };
        // The vocabulary spells such a token in its normalized form, which is not its name.
        let renamed = added.normalized_forms.contains_key(&id);
        (!renamed).then_some(id)
    }

    /// Returns one more than the largest id.
    pub(crate) fn end(&self) -> u32 {
        each!(self, family => family.vocab.end())
    }

    /// Returns the number of tokens, as the reference counts them.
    pub(crate) fn size(&self) -> usize {
        each!(self, family => family.vocab.size())
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        each!(self, family => family.vocab.is_special(id))
    }

    /// Writes the tables of a compiled tokenizer with these added tokens.
    pub(crate) fn write(&self, added: &AddedTokens, writer: &mut Writer) {
        match self {
            Self::ByteLevel(family) => family.write(writer),
            Self::Text(family) => family.write(added, writer),
            Self::Spm(family) => family.write(writer),
        }
    }
}
