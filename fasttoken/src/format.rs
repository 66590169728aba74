//! The container format of compiled tokenizers: a header, a table of sections, and the sections.
//!
//! ```text
//! byte 0    magic "fasttokn"
//!      8    format version, u32
//!     12    0x01020304, u32: shows the byte order
//!     16    length of the file, u64
//!     24    number of sections, u32, and a zero u32
//!     32    SHA-256 of the tokenizer.json or `.model` file
//!     64    the table, 32 bytes per section:
//!             kind u32, bytes per element u32, offset u64, length in bytes u64,
//!             XXH3-64 of the section's bytes
//!           XXH3-64 of everything before it, u64
//!           the sections, each from a multiple of 64 on, zeros between them
//! ```
//!
//! Sections are arrays as they lie in memory, so numbers are in the byte order of the machine that
//! compiled the tokenizer. All checksums are verified when the file is opened: a flipped bit in a
//! table of ids would otherwise silently give other ids. XXH3 runs at the speed of memory, so this
//! costs about as much as reading the file for the first time.

mod compiled_error;

pub use compiled_error::CompiledError;

use crate::store::{FileBytes, Flat, LINE};
use bytemuck::{Pod, Zeroable};
use twox_hash::XxHash3_64;

/// The format version. It changes with the meaning of any section, its order of elements, its hash
/// function, or the reading of its configuration.
pub(crate) const VERSION: u32 = 13;

pub(crate) const MAGIC: [u8; 8] = *b"fasttokn";
const ORDER: u32 = 0x0102_0304;

