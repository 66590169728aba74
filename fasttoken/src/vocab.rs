//! Tokens by id and by spelling.
//!
//! ```text
//! slot of an id, 16 bytes:
//!   short piece (at most 15 bytes)   b b b b b b b b b b b b b b b | meta
//!   long piece                       offset u32 | length u32 | 0.. | meta
//!   meta: HIDDEN 0x80, LONG 0x40, RAW 0x20, length of a short piece 0x0F
//! ```
//!
//! Decoding copies a slot whole and advances by its length. Spellings are not kept:
//! a token is spelled by the byte-level alphabet, or, where it has characters outside
//! of it, as its piece.
//!
//! Every array may come from an image whose contents were made up. Nothing is
//! trusted: ids, offsets and lengths are checked where they are used, and probing
//! ends after one round.

use crate::alphabet;
use crate::image::ImageError;
use crate::image::format::{Reader, Section, Writer};
use crate::prefetch::prefetch;
use crate::store::{Flat, Movable};
use crate::table::REACH;
use crate::words::Key;
use std::borrow::Cow;
use std::ops::Range;

/// Where the piece of one id is; see the picture above.
#[derive(Debug, Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C, align(16))]
pub(crate) struct Slot([u8; SLOT]);

const SLOT: usize = 16;
const META: usize = SLOT - 1;
const HIDDEN_SLOT: u8 = 0x80;
const LONG: u8 = 0x40;
const RAW_SLOT: u8 = 0x20;
const LEN: u8 = 0x0F;

impl Slot {
    /// The slot for `piece`, which is appended to `long` if it is not short.
    fn new(piece: &[u8], long: &mut Vec<u8>) -> Self {
        let mut slot = [0; SLOT];
        if piece.len() < SLOT {
            slot[..piece.len()].copy_from_slice(piece);
            slot[META] = piece.len() as u8;
        } else {
            let bounded = |n| u32::try_from(n).expect("load bounds the vocabulary's text");
            slot[..4].copy_from_slice(&bounded(long.len()).to_le_bytes());
            slot[4..8].copy_from_slice(&bounded(piece.len()).to_le_bytes());
            slot[META] = LONG;
            long.extend_from_slice(piece);
        }
        Self(slot)
    }

    /// The key of a piece of 1 to 15 bytes; [`Key::NONE`] for others.
    #[inline(always)]
    fn key(&self) -> Key {
        let meta = self.0[META];
        if meta & LONG != 0 || meta & LEN == 0 {
            return Key::NONE;
        }
        let wide = u128::from_le_bytes(self.0);
        let high = (wide >> 64) as u64;
        Key {
            low: wide as u64,
            high: high & (u64::MAX >> 8) | u64::from(meta & LEN) << 56,
        }
    }

    #[inline]
    fn piece<'a>(&'a self, long: &'a [u8]) -> &'a [u8] {
        let meta = self.0[META];
        if meta & LONG == 0 {
            return &self.0[..usize::from(meta & LEN)];
        }
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        let start = u32::from_le_bytes([a, b, c, d]) as usize;
        let len = u32::from_le_bytes([e, f, g, h]) as usize;
        long.get(start..)
            .and_then(|rest| rest.get(..len))
            .unwrap_or_default()
    }
}

const PRESENT: u8 = 1;
const SPECIAL: u8 = 4;
const ADDED: u8 = 8;
/// In the model's own vocabulary.
const MODEL: u8 = 16;
/// Not spelled by the byte-level alphabet, but as the piece.
const RAW: u8 = 32;

/// All tokens, the model's and the added ones.
#[derive(Debug)]
pub(crate) struct Vocab {
    slots: Flat<Slot>,
    long: Flat<u8>,
    flags: Flat<u8>,
    names: Names,
    /// Number of tokens, as the reference counts them.
    size: usize,
    /// Number of the model's own tokens.
    model_len: usize,
}

