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
use crate::pieces::{Decoder, Vocab};
use crate::short_tokens::ShortTokenTable;
use std::collections::{HashMap, HashSet};

/// The tables of a SentencePiece-style model in a compiled tokenizer.
pub(crate) struct Tables {
    model: Model,
    vocab: Vocab,
    /// The number of tokens of the model.
    model_len: usize,
    /// Tokens of the model that are spelled otherwise in `vocab`, since they are also added
    /// ones, which are searched for in normalized text.
    renamed: HashMap<String, u32>,
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
        vocab.write(writer);
        let renamed = added.tokens.iter().filter(|(id, _)| {
            let other = added.normalized_forms.contains_key(id);
            other && vocab.is_model(*id)
        });
        let renamed: Vec<(u32, &str)> = renamed
            .map(|(id, token)| (*id, token.content.as_str()))
            .collect();
        let renamed = serde_json::to_vec(&renamed).expect("numbers and strings are JSON");
        writer.put(Section::Renamed, &renamed);
    }
}

impl Tables {
    /// `ignore_merges` is what the configuration says.
    pub(crate) fn read(reader: &Reader, ignore_merges: bool) -> Result<Self, CompiledError> {
        let facts = reader.get::<u32>(Section::ModelFacts)?;
        let &[unk, fuse_unk, model_len, size] = &*facts else {
            return Err(Section::ModelFacts.invalid("there are not four of them"));
        };
        let vocab = Vocab::read(reader, size as usize)?;
        if model_len > size {
            return Err(Section::ModelFacts.invalid("its numbers contradict each other"));
        }
        let bytes: [u32; 256] = reader.get::<u32>(Section::ByteIds)?[..]
            .try_into()
            .map_err(|_| Section::ByteIds.invalid("there are not 256 of them"))?;
        let letters = Letters::read(reader)?;
        let words = ShortTokenTable::from_lines(reader.get(Section::Words)?);
        let renamed = reader.get::<u8>(Section::Renamed)?;
        let renamed: Vec<(u32, String)> = serde_json::from_slice(&renamed)
            .map_err(|error| Section::Renamed.invalid(error.to_string()))?;
        let renamed: HashMap<String, u32> = renamed.into_iter().map(|(id, t)| (t, id)).collect();
        let whole = || {
            let others: HashSet<u32> = renamed.values().copied().collect();
            let own = vocab.model_tokens().filter(|(_, id)| !others.contains(id));
            let own = own.map(|(token, id)| (token.to_owned(), id));
            own.chain(renamed.clone()).collect()
        };
        let model = Model {
            letters,
            bytes,
            unk: (unk != NO_ID).then_some(unk),
            fuse_unk: fuse_unk != 0,
            pairs: PairTable::read(reader)?,
            cut_table: CutTable::read(reader)?,
            words: words.ok_or_else(|| Section::Words.invalid("it is not a table"))?,
            owner: Owner::new(),
            whole: ignore_merges.then(whole),
            complete: is_complete(&bytes),
        };
        Ok(Self {
            model,
            vocab,
            model_len: model_len as usize,
            renamed,
        })
    }

    /// The number of tokens, without added ones.
    pub(crate) fn model_len(&self) -> usize {
        self.model_len
    }

    /// The id of one of the model's own tokens.
    pub(crate) fn model_id(&self, token: &str) -> Option<u32> {
        let own = |id: &u32| self.vocab.is_model(*id) && !self.renamed.values().any(|r| r == id);
        let renamed = self.renamed.get(token).copied();
        renamed.or_else(|| self.vocab.id(token).filter(own))
    }

    pub(crate) fn is_added(&self, id: u32) -> bool {
        self.vocab.is_added(id)
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
            vocab: self.vocab,
        })
    }
}
