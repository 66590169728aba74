//! 512-bit tiles: 6 rows by 4 registers of columns.
//!
//! Loops rather than `array::map` or `from_fn`: a closure that needs instructions is not reliably
//! inlined through a function of the library that lacks them.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_and_si512, _mm512_castsi512_ps, _mm512_dpbf16_ps,
    _mm512_fmadd_ps, _mm512_loadu_si512, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_setzero_si512, _mm512_slli_epi32, _mm512_storeu_ps,
};

use super::{MR, NR, PanelAndNext, Pieces, Tile, by_count, fetch};

/// Registers of 16 columns.
const REGS: usize = NR / 16;

/// # Safety
/// AVX-512F; `out` holds M rows (M ≤ MR) of R registers (R ≤ REGS).
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store<const M: usize, const R: usize>(acc: &[[__m512; R]; M], out: &mut Tile) {
    for (row, acc) in out.0.iter_mut().zip(acc) {
        for (lanes, &sum) in row.chunks_exact_mut(16).zip(acc) {
            // SAFETY: `lanes` has room for 16 f32.
            unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), sum) };
        }
    }
}

/// # Safety
/// AVX-512F; `line` points to R times 16 dwords.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load<const R: usize>(line: *const u32) -> [__m512i; R] {
    let mut registers = [_mm512_setzero_si512(); R];
    for (j, register) in registers.iter_mut().enumerate() {
        // SAFETY: 16 of the line's dwords.
        *register = unsafe { _mm512_loadu_si512(line.add(j * 16).cast()) };
    }
    registers
}

/// Adds the products of pair `$p` of each row with a line: in place, since sums behind a reference
/// would leave their registers. All rows of `$acc`, `$stride` apart, must have that pair within `$a`.
macro_rules! add_pairs {
    ($acc:ident, $a:ident, $stride:ident, $p:expr, $line:ident) => {
        for (r, acc) in $acc.iter_mut().enumerate() {
            let x = _mm512_set1_epi32((*$a.get_unchecked(r * $stride + $p)).cast_signed());
            // Both types are 64 bytes without invalid values.
            let x = std::mem::transmute::<__m512i, __m512bh>(x);
            for (sum, &w) in acc.iter_mut().zip(&$line) {
                let w = std::mem::transmute::<__m512i, __m512bh>(w);
                *sum = _mm512_dpbf16_ps(*sum, x, w);
            }
        }
    };
}

/// # Safety
/// The instructions; `count` rows of `b.0.len() / 64` dwords within `a`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) unsafe fn bf16_bf16(
    a: &[u32],
    stride: usize,
    count: usize,
    b: PanelAndNext<'_>,
    out: &mut Tile,
) {
    // SAFETY: our caller's promises.
    unsafe { by_count!(count, bf16_bf16_rows::<REGS>(a, stride, b, out)) }
}

/// Multiplies as [`bf16_bf16`] does, for the first half of the columns.
///
/// # Safety
/// As [`bf16_bf16`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) unsafe fn bf16_bf16_half(
    a: &[u32],
    stride: usize,
    count: usize,
    b: PanelAndNext<'_>,
    out: &mut Tile,
) {
    const HALF: usize = REGS / 2;
    // SAFETY: our caller's promises.
    unsafe { by_count!(count, bf16_bf16_rows::<HALF>(a, stride, b, out)) }
}

/// # Safety
/// As [`bf16_bf16`], with `M` rows and `R` registers of columns.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn bf16_bf16_rows<const M: usize, const R: usize>(
    a: &[u32],
    stride: usize,
    (b, next): PanelAndNext<'_>,
    out: &mut Tile,
) {
    let mut acc = [[_mm512_setzero_ps(); R]; M];
    for p in 0..b.len() / NR {
        // SAFETY: line p of the panel.
        let line: [__m512i; R] = unsafe { load(b.as_ptr().add(p * NR)) };
        fetch(next, p);
        // SAFETY: the rows reach as far as the panel is deep.
        unsafe { add_pairs!(acc, a, stride, p, line) };
    }
    // SAFETY: M rows.
    unsafe { store(&acc, out) };
}

/// # Safety
/// The instructions; `count` rows as long as the pieces are deep within `a`; each part of a piece holds
/// `lines - 1` lines and 16 dwords of one more.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) unsafe fn bf16_pieces(
    a: &[u32],
    stride: usize,
    count: usize,
    right: Pieces<'_>,
    out: &mut Tile,
) {
    const HALF: usize = REGS / 2;
    // SAFETY: our caller's promises.
    unsafe {
        if right.columns <= NR / 2 {
            by_count!(count, bf16_pieces_rows::<HALF>(a, stride, right, out));
        } else {
            by_count!(count, bf16_pieces_rows::<REGS>(a, stride, right, out));
        }
    }
}