impl Vocab {
    fn view(&self) -> View<'_> {
        View {
            slots: &self.slots,
            long: &self.long,
            flags: &self.flags,
        }
    }

    pub(crate) fn tables(&mut self) -> [&mut dyn Movable; 4] {
        [
            &mut self.slots,
            &mut self.long,
            &mut self.flags,
            &mut self.names.entries,
        ]
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Number of the model's own tokens.
    pub(crate) fn model_len(&self) -> usize {
        self.model_len
    }

    #[inline]
    fn flag(&self, id: u32, flag: u8) -> bool {
        self.flags.get(id as usize).is_some_and(|f| f & flag != 0)
    }

    pub(crate) fn contains(&self, id: u32) -> bool {
        self.flag(id, PRESENT)
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.flag(id, SPECIAL)
    }

    pub(crate) fn is_added(&self, id: u32) -> bool {
        self.flag(id, ADDED)
    }

    /// The ids of the model's own tokens that spell bytes, rising.
    pub(crate) fn words(&self) -> impl Iterator<Item = u32> {
        let ids = self.flags.iter().enumerate();
        ids.filter(|(_, flags)| *flags & (MODEL | RAW) == MODEL)
            .map(|(id, _)| id as u32)
    }

    /// Bytes that decoding writes for `id`; empty for an unknown id.
    #[inline]
    pub(crate) fn piece(&self, id: u32) -> &[u8] {
        self.view().piece(id)
    }

    /// [`Vocab::piece`], but empty for a hidden token if those are skipped.
    #[inline]
    pub(crate) fn shown_piece(&self, id: u32, skip_hidden: bool) -> &[u8] {
        match self.slots.get(id as usize) {
            Some(slot) if !(skip_hidden && slot.0[META] & HIDDEN_SLOT != 0) => {
                slot.piece(&self.long)
            }
            _ => &[],
        }
    }

    /// The key of [`Vocab::piece`].
    #[inline]
    pub(crate) fn key(&self, id: u32) -> Key {
        self.slots.get(id as usize).map_or(Key::NONE, Slot::key)
    }

    pub(crate) fn spelling(&self, id: u32) -> Option<Cow<'_, str>> {
        self.view().spelling(id)
    }

    /// The id of a token in the model's own vocabulary.
    pub(crate) fn model_id(&self, spelling: &str) -> Option<u32> {
        self.view().model_id(&self.names, spelling)
    }

    pub(crate) fn write(&self, image: &mut Writer) {
        let counts = [self.size, self.model_len, self.names.id_bits as usize];
        image.put(Section::Counts, &counts.map(|count| count as u64));
        image.put(Section::Slots, &self.slots);
        image.put(Section::Long, &self.long);
        image.put(Section::Flags, &self.flags);
        image.put(Section::Names, &self.names.entries);
    }

    pub(crate) fn read(image: &Reader) -> Result<Self, ImageError> {
        let counts = image.get::<u64>(Section::Counts)?;
        let (slots, flags) = (image.get(Section::Slots)?, image.get(Section::Flags)?);
        let entries: Flat<u32> = image.get(Section::Names)?;
        let invalid = || Section::Counts.invalid("its numbers contradict each other");
        let [size, model_len, id_bits] = counts[..] else {
            return Err(invalid());
        };
        let ids = slots.len() as u64;
        if flags.len() != slots.len()
            || ids > u64::from(u32::MAX / 2)
            || model_len > size
            || size > ids
            || id_bits >= 32
            || !entries.len().is_power_of_two()
        {
            return Err(invalid());
        }
        Ok(Self {
            slots,
            long: image.get(Section::Long)?,
            flags,
            names: Names {
                entries,
                id_bits: id_bits as u32,
            },
            size: size as usize,
            model_len: model_len as usize,
        })
    }

    /// Appends the pieces of `ids`, of hidden ones only unless `skip_hidden`.
    pub(crate) fn append_pieces(&self, ids: &[u32], skip_hidden: bool, out: &mut Vec<u8>) {
        // Ids of one block surely fit into the room that is made for it.
        const BLOCK: usize = 128;
        let slow = if skip_hidden {
            HIDDEN_SLOT | LONG
        } else {
            LONG
        };
        let slots = &*self.slots;
        for block in ids.chunks(BLOCK) {
            let mut rest = block;
            while !rest.is_empty() {
                let mut end = out.len();
                out.resize(end + rest.len() * SLOT, 0);
                let room = &mut out[..];
                let mut special = None;
                for (n, &id) in rest.iter().enumerate() {
                    let Some(slot) = slots.get(id as usize) else {
                        continue;
                    };
                    let meta = slot.0[META];
                    if meta & slow != 0 {
                        special = Some((n, slot));
                        break;
                    }
                    room[end..end + SLOT].copy_from_slice(&slot.0);
                    end += usize::from(meta & LEN);
                }
                out.truncate(end);
                let Some((n, slot)) = special else { break };
                if !(skip_hidden && slot.0[META] & HIDDEN_SLOT != 0) {
                    out.extend_from_slice(slot.piece(&self.long));
                }
                rest = &rest[n + 1..];
            }
        }
    }
}

