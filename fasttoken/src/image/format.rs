//! The container: a header, a table of sections, and the sections.
//!
//! ```text
//! byte 0    magic "fasttokn"
//!      8    format version, u32
//!     12    0x01020304, u32: shows the byte order
//!     16    length of the file, u64
//!     24    number of sections, u32, and a zero u32
//!     32    SHA-256 of the tokenizer.json
//!     64    the table, 32 bytes per section:
//!             kind u32, bytes per element u32, offset u64, length in bytes u64,
//!             XXH3-64 of the section's bytes
//!           XXH3-64 of everything before it, u64
//!           the sections, each from a multiple of 64 on, zeros between them
//! ```
//!
//! Sections are arrays as they lie in memory, so numbers are in the byte order of the
//! machine that compiled the image. All checksums are verified when an image is
//! opened: a flipped bit in a table of ids would otherwise give other ids, silently.
//! XXH3 runs at the speed of memory, so this costs about what reading the file for
//! the first time does.

use super::error::ImageError;
use crate::store::{Flat, Image, LINE};
use bytemuck::{Pod, Zeroable};
use twox_hash::XxHash3_64;

/// Format version: changes with anything that a section means, its order of elements,
/// its hash function, or its config's reading.
pub(crate) const VERSION: u32 = 10;

pub(super) const MAGIC: [u8; 8] = *b"fasttokn";
const ORDER: u32 = 0x0102_0304;

/// What a section holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Section {
    /// The components, as JSON without the vocabulary and the merges.
    Config = 1,
    /// Counts: tokens, tokens of the model, bits of an id in the index of names.
    Counts = 2,
    /// Pieces by id.
    Slots = 3,
    /// Text of long pieces.
    Long = 4,
    /// Properties by id.
    Flags = 5,
    /// Index from spellings to ids.
    Names = 6,
    /// Tokens of single bytes.
    ByteIds = 7,
    /// Ranks of merges by pairs of ids.
    Pairs = 8,
    /// Short words that are one token.
    Words = 9,
    /// Longer words that are one token.
    LongWords = 10,
    /// Least and most bytes of longer words, and whether merges prove all words.
    WordFacts = 11,
    /// Which hashes pairs with a merge have.
    PairBits = 12,
    /// Blocks of the table of atoms.
    AtomIndex = 13,
    /// Tokens of characters that merge first, and which set of bytes excludes them.
    AtomTokens = 14,
    /// The sets.
    AtomSets = 16,
    /// Which characters tokens have side by side.
    Neighbours = 17,
    /// Ranks of merges of the first tokens.
    DensePairs = 18,
    /// What the merge of each rank makes.
    Products = 19,
    /// What the first merge makes.
    PairFacts = 20,
    /// The characters that exclude others.
    AtomChars = 21,
    /// Tokens of characters that merge to two first.
    AtomSplits = 22,
    /// The characters that exclude those before them.
    AtomFollowers = 23,
    /// Tokens of two characters that merge first, and which set of bytes excludes them.
    AtomDoubles = 35,
    // Of SentencePiece-style models only, which have of the above: Config, Flags, Names,
    // ByteIds, Words and what is said of pairs.
    /// The unknown token or all ones, whether unknown characters are one token together,
    /// tokens of the model, tokens as the reference counts them.
    ModelFacts = 24,
    /// Blocks of the table of single characters.
    LetterIndex = 25,
    /// Tokens of single characters, and their classes.
    Letters = 26,
    /// For classes of characters, the ranks of rules that join them.
    BorderRanks = 27,
    /// Which hashes other pairs of characters have that some rule joins.
    BorderBits = 28,
    /// Spellings of tokens, one after the other.
    Spellings = 29,
    /// Where each of these ends, by id.
    SpellingEnds = 30,
    /// What decoding writes for tokens, one after the other.
    Pieces = 31,
    /// Where each of these ends, by id.
    PieceEnds = 32,
    /// Numbers in a row of ranks.
    BorderFacts = 36,
    /// Ids and spellings of tokens that the model spells otherwise than decoding, as JSON.
    Renamed = 34,
}

