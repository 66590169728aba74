//! Tiles with x86-64 vector instructions: a leaf of `unsafe` under `super::panel`.
//!
//! `super::panel::multiply` has checked that `count` is in `1..=MR`, that the panel is a whole
//! number of 64-column lines and that the rows are as long as the panel is deep.
#![expect(
    unsafe_code,
    reason = "vector loads without bounds checks in the innermost loops"
)]

pub(super) mod amx;
pub(super) mod amx_attention;
mod avx2;
mod avx512;
mod int8;
mod pairs;
mod peak;
mod softmax;
mod transpose;

use std::{
    arch::x86_64::{_MM_HINT_T1, _mm_prefetch},
    ptr,
};

use super::{
    Isa, Supported,
    elementwise::RowScores,
    int8::GROUP_QUADS,
    panel::{GROUP, MR, NR, Panel, Pieces, Right, Rows, Tile},
};

/// Calls `$kernel::<count>`, or `$kernel::<count, $more>`, with a count known at compile time.
macro_rules! by_count {
    ($count:expr, $kernel:ident $(::<$more:ident>)? ( $($arg:expr),* )) => {
        match $count {
            1 => $kernel::<1 $(, $more)?>($($arg),*),
            2 => $kernel::<2 $(, $more)?>($($arg),*),
            3 => $kernel::<3 $(, $more)?>($($arg),*),
            4 => $kernel::<4 $(, $more)?>($($arg),*),
            5 => $kernel::<5 $(, $more)?>($($arg),*),
            _ => $kernel::<MR $(, $more)?>($($arg),*),
        }
    };
}
use by_count;

/// Returns true if this machine has the instructions of a family, and this process may use them.
pub(super) fn is_available(isa: Isa) -> bool {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    let avx512 = avx2
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    let bf16 = avx512 && is_x86_feature_detected!("avx512bf16");
    match isa {
        Isa::AmxBf16 => bf16 && amx::is_available(),
        Isa::Avx512Bf16 => bf16,
        Isa::Avx512f => avx512,
        Isa::Avx2 => avx2,
        _ => false,
    }
}

/// Returns true if the family has AVX-512 and the machine multiplies bytes with it (VNNI).
pub(super) fn has_byte_products(isa: Isa) -> bool {
    matches!(isa, Isa::AmxBf16 | Isa::Avx512Bf16 | Isa::Avx512f)
        && is_x86_feature_detected!("avx512vnni")
}

/// Returns true if bf16 dot products beat f32 multiply-adds. On Intel's server cores since Cooper
/// Lake a 512-bit `vdpbf16ps` starts every second cycle, while two f32 multiply-adds start every
/// cycle: 32 against 64 operations (measured on a Xeon of family 6, model 207: 87 against 178 GFLOP/s).
pub(super) fn has_fast_bf16() -> bool {
    let vendor = std::arch::x86_64::__cpuid(0);
    let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
    name.as_flattened() != b"GenuineIntel"
}

/// Returns true if `count` rows, `stride` apart, of `len` elements lie within `available`.
fn fits(count: usize, stride: usize, len: usize, available: usize) -> bool {
    (1..=MR).contains(&count) && (count - 1) * stride + len <= available
}

/// Multiplies by the family's own instructions; returns `false` if the family has none for these
/// formats.
#[inline]
pub(super) fn multiply(
    isa: Supported,
    rows: Rows<'_>,
    stride: usize,
    count: usize,
    right: Right<'_>,
    out: &mut Tile,
) -> bool {
    let next = right.next;
    match (rows, right.panel, isa.isa()) {
        (Rows::Bf16(a), Panel::Bf16(b), Isa::Avx512Bf16) if right.columns <= NR / 2 => {
            bf16_bf16_half(isa, a, stride, count, (b, next), out);
        }
        (Rows::Bf16(a), Panel::Bf16(b), Isa::Avx512Bf16) => {
            bf16_bf16(isa, a, stride, count, (b, next), out);
        }
        (Rows::F32(a), Panel::Bf16(b), Isa::AmxBf16 | Isa::Avx512Bf16 | Isa::Avx512f) => {
            f32_bf16_512(isa, a, stride, count, (b, next), out);
        }
        (Rows::F32(a), Panel::F32(b), Isa::AmxBf16 | Isa::Avx512Bf16 | Isa::Avx512f) => {
            f32_f32_512(isa, a, stride, count, (b, next), out);
        }
        (Rows::F32(a), Panel::Bf16(b), Isa::Avx2) => {
            f32_bf16_256(isa, a, stride, count, (b, next), out);
        }
        (Rows::F32(a), Panel::F32(b), Isa::Avx2) => {
            f32_f32_256(isa, a, stride, count, (b, next), out);
        }
        _ => return false,
    }
    true
}