/// The arrays of a vocabulary, finished or not.
#[derive(Clone, Copy)]
struct View<'a> {
    slots: &'a [Slot],
    long: &'a [u8],
    flags: &'a [u8],
}

impl<'a> View<'a> {
    #[inline]
    fn piece(self, id: u32) -> &'a [u8] {
        match self.slots.get(id as usize) {
            Some(slot) => slot.piece(self.long),
            None => &[],
        }
    }

    fn spelling(self, id: u32) -> Option<Cow<'a, str>> {
        let flags = *self.flags.get(id as usize)?;
        if flags & PRESENT == 0 {
            None
        } else if flags & RAW == 0 {
            Some(alphabet::spell(self.piece(id)))
        } else {
            // Was a string; an image that says otherwise has no such token.
            std::str::from_utf8(self.piece(id)).ok().map(Cow::Borrowed)
        }
    }

    /// The model's own token of a piece, which is spelled as it is or by the alphabet.
    #[inline]
    fn find(self, names: &Names, piece: &[u8], raw: bool) -> Option<u32> {
        let wanted = if raw { RAW_SLOT } else { 0 };
        names.get(piece, |id| {
            let slot = self.slots.get(id as usize);
            slot.is_some_and(|slot| {
                slot.0[META] & RAW_SLOT == wanted && slot.piece(self.long) == piece
            })
        })
    }

    fn model_id(self, names: &Names, spelling: &str) -> Option<u32> {
        let mut bytes = Vec::new();
        if alphabet::append_bytes(spelling, &mut bytes) {
            self.find(names, &bytes, false)
        } else {
            self.find(names, spelling.as_bytes(), true)
        }
    }
}

/// From pieces to ids: a frozen open-addressing table, at most two thirds full.
#[derive(Debug)]
pub(crate) struct Names {
    /// A power of two of entries: the id in the low bits, bits of the hash above, and
    /// all ones where free.
    entries: Flat<u32>,
    /// Low bits that hold the id.
    id_bits: u32,
}

const FREE: u32 = u32::MAX;

/// Why tokens cannot be indexed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unindexed {
    /// The token of this id is there under another one, too.
    Twice(u32),
    /// The spelling of this id has the place of too many others.
    Crowded(u32),
}

impl Names {
    fn build(vocab: View<'_>) -> Result<Self, Unindexed> {
        let end = vocab.flags.len();
        // So many bits that no id has all of them set, and no entry equals `FREE`.
        let id_bits = usize::BITS - end.leading_zeros();
        let mut entries = vec![FREE; (end + end / 2 + 1).next_power_of_two()];
        let mask = entries.len() - 1;
        for (id, flags) in vocab.flags.iter().enumerate() {
            if flags & MODEL == 0 {
                continue;
            }
            let piece = vocab.piece(id as u32);
            let hash = match vocab.slots[id].key() {
                Key::NONE => hash(piece),
                key => key.hash(),
            };
            let tag = tag(hash, id_bits);
            let mut at = hash as usize & mask;
            let mut steps = 1;
            while entries[at] != FREE {
                let other = entries[at] & low(id_bits);
                if entries[at] == tag | other
                    && vocab.piece(other) == piece
                    && vocab.flags[other as usize] & RAW == flags & RAW
                {
                    return Err(Unindexed::Twice(id as u32));
                }
                if steps == REACH {
                    return Err(Unindexed::Crowded(id as u32));
                }
                steps += 1;
                at = (at + 1) & mask;
            }
            entries[at] = tag | id as u32;
        }
        Ok(Self {
            entries: entries.into(),
            id_bits,
        })
    }

    #[inline]
    fn get(&self, piece: &[u8], is: impl Fn(u32) -> bool) -> Option<u32> {
        self.get_hashed(hash(piece), is)
    }

