//! The merges and words of an image.

use super::{Bpe, loses_bytes};
use crate::atoms::Atoms;
use crate::cache::Owner;
use crate::image::ImageError;
use crate::image::format::{Reader, Section, Writer};
use crate::pairs::PairTable;
use crate::store::Movable;
use crate::table::StringTable;
use crate::words::WordTable;

impl Bpe {
    pub(crate) fn write(&self, image: &mut Writer) {
        image.put(Section::ByteIds, &self.byte_ids);
        self.pairs.write(image);
        image.put(Section::Words, self.words.lines());
        image.put(Section::LongWords, self.long_words.slots());
        let (shortest, longest) = self.long_lens;
        image.put(
            Section::WordFacts,
            &[shortest, longest, u32::from(self.proved)],
        );
        self.atoms.write(image);
    }

    pub(crate) fn read(image: &Reader) -> Result<Self, ImageError> {
        let byte_ids = image.get::<u32>(Section::ByteIds)?;
        let words = WordTable::from_lines(image.get(Section::Words)?);
        let long_words = StringTable::from_slots(image.get(Section::LongWords)?);
        let facts = image.get::<u32>(Section::WordFacts)?;
        let &[shortest, longest, proved] = &*facts else {
            return Err(Section::WordFacts.invalid("there are not three of them"));
        };
        let unlike = "it is not a table";
        let byte_ids: [u32; 256] = byte_ids[..]
            .try_into()
            .map_err(|_| Section::ByteIds.invalid("there are not 256 of them"))?;
        let mut this = Self {
            byte_ids,
            pairs: PairTable::read(image)?,
            words: words.ok_or_else(|| Section::Words.invalid(unlike))?,
            long_words: long_words.ok_or_else(|| Section::LongWords.invalid(unlike))?,
            long_lens: (shortest, longest),
            atoms: Atoms::read(image)?,
            owner: Owner::NONE,
            parts_owner: Owner::NONE,
            proved: proved == 1,
            loses_bytes: loses_bytes(&byte_ids),
        };
        this.name_owners();
        Ok(this)
    }

    /// All tables, those that encoding reads most first.
    pub(crate) fn tables(&mut self) -> impl Iterator<Item = &mut dyn Movable> {
        let first = self.atoms.tables().into_iter();
        let rest = [self.words.table(), self.long_words.table()];
        first.chain(self.pairs.tables()).chain(rest)
    }
}