/// Multiplies bf16 rows by pieces, as `super::panel::multiply_pieces` has checked them; returns `false` if
/// the family has no instructions for it.
#[inline]
pub(super) fn multiply_pieces(
    isa: Supported,
    a: &[u32],
    stride: usize,
    count: usize,
    right: Pieces<'_>,
    out: &mut Tile,
) -> bool {
    if isa.isa() != Isa::Avx512Bf16 {
        return false;
    }
    let len = (right.lines.max(1) - 1) * right.width + GROUP;
    let parts = right.pieces.iter().flatten();
    assert!(parts.into_iter().all(|part| part.len() >= len));
    assert!(fits(
        count,
        stride,
        right.pieces.len() * right.lines,
        a.len()
    ));
    // SAFETY: `Supported` was made only after the features were detected, and the lengths were
    // checked above.
    unsafe { avx512::bf16_pieces(a, stride, count, right, out) }
    true
}

/// Multiplies int8 rows by an int8 panel of so many groups and dwords, as `super::int8::multiply` has
/// checked it; returns `false` if the family has no instructions for it.
#[inline]
pub(super) fn multiply_int8(
    isa: Supported,
    (a, stride, count): (&[u32], usize, usize),
    (b, (groups, quads)): (&[u32], (usize, usize)),
    out: &mut Tile,
) -> bool {
    let lines = groups + quads + 1;
    assert!(fits(count, stride, groups + quads, a.len()) && b.len() == lines * NR);
    assert_eq!(
        groups,
        quads.div_ceil(GROUP_QUADS),
        "groups of another panel"
    );
    let (a, b) = ((a, stride), (b, groups, quads));
    match isa.isa() {
        Isa::AmxBf16 | Isa::Avx512Bf16 | Isa::Avx512f if isa.byte_products() => {
            // SAFETY: `Supported` was made only after the features were detected, and the lengths
            // were checked above.
            unsafe { int8::vnni(a, count, b, out) }
        }
        Isa::AmxBf16 | Isa::Avx512Bf16 | Isa::Avx512f => {
            // SAFETY: as above.
            unsafe { int8::avx512(a, count, b, out) }
        }
        Isa::Avx2 => {
            // SAFETY: as above.
            unsafe { int8::avx2(a, count, b, out) }
        }
        Isa::NeonBf16 | Isa::Neon | Isa::Scalar => return false,
    }
    true
}

/// The dwords of a panel, and those to fetch meanwhile.
type PanelAndNext<'a> = (&'a [u32], &'a [u32]);

/// Fetches cache line `line` of `next`, if it has so many, into the second-level cache.
#[inline(always)]
fn fetch(next: &[u32], line: usize) {
    if let Some(dword) = next.get(line * 16) {
        // SAFETY: a hint; the address is one of a slice.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(ptr::from_ref(dword).cast()) };
    }
}

