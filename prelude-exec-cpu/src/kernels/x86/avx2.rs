//! 256-bit tiles: a panel is walked in strips of 16 columns, 6 rows by 2 registers each.

use std::arch::x86_64::{
    __m256, __m256i, _mm256_and_si256, _mm256_castsi256_ps, _mm256_fmadd_ps, _mm256_loadu_si256,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256, _mm256_slli_epi32,
    _mm256_storeu_ps,
};

use super::{MR, NR, PanelAndNext, Tile, by_count};

/// Registers of 8 columns in a strip.
const REGS: usize = 2;
/// Columns of a strip.
const STRIP: usize = 8 * REGS;

/// # Safety
/// AVX2; `STRIP` columns from `first` within a row (`first` is a strip's start).
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store<const M: usize>(acc: &[[__m256; REGS]; M], first: usize, out: &mut Tile) {
    for (row, acc) in out.0.iter_mut().zip(acc) {
        let strip = &mut row[first..first + STRIP];
        for (lanes, &sum) in strip.chunks_exact_mut(8).zip(acc) {
            // SAFETY: `lanes` has room for 8 f32.
            unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), sum) };
        }
    }
}

/// # Safety
/// AVX2; `STRIP` dwords at `at`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load(at: *const u32) -> [__m256i; REGS] {
    let mut registers = [_mm256_setzero_si256(); REGS];
    for (j, register) in registers.iter_mut().enumerate() {
        // SAFETY: 8 of the strip's dwords.
        *register = unsafe { _mm256_loadu_si256(at.add(j * 8).cast()) };
    }
    registers
}

/// # Safety
/// The instructions; `count` rows of `2 · b.0.len() / 64` elements within `a`.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn f32_bf16(
    a: &[f32],
    stride: usize,
    count: usize,
    (b, _): PanelAndNext<'_>,
    out: &mut Tile,
) {
    // SAFETY: our caller's promises.
    unsafe { by_count!(count, f32_bf16_rows(a, stride, b, out)) }
}

/// # Safety
/// As [`f32_bf16`], with `M` rows.
#[target_feature(enable = "avx2,fma")]
unsafe fn f32_bf16_rows<const M: usize>(a: &[f32], stride: usize, b: &[u32], out: &mut Tile) {
    let high = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
    for first in (0..NR).step_by(STRIP) {
        let mut acc = [[_mm256_setzero_ps(); REGS]; M];
        for p in 0..b.len() / NR {
            // SAFETY: a strip of line p of the panel.
            let line = unsafe { load(b.as_ptr().add(p * NR + first)) };
            for (r, acc) in acc.iter_mut().enumerate() {
                // SAFETY: row r reaches as far as the panel is deep.
                let x = _mm256_set1_ps(unsafe { *a.get_unchecked(r * stride + 2 * p) });
                for (sum, &w) in acc.iter_mut().zip(&line) {
                    let w = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(w));
                    *sum = _mm256_fmadd_ps(x, w, *sum);
                }
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                // SAFETY: as above.
                let x = _mm256_set1_ps(unsafe { *a.get_unchecked(r * stride + 2 * p + 1) });
                for (sum, &w) in acc.iter_mut().zip(&line) {
                    let w = _mm256_castsi256_ps(_mm256_and_si256(w, high));
                    *sum = _mm256_fmadd_ps(x, w, *sum);
                }
            }
        }
        // SAFETY: a strip within the row.
        unsafe { store(&acc, first, out) };
    }
}

/// # Safety
/// The instructions; `count` rows of `b.0.len() / 64` elements within `a`.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn f32_f32(
    a: &[f32],
    stride: usize,
    count: usize,
    (b, _): PanelAndNext<'_>,
    out: &mut Tile,
) {
    // SAFETY: our caller's promises.
    unsafe { by_count!(count, f32_f32_rows(a, stride, b, out)) }
}

/// # Safety
/// As [`f32_f32`], with `M` rows.
#[target_feature(enable = "avx2,fma")]
unsafe fn f32_f32_rows<const M: usize>(a: &[f32], stride: usize, b: &[u32], out: &mut Tile) {
    for first in (0..NR).step_by(STRIP) {
        let mut acc = [[_mm256_setzero_ps(); REGS]; M];
        for k in 0..b.len() / NR {
            // SAFETY: a strip of line k of the panel.
            let line = unsafe { load(b.as_ptr().add(k * NR + first)) };
            for (r, acc) in acc.iter_mut().enumerate() {
                // SAFETY: row r reaches as far as the panel is deep.
                let x = _mm256_set1_ps(unsafe { *a.get_unchecked(r * stride + k) });
                for (sum, &w) in acc.iter_mut().zip(&line) {
                    *sum = _mm256_fmadd_ps(x, _mm256_castsi256_ps(w), *sum);
                }
            }
        }
        // SAFETY: a strip within the row.
        unsafe { store(&acc, first, out) };
    }
}
