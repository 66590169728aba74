//! [`super::Lanes`] for aarch64.

use super::{BLOCK, Lanes, Planes, WidePlanes};
use std::arch::aarch64::*;

/// NEON is part of the base instruction set.
pub(crate) struct Neon;

impl Lanes for Neon {
    #[inline(always)]
    fn planes(block: &[u8; BLOCK]) -> Planes {
        // SAFETY: every aarch64 machine that the standard library runs on has NEON.
        unsafe { neon(block) }
    }

    #[inline(always)]
    fn wide(block: &[u8; BLOCK]) -> WidePlanes {
        let within = |first: u8, count: u8| Self::within(block, first, count);
        WidePlanes::new(within(0x80, 0x40), within)
    }

    /// Plain arithmetic on bytes, which compilers turn into vectors.
    #[inline(always)]
    fn within(block: &[u8; BLOCK], first: u8, count: u8) -> u64 {
        let bits = block.iter().enumerate();
        bits.fold(0, |all, (at, byte)| {
            all | u64::from(byte.wrapping_sub(first) < count) << at
        })
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn neon(block: &[u8; BLOCK]) -> Planes {
    let load = |at: usize| {
        // SAFETY: `at` is 0, 16, 32 or 48, so 16 bytes are readable there.
        unsafe { vld1q_u8(block.as_ptr().add(at)) }
    };
    let parts = [load(0), load(16), load(32), load(48)];
    let bits = [1u8, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
    // SAFETY: `bits` has the 16 bytes that are read.
    let bits = unsafe { vld1q_u8(bits.as_ptr()) };
    // Bytes of all ones or all zeros become bits, by adding neighbours thrice.
    let mask = |a, b, c, d| {
        let low = vpaddq_u8(vandq_u8(a, bits), vandq_u8(b, bits));
        let high = vpaddq_u8(vandq_u8(c, bits), vandq_u8(d, bits));
        let all = vpaddq_u8(low, high);
        vgetq_lane_u64::<0>(vreinterpretq_u64_u8(vpaddq_u8(all, all)))
    };
    let [a, b, c, d] = parts;
    let equal = |byte: u8| {
        let byte = vdupq_n_u8(byte);
        mask(
            vceqq_u8(a, byte),
            vceqq_u8(b, byte),
            vceqq_u8(c, byte),
            vceqq_u8(d, byte),
        )
    };
    let within = |case: u8, first: u8, count: u8| {
        let (case, first, count) = (vdupq_n_u8(case), vdupq_n_u8(first), vdupq_n_u8(count));
        let part = |x| vcltq_u8(vsubq_u8(vorrq_u8(x, case), first), count);
        mask(part(a), part(b), part(c), part(d))
    };
    let ascii_end = vdupq_n_u8(0x80);
    let blank = equal(b' ');
    Planes {
        letter: within(0x20, b'a', 26),
        upper: within(0, b'A', 26),
        number: within(0, b'0', 10),
        space: within(0, b'\t', 5) | blank,
        blank,
        newline: equal(b'\n') | equal(b'\r'),
        quote: equal(b'\''),
        slash: equal(b'/'),
        non_ascii: mask(
            vcgeq_u8(a, ascii_end),
            vcgeq_u8(b, ascii_end),
            vcgeq_u8(c, ascii_end),
            vcgeq_u8(d, ascii_end),
        ),
    }
}
