//! 16 by 16 dwords, transposed in registers of four: how keys get into panels.

use std::arch::aarch64::{
    vdupq_n_u32, vld1q_u8, vreinterpretq_u32_u8, vreinterpretq_u32_u64, vreinterpretq_u64_u32,
    vst1q_u32, vtrn1q_u32, vtrn1q_u64, vtrn2q_u32, vtrn2q_u64,
};

use super::LANES;

/// Transposes 16 rows of 16 dwords: line d of `out` (lines are `width` dwords) gets dword d of each row.
///
/// # Safety
/// NEON; each row has 64 bytes; `out` reaches to the 16th dword of its 16th line.
#[target_feature(enable = "neon")]
pub(super) unsafe fn transpose(rows: &[*const u8; 16], out: *mut u32, width: usize) {
    for (group, rows) in rows.as_chunks::<LANES>().0.iter().enumerate() {
        for first in (0..16).step_by(LANES) {
            let mut r = [vdupq_n_u32(0); LANES];
            for (r, row) in r.iter_mut().zip(rows) {
                // SAFETY: four of the row's 16 dwords.
                *r = vreinterpretq_u32_u8(unsafe { vld1q_u8(row.add(first * 4)) });
            }
            // Even dwords of pairs of rows, then odd ones.
            let [even, odd] = [
                [vtrn1q_u32(r[0], r[1]), vtrn1q_u32(r[2], r[3])],
                [vtrn2q_u32(r[0], r[1]), vtrn2q_u32(r[2], r[3])],
            ]
            .map(|pairs| pairs.map(|pair| vreinterpretq_u64_u32(pair)));
            let lines = [
                vtrn1q_u64(even[0], even[1]),
                vtrn1q_u64(odd[0], odd[1]),
                vtrn2q_u64(even[0], even[1]),
                vtrn2q_u64(odd[0], odd[1]),
            ];
            for (d, line) in (first..).zip(lines) {
                // SAFETY: four dwords of one of 16 lines.
                unsafe {
                    vst1q_u32(
                        out.add(d * width + group * LANES),
                        vreinterpretq_u32_u64(line),
                    );
                }
            }
        }
    }
}