impl Section {
    fn name(self) -> &'static str {
        match self {
            Self::Config => "configuration",
            Self::Counts => "list of counts",
            Self::Slots => "table of pieces",
            Self::Long => "text of long pieces",
            Self::Flags => "table of flags",
            Self::Names => "index of names",
            Self::ByteIds => "tokens of bytes",
            Self::Pairs => "table of merges",
            Self::Words => "table of words",
            Self::LongWords => "table of long words",
            Self::WordFacts => "list of facts about words",
            Self::PairBits => "filter of merges",
            Self::AtomIndex => "index of characters",
            Self::AtomTokens => "tokens of characters",
            Self::AtomSets => "sets of bytes",
            Self::Neighbours => "filter of neighbours",
            Self::DensePairs => "square of merges",
            Self::Products => "list of what merges make",
            Self::AtomChars => "filter of characters",
            Self::AtomSplits => "pairs of tokens of characters",
            Self::AtomFollowers => "filter of following characters",
            Self::AtomDoubles => "table of double characters",
            Self::PairFacts => "list of facts about merges",
            Self::ModelFacts => "list of facts about the model",
            Self::LetterIndex => "index of single characters",
            Self::Letters => "tokens of single characters",
            Self::BorderRanks => "ranks of pairs of characters",
            Self::BorderFacts => "list of facts about pairs of characters",
            Self::BorderBits => "filter of pairs of characters",
            Self::Spellings => "text of tokens",
            Self::SpellingEnds => "ends of the text of tokens",
            Self::Pieces => "text of decoded tokens",
            Self::PieceEnds => "ends of the text of decoded tokens",
            Self::Renamed => "list of renamed tokens",
        }
    }

    /// An error for what this section holds.
    pub(crate) fn invalid(self, problem: impl Into<String>) -> ImageError {
        ImageError::Invalid {
            part: self.name(),
            problem: problem.into(),
        }
    }
}

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: u32,
    order: u32,
    len: u64,
    sections: u32,
    zero: u32,
    source: [u8; 32],
}

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Entry {
    kind: u32,
    element: u32,
    offset: u64,
    len: u64,
    checksum: u64,
}

const HEADER: usize = size_of::<Header>();
const ENTRY: usize = size_of::<Entry>();
const CHECKSUM: usize = size_of::<u64>();

/// An image under construction.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    sections: Vec<(Section, usize, Vec<u8>)>,
}

impl Writer {
    /// Adds a section; each kind once.
    pub(crate) fn put<T: Pod>(&mut self, section: Section, elements: &[T]) {
        let bytes = bytemuck::cast_slice(elements).to_vec();
        self.sections.push((section, size_of::<T>(), bytes));
    }

    /// The image of the `tokenizer.json` with this SHA-256.
    pub(crate) fn finish(self, source: [u8; 32]) -> Vec<u8> {
        let body = HEADER + self.sections.len() * ENTRY + CHECKSUM;
        let mut end = body;
        let entries: Vec<Entry> = self
            .sections
            .iter()
            .map(|(section, element, bytes)| {
                let offset = end.next_multiple_of(LINE);
                end = offset + bytes.len();
                Entry {
                    kind: *section as u32,
                    element: *element as u32,
                    offset: offset as u64,
                    len: bytes.len() as u64,
                    checksum: XxHash3_64::oneshot(bytes),
                }
            })
            .collect();
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            order: ORDER,
            len: end as u64,
            sections: entries.len() as u32,
            zero: 0,
            source,
        };
        let mut image = Vec::with_capacity(end);
        image.extend_from_slice(bytemuck::bytes_of(&header));
        image.extend_from_slice(bytemuck::cast_slice(&entries));
        let checksum = XxHash3_64::oneshot(&image);
        image.extend_from_slice(&checksum.to_ne_bytes());
        for ((_, _, bytes), entry) in self.sections.iter().zip(&entries) {
            image.resize(entry.offset as usize, 0);
            image.extend_from_slice(bytes);
        }
        image
    }
}

