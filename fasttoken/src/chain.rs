//! WordPiece and Unigram models, and the chains of steps before and after them that their files
//! name.
//!
//! A [`Chain`] is the part of a tokenizer that knows these models; added tokens, templates,
//! truncation and padding are those of the tokenizer.

mod collector;
mod presplit;
mod spaces;
mod tables;
mod walk;

use crate::added::AddedTokens;
use crate::error::Error;
use crate::json::{Component, ModelJson};
use crate::pieces::{Decoder, Stream, Token, Tokens, Vocab, read_scored, read_tokens, vocabulary};
use crate::unigram::{Lattice, Unigram};
use crate::wordpiece::WordPiece;
use presplit::PreSplit;
pub(crate) use tables::Tables;

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
pub(crate) enum Model {
    WordPiece(WordPiece),
    Unigram(Unigram),
}

/// The tokens of a word, and memory kept between words.
#[derive(Debug, Default)]
struct Found {
    tokens: Vec<Token>,
    lattice: Lattice,
}

impl Model {
    /// Reads the model of a file and its tokens. Returns `None` for a model of another kind.
    pub(crate) fn read(json: &ModelJson<'_>) -> Result<Option<(Self, Tokens)>, Error> {
        let vocab = |kind: &str, shape: &str| {
            let problem = format!("a {kind} model needs a {shape} \"vocab\"");
            json.vocab.ok_or_else(|| Error::invalid("$.model", problem))
        };
        match json.kind.as_deref() {
            Some("WordPiece") => {
                let tokens = read_tokens(vocab("WordPiece", "map")?)?;
                let model = WordPiece::new(json, &tokens)?;
                Ok(Some((Self::WordPiece(model), tokens)))
            }
            Some("Unigram") => {
                let (tokens, scores) = read_scored(vocab("Unigram", "list")?)?;
                let model = Unigram::new(json, &tokens, scores)?;
                Ok(Some((Self::Unigram(model), tokens)))
            }
            _ => Ok(None),
        }
    }

    fn unk(&self) -> u32 {
        match self {
            Self::WordPiece(model) => model.unk(),
            Self::Unigram(model) => model.unk(),
        }
    }

    /// Returns true if the token with this id is spelled as the text that it stands for, as the
    /// reference does it with text that Unigram does not know.
    fn keeps_text_of(&self, id: u32) -> bool {
        matches!(self, Self::Unigram(model) if model.unk() == id)
    }

    /// Replaces what was found by the tokens of `word`. Those for which `taken` is true are not
    /// used.
    #[inline]
    fn encode(&self, word: &str, taken: impl Fn(u32) -> bool, found: &mut Found) {
        let Found { tokens, lattice } = found;
        match self {
            Self::WordPiece(model) => model.encode(word, taken, tokens),
            Self::Unigram(model) => model.encode(word, taken, lattice, tokens),
        }
    }
}

fn decoder(component: Option<&Component>) -> Result<Decoder, Error> {
    match component {
        None => Ok(Decoder::none()),
        some => Decoder::load(some, "$.decoder"),
    }
}

impl Chain {
    /// Builds everything; `added` was loaded with the ids of the model's `tokens`.
    pub(crate) fn load(
        model: Model,
        tokens: &Tokens,
        pre_tokenizer: Option<&Component>,
        decoder: Option<&Component>,
        added: &AddedTokens,
    ) -> Result<Self, Error> {
        let presplit = PreSplit::load(pre_tokenizer, "$.pre_tokenizer")?;
        let decoder = self::decoder(decoder)?;
        Ok(Self {
            model,
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

    pub(crate) fn vocab(&self) -> &Vocab {
        &self.vocab
    }
}
