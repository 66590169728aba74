//! A vocabulary in a compiled tokenizer, with the model's own spellings of its tokens.

use super::Vocab;
use crate::added::AddedTokens;
use crate::format::{CompiledError, Reader, Section, Writer};
use std::collections::{HashMap, HashSet};

/// A vocabulary that was read from a compiled tokenizer.
pub(crate) struct StoredVocab {
    pub(crate) vocab: Vocab,
    /// Tokens of the model that are spelled otherwise in `vocab`, since they are also added ones,
    /// which are searched for in normalized text.
    renamed: HashMap<String, u32>,
}

impl StoredVocab {
    /// Writes a vocabulary; `added` are the tokenizer's added tokens.
    pub(crate) fn write(vocab: &Vocab, added: &AddedTokens, writer: &mut Writer) {
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

    /// Reads a vocabulary of `size` tokens, as the reference counts them.
    pub(crate) fn read(reader: &Reader, size: u32) -> Result<Self, CompiledError> {
        let vocab = Vocab::read(reader, size as usize)?;
        let renamed = reader.get::<u8>(Section::Renamed)?;
        let renamed: Vec<(u32, String)> = serde_json::from_slice(&renamed)
            .map_err(|error| Section::Renamed.invalid(error.to_string()))?;
        let renamed = renamed.into_iter().map(|(id, token)| (token, id)).collect();
        Ok(Self { vocab, renamed })
    }

    /// Returns the id of one of the model's own tokens.
    pub(crate) fn model_id(&self, token: &str) -> Option<u32> {
        let own = |id: &u32| self.vocab.is_model(*id) && !self.renamed.values().any(|r| r == id);
        let renamed = self.renamed.get(token).copied();
        renamed.or_else(|| self.vocab.id(token).filter(own))
    }

    /// Returns the model's own tokens by their spellings.
    pub(crate) fn model_tokens(&self) -> HashMap<String, u32> {
        let others: HashSet<u32> = self.renamed.values().copied().collect();
        let own = self.vocab.model_tokens();
        let own = own.filter(|(_, id)| !others.contains(id));
        let own = own.map(|(token, id)| (token.to_owned(), id));
        own.chain(self.renamed.clone()).collect()
    }

    pub(crate) fn is_added(&self, id: u32) -> bool {
        self.vocab.is_added(id)
    }
}