macro_rules! entry {
    ($(#[$doc:meta])* $name:ident, $element:ty, $per_dword:literal, $isas:pat, $kernel:path) => {
        $(#[$doc])*
        #[inline]
        fn $name(
            isa: Supported,
            a: &[$element],
            stride: usize,
            count: usize,
            b: PanelAndNext<'_>,
            out: &mut Tile,
        ) {
            assert!(matches!(isa.isa(), $isas), "kernel of another family");
            assert!(fits(count, stride, b.0.len() / NR * $per_dword, a.len()));
            // SAFETY: `Supported` was made only after the features of its family were detected,
            // and the lengths were checked above.
            unsafe { $kernel(a, stride, count, b, out) }
        }
    };
}

entry!(
    /// bf16 rows, bf16 panel: `vdpbf16ps`.
    bf16_bf16, u32, 1, Isa::Avx512Bf16, avx512::bf16_bf16
);
entry!(
    /// bf16 rows, bf16 panel: the first 32 columns alone.
    bf16_bf16_half, u32, 1, Isa::Avx512Bf16, avx512::bf16_bf16_half
);
entry!(
    /// f32 rows, bf16 panel widened by shift and mask.
    f32_bf16_512, f32, 2, Isa::AmxBf16 | Isa::Avx512Bf16 | Isa::Avx512f, avx512::f32_bf16
);
entry!(
    /// f32 rows, f32 panel.
    f32_f32_512, f32, 1, Isa::AmxBf16 | Isa::Avx512Bf16 | Isa::Avx512f, avx512::f32_f32
);
entry!(
    /// f32 rows, bf16 panel widened by shift and mask.
    f32_bf16_256, f32, 2, Isa::Avx2, avx2::f32_bf16
);
entry!(
    /// f32 rows, f32 panel.
    f32_f32_256, f32, 1, Isa::Avx2, avx2::f32_f32
);

/// Writes 16 dwords of each of 16 rows, from byte `first` on, to columns of `out`: line d (of
/// `width` dwords) gets dword d of the rows, in order. `false` if the family has no such instructions.
pub(crate) fn transpose(
    isa: Supported,
    rows: &[&[u8]],
    first: usize,
    (out, width): (&mut [u32], usize),
) -> bool {
    if !matches!(isa.isa(), Isa::AmxBf16 | Isa::Avx512Bf16 | Isa::Avx512f) {
        return false;
    }
    assert!(
        rows.len() == 16 && out.len() >= 15 * width + 16,
        "not 16 by 16"
    );
    let rows = std::array::from_fn(|i| rows[i][first..first + 64].as_ptr());
    // SAFETY: `Supported` was made only after the features were detected; each row was cut to 64
    // bytes, and the length of `out` was checked.
    unsafe { transpose::transpose(&rows, out.as_mut_ptr(), width) };
    true
}

/// Rounds a row to pairs of bf16; `false` if the family has no instructions for it. Numbers smaller
/// than 2^-126 become zeros.
#[inline]
pub(super) fn round_to_pairs(isa: Supported, x: &[f32], out: &mut [u32]) -> bool {
    if isa.isa() != Isa::Avx512Bf16 {
        return false;
    }
    assert_eq!(x.len(), 2 * out.len(), "another number of pairs");
    // SAFETY: `Supported` was made only after the features were detected.
    unsafe { pairs::round_to_pairs(x, out) };
    true
}

/// `super::elementwise::softmax_rows`; `false` if the family has no instructions for it.
#[inline]
pub(super) fn softmax_rows(
    isa: Supported,
    scores: &mut [[f32; NR]],
    rows: &[RowScores; MR],
    max: &mut [f32; MR],
    sum: &mut [f32; MR],
) -> bool {
    if !matches!(isa.isa(), Isa::AmxBf16 | Isa::Avx512Bf16 | Isa::Avx512f) {
        return false;
    }
    // SAFETY: `Supported` was made only after the features were detected.
    unsafe { softmax::softmax_rows(scores, rows, max, sum) };
    true
}

/// Runs `rounds` rounds of multiplications in registers, in bf16 or f32, and returns how many
/// floating-point operations that were; `None` where the family has no such instructions.
pub(crate) fn spin(isa: Supported, bf16: bool, rounds: usize) -> Option<usize> {
    match (isa.isa(), bf16) {
        (Isa::AmxBf16, true) => {
            amx::Tiles::new(isa).spin(rounds);
            Some(rounds * amx::SPIN_FLOPS)
        }
        (Isa::Avx512Bf16, true) => {
            // SAFETY: `Supported` was made only after the features were detected.
            unsafe { peak::bf16(rounds) };
            Some(rounds * peak::BF16_FLOPS)
        }
        (Isa::AmxBf16 | Isa::Avx512Bf16 | Isa::Avx512f, false) => {
            // SAFETY: as above.
            unsafe { peak::f32_512(rounds) };
            Some(rounds * peak::F32_512_FLOPS)
        }
        (Isa::Avx2, false) => {
            // SAFETY: as above.
            unsafe { peak::f32_256(rounds) };
            Some(rounds * peak::F32_256_FLOPS)
        }
        _ => None,
    }
}
