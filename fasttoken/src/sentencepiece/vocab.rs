//! Tokens by id and by spelling, and what decoding writes for each.
//!
//! Every array may come from an image whose contents were made up: ranges and text are
//! checked where they are used.

use crate::image::ImageError;
use crate::image::format::{Reader, Section, Writer};
use crate::store::Flat;

const PRESENT: u8 = 1;
/// Left out of decoded text when special tokens are skipped.
const HIDDEN: u8 = 2;
const SPECIAL: u8 = 4;
const ADDED: u8 = 8;
/// Decoding takes the token for a byte.
const BYTE: u8 = 16;
/// In the model's own vocabulary.
const MODEL: u8 = 32;

/// What is known of one id, while the vocabulary is put together.
#[derive(Debug, Clone, Default)]
pub(super) struct Info {
    pub(super) spelling: String,
    /// What decoding writes, but for what it does to the first token and to runs of bytes.
    pub(super) piece: Vec<u8>,
    pub(super) byte: bool,
    pub(super) hidden: bool,
    pub(super) special: bool,
    pub(super) added: bool,
    pub(super) model: bool,
}

/// Strings by id in one allocation.
#[derive(Debug)]
struct Arena {
    bytes: Flat<u8>,
    /// `ends[id]` closes the string of `id`.
    ends: Flat<u32>,
}

/// An [`Arena`] that is being filled.
#[derive(Default)]
struct ArenaBuilder {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl ArenaBuilder {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let end = u32::try_from(self.bytes.len()).expect("load bounds the vocabulary's text");
        self.ends.push(end);
    }

    fn finish(self) -> Arena {
        Arena {
            bytes: self.bytes.into(),
            ends: self.ends.into(),
        }
    }
}

impl Arena {
    #[inline]
    fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else {
            return &[];
        };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        let range = start as usize..end as usize;
        self.bytes.get(range).unwrap_or_default()
    }
}

#[derive(Debug)]
pub(super) struct Vocab {
    spellings: Arena,
    pieces: Arena,
    flags: Flat<u8>,
    /// Ids in the order of their spellings.
    sorted: Flat<u32>,
    pub(super) size: usize,
}

impl Vocab {
    /// `infos[id]` describes `id`; `None` is a hole. `size` is the number of tokens as
    /// the reference counts them.
    pub(super) fn new(infos: &[Option<Info>], size: usize) -> Self {
        let (mut spellings, mut pieces) = (ArenaBuilder::default(), ArenaBuilder::default());
        let mut flags = Vec::with_capacity(infos.len());
        let none = Info::default();
        for info in infos {
            let known = info.as_ref().unwrap_or(&none);
            spellings.push(known.spelling.as_bytes());
            pieces.push(&known.piece);
            let flag = |on: bool, flag: u8| if on { flag } else { 0 };
            flags.push(
                flag(info.is_some(), PRESENT)
                    | flag(known.hidden, HIDDEN)
                    | flag(known.special, SPECIAL)
                    | flag(known.added, ADDED)
                    | flag(known.byte, BYTE)
                    | flag(known.model, MODEL),
            );
        }
        let mut this = Self {
            spellings: spellings.finish(),
            pieces: pieces.finish(),
            flags: flags.into(),
            sorted: Flat::default(),
            size,
        };
        let mut sorted: Vec<u32> = (0..infos.len() as u32)
            .filter(|id| this.contains(*id))
            .collect();
        sorted.sort_unstable_by_key(|id| this.spellings.get(*id));
        this.sorted = sorted.into();
        this
    }

    pub(super) fn write(&self, image: &mut Writer) {
        image.put(Section::Spellings, &self.spellings.bytes);
        image.put(Section::SpellingEnds, &self.spellings.ends);
        image.put(Section::Pieces, &self.pieces.bytes);
        image.put(Section::PieceEnds, &self.pieces.ends);
        image.put(Section::Flags, &self.flags);
        image.put(Section::Sorted, &self.sorted);
    }

    /// `size` is the number of tokens as the reference counts them.
    pub(super) fn read(image: &Reader, size: usize) -> Result<Self, ImageError> {
        let this = Self {
            spellings: Arena {
                bytes: image.get(Section::Spellings)?,
                ends: image.get(Section::SpellingEnds)?,
            },
            pieces: Arena {
                bytes: image.get(Section::Pieces)?,
                ends: image.get(Section::PieceEnds)?,
            },
            flags: image.get(Section::Flags)?,
            sorted: image.get(Section::Sorted)?,
            size,
        };
        let ids = this.flags.len();
        let same = this.spellings.ends.len() == ids && this.pieces.ends.len() == ids;
        let bounded = ids <= u32::MAX as usize / 2 && this.sorted.len() <= ids && size <= ids;
        if !(same && bounded) {
            return Err(Section::Flags.invalid("it contradicts the other tables"));
        }
        Ok(this)
    }

    /// The model's own tokens.
    pub(super) fn model_tokens(&self) -> impl Iterator<Item = (&str, u32)> {
        let ids = 0..self.flags.len() as u32;
        let own = ids.filter(|id| self.flag(*id, MODEL));
        own.filter_map(|id| Some((self.spelling(id)?, id)))
    }

    /// Whether the token is the model's own.
    pub(super) fn is_model(&self, id: u32) -> bool {
        self.flag(id, MODEL)
    }

    #[inline]
    fn flag(&self, id: u32, flag: u8) -> bool {
        self.flags.get(id as usize).is_some_and(|f| f & flag != 0)
    }

    pub(super) fn contains(&self, id: u32) -> bool {
        self.flag(id, PRESENT)
    }

    #[inline]
    pub(super) fn is_hidden(&self, id: u32) -> bool {
        self.flag(id, HIDDEN)
    }

    pub(super) fn is_special(&self, id: u32) -> bool {
        self.flag(id, SPECIAL)
    }

    #[inline]
    pub(super) fn is_added(&self, id: u32) -> bool {
        self.flag(id, ADDED)
    }

    #[inline]
    pub(super) fn is_byte(&self, id: u32) -> bool {
        self.flag(id, BYTE)
    }

    #[inline]
    pub(super) fn piece(&self, id: u32) -> &[u8] {
        self.pieces.get(id)
    }

    pub(super) fn spelling(&self, id: u32) -> Option<&str> {
        let bytes = self.contains(id).then(|| self.spellings.get(id))?;
        // Was a string; an image that says otherwise has no such token.
        std::str::from_utf8(bytes).ok()
    }

    pub(super) fn id(&self, spelling: &str) -> Option<u32> {
        let found = self
            .sorted
            .binary_search_by(|id| self.spellings.get(*id).cmp(spelling.as_bytes()));
        found.ok().map(|at| self.sorted[at])
    }
}
