//! Tiles of bf16 pairs with the instructions of `bf16`: two rows by two columns and four inputs at a
//! time (`bfmmla`), or one row (`bfdot`).
//!
//! ARM defines `bfmmla` as two steps of `bfdot` for each of its sums, so a row has the same bits
//! alone and in company.

use std::arch::{
    aarch64::{
        float32x4_t, uint32x2_t, uint32x4_t, vcombine_u32, vdup_n_u32, vdupq_n_f32, vdupq_n_u32,
        vget_high_f32, vget_low_f32, vld1_u32, vld1q_u32, vset_lane_u32, vst1_f32, vst1q_f32,
        vzip1q_u32, vzip2q_u32,
    },
    asm,
};

use super::{LANES, NR, Tile};

/// Registers of columns for one row.
const LINE: usize = NR / LANES;

/// Multiplies `count` rows by a panel.
///
/// # Safety
/// NEON with `bf16`; `count` rows of `b.len() / 64` dwords within `a`.
#[target_feature(enable = "neon,bf16")]
pub(super) unsafe fn bf16_bf16(a: &[u32], stride: usize, count: usize, b: &[u32], out: &mut Tile) {
    // Pairs of rows by registers of columns. With more than 16 registers of sums the compiler moves
    // them about.
    // SAFETY: our caller's promises.
    unsafe {
        match count {
            1 => one_row(a, b, out),
            2 => pairs_of_rows::<1, 8>((a, stride, count), b, out),
            3 | 4 => pairs_of_rows::<2, 4>((a, stride, count), b, out),
            _ => pairs_of_rows::<3, 2>((a, stride, count), b, out),
        }
    }
}

/// # Safety
/// NEON with `bf16`; `b.len() / 64` dwords in `a`.
#[target_feature(enable = "neon,bf16")]
unsafe fn one_row(a: &[u32], b: &[u32], out: &mut Tile) {
    let lines = b.len() / NR;
    let mut acc = [vdupq_n_f32(0.0); LINE];
    let whole = lines - lines % 2;
    for p in (0..whole).step_by(2) {
        // SAFETY: two dwords of the row, and two lines.
        unsafe { add_to_row::<true>(&mut acc, a.as_ptr().add(p), b.as_ptr().add(p * NR)) };
    }
    if whole < lines {
        // SAFETY: the last dword of the row, and the last line.
        unsafe { add_to_row::<false>(&mut acc, a.as_ptr().add(whole), b.as_ptr().add(whole * NR)) };
    }
    for (lanes, sum) in out.0[0].chunks_exact_mut(LANES).zip(acc) {
        // SAFETY: `lanes` has room for 4 f32.
        unsafe { vst1q_f32(lanes.as_mut_ptr(), sum) };
    }
}

/// # Safety
/// As [`two_dwords`] at `a` and [`two_lines`] at `b`.
#[inline]
#[target_feature(enable = "neon,bf16")]
unsafe fn add_to_row<const BOTH: bool>(
    acc: &mut [float32x4_t; LINE],
    a: *const u32,
    b: *const u32,
) {
    // SAFETY: our caller's promises.
    let x = unsafe { two_dwords::<BOTH>(a) };
    for (j, sum) in acc.iter_mut().enumerate() {
        // SAFETY: a register of columns.
        let w = unsafe { two_lines::<BOTH>(b.add(j * LANES)) };
        *sum = dot::<0>(*sum, w[0], x);
        *sum = dot::<1>(*sum, w[1], x);
    }
}

/// # Safety
/// NEON with `bf16`; `count` rows, in `P` pairs, the last of which may lack a row; each of
/// `b.len() / 64` dwords within `a`.
#[target_feature(enable = "neon,bf16")]
unsafe fn pairs_of_rows<const P: usize, const R: usize>(
    (a, stride, count): (&[u32], usize, usize),
    b: &[u32],
    out: &mut Tile,
) {
    let lines = b.len() / NR;
    // A row that is not there is the one before it, whose sums are computed twice.
    let second = |pair: usize| (2 * pair + 1).min(count - 1);
    let mut rows = [[a.as_ptr(); 2]; P];
    for (pair, rows) in rows.iter_mut().enumerate() {
        for (row, index) in rows.iter_mut().zip([2 * pair, second(pair)]) {
            // SAFETY: a row within `a`.
            *row = unsafe { row.add(index * stride) };
        }
    }
    let whole = lines - lines % 2;
    for first in (0..NR).step_by(R * LANES) {
        let mut acc = [[[vdupq_n_f32(0.0); 2]; R]; P];
        for p in (0..whole).step_by(2) {
            // SAFETY: two dwords of each row from p on, and two lines.
            unsafe { add_to_pairs::<P, R, true>(&mut acc, &rows, p, b.as_ptr().add(first)) };
        }
        if whole < lines {
            // SAFETY: the last dword of each row, and the last line.
            unsafe { add_to_pairs::<P, R, false>(&mut acc, &rows, whole, b.as_ptr().add(first)) };
        }
        for (pair, acc) in acc.iter().enumerate() {
            for (j, sums) in acc.iter().enumerate() {
                let column = first + j * LANES;
                for (half, &sum) in sums.iter().enumerate() {
                    let columns = column + 2 * half..column + 2 * half + 2;
                    // The second row first: where there is none, it is the first.
                    let rows = [
                        (second(pair), vget_high_f32(sum)),
                        (2 * pair, vget_low_f32(sum)),
                    ];
                    for (row, sum) in rows {
                        let lanes = &mut out.0[row][columns.clone()];
                        // SAFETY: `lanes` has room for 2 f32.
                        unsafe { vst1_f32(lanes.as_mut_ptr(), sum) };
                    }
                }
            }
        }
    }
}

