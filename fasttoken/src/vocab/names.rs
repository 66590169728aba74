//! The index of a vocabulary, from pieces to ids.

use super::{MODEL, RAW, View};
use crate::short_tokens::Key;
use crate::store::Flat;
use crate::string_table::{K0, K1, MAX_PROBES, fold};

/// An immutable open-addressing table from pieces to ids, at most two thirds full.
#[derive(Debug)]
pub(crate) struct Names {
    /// The entries, a power of two of them: the id in the low bits, bits of the hash above, and all
    /// ones if free.
    pub(super) entries: Flat<u32>,
    /// The number of low bits that hold the id.
    pub(super) id_bits: u32,
}

const FREE: u32 = u32::MAX;

/// The reason why tokens cannot be indexed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unindexed {
    /// The token of this id has another id as well.
    Twice(u32),
    /// The spelling of this id shares its slot with too many others.
    TooManyCollisions(u32),
}

impl Names {
    pub(super) fn build(vocab: View<'_>) -> Result<Self, Unindexed> {
        let end = vocab.flags.len();
        // Enough bits that no id has all of them set, so that no entry equals `FREE`.
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
                if steps == MAX_PROBES {
                    return Err(Unindexed::TooManyCollisions(id as u32));
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
    pub(super) fn get(&self, piece: &[u8], is: impl Fn(u32) -> bool) -> Option<u32> {
        self.get_hashed(hash(piece), is)
    }

    /// Returns [`Names::get`] of a piece with this hash.
    #[inline]
    pub(super) fn get_hashed(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        let wanted = tag(hash, self.id_bits);
        let mask = self.entries.len() - 1;
        for step in 0..MAX_PROBES {
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
    /// Returns the first entry that is probed for a hash.
    #[inline]
    pub(super) fn home(&self, hash: u64) -> usize {
        hash as usize & (self.entries.len() - 1)
    }
}

/// Returns a number with the lowest `bits` bits set.
pub(super) fn low(bits: u32) -> u32 {
    (1 << bits) - 1
}

/// Returns the bits of the hash that an entry keeps, above the id.
fn tag(hash: u64, id_bits: u32) -> u32 {
    (hash >> 32) as u32 & !low(id_bits)
}

/// Returns the hash of a piece. A short piece has the hash of its key, which is cheaper.
fn hash(bytes: &[u8]) -> u64 {
    match Key::new(bytes, 0, bytes.len()) {
        Key::NONE => hash_long(bytes),
        key => key.hash(),
    }
}

pub(super) fn hash_long(bytes: &[u8]) -> u64 {
    let mut state = bytes.len() as u64 ^ K0;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let word = u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
        state = fold(state ^ word, K1);
    }
    // The last bytes are read one by one, since copying a few bytes is a call.
    let rest = chunks.remainder().iter();
    let word = rest.fold(0, |word, byte| word << 8 | u64::from(*byte));
    fold(state ^ word, K1)
}