/// # Safety
/// As [`bf16_pieces`], with `M` rows and `R` registers of columns.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn bf16_pieces_rows<const M: usize, const R: usize>(
    a: &[u32],
    stride: usize,
    right: Pieces<'_>,
    out: &mut Tile,
) {
    let mut acc = [[_mm512_setzero_ps(); R]; M];
    for (i, piece) in right.pieces.iter().enumerate() {
        let first = i * right.lines;
        let next = right.next.get(i);
        for l in 0..right.lines {
            for part in next.iter().flat_map(|parts| &parts[..R]) {
                fetch(part, l * right.width / 16);
            }
            let mut line = [_mm512_setzero_si512(); R];
            for (register, part) in line.iter_mut().zip(piece) {
                // SAFETY: 16 dwords of line l.
                *register =
                    unsafe { _mm512_loadu_si512(part.as_ptr().add(l * right.width).cast()) };
            }
            // SAFETY: the rows reach as far as the pieces are deep.
            unsafe { add_pairs!(acc, a, stride, first + l, line) };
        }
    }
    // SAFETY: M rows.
    unsafe { store(&acc, out) };
}

/// # Safety
/// The instructions; `count` rows of `2 · b.0.len() / 64` elements within `a`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
pub(super) unsafe fn f32_bf16(
    a: &[f32],
    stride: usize,
    count: usize,
    b: PanelAndNext<'_>,
    out: &mut Tile,
) {
    // SAFETY: our caller's promises.
    unsafe { by_count!(count, f32_bf16_rows(a, stride, b, out)) }
}

/// # Safety
/// As [`f32_bf16`], with `M` rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
unsafe fn f32_bf16_rows<const M: usize>(
    a: &[f32],
    stride: usize,
    (b, next): PanelAndNext<'_>,
    out: &mut Tile,
) {
    let mut acc = [[_mm512_setzero_ps(); REGS]; M];
    let high = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
    for p in 0..b.len() / NR {
        fetch(next, p);
        // Two registers of columns at a time: four widened ones and a broadcast fit beside the
        // sums, eight do not.
        for half in (0..REGS).step_by(2) {
            let (mut even, mut odd) = ([_mm512_setzero_ps(); 2], [_mm512_setzero_ps(); 2]);
            for j in 0..2 {
                // SAFETY: within line p of the panel.
                let x =
                    unsafe { _mm512_loadu_si512(b.as_ptr().add(p * NR + (half + j) * 16).cast()) };
                even[j] = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(x));
                odd[j] = _mm512_castsi512_ps(_mm512_and_si512(x, high));
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                // SAFETY: row r reaches as far as the panel is deep.
                let pair = unsafe { a.get_unchecked(r * stride + 2 * p..r * stride + 2 * p + 2) };
                let sums = &mut acc[half..half + 2];
                let x = _mm512_set1_ps(pair[0]);
                for (sum, &w) in sums.iter_mut().zip(&even) {
                    *sum = _mm512_fmadd_ps(x, w, *sum);
                }
                let x = _mm512_set1_ps(pair[1]);
                for (sum, &w) in sums.iter_mut().zip(&odd) {
                    *sum = _mm512_fmadd_ps(x, w, *sum);
                }
            }
        }
    }
    // SAFETY: M rows.
    unsafe { store(&acc, out) };
}

/// # Safety
/// The instructions; `count` rows of `b.0.len() / 64` elements within `a`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
pub(super) unsafe fn f32_f32(
    a: &[f32],
    stride: usize,
    count: usize,
    b: PanelAndNext<'_>,
    out: &mut Tile,
) {
    // SAFETY: our caller's promises.
    unsafe { by_count!(count, f32_f32_rows(a, stride, b, out)) }
}

/// # Safety
/// As [`f32_f32`], with `M` rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
unsafe fn f32_f32_rows<const M: usize>(
    a: &[f32],
    stride: usize,
    (b, next): PanelAndNext<'_>,
    out: &mut Tile,
) {
    let mut acc = [[_mm512_setzero_ps(); REGS]; M];
    for k in 0..b.len() / NR {
        // SAFETY: line k of the panel.
        let line: [__m512i; REGS] = unsafe { load(b.as_ptr().add(k * NR)) };
        fetch(next, k);
        for (r, acc) in acc.iter_mut().enumerate() {
            // SAFETY: row r reaches as far as the panel is deep.
            let x = _mm512_set1_ps(unsafe { *a.get_unchecked(r * stride + k) });
            for (sum, &w) in acc.iter_mut().zip(&line) {
                *sum = _mm512_fmadd_ps(x, _mm512_castsi512_ps(w), *sum);
            }
        }
    }
    // SAFETY: M rows.
    unsafe { store(&acc, out) };
}
