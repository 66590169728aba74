//! The models of a `tokenizer.json` whose tokens are text and not bytes (WordPiece, Unigram, and BPE of
//! characters), with the pre-tokenizers and decoders that their files name.
//!
//! A [`TextModel`] is the part of a tokenizer that knows these models; added tokens, templates,
//! truncation and padding are those of the tokenizer.

mod compiled_text_model;
mod id_collector;
mod metaspace_splitter;
mod offset_collector;
mod word_splitter;

use crate::added::AddedTokens;
use crate::char_bpe::{self, CharBpe, Direct};
use crate::error::Error;
use crate::json::{Component, ModelJson};
use crate::lattice::Lattice;
use crate::normalize::Normalizer;
use crate::pieces::{Decoder, Stream, Token, Tokens, Vocab, read_scored, read_tokens, vocabulary};
use crate::unigram::Unigram;
use crate::wordpiece::WordPiece;
pub(crate) use compiled_text_model::Tables;
use std::ops::ControlFlow;
use word_splitter::WordSplitter;

/// The model, pre-tokenizer, vocabulary and decoder of a file.
#[derive(Debug)]
pub(crate) struct TextModel {
    model: Model,
    splitter: WordSplitter,
    /// The shortcut of a BPE model for texts that need no other normalizing.
    direct: Option<Direct>,
    decoder: Decoder,
    pub(crate) vocab: Vocab,
}

/// The rule by which words become tokens.
#[derive(Debug)]
pub(crate) enum Model {
    WordPiece(WordPiece),
    Unigram(Unigram),
    Bpe(Box<CharBpe>),
}

/// The tokens of a word, and memory kept between words.
#[derive(Debug, Default)]
struct Found {
    tokens: Vec<Token>,
    lattice: Lattice<f64>,
    merging: char_bpe::Scratch,
}

/// Returns true if the model of a file is BPE of characters, and not byte-level: its decoder is a chain,
/// or puts spaces for `▁`, and its pre-tokenizer is not byte-level.
pub(crate) fn is_char_bpe(pre_tokenizer: Option<&Component>, decoder: Option<&Component>) -> bool {
    let kind = decoder.and_then(|decoder| decoder.kind("$.decoder").ok());
    matches!(kind, Some("Sequence" | "Metaspace")) && !pre_tokenizer.is_some_and(is_byte_level)
}

fn is_byte_level(component: &Component) -> bool {
    let path = "$.pre_tokenizer";
    let parts = component.parts("pretokenizers", path).unwrap_or_default();
    matches!(component.kind(path), Ok("ByteLevel"))
        || parts.iter().any(|(part, _)| is_byte_level(part))
}

impl Model {
    /// Reads the WordPiece or Unigram model of a file and its tokens. Returns `None` for a model of
    /// another kind.
    pub(crate) fn read(json: &ModelJson) -> Result<Option<(Self, Tokens)>, Error> {
        let vocab = |kind: &str, shape: &str| {
            let problem = format!("a {kind} model needs a {shape} \"vocab\"");
            let vocab = json.vocab.as_ref();
            vocab.ok_or_else(|| Error::invalid("$.model", problem))
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
            Self::Bpe(model) => model.unk.unwrap_or(char_bpe::NO_ID),
        }
    }

    fn is_bpe(&self) -> bool {
        matches!(self, Self::Bpe(_))
    }

    /// Returns true if the token with this id is spelled as the text that it stands for, as the
    /// reference does it with text that Unigram does not know.
    fn keeps_text_of(&self, id: u32) -> bool {
        matches!(self, Self::Unigram(model) if model.unk() == id)
    }

    /// Calls `each` with the tokens of `word`, of a BPE model a part at a time.
    #[inline]
    fn encode(
        &self,
        word: &str,
        found: &mut Found,
        mut each: impl FnMut(&[Token]) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let Found {
            tokens,
            lattice,
            merging,
        } = found;
        match self {
            Self::WordPiece(model) => model.encode(word, |_| false, tokens),
            Self::Unigram(model) => model.encode(word, |_| false, lattice, tokens),
            Self::Bpe(model) => return model.encode(word, (merging, tokens), each),
        }
        each(tokens)
    }

    /// Appends the ids of `word`. Tokens for which `taken` is true are not used.
    #[inline]
    fn push_ids(
        &self,
        word: &str,
        taken: impl Fn(u32) -> bool,
        found: &mut Found,
        out: &mut Vec<u32>,
    ) {
        let Found {
            tokens,
            lattice,
            merging,
        } = found;
        match self {
            Self::WordPiece(model) => model.encode(word, taken, tokens),
            Self::Unigram(model) => model.encode(word, taken, lattice, tokens),
            Self::Bpe(model) => return model.push_ids(word, taken, merging, out),
        }
        out.extend(tokens.iter().map(|token| token.id));
    }
}

fn decoder(component: Option<&Component>) -> Result<Decoder, Error> {
    match component {
        None => Ok(Decoder::none()),
        some => Decoder::load(some, "$.decoder"),
    }
}

impl TextModel {
    /// Builds everything; `added` was loaded with the ids of the model's `tokens`.
    pub(crate) fn load(
        model: Model,
        tokens: &Tokens,
        pre_tokenizer: Option<&Component>,
        decoder: Option<&Component>,
        added: &AddedTokens,
    ) -> Result<Self, Error> {
        let splitter = WordSplitter::load(pre_tokenizer, "$.pre_tokenizer", model.is_bpe())?;
        let decoder = self::decoder(decoder)?;
        Ok(Self {
            model,
            splitter,
            direct: None,
            vocab: vocabulary(tokens, added, &decoder)?,
            decoder,
        })
    }

    /// Finds the shortest way from a text to its ids, given what comes before the model.
    ///
    /// # Errors
    /// When a BPE model has a normalizer that is not supported before it.
    pub(crate) fn prepare(
        &mut self,
        normalizer: &Normalizer,
        added: &AddedTokens,
    ) -> Result<(), Error> {
        if self.model.is_bpe() {
            normalizer.only_plain()?;
            let WordSplitter {
                metaspace, after, ..
            } = &self.splitter;
            self.direct = Direct::new(normalizer, *metaspace, after.as_deref(), added);
        }
        Ok(())
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
}