    /// [`Names::get`] of a piece with this hash.
    #[inline]
    fn get_hashed(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        let wanted = tag(hash, self.id_bits);
        let mask = self.entries.len() - 1;
        for step in 0..REACH {
            let entry = self.entries[(hash as usize).wrapping_add(step) & mask];
            let id = entry & low(self.id_bits);
            if entry == FREE {
                return None;
            }
            if entry == wanted | id && is(id) {
                return Some(id);
            }
        }
        None
    }
}

impl Names {
    /// Where looking for a hash begins.
    #[inline]
    fn home(&self, hash: u64) -> usize {
        hash as usize & (self.entries.len() - 1)
    }
}

/// A number with the lowest `bits` set.
fn low(bits: u32) -> u32 {
    (1 << bits) - 1
}

/// Bits of the hash that an entry keeps, above the id.
fn tag(hash: u64, id_bits: u32) -> u32 {
    (hash >> 32) as u32 & !low(id_bits)
}

/// That of its key for a short piece, which is two multiplications less.
fn hash(bytes: &[u8]) -> u64 {
    match Key::new(bytes, 0, bytes.len()) {
        Key::NONE => hash_long(bytes),
        key => key.hash(),
    }
}

fn hash_long(bytes: &[u8]) -> u64 {
    // Odd constants without structure: the fractional parts of pi and e.
    const K0: u64 = 0x243F_6A88_85A3_08D3;
    const K1: u64 = 0xB7E1_5162_8AED_2A6B;
    let fold = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        (product as u64) ^ ((product >> 64) as u64)
    };
    let mut state = bytes.len() as u64 ^ K0;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let word = u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
        state = fold(state ^ word, K1);
    }
    // The last bytes one by one: copying a few of them is a call.
    let rest = chunks.remainder().iter();
    let word = rest.fold(0, |word, byte| word << 8 | u64::from(*byte));
    fold(state ^ word, K1)
}

/// A vocabulary as it is put together from a file: the model's own tokens first, then
/// their index, then the added ones.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    slots: Vec<Slot>,
    long: Vec<u8>,
    flags: Vec<u8>,
    tokens: usize,
    scratch: Vec<u8>,
}

/// A piece that is being looked up.
#[derive(Debug, Clone)]
pub(crate) struct Sought {
    key: Key,
    hash: u64,
    range: Range<usize>,
}

/// Why a token cannot have an id.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Clash {
    /// The token has the id already.
    Same,
    /// A token of this spelling has the id already.
    Other(String),
}

