//! 128-bit tiles: 6 rows by 4 registers of columns, or fewer rows by more columns.
//!
//! Two inputs of a row are loaded at a time, and multiplied from their lanes: a broadcast of each
//! would take the units that multiply.

use std::arch::aarch64::{
    float32x2_t, float32x4_t, vandq_u32, vdupq_n_f32, vdupq_n_u32, vfmaq_lane_f32, vfmaq_n_f32,
    vld1_f32, vld1q_f32, vld1q_u32, vreinterpretq_f32_u32, vshlq_n_u32, vst1q_f32,
};

use super::{LANES, MR, NR, Tile, by_count};

/// # Safety
/// NEON; `R` registers of columns from `first` within a row; `out` holds M rows (M ≤ MR).
#[inline]
#[target_feature(enable = "neon")]
unsafe fn store<const M: usize, const R: usize>(
    acc: &[[float32x4_t; R]; M],
    first: usize,
    out: &mut Tile,
) {
    for (row, acc) in out.0.iter_mut().zip(acc) {
        let strip = &mut row[first..first + R * LANES];
        for (lanes, &sum) in strip.chunks_exact_mut(LANES).zip(acc) {
            // SAFETY: `lanes` has room for 4 f32.
            unsafe { vst1q_f32(lanes.as_mut_ptr(), sum) };
        }
    }
}

/// Adds the products of inputs `k` and `k + 1` with register `j` of columns, of which `w` has both.
///
/// # Safety
/// NEON; each of `M` rows of `a`, `stride` apart, has these inputs.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn add_two<const M: usize, const R: usize>(
    acc: &mut [[float32x4_t; R]; M],
    j: usize,
    (a, stride, k): (&[f32], usize, usize),
    w: [float32x4_t; 2],
) {
    for (r, acc) in acc.iter_mut().enumerate() {
        // SAFETY: row r has two inputs from k on.
        let x: float32x2_t = unsafe { vld1_f32(a.as_ptr().add(r * stride + k)) };
        acc[j] = vfmaq_lane_f32::<0>(acc[j], w[0], x);
        acc[j] = vfmaq_lane_f32::<1>(acc[j], w[1], x);
    }
}

/// # Safety
/// NEON; `count` rows of `2 · b.len() / 64` elements within `a`.
#[target_feature(enable = "neon")]
pub(super) unsafe fn f32_bf16(a: &[f32], stride: usize, count: usize, b: &[u32], out: &mut Tile) {
    // SAFETY: our caller's promises.
    unsafe { by_count!(count, f32_bf16_rows(a, stride, b, out)) }
}

/// # Safety
/// As [`f32_bf16`], with `M` rows.
#[target_feature(enable = "neon")]
unsafe fn f32_bf16_rows<const M: usize, const R: usize>(
    a: &[f32],
    stride: usize,
    b: &[u32],
    out: &mut Tile,
) {
    let high = vdupq_n_u32(0xffff_0000);
    for first in (0..NR).step_by(R * LANES) {
        let mut acc = [[vdupq_n_f32(0.0); R]; M];
        for p in 0..b.len() / NR {
            for j in 0..R {
                // SAFETY: within line p of the panel.
                let pairs = unsafe { vld1q_u32(b.as_ptr().add(p * NR + first + j * LANES)) };
                let w = [vshlq_n_u32::<16>(pairs), vandq_u32(pairs, high)];
                let w = w.map(|w| vreinterpretq_f32_u32(w));
                // SAFETY: rows reach as far as the panel is deep.
                unsafe { add_two(&mut acc, j, (a, stride, 2 * p), w) };
            }
        }
        // SAFETY: a strip within the row, and M rows.
        unsafe { store(&acc, first, out) };
    }
}

/// # Safety
/// NEON; `count` rows of `b.len() / 64` elements within `a`.
#[target_feature(enable = "neon")]
pub(super) unsafe fn f32_f32(a: &[f32], stride: usize, count: usize, b: &[u32], out: &mut Tile) {
    // SAFETY: our caller's promises.
    unsafe { by_count!(count, f32_f32_rows(a, stride, b, out)) }
}

/// # Safety
/// As [`f32_f32`], with `M` rows.
#[target_feature(enable = "neon")]
unsafe fn f32_f32_rows<const M: usize, const R: usize>(
    a: &[f32],
    stride: usize,
    b: &[u32],
    out: &mut Tile,
) {
    let depth = b.len() / NR;
    let b = b.as_ptr().cast::<f32>();
    for first in (0..NR).step_by(R * LANES) {
        let mut acc = [[vdupq_n_f32(0.0); R]; M];
        for k in (0..depth - depth % 2).step_by(2) {
            for j in 0..R {
                // SAFETY: within lines k and k + 1 of the panel.
                let w = unsafe {
                    let at = b.add(k * NR + first + j * LANES);
                    [vld1q_f32(at), vld1q_f32(at.add(NR))]
                };
                // SAFETY: rows reach as far as the panel is deep.
                unsafe { add_two(&mut acc, j, (a, stride, k), w) };
            }
        }
        if depth % 2 == 1 {
            let k = depth - 1;
            for j in 0..R {
                // SAFETY: within line k of the panel.
                let w = unsafe { vld1q_f32(b.add(k * NR + first + j * LANES)) };
                for (r, acc) in acc.iter_mut().enumerate() {
                    // SAFETY: row r reaches as far as the panel is deep.
                    let x = unsafe { *a.get_unchecked(r * stride + k) };
                    acc[j] = vfmaq_n_f32(acc[j], w, x);
                }
            }
        }
        // SAFETY: a strip within the row, and M rows.
        unsafe { store(&acc, first, out) };
    }
}