/// Adds to the sums of pairs of rows, of the first two and the last two columns of `R` registers.
///
/// # Safety
/// As [`two_dwords`] at dword `p` of each row, and as [`two_lines`] at line `p` of `b` for `R`
/// registers of columns.
#[inline]
#[target_feature(enable = "neon,bf16")]
unsafe fn add_to_pairs<const P: usize, const R: usize, const BOTH: bool>(
    acc: &mut [[[float32x4_t; 2]; R]; P],
    rows: &[[*const u32; 2]; P],
    p: usize,
    b: *const u32,
) {
    let mut x = [vdupq_n_u32(0); P];
    for (x, rows) in x.iter_mut().zip(rows) {
        // SAFETY: our caller's promises.
        let [first, second] = unsafe {
            [
                two_dwords::<BOTH>(rows[0].add(p)),
                two_dwords::<BOTH>(rows[1].add(p)),
            ]
        };
        *x = vcombine_u32(first, second);
    }
    for j in 0..R {
        // SAFETY: a register of columns.
        let [even, odd] = unsafe { two_lines::<BOTH>(b.add(p * NR + j * LANES)) };
        let w = [vzip1q_u32(even, odd), vzip2q_u32(even, odd)];
        for (acc, &x) in acc.iter_mut().zip(&x) {
            for (sum, &w) in acc[j].iter_mut().zip(&w) {
                *sum = multiply_two(*sum, x, w);
            }
        }
    }
}

/// Loads two dwords of a row; with zero for the second if not `BOTH`.
///
/// # Safety
/// NEON; as many dwords at `at`.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn two_dwords<const BOTH: bool>(at: *const u32) -> uint32x2_t {
    if BOTH {
        // SAFETY: our caller's promise.
        unsafe { vld1_u32(at) }
    } else {
        // SAFETY: as above.
        vset_lane_u32::<0>(unsafe { *at }, vdup_n_u32(0))
    }
}

/// Loads four columns of two lines; with zeros for the second line if not `BOTH`.
///
/// # Safety
/// NEON; four dwords at `at`, and if `BOTH` a line further on as well.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn two_lines<const BOTH: bool>(at: *const u32) -> [uint32x4_t; 2] {
    // SAFETY: our caller's promise.
    let first = unsafe { vld1q_u32(at) };
    let second = if BOTH {
        // SAFETY: as above.
        unsafe { vld1q_u32(at.add(NR)) }
    } else {
        vdupq_n_u32(0)
    };
    [first, second]
}

/// Adds to each of four sums the products of two bf16 of `w` with those of dword `LANE` of `x`.
#[inline]
#[target_feature(enable = "neon,bf16")]
fn dot<const LANE: i32>(mut sum: float32x4_t, w: uint32x4_t, x: uint32x2_t) -> float32x4_t {
    // The intrinsic, `vbfdotq_lane_f32`, is not stable.
    // SAFETY: the instruction reads and writes these registers and nothing else.
    unsafe {
        asm!(
            "bfdot {sum:v}.4s, {w:v}.8h, {x:v}.2h[{lane}]",
            sum = inout(vreg) sum,
            w = in(vreg) w,
            x = in(vreg) x,
            lane = const LANE,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// Adds the products of two rows of four bf16, `x`, with two columns of four, `w`: the sums of the
/// first row, then those of the second.
#[inline]
#[target_feature(enable = "neon,bf16")]
pub(super) fn multiply_two(mut sum: float32x4_t, x: uint32x4_t, w: uint32x4_t) -> float32x4_t {
    // The intrinsic, `vbfmmlaq_f32`, is not stable.
    // SAFETY: the instruction reads and writes these registers and nothing else.
    unsafe {
        asm!(
            "bfmmla {sum:v}.4s, {x:v}.8h, {w:v}.8h",
            sum = inout(vreg) sum,
            x = in(vreg) x,
            w = in(vreg) w,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}
