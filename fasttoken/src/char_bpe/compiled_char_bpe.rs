//! Writing and reading the tables of a model in a compiled tokenizer.

use super::char_bpe_builder::is_complete;
use super::{CharBpe, NO_ID};
use crate::bpe::Bpe;
use crate::format::{CompiledError, Reader, Section, Writer};
use crate::json::ModelJson;
use crate::pieces::StoredVocab;
use crate::vocab::Vocab;

impl CharBpe {
    pub(crate) fn write(&self, writer: &mut Writer) {
        self.engine.write(writer);
        writer.put(Section::Fallback, &self.bytes);
    }

    /// Reads the tables; `json` is the model in the configuration, and `unk` the unknown token or
    /// [`NO_ID`].
    pub(crate) fn read(
        reader: &Reader,
        json: &ModelJson<'_>,
        unk: u32,
        stored: &StoredVocab,
    ) -> Result<Self, CompiledError> {
        let bytes: [u32; 256] = reader.get::<u32>(Section::Fallback)?[..]
            .try_into()
            .map_err(|_| Section::Fallback.invalid("there are not 256 of them"))?;
        let ignore_merges = json.ignore_merges == Some(true);
        Ok(Self {
            engine: Bpe::read_of_chars(reader)?,
            no_words: Vocab::empty(),
            bytes,
            unk: (unk != NO_ID).then_some(unk),
            fuse_unk: json.fuse_unk == Some(true),
            whole: ignore_merges.then(|| stored.model_tokens()),
            complete: is_complete(&bytes),
        })
    }
}
