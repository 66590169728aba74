//! The models that are not byte-level, behind one interface.

use crate::added::{AddedTokens, Recognise, TextSteps};
use crate::chain::Chain;
use crate::collect::Collect;
use crate::encoding::Encoding;
use crate::pieces::{self, Vocab};
use crate::sentencepiece::SentencePiece;
use crate::spm::{self, Spm};

/// A model whose tokens are text, with its vocabulary and decoder.
#[derive(Debug)]
pub(crate) enum Family {
    /// BPE in the style of SentencePiece.
    SentencePiece(Box<SentencePiece>),
    /// WordPiece and Unigram.
    Chain(Box<Chain>),
    /// BPE and Unigram of a SentencePiece `.model` file.
    Spm(Box<Spm>),
}

/// The state of decoding id by id, of any family.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stream {
    pieces: pieces::Stream,
    spm: spm::Stream,
}

/// Calls a method that all families have.
macro_rules! each {
    ($self:ident, $family:ident => $call:expr) => {
        match $self {
            Self::SentencePiece($family) => $call,
            Self::Chain($family) => $call,
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
        match self {
            Self::SentencePiece(family) => family.encode(steps, text, mode, out),
            Self::Chain(family) => family.encode(steps, text, mode, out),
            Self::Spm(family) => family.encode(text, mode, out),
        }
    }

    /// Returns the first `max` ids of `text`, and the number of bytes that they cover.
    pub(crate) fn prefix(&self, steps: TextSteps<'_>, text: &str, max: usize) -> (Vec<u32>, usize) {
        each!(self, family => family.prefix(steps, text, max))
    }

    /// Encodes one text without a template. With `stop_at`, stops after the word in which that
    /// number of ids is reached. Returns the encoding, the start of each word (`true`) and added
    /// token in the ids, and true if it stopped early.
    pub(crate) fn encode_text(
        &self,
        steps: TextSteps<'_>,
        text: &str,
        wanted: bool,
        stop_at: usize,
    ) -> (Encoding, Vec<(usize, bool)>, bool) {
        each!(self, family => family.encode_text(steps, text, wanted, stop_at))
    }

    /// Returns the text of `ids`.
    pub(crate) fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        each!(self, family => family.decode(ids, skip_special_tokens))
    }

    /// Returns the bytes of `ids`, which need not be UTF-8.
    pub(crate) fn decode_bytes(&self, ids: &[u32], skip_special_tokens: bool) -> Vec<u8> {
        each!(self, family => family.decode_bytes(ids, skip_special_tokens))
    }

    /// Appends the text that `id` completes.
    pub(crate) fn push(&self, state: &mut Stream, id: u32, skip: bool, out: &mut String) {
        match self {
            Self::SentencePiece(family) => family.push(&mut state.pieces, id, skip, out),
            Self::Chain(family) => family.push(&mut state.pieces, id, skip, out),
            Self::Spm(family) => family.push(&mut state.spm, id, skip, out),
        }
    }

    /// Ends a text that was decoded id by id.
    pub(crate) fn finish(&self, state: &mut Stream, out: &mut String) {
        match self {
            Self::SentencePiece(family) => family.finish(&mut state.pieces, out),
            Self::Chain(family) => family.finish(&mut state.pieces, out),
            Self::Spm(family) => family.finish(&mut state.spm, out),
        }
    }

    fn vocab(&self) -> &Vocab {
        each!(self, family => family.vocab())
    }

    pub(crate) fn contains(&self, id: u32) -> bool {
        self.vocab().contains(id)
    }

    pub(crate) fn piece(&self, id: u32) -> &[u8] {
        self.vocab().piece(id)
    }

    pub(crate) fn spelling(&self, id: u32) -> Option<&str> {
        self.vocab().spelling(id)
    }

    /// Returns the id of a token that is not looked up as an added token.
    pub(crate) fn id(&self, added: &AddedTokens, token: &str) -> Option<u32> {
        let id = self.vocab().id(token)?;
        // The vocabulary spells such a token in its normalized form, which is not its name.
        let renamed = added.normalized_forms.contains_key(&id);
        (!renamed).then_some(id)
    }

    /// Returns one more than the largest id.
    pub(crate) fn end(&self) -> u32 {
        self.vocab().end()
    }

    pub(crate) fn size(&self) -> usize {
        self.vocab().size
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.vocab().is_special(id)
    }
}
