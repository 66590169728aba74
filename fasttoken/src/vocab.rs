//! Tokens by id and by spelling.

use crate::table::StringTable;

/// Strings by id in one allocation each way.
#[derive(Debug, Default)]
struct Arena {
    bytes: Vec<u8>,
    /// `ends[id]` closes the string of `id`, which begins at `ends[id - 1]`.
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

/// What is known of one id, while the vocabulary is put together.
#[derive(Debug, Clone, Default)]
pub(crate) struct TokenInfo {
    /// As the reference's `id_to_token` gives it.
    pub(crate) spelling: String,
    /// What decoding writes.
    pub(crate) piece: Vec<u8>,
    /// Left out of decoded text when special tokens are skipped.
    pub(crate) hidden: bool,
    /// An added token, whether or not the model has it too.
    pub(crate) added: bool,
    /// An added token marked special.
    pub(crate) special: bool,
}

const PRESENT: u8 = 1;
const HIDDEN: u8 = 2;
const SPECIAL: u8 = 4;
const ADDED: u8 = 8;

/// All tokens, the model's and the added ones.
#[derive(Debug)]
pub(crate) struct Vocab {
    spellings: Arena,
    pieces: Arena,
    flags: Vec<u8>,
    by_spelling: StringTable,
    size: usize,
}

impl Vocab {
    /// `infos[id]` describes `id`; `None` is a hole. `size` is the number of tokens
    /// as the reference counts them.
    pub(crate) fn new(infos: &[Option<TokenInfo>], size: usize) -> Self {
        let mut this = Self {
            spellings: Arena::default(),
            pieces: Arena::default(),
            flags: Vec::with_capacity(infos.len()),
            by_spelling: StringTable::with_capacity(infos.len()),
            size,
        };
        for info in infos {
            let Some(info) = info else {
                this.spellings.push(b"");
                this.pieces.push(b"");
                this.flags.push(0);
                continue;
            };
            this.spellings.push(info.spelling.as_bytes());
            this.pieces.push(&info.piece);
            let hidden = if info.hidden { HIDDEN } else { 0 };
            let special = if info.special { SPECIAL } else { 0 };
            let added = if info.added { ADDED } else { 0 };
            this.flags.push(PRESENT | hidden | special | added);
        }
        for id in 0..this.flags.len() as u32 {
            if this.contains(id) {
                let spellings = &this.spellings;
                this.by_spelling
                    .insert(spellings.get(id), id, |id| spellings.get(id));
            }
        }
        this
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    fn flag(&self, id: u32, flag: u8) -> bool {
        self.flags.get(id as usize).is_some_and(|f| f & flag != 0)
    }

    pub(crate) fn contains(&self, id: u32) -> bool {
        self.flag(id, PRESENT)
    }

    pub(crate) fn is_hidden(&self, id: u32) -> bool {
        self.flag(id, HIDDEN)
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.flag(id, SPECIAL)
    }

    pub(crate) fn is_added(&self, id: u32) -> bool {
        self.flag(id, ADDED)
    }

    /// Bytes that decoding writes for `id`; empty for an unknown id.
    #[inline]
    pub(crate) fn piece(&self, id: u32) -> &[u8] {
        self.pieces.get(id)
    }

    pub(crate) fn spelling(&self, id: u32) -> Option<&str> {
        let bytes = self.contains(id).then(|| self.spellings.get(id))?;
        Some(std::str::from_utf8(bytes).expect("spellings were pushed as strings"))
    }

    pub(crate) fn id(&self, spelling: &str) -> Option<u32> {
        self.by_spelling
            .get(spelling.as_bytes(), |id| self.spellings.get(id))
    }
}
