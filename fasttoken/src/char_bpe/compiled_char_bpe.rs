//! Writing and reading the tables of a model in a compiled tokenizer.

use super::char_bpe_builder::is_complete;
use super::cut_table::CutTable;
use super::letter_table::LetterTable;
use super::{CharBpe, NO_ID};
use crate::cache::Owner;
use crate::format::{CompiledError, Reader, Section, Writer};
use crate::json::ModelJson;
use crate::pairs::PairTable;
use crate::pieces::StoredVocab;
use crate::short_tokens::ShortTokenTable;

impl CharBpe {
    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.put(Section::ByteIds, &self.bytes);
        self.letters.write(writer);
        self.pairs.write(writer);
        self.cut_table.write(writer);
        writer.put(Section::Words, self.words.lines());
    }

    /// Reads the tables; `json` is the model in the configuration, and `unk` the unknown token or
    /// [`NO_ID`].
    pub(crate) fn read(
        reader: &Reader,
        json: &ModelJson,
        unk: u32,
        stored: &StoredVocab,
    ) -> Result<Self, CompiledError> {
        let bytes: [u32; 256] = reader.get::<u32>(Section::ByteIds)?[..]
            .try_into()
            .map_err(|_| Section::ByteIds.invalid("there are not 256 of them"))?;
        let words = ShortTokenTable::from_lines(reader.get(Section::Words)?);
        let ignore_merges = json.ignore_merges == Some(true);
        Ok(Self {
            letters: LetterTable::read(reader)?,
            bytes,
            unk: (unk != NO_ID).then_some(unk),
            fuse_unk: json.fuse_unk == Some(true),
            pairs: PairTable::read(reader)?,
            cut_table: CutTable::read(reader)?,
            words: words.ok_or_else(|| Section::Words.invalid("it is not a table"))?,
            owner: Owner::new(),
            whole: ignore_merges.then(|| stored.model_tokens()),
            complete: is_complete(&bytes),
        })
    }
}
