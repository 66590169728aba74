//! Tiles of int8: 6 rows by 64 columns, with products of bytes (VNNI) or of 16-bit words.
//!
//! All compute the integers and the f32 sums that `super::super::int8` defines. A product of
//! unsigned with signed bytes whose pairs are added in 16 bits would saturate, so without VNNI
//! bytes are widened to words: even ones and odd ones, which pairs of words suit as well.

use std::arch::x86_64::{
    __m256i, __m512i, _mm256_add_epi32, _mm256_add_ps, _mm256_and_si256, _mm256_castsi256_ps,
    _mm256_cvtepi32_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_mul_ps,
    _mm256_set1_epi16, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_si256, _mm256_slli_epi16,
    _mm256_srai_epi16, _mm256_srli_epi16, _mm256_storeu_ps, _mm512_add_epi32, _mm512_add_ps,
    _mm512_and_si512, _mm512_castsi512_ps, _mm512_cvtepi32_ps, _mm512_dpbusd_epi32,
    _mm512_loadu_ps, _mm512_loadu_si512, _mm512_madd_epi16, _mm512_mul_ps, _mm512_set1_epi16,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_si512, _mm512_slli_epi16, _mm512_srai_epi16,
    _mm512_srli_epi16, _mm512_storeu_ps,
};

use super::{GROUP_QUADS, MR, NR, Tile, by_count};

/// Rows: dwords, and from one row to the next.
type Left<'a> = (&'a [u32], usize);
/// A panel: dwords, groups, and dwords of weights of a column.
type Right<'a> = (&'a [u32], usize, usize);

/// The product on the registers of one family: `$registers` of `$lanes` columns at a time.
macro_rules! kernel {
    (
        $(#[$doc:meta])*
        $entry:ident, $rows:ident, $features:literal, $lanes:literal by $registers:literal,
        $zero:ident, $load:ident, $set_i32:ident, $add_product:ident,
        ($loadf:ident, $storef:ident, $setf:ident, $mulf:ident, $addf:ident, $convert:ident, $cast:ident)
    ) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// The instructions; `count` rows of `groups + quads` dwords within `a`; `b` has one line per
        /// group, one per quad, and one of scales.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $entry(a: Left<'_>, count: usize, b: Right<'_>, out: &mut Tile) {
            for first in (0..NR).step_by($lanes * $registers) {
                // SAFETY: our caller's promises; `first` is the start of a strip of columns.
                unsafe { by_count!(count, $rows(a, b, first, out)) }
            }
        }

        /// # Safety
        /// As its caller, with `M` rows, and `first` the start of a strip of columns.
        #[target_feature(enable = $features)]
        unsafe fn $rows<const M: usize>(
            (a, stride): Left<'_>,
            (b, groups, quads): Right<'_>,
            first: usize,
            out: &mut Tile,
        ) {
            for row in &mut out.0[..M] {
                row[first..first + $lanes * $registers].fill(0.0);
            }
            let mut line = 0;
            for g in 0..groups {
                let mut init = [$zero(); $registers];
                for (j, init) in init.iter_mut().enumerate() {
                    // SAFETY: lanes of a line of the panel.
                    *init = unsafe { $load(b.as_ptr().add(line * NR + first + j * $lanes).cast()) };
                }
                line += 1;
                let mut acc = [init; M];
                let start = g * GROUP_QUADS;
                for q in start..quads.min(start + GROUP_QUADS) {
                    let mut w = [$zero(); $registers];
                    for (j, w) in w.iter_mut().enumerate() {
                        // SAFETY: lanes of a line of the panel.
                        *w = unsafe { $load(b.as_ptr().add(line * NR + first + j * $lanes).cast()) };
                    }
                    line += 1;
                    let mut x = [$zero(); M];
                    for (r, x) in x.iter_mut().enumerate() {
                        // SAFETY: row r has its scales and as many dwords as the panel is deep.
                        let dword = unsafe { *a.get_unchecked(r * stride + groups + q) };
                        *x = $set_i32(dword.cast_signed());
                    }
                    $add_product(&mut acc, &x, &w);
                }
                for (r, acc) in acc.iter().enumerate() {
                    // SAFETY: row r begins with its scales.
                    let scale = unsafe { *a.get_unchecked(r * stride + g) };
                    let scale = $setf(f32::from_bits(scale));
                    let row = &mut out.0[r][first..first + $lanes * $registers];
                    for (lanes, &sum) in row.chunks_exact_mut($lanes).zip(acc) {
                        let term = $mulf($convert(sum), scale);
                        // SAFETY: `lanes` are as many f32 as a register has.
                        unsafe { $storef(lanes.as_mut_ptr(), $addf($loadf(lanes.as_ptr()), term)) };
                    }
                }
            }
            for j in 0..$registers {
                let column = first + j * $lanes;
                // SAFETY: lanes of the panel's last line.
                let scale = unsafe { $load(b.as_ptr().add(line * NR + column).cast()) };
                for row in &mut out.0[..M] {
                    let lanes = &mut row[column..column + $lanes];
                    // SAFETY: `lanes` are as many f32 as a register has.
                    unsafe {
                        $storef(lanes.as_mut_ptr(), $mulf($loadf(lanes.as_ptr()), $cast(scale)));
                    }
                }
            }
        }
    };
}

