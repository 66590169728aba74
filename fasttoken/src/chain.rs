//! Models whose files name each step: normalizers, pre-tokenizers, WordPiece, and a decoder.
//!
//! A [`Chain`] is the part of a tokenizer that knows these models; added tokens, templates,
//! truncation and padding are those of the tokenizer.

mod collector;
mod presplit;
mod spaces;
mod walk;

use crate::added::AddedTokens;
use crate::error::Error;
use crate::json::{Component, ModelJson};
use crate::pieces::{Decoder, Stream, Token, Tokens, Vocab, vocabulary};
use crate::wordpiece::WordPiece;
use presplit::PreSplit;

/// The model, pre-tokenizer, vocabulary and decoder of a file.
#[derive(Debug)]
pub(crate) struct Chain {
    model: Model,
    presplit: PreSplit,
    decoder: Decoder,
    vocab: Vocab,
}

/// The rule by which words become tokens.
#[derive(Debug)]
enum Model {
    WordPiece(WordPiece),
}

impl Model {
    fn name(&self) -> &'static str {
        match self {
            Self::WordPiece(_) => "WordPiece",
        }
    }

    fn unk(&self) -> u32 {
        match self {
            Self::WordPiece(model) => model.unk(),
        }
    }

    /// Replaces what was found by the tokens of `word`. Those for which `taken` is true are not used.
    #[inline]
    fn encode(&self, word: &str, taken: impl Fn(u32) -> bool, found: &mut Found) {
        match self {
            Self::WordPiece(model) => model.encode(word, taken, &mut found.tokens),
        }
    }
}

/// The tokens of a word.
#[derive(Debug, Default)]
struct Found {
    tokens: Vec<Token>,
}

impl Chain {
    /// Builds everything; `added` was loaded with the ids of `tokens`.
    pub(crate) fn load(
        model: &ModelJson<'_>,
        tokens: &Tokens,
        pre_tokenizer: Option<&Component>,
        decoder: Option<&Component>,
        added: &AddedTokens,
    ) -> Result<Self, Error> {
        let presplit = PreSplit::load(pre_tokenizer, "$.pre_tokenizer")?;
        let decoder = match decoder {
            None => Decoder::none(),
            some => Decoder::load(some, "$.decoder")?,
        };
        Ok(Self {
            model: Model::WordPiece(WordPiece::new(model, tokens)?),
            presplit,
            vocab: vocabulary(tokens, added, &decoder)?,
            decoder,
        })
    }

    /// Returns the text of `ids`.
    pub(crate) fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        self.decoder
            .decode(&self.vocab, self.shown(ids, skip_special_tokens))
    }

    /// Returns the bytes of `ids`, which need not be UTF-8.
    pub(crate) fn decode_bytes(&self, ids: &[u32], skip_special_tokens: bool) -> Vec<u8> {
        let ids = self.shown(ids, skip_special_tokens);
        self.decoder.decode_bytes(&self.vocab, ids)
    }

    fn shown(&self, ids: &[u32], skip: bool) -> impl Iterator<Item = u32> {
        let hidden = move |id: u32| skip && self.vocab.is_hidden(id);
        ids.iter().copied().filter(move |id| !hidden(*id))
    }

    /// Appends the text that `id` completes.
    pub(crate) fn push(&self, state: &mut Stream, id: u32, skip: bool, out: &mut String) {
        if !(skip && self.vocab.is_hidden(id)) {
            self.decoder.push(state, &self.vocab, id, out);
        }
    }

    /// Ends a text that was decoded id by id.
    pub(crate) fn finish(&self, state: &mut Stream, out: &mut String) {
        self.decoder.finish(state, out);
    }

    /// Returns the name of the model.
    pub(crate) fn name(&self) -> &'static str {
        self.model.name()
    }

    pub(crate) fn vocab(&self) -> &Vocab {
        &self.vocab
    }
}
