//! Writing and reading the tables of [`Bpe`] in a compiled tokenizer.

use super::{Bpe, loses_bytes};
use crate::cache::Owner;
use crate::format::CompiledError;
use crate::format::{Reader, Section, Writer};
use crate::pairs::PairTable;
use crate::premerge::Premerged;
use crate::short_tokens::ShortTokenTable;
use crate::store::Relocatable;
use crate::string_table::StringTable;

impl Bpe {
    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.put(Section::ByteIds, &self.byte_ids);
        self.pairs.write(writer);
        writer.put(Section::Words, self.words.lines());
        writer.put(Section::LongWords, self.long_words.slots());
        let (shortest, longest) = self.long_lens;
        writer.put(
            Section::WordFacts,
            &[shortest, longest, u32::from(self.proved)],
        );
        self.premerged.write(writer);
    }

    pub(crate) fn read(reader: &Reader) -> Result<Self, CompiledError> {
        let byte_ids = reader.get::<u32>(Section::ByteIds)?;
        let words = ShortTokenTable::from_lines(reader.get(Section::Words)?);
        let long_words = StringTable::from_slots(reader.get(Section::LongWords)?);
        let facts = reader.get::<u32>(Section::WordFacts)?;
        let &[shortest, longest, proved] = &*facts else {
            return Err(Section::WordFacts.invalid("there are not three of them"));
        };
        let unlike = "it is not a table";
        let byte_ids: [u32; 256] = byte_ids[..]
            .try_into()
            .map_err(|_| Section::ByteIds.invalid("there are not 256 of them"))?;
        let mut this = Self {
            byte_ids,
            pairs: PairTable::read(reader)?,
            words: words.ok_or_else(|| Section::Words.invalid(unlike))?,
            long_words: long_words.ok_or_else(|| Section::LongWords.invalid(unlike))?,
            long_lens: (shortest, longest),
            premerged: Premerged::read(reader)?,
            owner: Owner::NONE,
            proved: proved == 1,
            loses_bytes: loses_bytes(&byte_ids),
        };
        this.name_owners();
        Ok(this)
    }

    /// Returns all tables, in falling order of how often encoding reads them.
    pub(crate) fn tables(&mut self) -> impl Iterator<Item = &mut dyn Relocatable> {
        let first = self.premerged.tables().into_iter();
        let rest = [self.words.table(), self.long_words.table()];
        first.chain(self.pairs.tables()).chain(rest)
    }
}