impl Builder {
    fn view(&self) -> View<'_> {
        View {
            slots: &self.slots,
            long: &self.long,
            flags: &self.flags,
        }
    }

    /// Adds one of the model's own tokens. Room is made for all ids up to `id`.
    pub(crate) fn add_model(&mut self, token: &str, id: u32) -> Result<(), Clash> {
        match self.spelling(id) {
            None => {}
            Some(other) if other == token => return Err(Clash::Same),
            Some(other) => return Err(Clash::Other(other.into_owned())),
        }
        self.tokens += 1;
        self.set(token, id, PRESENT | MODEL);
        Ok(())
    }

    /// [`Builder::add_model`] of a token that spells `piece`; whether the id was free.
    #[inline]
    pub(crate) fn add_piece(&mut self, piece: &[u8], id: u32) -> bool {
        let at = id as usize;
        if at >= self.flags.len() {
            self.flags.resize(at + 1, 0);
            self.slots.resize(at + 1, Slot([0; SLOT]));
        } else if self.flags[at] & PRESENT != 0 {
            return false;
        }
        self.tokens += 1;
        self.slots[at] = Slot::new(piece, &mut self.long);
        self.flags[at] = PRESENT | MODEL;
        true
    }

    /// Makes room for so many ids.
    pub(crate) fn reserve(&mut self, ids: usize) {
        self.flags.reserve(ids);
        self.slots.reserve(ids);
    }

    /// Above all ids.
    pub(crate) fn id_end(&self) -> usize {
        self.flags.len()
    }

    /// Whether the alphabet spells the token `id`.
    pub(crate) fn is_spelled(&self, id: u32) -> bool {
        self.flags.get(id as usize).is_some_and(|f| f & RAW == 0)
    }

    /// Whether the alphabet spells the token `id` by these bytes of `text`.
    #[inline]
    pub(crate) fn is_word(&self, id: u32, text: &[u8], range: Range<usize>) -> bool {
        let at = id as usize;
        self.flags
            .get(at)
            .is_some_and(|f| f & (MODEL | RAW) == MODEL)
            && match Key::new(text, range.start, range.end) {
                Key::NONE => self.slots[at].piece(&self.long) == &text[range],
                key => self.slots[at].key() == key,
            }
    }

    /// Adds an added token, or marks a token of the model as one.
    pub(crate) fn add_added(&mut self, token: &str, id: u32, hidden: bool, special: bool) {
        let known = self.flags.get(id as usize).copied().unwrap_or_default();
        if known & PRESENT == 0 {
            self.set(token, id, PRESENT);
        }
        self.flags[id as usize] |= ADDED | if special { SPECIAL } else { 0 };
        if hidden {
            self.slots[id as usize].0[META] |= HIDDEN_SLOT;
        }
    }

    fn set(&mut self, token: &str, id: u32, flags: u8) {
        let end = id as usize + 1;
        if self.flags.len() < end {
            self.flags.resize(end, 0);
            self.slots.resize(end, Slot([0; SLOT]));
        }
        self.scratch.clear();
        let spelled = alphabet::append_bytes(token, &mut self.scratch);
        let (piece, raw) = if spelled {
            (&*self.scratch, 0)
        } else {
            (token.as_bytes(), RAW)
        };
        let mut slot = Slot::new(piece, &mut self.long);
        if raw != 0 {
            slot.0[META] |= RAW_SLOT;
        }
        self.slots[id as usize] = slot;
        self.flags[id as usize] = flags | raw;
    }

    /// The spelling of a token that was added.
    pub(crate) fn spelling(&self, id: u32) -> Option<Cow<'_, str>> {
        self.view().spelling(id)
    }

    /// Number of the model's own tokens.
    pub(crate) fn model_len(&self) -> usize {
        self.tokens
    }

    /// Indexes the model's own tokens.
    pub(crate) fn index(&self) -> Result<Names, Unindexed> {
        Names::build(self.view())
    }

    /// The id of one of the model's own tokens.
    pub(crate) fn model_id(&self, names: &Names, spelling: &str) -> Option<u32> {
        self.view().model_id(names, spelling)
    }

    /// The id of the model's own token that spells `bytes` by the alphabet.
    #[inline]
    pub(crate) fn word_id(&self, names: &Names, bytes: &[u8]) -> Option<u32> {
        self.view().find(names, bytes, false)
    }

    /// [`Builder::word_id`] in steps, of which each asks for the memory of the next.
    #[inline]
    pub(crate) fn seek(&self, names: &Names, text: &[u8], range: Range<usize>) -> Sought {
        let key = Key::new(text, range.start, range.end);
        let hash = match key {
            Key::NONE => hash_long(&text[range.clone()]),
            key => key.hash(),
        };
        prefetch(&names.entries, names.home(hash));
        Sought { key, hash, range }
    }

    /// The second step.
    #[inline]
    pub(crate) fn seek_slot(&self, names: &Names, sought: &Sought) {
        let entry = names.entries[names.home(sought.hash)];
        prefetch(&self.slots, (entry & low(names.id_bits)) as usize);
    }

    /// The last step.
    #[inline]
    pub(crate) fn found(&self, names: &Names, text: &[u8], sought: &Sought) -> Option<u32> {
        let is = |id: u32| {
            let slot = self.slots.get(id as usize);
            slot.is_some_and(|slot| {
                slot.0[META] & RAW_SLOT == 0
                    && match sought.key {
                        Key::NONE => slot.piece(&self.long) == &text[sought.range.clone()],
                        key => slot.key() == key,
                    }
            })
        };
        names.get_hashed(sought.hash, is)
    }

    /// `added` is the number of added tokens that the model lacks.
    pub(crate) fn finish(self, names: Names, added: usize) -> Vocab {
        Vocab {
            slots: self.slots.into(),
            long: self.long.into(),
            flags: self.flags.into(),
            names,
            size: self.tokens + added,
            model_len: self.tokens,
        }
    }
}
