//! Sets of bytes, and hashed bit sets of pairs.
//!
//! A hashed bit set can report a pair that it does not hold. This costs time and changes no result:
//! a character counts as not premerged although it could be, or a word is not cut into pieces where
//! it could be.

/// The size in bits of the set of neighbouring characters: 128 KiB, of which the pairs of a large
/// vocabulary set one bit in ten.
pub(super) const NEIGHBOUR_BITS: usize = 1 << 20;

/// A set of bytes: one bit for each value.
pub(super) type ByteSet = [u64; 4];

/// The size in bits of the set of (context, previous character) pairs.
pub(super) const EXCLUDED_CHAR_BITS: usize = 1 << 18;
/// The size in bits of the set of (character, next character) pairs: 64 KiB, of which Qwen 3's
/// vocabulary sets one bit in twenty.
pub(super) const FOLLOWER_BITS: usize = 1 << 19;

pub(super) fn contains(set: &[u64], byte: u8) -> bool {
    set.get(usize::from(byte / 64))
        .is_none_or(|bits| bits >> (byte % 64) & 1 == 1)
}

pub(super) fn has_bit(bits: &[u64], at: usize) -> bool {
    bits.get(at / 64)
        .is_none_or(|word| word >> (at % 64) & 1 == 1)
}

pub(super) fn set_bit(bits: &mut [u64], at: usize) {
    bits[at / 64] |= 1 << (at % 64);
}

#[inline(always)]
pub(super) fn neighbour_bit(left: u32, right: u32) -> usize {
    let pair = u64::from(left) << 32 | u64::from(right);
    // The upper bits of a product depend on all of the factor.
    (pair.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 44) as usize % NEIGHBOUR_BITS
}

#[inline(always)]
pub(super) fn excluded_bit(context: u32, code: u32) -> usize {
    let pair = u64::from(context) << 32 | u64::from(code);
    (pair.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 46) as usize % EXCLUDED_CHAR_BITS
}

#[inline(always)]
pub(super) fn follower_bit(code: u32, next: u32) -> usize {
    let pair = u64::from(code) << 32 | u64::from(next);
    (pair.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 45) as usize % FOLLOWER_BITS
}
