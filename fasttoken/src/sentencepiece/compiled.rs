//! Writing and reading the tables of a SentencePiece-style model in a compiled tokenizer.

use super::SentencePiece;
use super::cut_table::CutTable;
use super::letters::Letters;
use super::load::is_complete;
use super::merge::{Model, NO_ID};
use super::split::Splitter;
use crate::added::AddedTokens;
use crate::cache::Owner;
use crate::error::Error;
use crate::format::CompiledError;
use crate::format::{Reader, Section, Writer};
use crate::json::Component;
use crate::pairs::PairTable;
use crate::pieces::{Decoder, StoredVocab};
use crate::short_tokens::ShortTokenTable;

/// The tables of a SentencePiece-style model in a compiled tokenizer.
pub(crate) struct Tables {
    model: Model,
    stored: StoredVocab,
    /// The number of tokens of the model.
    model_len: usize,
}

impl SentencePiece {
    /// `added` are the tokenizer's added tokens.
    pub(crate) fn write(&self, added: &AddedTokens, writer: &mut Writer) {
        let Self { model, vocab, .. } = self;
        let facts = [
            model.unk.unwrap_or(NO_ID),
            u32::from(model.fuse_unk),
            vocab.model_tokens().count() as u32,
            vocab.size as u32,
        ];
        writer.put(Section::ModelFacts, &facts);
        writer.put(Section::ByteIds, &model.bytes);
        model.letters.write(writer);
        model.pairs.write(writer);
        model.cut_table.write(writer);
        writer.put(Section::Words, model.words.lines());
        StoredVocab::write(vocab, added, writer);
    }
}

impl Tables {
    /// `ignore_merges` is what the configuration says.
    pub(crate) fn read(reader: &Reader, ignore_merges: bool) -> Result<Self, CompiledError> {
        let facts = reader.get::<u32>(Section::ModelFacts)?;
        let &[unk, fuse_unk, model_len, size] = &*facts else {
            return Err(Section::ModelFacts.invalid("there are not four of them"));
        };
        let stored = StoredVocab::read(reader, size)?;
        if model_len > size {
            return Err(Section::ModelFacts.invalid("its numbers contradict each other"));
        }
        let bytes: [u32; 256] = reader.get::<u32>(Section::ByteIds)?[..]
            .try_into()
            .map_err(|_| Section::ByteIds.invalid("there are not 256 of them"))?;
        let letters = Letters::read(reader)?;
        let words = ShortTokenTable::from_lines(reader.get(Section::Words)?);
        let model = Model {
            letters,
            bytes,
            unk: (unk != NO_ID).then_some(unk),
            fuse_unk: fuse_unk != 0,
            pairs: PairTable::read(reader)?,
            cut_table: CutTable::read(reader)?,
            words: words.ok_or_else(|| Section::Words.invalid("it is not a table"))?,
            owner: Owner::new(),
            whole: ignore_merges.then(|| stored.model_tokens()),
            complete: is_complete(&bytes),
        };
        Ok(Self {
            model,
            stored,
            model_len: model_len as usize,
        })
    }

    /// The number of tokens, without added ones.
    pub(crate) fn model_len(&self) -> usize {
        self.model_len
    }

    /// The id of one of the model's own tokens.
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
    ) -> Result<SentencePiece, Error> {
        Ok(SentencePiece {
            model: self.model,
            splitter: Splitter::load(pre_tokenizer, "$.pre_tokenizer")?,
            direct: None,
            decoder: Decoder::load(decoder, "$.decoder")?,
            vocab: self.stored.vocab,
        })
    }
}