/// Declares the kinds of sections: the number of each in a file, and its name in messages.
macro_rules! sections {
    ($($(#[$doc:meta])* $kind:ident = $number:literal, $name:literal;)*) => {
        /// The kind of a section.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u32)]
        pub(crate) enum Section {
            $($(#[$doc])* $kind = $number,)*
        }

        impl Section {
            fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }
        }
    };
}

sections! {
    /// The components, as JSON without the vocabulary and the merges.
    Config = 1, "configuration";
    /// Counts: tokens, tokens of the model, bits of an id in the index of names.
    Counts = 2, "list of counts";
    /// Pieces by id.
    Slots = 3, "table of pieces";
    /// Text of long pieces.
    Long = 4, "text of long pieces";
    /// Properties by id.
    Flags = 5, "table of flags";
    /// Index from spellings to ids.
    Names = 6, "index of names";
    /// Tokens of single bytes.
    ByteIds = 7, "tokens of bytes";
    /// Ranks of merges by pairs of ids.
    Pairs = 8, "table of merges";
    /// Short words that are one token.
    Words = 9, "table of words";
    /// Longer words that are one token.
    LongWords = 10, "table of long words";
    /// The least and most bytes of longer words, and 1 if merging is proved to reach all words.
    WordFacts = 11, "list of facts about words";
    /// Filter of the hashes of pairs with a merge.
    PairBits = 12, "filter of merges";
    /// Blocks of the table of premerged characters.
    CharIndex = 13, "index of characters";
    /// Tokens of premerged characters, and the numbers of their contexts.
    CharTokens = 14, "tokens of characters";
    /// Contexts in which characters are not premerged.
    ContextBytes = 16, "sets of bytes";
    /// Filter of the characters that tokens have side by side.
    Neighbours = 17, "filter of neighbours";
    /// Ranks of merges of the first tokens.
    DensePairs = 18, "square of merges";
    /// Products of merges by rank.
    Products = 19, "list of what merges make";
    /// Product of the first merge.
    PairFacts = 20, "list of facts about merges";
    /// Filter of the previous characters of contexts.
    ContextChars = 21, "filter of characters";
    /// Tokens of characters that are premerged to two tokens.
    CharTokenPairs = 22, "pairs of tokens of characters";
    /// Filter of the next characters of contexts.
    ContextFollowers = 23, "filter of following characters";
    /// Tokens of pairs of characters that are premerged together, and the numbers of their
    /// contexts.
    CharPairs = 35, "table of double characters";
    // The sections below are for models whose tokens are text, which of the sections above have
    // Config, Flags and Names. BPE of characters and Unigram with byte fallback have ByteIds too, and BPE
    // has Words and those of pairs.
    /// The unknown token or all ones, the number of the model's tokens, and the number of tokens as
    /// the reference counts them.
    ModelFacts = 24, "list of facts about the model";
    /// Blocks of the table of single characters.
    LetterIndex = 25, "index of single characters";
    /// Tokens of single characters, and their classes.
    Letters = 26, "tokens of single characters";
    /// Ranks of rules that join two characters, by their classes.
    BorderRanks = 27, "ranks of pairs of characters";
    /// Filter of the hashes of other pairs of characters that some rule joins.
    BorderBits = 28, "filter of pairs of characters";
    /// Spellings of tokens, one after the other.
    Spellings = 29, "text of tokens";
    /// The byte at which each spelling ends, by id.
    SpellingEnds = 30, "ends of the text of tokens";
    /// Decoded bytes of tokens, one after the other.
    Pieces = 31, "text of decoded tokens";
    /// The byte at which each token's bytes end, by id.
    PieceEnds = 32, "ends of the text of decoded tokens";
    /// Numbers in a row of ranks.
    BorderFacts = 36, "list of facts about pairs of characters";
    /// Ids and spellings of tokens that the model spells otherwise than decoding, as JSON.
    Renamed = 34, "list of renamed tokens";
    // The sections below are for WordPiece and Unigram models.
    /// Nodes of the trie of tokens.
    Trie = 38, "trie of tokens";
    /// Scores by id: of Unigram, or numbers that order as the scores of a `.model` file of type BPE.
    Scores = 39, "scores of tokens";
    // The sections below are for SentencePiece `.model` files, which of the sections above have
    // Config, Flags, Names, ByteIds (if unknown text is written in bytes), those of spellings and
    // pieces, Scores, and Trie if they are Unigram.
    /// Nodes of the trie of user-defined symbols.
    SymbolTrie = 40, "trie of symbols";
    /// The map of characters as the `.model` file has it; empty if there is none.
    Charsmap = 41, "map of characters";
}

impl Section {
    /// Returns an error for invalid contents of this section.
    pub(crate) fn invalid(self, problem: impl Into<String>) -> CompiledError {
        CompiledError::Invalid {
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

/// A compiled tokenizer under construction.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    sections: Vec<(Section, usize, Vec<u8>)>,
}

impl Writer {
    /// Adds a section. Each kind may be added once.
    pub(crate) fn put<T: Pod>(&mut self, section: Section, elements: &[T]) {
        let bytes = bytemuck::cast_slice(elements).to_vec();
        self.sections.push((section, size_of::<T>(), bytes));
    }

    /// Returns the bytes of the compiled tokenizer. `source` is the SHA-256 of the file that it was
    /// compiled from.
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
        let mut out = Vec::with_capacity(end);
        out.extend_from_slice(bytemuck::bytes_of(&header));
        out.extend_from_slice(bytemuck::cast_slice(&entries));
        let checksum = XxHash3_64::oneshot(&out);
        out.extend_from_slice(&checksum.to_ne_bytes());
        for ((_, _, bytes), entry) in self.sections.iter().zip(&entries) {
            out.resize(entry.offset as usize, 0);
            out.extend_from_slice(bytes);
        }
        out
    }
}

/// A compiled tokenizer whose container is valid.
pub(crate) struct Reader {
    file: FileBytes,
    entries: Vec<Entry>,
    /// The SHA-256 of the file that the tokenizer was compiled from.
    pub(crate) source: [u8; 32],
}

impl Reader {
    pub(crate) fn new(file: FileBytes) -> Result<Self, CompiledError> {
        let bytes = file.bytes();
        let Some(header) = bytes.get(..HEADER) else {
            return Err(CompiledError::NotCompiled);
        };
        let header: Header = bytemuck::pod_read_unaligned(header);
        if header.magic != MAGIC {
            return Err(CompiledError::NotCompiled);
        }
        if header.order == ORDER.swap_bytes() {
            return Err(CompiledError::ByteOrder);
        }
        if header.version != VERSION {
            return Err(CompiledError::Version {
                found: header.version,
                supported: VERSION,
            });
        }
        if header.len != bytes.len() as u64 {
            return Err(CompiledError::Length {
                found: bytes.len() as u64,
                expected: header.len,
            });
        }
        let damaged = CompiledError::Checksum { part: "header" };
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
        // Sections fill the file in order, and all bytes between them are zero.
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
            file,
        })
    }

    /// Returns the elements of a section after verifying its checksum.
    pub(crate) fn get<T: Pod>(&self, section: Section) -> Result<Flat<T>, CompiledError> {
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
            .and_then(|range| self.file.view(range))
            .ok_or_else(outside)?;
        if XxHash3_64::oneshot(bytemuck::cast_slice(&elements)) != entry.checksum {
            return Err(CompiledError::Checksum {
                part: section.name(),
            });
        }
        Ok(elements)
    }
}
