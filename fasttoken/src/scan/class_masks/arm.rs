//! [`super::InstructionSet`] for aarch64.

use super::{BLOCK, InstructionSet};
use std::arch::aarch64::*;

/// NEON is part of the base instruction set.
pub(crate) struct Neon;

impl InstructionSet for Neon {
    #[inline(always)]
    fn cased_within(block: &[u8; BLOCK], case: u8, first: u8, count: u8) -> u64 {
        // SAFETY: every aarch64 machine that the standard library runs on has NEON.
        unsafe { within(block, case, first, count) }
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn within(block: &[u8; BLOCK], case: u8, first: u8, count: u8) -> u64 {
    let (case, first, count) = (vdupq_n_u8(case), vdupq_n_u8(first), vdupq_n_u8(count));
    let bits = [1u8, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
    // SAFETY: `bits` has the 16 bytes that are read.
    let bits = unsafe { vld1q_u8(bits.as_ptr()) };
    let part = |at: usize| {
        // SAFETY: `at` is 0, 16, 32 or 48, so 16 bytes are readable there.
        let bytes = unsafe { vld1q_u8(block.as_ptr().add(at)) };
        vandq_u8(
            vcltq_u8(vsubq_u8(vorrq_u8(bytes, case), first), count),
            bits,
        )
    };
    // Bytes of one bit or zero become bits, by adding neighbours thrice.
    let all = vpaddq_u8(vpaddq_u8(part(0), part(16)), vpaddq_u8(part(32), part(48)));
    vgetq_lane_u64::<0>(vreinterpretq_u64_u8(vpaddq_u8(all, all)))
}
