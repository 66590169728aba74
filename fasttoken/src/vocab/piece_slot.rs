//! The storage of pieces: a short piece lies in the slot of its id.
//!
//! ```text
//! slot of an id, 16 bytes:
//!   short piece (at most 15 bytes)   b b b b b b b b b b b b b b b | meta
//!   long piece                       offset u32 | length u32 | 0.. | meta
//!   meta: HIDDEN 0x80, LONG 0x40, RAW 0x20, length of a short piece 0x0F
//! ```
//!
//!
//! Decoding copies a slot whole and advances by its length.

use crate::short_tokens::Key;

/// The piece of one id, or its place; see the picture above.
#[derive(Debug, Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C, align(16))]
pub(super) struct Slot(pub(super) [u8; SLOT]);

pub(super) const SLOT: usize = 16;
pub(super) const META: usize = SLOT - 1;
pub(super) const HIDDEN_SLOT: u8 = 0x80;
pub(super) const LONG: u8 = 0x40;
pub(super) const RAW_SLOT: u8 = 0x20;
pub(super) const LEN: u8 = 0x0F;

impl Slot {
    /// Creates the slot of `piece`, which is appended to `long` if it is not short.
    pub(super) fn new(piece: &[u8], long: &mut Vec<u8>) -> Self {
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

    /// Returns the key of a piece of 1 to 15 bytes, and [`Key::NONE`] for others.
    #[inline(always)]
    pub(super) fn key(&self) -> Key {
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
    pub(super) fn piece<'a>(&'a self, long: &'a [u8]) -> &'a [u8] {
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
