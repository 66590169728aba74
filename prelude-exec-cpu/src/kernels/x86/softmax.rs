//! The running softmax of a tile of rows in 512-bit registers, with the bits of
//! `super::super::elementwise::softmax_rows`, whose maximum and sum compilers do not turn into
//! vector code.

use std::arch::x86_64::{
    __m128, __m256, __m512, _CMP_NLT_UQ, _mm_add_ps, _mm_cvtss_f32, _mm_max_ps, _mm_movehl_ps,
    _mm_shuffle_ps, _mm256_add_ps, _mm256_castps256_ps128, _mm256_extractf128_ps, _mm256_max_ps,
    _mm512_add_epi32, _mm512_add_ps, _mm512_castps_si512, _mm512_castps512_ps256,
    _mm512_castsi512_ps, _mm512_cmp_ps_mask, _mm512_extractf32x8_ps, _mm512_fmadd_ps,
    _mm512_loadu_ps, _mm512_mask_mov_ps, _mm512_maskz_mul_ps, _mm512_max_ps, _mm512_mul_ps,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_slli_epi32, _mm512_storeu_ps,
    _mm512_sub_ps,
};

use super::{
    super::elementwise::{RowScores, exp_terms},
    MR, NR,
};

/// Lanes of a register.
const LANES: usize = 16;

/// Registers of a row.
const REGS: usize = NR / LANES;

/// `super::super::elementwise::softmax_rows`. Each step is done for all rows before the next: a row
/// alone would mostly wait for its own maximum, powers and sum.
///
/// # Safety
/// The instructions.
#[target_feature(enable = "avx512f,avx512dq,fma")]
pub(super) unsafe fn softmax_rows(
    scores: &mut [[f32; NR]],
    rows: &[RowScores; MR],
    max: &mut [f32; MR],
    sum: &mut [f32; MR],
) {
    let hidden = _mm512_set1_ps(f32::NEG_INFINITY);
    for ((scores, row), max) in scores.iter_mut().zip(rows).zip(&mut *max) {
        if row.visible == 0 {
            continue;
        }
        let scale = _mm512_set1_ps(row.scale);
        let seen = u64::MAX >> (NR - row.visible.min(NR));
        let mut lanes = _mm512_set1_ps(*max);
        for j in 0..REGS {
            // SAFETY: 16 of the row's 64 numbers.
            let x = unsafe { _mm512_loadu_ps(scores.as_ptr().add(j * LANES)) };
            let seen = (seen >> (j * LANES)) as u16;
            let x = _mm512_mask_mov_ps(hidden, seen, _mm512_mul_ps(x, scale));
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(scores.as_mut_ptr().add(j * LANES), x) };
            // The second operand if one is NaN.
            lanes = _mm512_max_ps(x, lanes);
        }
        *max = largest(lanes);
    }
    let mut lanes = [_mm512_setzero_ps(); MR];
    for (((scores, row), max), lanes) in scores.iter_mut().zip(rows).zip(&*max).zip(&mut lanes) {
        if row.visible == 0 {
            continue;
        }
        let max = _mm512_set1_ps(*max);
        for j in 0..REGS {
            // SAFETY: as above.
            let x = unsafe { _mm512_loadu_ps(scores.as_ptr().add(j * LANES)) };
            let weights = exp(_mm512_sub_ps(x, max));
            *lanes = _mm512_add_ps(*lanes, weights);
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(scores.as_mut_ptr().add(j * LANES), weights) };
        }
    }
    for (sum, &lanes) in sum.iter_mut().zip(&lanes) {
        *sum = total(lanes);
    }
}

/// `super::super::elementwise::exp_to_88`.
#[inline]
#[target_feature(enable = "avx512f")]
fn exp(x: __m512) -> __m512 {
    let wide = |x| _mm512_set1_ps(x);
    let t = _mm512_fmadd_ps(x, wide(std::f32::consts::LOG2_E), wide(exp_terms::MAGIC));
    let n = _mm512_sub_ps(t, wide(exp_terms::MAGIC));
    let r = _mm512_fmadd_ps(n, wide(-exp_terms::LN2_HIGH), x);
    let r = _mm512_fmadd_ps(n, wide(-exp_terms::LN2_LOW), r);
    let mut p = wide(exp_terms::COEFFICIENTS[0]);
    for &coefficient in &exp_terms::COEFFICIENTS[1..] {
        p = _mm512_fmadd_ps(r, p, wide(coefficient));
    }
    let value = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r);
    let value = _mm512_add_ps(value, wide(1.0));
    let power = _mm512_slli_epi32::<23>(_mm512_castps_si512(t));
    let power = _mm512_castsi512_ps(_mm512_add_epi32(power, _mm512_set1_epi32(127 << 23)));
    let counts = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, wide(-87.0));
    _mm512_maskz_mul_ps(counts, value, power)
}

/// Returns the upper and the lower half.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn halves(x: __m512) -> (__m256, __m256) {
    (_mm512_extractf32x8_ps::<1>(x), _mm512_castps512_ps256(x))
}

/// Returns the upper and the lower half.
#[inline]
#[target_feature(enable = "avx512f")]
fn halves_of_256(x: __m256) -> (__m128, __m128) {
    (_mm256_extractf128_ps::<1>(x), _mm256_castps256_ps128(x))
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn largest(x: __m512) -> f32 {
    let (high, low) = halves(x);
    let (high, low) = halves_of_256(_mm256_max_ps(high, low));
    let x = _mm_max_ps(high, low);
    let x = _mm_max_ps(_mm_movehl_ps(x, x), x);
    _mm_cvtss_f32(_mm_max_ps(_mm_shuffle_ps::<1>(x, x), x))
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn total(x: __m512) -> f32 {
    let (high, low) = halves(x);
    let (high, low) = halves_of_256(_mm256_add_ps(low, high));
    let x = _mm_add_ps(low, high);
    let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    _mm_cvtss_f32(_mm_add_ps(x, _mm_shuffle_ps::<1>(x, x)))
}
