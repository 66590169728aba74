//! Tokens by id and by spelling, and what decoding writes for each.

const PRESENT: u8 = 1;
/// Left out of decoded text when special tokens are skipped.
const HIDDEN: u8 = 2;
const SPECIAL: u8 = 4;
const ADDED: u8 = 8;
/// Decoding takes the token for a byte.
const BYTE: u8 = 16;

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
}

/// Strings by id in one allocation.
#[derive(Debug, Default)]
struct Arena {
    bytes: Vec<u8>,
    /// `ends[id]` closes the string of `id`.
    ends: Vec<u32>,
}

impl Arena {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let end = u32::try_from(self.bytes.len()).expect("load bounds the vocabulary's text");
        self.ends.push(end);
    }

    #[inline]
    fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else {
            return &[];
        };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..end as usize]
    }
}

#[derive(Debug)]
pub(super) struct Vocab {
    spellings: Arena,
    pieces: Arena,
    flags: Vec<u8>,
    /// Ids in the order of their spellings.
    sorted: Vec<u32>,
    pub(super) size: usize,
}

impl Vocab {
    /// `infos[id]` describes `id`; `None` is a hole. `size` is the number of tokens as
    /// the reference counts them.
    pub(super) fn new(infos: &[Option<Info>], size: usize) -> Self {
        let mut this = Self {
            spellings: Arena::default(),
            pieces: Arena::default(),
            flags: Vec::with_capacity(infos.len()),
            sorted: Vec::new(),
            size,
        };
        let none = Info::default();
        for info in infos {
            let known = info.as_ref().unwrap_or(&none);
            this.spellings.push(known.spelling.as_bytes());
            this.pieces.push(&known.piece);
            let flag = |on: bool, flag: u8| if on { flag } else { 0 };
            this.flags.push(
                flag(info.is_some(), PRESENT)
                    | flag(known.hidden, HIDDEN)
                    | flag(known.special, SPECIAL)
                    | flag(known.added, ADDED)
                    | flag(known.byte, BYTE),
            );
        }
        let mut sorted: Vec<u32> = (0..infos.len() as u32)
            .filter(|id| this.contains(*id))
            .collect();
        sorted.sort_unstable_by_key(|id| this.spellings.get(*id));
        this.sorted = sorted;
        this
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
        Some(std::str::from_utf8(bytes).expect("spellings were pushed as strings"))
    }

    pub(super) fn id(&self, spelling: &str) -> Option<u32> {
        let found = self
            .sorted
            .binary_search_by(|id| self.spellings.get(*id).cmp(spelling.as_bytes()));
        found.ok().map(|at| self.sorted[at])
    }
}
