//! Tiles of int8: 6 rows by 4 registers of columns, or fewer rows by more columns, with products of
//! four bytes (`sdot`) or of words.
//!
//! Both compute the integers and the f32 sums that `super::super::int8` defines. Rows hold signed
//! bytes here, so the first line of a group, which x86-64 begins its sums with, is passed over.

use std::arch::{
    aarch64::{
        int8x8_t, int8x16_t, int32x4_t, vaddq_f32, vcvtq_f32_s32, vdupq_n_f32, vdupq_n_s32,
        vget_low_s8, vld1_s8, vld1q_dup_s32, vld1q_f32, vld1q_s8, vmull_high_s8, vmull_s8,
        vmulq_f32, vpadalq_s16, vpaddq_s16, vreinterpretq_s8_s32, vst1q_f32,
    },
    asm,
};

use super::{GROUP_QUADS, LANES, MR, NR, Tile, by_count};

/// Rows: dwords, and from one row to the next.
type Left<'a> = (&'a [u32], usize);
/// A panel: dwords, groups, and dwords of weights of a column.
type Right<'a> = (&'a [u32], usize, usize);

/// The product with one kind of instructions.
macro_rules! kernel {
    ($(#[$doc:meta])* $entry:ident, $rows:ident, $features:literal, $add_group:ident) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// The instructions; `count` rows of `groups + quads` dwords within `a`; `b` has one line per
        /// group, one per quad, and one of scales; only the last group has fewer than
        /// [`GROUP_QUADS`] quads.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $entry(a: Left<'_>, count: usize, b: Right<'_>, out: &mut Tile) {
            // SAFETY: our caller's promises.
            unsafe { by_count!(count, $rows(a, b, out)) }
        }

        /// # Safety
        /// As its caller, with `M` rows.
        #[target_feature(enable = $features)]
        unsafe fn $rows<const M: usize, const R: usize>(
            (a, stride): Left<'_>,
            (b, groups, quads): Right<'_>,
            out: &mut Tile,
        ) {
            for first in (0..NR).step_by(R * LANES) {
                for row in &mut out.0[..M] {
                    row[first..first + R * LANES].fill(0.0);
                }
                for g in 0..groups {
                    let start = g * GROUP_QUADS;
                    let count = GROUP_QUADS.min(quads - start);
                    let mut acc = [[vdupq_n_s32(0); R]; M];
                    // SAFETY: the group's dwords in the rows, and its lines behind the first, from a
                    // strip of columns on.
                    unsafe {
                        let x = a.as_ptr().add(groups + start);
                        let w = b.as_ptr().add((g + start + 1) * NR + first);
                        $add_group(&mut acc, (x, stride), w, count);
                    }
                    for (r, acc) in acc.iter().enumerate() {
                        // SAFETY: row r begins with its scales.
                        let scale = unsafe { *a.get_unchecked(r * stride + g) };
                        let scale = vdupq_n_f32(f32::from_bits(scale));
                        let strip = &mut out.0[r][first..first + R * LANES];
                        for (lanes, &sum) in strip.chunks_exact_mut(LANES).zip(acc) {
                            let term = vmulq_f32(vcvtq_f32_s32(sum), scale);
                            // SAFETY: `lanes` are as many f32 as a register has.
                            unsafe {
                                let sum = vaddq_f32(vld1q_f32(lanes.as_ptr()), term);
                                vst1q_f32(lanes.as_mut_ptr(), sum);
                            }
                        }
                    }
                }
            }
            let scales = &b[(groups + quads) * NR..];
            for row in &mut out.0[..M] {
                for (x, &scale) in row.iter_mut().zip(scales) {
                    *x *= f32::from_bits(scale);
                }
            }
        }
    };
}

kernel!(
    /// Products of four bytes.
    dotprod, dotprod_rows, "neon,dotprod", add_group_of_bytes
);
kernel!(
    /// Products of words.
    words, words_rows, "neon", add_group_of_words
);

/// Adds the products of `count` dwords of each row's bytes with as many lines of columns.
///
/// # Safety
/// NEON with `dotprod`; each of `M` rows from `a` on, `stride` dwords apart, has `count` dwords, and
/// each of `count` lines from `b` on has `R` registers of columns.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn add_group_of_bytes<const M: usize, const R: usize>(
    acc: &mut [[int32x4_t; R]; M],
    (a, stride): (*const u32, usize),
    b: *const u32,
    count: usize,
) {
    for q in (0..count - count % 2).step_by(2) {
        for j in 0..R {
            // SAFETY: a register of lines q and q + 1.
            let w = unsafe {
                let at = b.add(q * NR + j * LANES);
                [vld1q_s8(at.cast()), vld1q_s8(at.add(NR).cast())]
            };
            for (r, acc) in acc.iter_mut().enumerate() {
                // SAFETY: row r has two dwords from q on.
                let x = unsafe { vld1_s8(a.add(r * stride + q).cast()) };
                acc[j] = dot::<0>(acc[j], w[0], x);
                acc[j] = dot::<1>(acc[j], w[1], x);
            }
        }
    }
    if count % 2 == 1 {
        let q = count - 1;
        for j in 0..R {
            // SAFETY: a register of the last line.
            let w = unsafe { vld1q_s8(b.add(q * NR + j * LANES).cast()) };
            for (r, acc) in acc.iter_mut().enumerate() {
                // SAFETY: the last dword of row r.
                let x = unsafe { vld1q_dup_s32(a.add(r * stride + q).cast()) };
                acc[j] = dot::<0>(acc[j], w, vget_low_s8(vreinterpretq_s8_s32(x)));
            }
        }
    }
}

/// Adds to each of four sums the products of four bytes of `w` with dword `LANE` of `x`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot<const LANE: i32>(mut sum: int32x4_t, w: int8x16_t, x: int8x8_t) -> int32x4_t {
    // The intrinsic, `vdotq_lane_s32`, is not stable.
    // SAFETY: the instruction reads and writes these registers and nothing else.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {w:v}.16b, {x:v}.4b[{lane}]",
            sum = inout(vreg) sum,
            w = in(vreg) w,
            x = in(vreg) x,
            lane = const LANE,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// Adds a group as [`add_group_of_bytes`] does, with words: two products of bytes lie within ±2 · 127 ·
/// 128, and so does their sum in 16 bits.
///
/// # Safety
/// NEON; else as [`add_group_of_bytes`].
#[inline]
#[target_feature(enable = "neon")]
unsafe fn add_group_of_words<const M: usize, const R: usize>(
    acc: &mut [[int32x4_t; R]; M],
    (a, stride): (*const u32, usize),
    b: *const u32,
    count: usize,
) {
    for q in 0..count {
        for j in 0..R {
            // SAFETY: a register of line q.
            let w = unsafe { vld1q_s8(b.add(q * NR + j * LANES).cast()) };
            for (r, acc) in acc.iter_mut().enumerate() {
                // SAFETY: dword q of row r.
                let x = unsafe { vld1q_dup_s32(a.add(r * stride + q).cast()) };
                let x = vreinterpretq_s8_s32(x);
                let low = vmull_s8(vget_low_s8(w), vget_low_s8(x));
                let pairs = vpaddq_s16(low, vmull_high_s8(w, x));
                acc[j] = vpadalq_s16(acc[j], pairs);
            }
        }
    }
}
