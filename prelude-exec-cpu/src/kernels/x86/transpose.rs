//! 16 by 16 dwords, transposed in registers: how keys get into panels.

use std::arch::x86_64::{
    __m512i, _mm512_loadu_si512, _mm512_setzero_si512, _mm512_shuffle_i32x4, _mm512_storeu_si512,
    _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};

/// Transposes 16 rows of 16 dwords: line d of `out` (lines are `width` dwords) gets dword d of each row.
///
/// # Safety
/// AVX-512F; each row has 64 bytes; `out` reaches to the 16th dword of its 16th line.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn transpose(rows: &[*const u8; 16], out: *mut u32, width: usize) {
    let mut r = [_mm512_setzero_si512(); 16];
    for (r, row) in r.iter_mut().zip(rows) {
        // SAFETY: the row has 64 bytes.
        *r = unsafe { _mm512_loadu_si512(row.cast()) };
    }
    for (column, line) in transposed(r).into_iter().enumerate() {
        // SAFETY: one of 16 lines, 16 dwords of it.
        unsafe { _mm512_storeu_si512(out.add(column * width).cast(), line) };
    }
}

/// Transposes 16 registers: dword d of register r becomes dword r of register d.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn transposed(mut r: [__m512i; 16]) -> [__m512i; 16] {
    // Pairs of rows, then fours: after this, 128-bit lane L of r[i + c] holds column 4 L + c of
    // rows i..i + 4, for i a multiple of 4.
    let mut t = r;
    for i in (0..16).step_by(2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for i in (0..16).step_by(4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for c in 0..4 {
        // Even lanes, then odd ones.
        let columns: [[__m512i; 2]; 2] = [
            [
                _mm512_shuffle_i32x4::<0x88>(r[c], r[4 + c]),
                _mm512_shuffle_i32x4::<0x88>(r[8 + c], r[12 + c]),
            ],
            [
                _mm512_shuffle_i32x4::<0xdd>(r[c], r[4 + c]),
                _mm512_shuffle_i32x4::<0xdd>(r[8 + c], r[12 + c]),
            ],
        ];
        for (odd, [low, high]) in columns.into_iter().enumerate() {
            let lines = [
                _mm512_shuffle_i32x4::<0x88>(low, high),
                _mm512_shuffle_i32x4::<0xdd>(low, high),
            ];
            for (upper, line) in lines.into_iter().enumerate() {
                t[8 * upper + 4 * odd + c] = line;
            }
        }
    }
    t
}
