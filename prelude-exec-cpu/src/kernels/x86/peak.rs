//! Rates of the arithmetic units with operands in registers: the bound for products.

use std::{
    arch::x86_64::{
        __m512, __m512bh, __m512i, _mm256_fmadd_ps, _mm256_set1_ps, _mm512_dpbf16_ps,
        _mm512_fmadd_ps, _mm512_set1_epi32, _mm512_set1_ps,
    },
    hint::black_box,
};

/// Independent sums: more than latency times throughput of any core so far.
const SUMS: usize = 12;

/// Floating-point operations of one round.
pub(super) const BF16_FLOPS: usize = SUMS * 16 * 4;
pub(super) const F32_512_FLOPS: usize = SUMS * 16 * 2;
pub(super) const F32_256_FLOPS: usize = SUMS * 8 * 2;

/// # Safety
/// AVX-512 with bf16.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) unsafe fn bf16(rounds: usize) {
    let x = black_box(_mm512_set1_epi32(0));
    // SAFETY: both types are 64 bytes without invalid values.
    let x = unsafe { std::mem::transmute::<__m512i, __m512bh>(x) };
    let mut sums: [__m512; SUMS] = [_mm512_set1_ps(0.0); SUMS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm512_dpbf16_ps(*sum, x, x);
        }
    }
    black_box(sums);
}

/// # Safety
/// AVX-512.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn f32_512(rounds: usize) {
    let x = black_box(_mm512_set1_ps(0.0));
    let mut sums = [x; SUMS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(x, x, *sum);
        }
    }
    black_box(sums);
}

/// # Safety
/// AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn f32_256(rounds: usize) {
    let x = black_box(_mm256_set1_ps(0.0));
    let mut sums = [x; SUMS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(x, x, *sum);
        }
    }
    black_box(sums);
}