/// An image whose container is in order and whose checksums match.
pub(crate) struct Reader {
    image: Image,
    entries: Vec<Entry>,
    /// SHA-256 of the `tokenizer.json`.
    pub(crate) source: [u8; 32],
}

impl Reader {
    pub(crate) fn new(image: Image) -> Result<Self, ImageError> {
        let bytes = image.bytes();
        let Some(header) = bytes.get(..HEADER) else {
            return Err(ImageError::NotAnImage);
        };
        let header: Header = bytemuck::pod_read_unaligned(header);
        if header.magic != MAGIC {
            return Err(ImageError::NotAnImage);
        }
        if header.order == ORDER.swap_bytes() {
            return Err(ImageError::ByteOrder);
        }
        if header.version != VERSION {
            return Err(ImageError::Version {
                found: header.version,
                supported: VERSION,
            });
        }
        if header.len != bytes.len() as u64 {
            return Err(ImageError::Length {
                found: bytes.len() as u64,
                expected: header.len,
            });
        }
        let damaged = ImageError::Checksum { part: "header" };
        let table_end = (header.sections as usize)
            .checked_mul(ENTRY)
            .and_then(|len| len.checked_add(HEADER));
        let Some((table_end, table)) =
            table_end.and_then(|end| Some((end, bytes.get(HEADER..end)?)))
        else {
            return Err(damaged);
        };
        let stated = bytes[table_end..].first_chunk().copied();
        let actual = XxHash3_64::oneshot(&bytes[..table_end]);
        if header.order != ORDER || stated.map(u64::from_ne_bytes) != Some(actual) {
            return Err(damaged);
        }
        let entries: Vec<Entry> = table
            .chunks_exact(ENTRY)
            .map(bytemuck::pod_read_unaligned)
            .collect();
        // Sections fill the file in order; no byte is neither theirs nor zero.
        let mut end = (table_end + CHECKSUM) as u64;
        for entry in &entries {
            let between = (end as usize).min(bytes.len())..(entry.offset as usize).min(bytes.len());
            let next = entry.offset.checked_add(entry.len);
            if entry.offset != end.next_multiple_of(LINE as u64)
                || next.is_none_or(|next| next > header.len)
                || bytes[between].iter().any(|byte| *byte != 0)
            {
                return Err(damaged);
            }
            end = entry.offset + entry.len;
        }
        if end != header.len {
            return Err(damaged);
        }
        Ok(Self {
            entries,
            source: header.source,
            image,
        })
    }

    /// The elements of a section, whose checksum is verified.
    pub(crate) fn get<T: Pod>(&self, section: Section) -> Result<Flat<T>, ImageError> {
        let mut entries = self.entries.iter();
        let entry = entries
            .find(|entry| entry.kind == section as u32)
            .ok_or_else(|| section.invalid("it is missing"))?;
        if entry.element as usize != size_of::<T>() {
            return Err(section.invalid(format!(
                "elements of {} bytes where {} were expected",
                entry.element,
                size_of::<T>()
            )));
        }
        let range = usize::try_from(entry.offset).ok().and_then(|start| {
            let end = start.checked_add(usize::try_from(entry.len).ok()?)?;
            Some(start..end)
        });
        let outside = || section.invalid("it does not lie inside the file as it should");
        let elements: Flat<T> = range
            .and_then(|range| self.image.view(range))
            .ok_or_else(outside)?;
        if XxHash3_64::oneshot(bytemuck::cast_slice(&elements)) != entry.checksum {
            return Err(ImageError::Checksum {
                part: section.name(),
            });
        }
        Ok(elements)
    }
}