kernel!(
    /// AVX-512 with products of bytes.
    vnni, vnni_rows, "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni", 16 by 4,
    _mm512_setzero_si512, _mm512_loadu_si512, _mm512_set1_epi32, add_bytes_512,
    (_mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps, _mm512_mul_ps, _mm512_add_ps,
     _mm512_cvtepi32_ps, _mm512_castsi512_ps)
);
kernel!(
    /// AVX-512 with products of words.
    avx512, avx512_rows, "avx512f,avx512bw,avx512dq,avx512vl", 16 by 2,
    _mm512_setzero_si512, _mm512_loadu_si512, _mm512_set1_epi32, add_words_512,
    (_mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps, _mm512_mul_ps, _mm512_add_ps,
     _mm512_cvtepi32_ps, _mm512_castsi512_ps)
);
kernel!(
    /// AVX2, with products of words.
    avx2, avx2_rows, "avx2", 8 by 2,
    _mm256_setzero_si256, _mm256_loadu_si256, _mm256_set1_epi32, add_words_256,
    (_mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps, _mm256_mul_ps, _mm256_add_ps,
     _mm256_cvtepi32_ps, _mm256_castsi256_ps)
);

/// Adds the products of each row's four bytes with each column's.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn add_bytes_512<const M: usize, const R: usize>(
    acc: &mut [[__m512i; R]; M],
    x: &[__m512i; M],
    w: &[__m512i; R],
) {
    for (acc, &x) in acc.iter_mut().zip(x) {
        for (sum, &w) in acc.iter_mut().zip(w) {
            *sum = _mm512_dpbusd_epi32(*sum, x, w);
        }
    }
}

/// Adds as [`add_bytes_512`] does, with words.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn add_words_512<const M: usize, const R: usize>(
    acc: &mut [[__m512i; R]; M],
    x: &[__m512i; M],
    w: &[__m512i; R],
) {
    let low = _mm512_set1_epi16(0xff);
    for (j, &w) in w.iter().enumerate() {
        let even = _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(w));
        let odd = _mm512_srai_epi16::<8>(w);
        for (acc, &x) in acc.iter_mut().zip(x) {
            let evens = _mm512_madd_epi16(_mm512_and_si512(x, low), even);
            let odds = _mm512_madd_epi16(_mm512_srli_epi16::<8>(x), odd);
            acc[j] = _mm512_add_epi32(acc[j], _mm512_add_epi32(evens, odds));
        }
    }
}

/// Adds as [`add_words_512`] does, in half the width.
#[inline]
#[target_feature(enable = "avx2")]
fn add_words_256<const M: usize, const R: usize>(
    acc: &mut [[__m256i; R]; M],
    x: &[__m256i; M],
    w: &[__m256i; R],
) {
    let low = _mm256_set1_epi16(0xff);
    for (j, &w) in w.iter().enumerate() {
        let even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(w));
        let odd = _mm256_srai_epi16::<8>(w);
        for (acc, &x) in acc.iter_mut().zip(x) {
            let evens = _mm256_madd_epi16(_mm256_and_si256(x, low), even);
            let odds = _mm256_madd_epi16(_mm256_srli_epi16::<8>(x), odd);
            acc[j] = _mm256_add_epi32(acc[j], _mm256_add_epi32(evens, odds));
        }
    }
}
