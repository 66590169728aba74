//! Rates of the arithmetic units with operands in registers: the bound for products.

use std::{
    arch::aarch64::{vdupq_n_f32, vdupq_n_u32, vfmaq_f32},
    hint::black_box,
};

use super::bf16::multiply_two;

/// Independent sums: more than latency times throughput of any core so far.
const SUMS: usize = 24;

/// Floating-point operations of one round.
pub(super) const BF16_FLOPS: usize = SUMS * 4 * 4 * 2;
pub(super) const F32_FLOPS: usize = SUMS * 4 * 2;

/// # Safety
/// NEON with `bf16`.
#[target_feature(enable = "neon,bf16")]
pub(super) unsafe fn bf16(rounds: usize) {
    let x = black_box(vdupq_n_u32(0));
    let mut sums = [vdupq_n_f32(0.0); SUMS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = multiply_two(*sum, x, x);
        }
    }
    black_box(sums);
}

/// # Safety
/// NEON.
#[target_feature(enable = "neon")]
pub(super) unsafe fn f32(rounds: usize) {
    let x = black_box(vdupq_n_f32(0.0));
    let mut sums = [x; SUMS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = vfmaq_f32(*sum, x, x);
        }
    }
    black_box(sums);
}
