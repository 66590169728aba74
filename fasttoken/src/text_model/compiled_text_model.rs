//! Writing and reading the tables of a model whose tokens are text in a compiled tokenizer.

use super::word_splitter::WordSplitter;
use super::{Model, TextModel};
use crate::added::AddedTokens;
use crate::char_bpe::{CharBpe, NO_ID};
use crate::error::Error;
use crate::format::{CompiledError, Reader, Section, Writer};
use crate::json::{Component, ModelJson};
use crate::pieces::StoredVocab;
use crate::unigram::Unigram;
use crate::wordpiece::WordPiece;

/// The tables of a model in a compiled tokenizer.
pub(crate) struct Tables {
    model: Model,
    stored: StoredVocab,
    /// The number of tokens of the model.
    model_len: usize,
}

impl TextModel {
    /// Writes the model and the vocabulary; `added` are the tokenizer's added tokens.
    pub(crate) fn write(&self, added: &AddedTokens, writer: &mut Writer) {
        let Self { model, vocab, .. } = self;
        let model_len = vocab.model_tokens().count() as u32;
        writer.put(
            Section::ModelFacts,
            &[model.unk(), model_len, vocab.size() as u32],
        );
        match model {
            Model::WordPiece(model) => model.write(writer),
            Model::Unigram(model) => model.write(writer),
            Model::Bpe(model) => model.write(writer),
        }
        StoredVocab::write(vocab, added, writer);
    }
}

impl Tables {
    /// Reads the tables; `json` is the model in the configuration, and `is_char_bpe` says whether a BPE
    /// model is one of characters. Returns `None` for a model of another kind.
    pub(crate) fn read(
        reader: &Reader,
        json: &ModelJson,
        is_char_bpe: bool,
    ) -> Result<Option<Self>, CompiledError> {
        let kind = json.kind.as_deref();
        let is_other = matches!(kind, Some("WordPiece" | "Unigram"));
        if !is_other && !is_char_bpe {
            return Ok(None);
        }
        let facts = reader.get::<u32>(Section::ModelFacts)?;
        let &[unk, model_len, size] = &*facts else {
            return Err(Section::ModelFacts.invalid("there are not three of them"));
        };
        let stored = StoredVocab::read(reader, size)?;
        let end = stored.vocab.end();
        let known = unk < end || !is_other && unk == NO_ID;
        if model_len > size || !known {
            return Err(Section::ModelFacts.invalid("its numbers contradict each other"));
        }
        let model = match kind {
            Some("WordPiece") => Model::WordPiece(WordPiece::read(reader, json, unk, end)?),
            Some("Unigram") => Model::Unigram(Unigram::read(reader, json, unk, end)?),
            _ => Model::Bpe(Box::new(CharBpe::read(reader, json, unk, &stored)?)),
        };
        Ok(Some(Self {
            model,
            stored,
            model_len: model_len as usize,
        }))
    }

    /// Returns the number of tokens, without added ones.
    pub(crate) fn model_len(&self) -> usize {
        self.model_len
    }

    /// Returns the id of one of the model's own tokens.
    pub(crate) fn model_id(&self, token: &str) -> Option<u32> {
        self.stored.model_id(token)
    }

    pub(crate) fn is_added(&self, id: u32) -> bool {
        self.stored.is_added(id)
    }

    /// Completes the model with the settings of the configuration.
    pub(crate) fn finish(
        self,
        pre_tokenizer: Option<&Component>,
        decoder: Option<&Component>,
    ) -> Result<TextModel, Error> {
        Ok(TextModel {
            splitter: WordSplitter::load(pre_tokenizer, "$.pre_tokenizer", self.model.is_bpe())?,
            model: self.model,
            direct: None,
            decoder: super::decoder(decoder)?,
            vocab: self.stored.vocab,
        })
    }
}
