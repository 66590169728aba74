//! Tiles with NEON, the vector instructions of 64-bit ARM: a leaf of `unsafe` under `super::panel`.
//!
//! `super::panel::multiply` has checked that `count` is in `1..=MR`, that the panel is a whole
//! number of 64-column lines and that the rows are as long as the panel is deep.
#![expect(
    unsafe_code,
    reason = "vector loads without bounds checks in the innermost loops"
)]

mod bf16;
mod int8;
mod neon;
mod peak;
mod transpose;

use std::arch::is_aarch64_feature_detected;

use super::{
    Isa, Supported,
    elementwise::RowScores,
    int8::GROUP_QUADS,
    panel::{MR, NR, Panel, Pieces, Right, Rows, Tile},
};

/// Columns of a register.
const LANES: usize = 4;

/// Calls `$kernel::<count, registers>` with a count known at compile time, and with as many
/// registers of columns at a time as leave a quarter of the 32 registers free of sums. One row takes
/// a whole line of the panel at a time, so that it reads weights in the order of memory.
macro_rules! by_count {
    ($count:expr, $kernel:ident ( $($arg:expr),* )) => {
        match $count {
            1 => $kernel::<1, 16>($($arg),*),
            2 => $kernel::<2, 8>($($arg),*),
            3 => $kernel::<3, 8>($($arg),*),
            4 => $kernel::<4, 4>($($arg),*),
            5 => $kernel::<5, 4>($($arg),*),
            _ => $kernel::<MR, 4>($($arg),*),
        }
    };
}
use by_count;

/// Returns true if this machine has the instructions of a family.
pub(super) fn is_available(isa: Isa) -> bool {
    let neon = is_aarch64_feature_detected!("neon");
    match isa {
        Isa::NeonBf16 => neon && is_aarch64_feature_detected!("bf16"),
        Isa::Neon => neon,
        _ => false,
    }
}

/// Returns true if the machine multiplies bytes in fours (`sdot`).
pub(super) fn has_byte_products(isa: Isa) -> bool {
    is_available(isa) && is_aarch64_feature_detected!("dotprod")
}

/// Returns false: it was never measured whether products of bf16 beat f32 multiply-adds.
pub(super) fn has_fast_bf16() -> bool {
    false
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
    match (rows, right.panel, isa.isa()) {
        (Rows::Bf16(a), Panel::Bf16(b), Isa::NeonBf16) => {
            assert!(fits(count, stride, b.len() / NR, a.len()));
            // SAFETY: `Supported` was made only after the features of its family were detected,
            // and the lengths were checked above.
            unsafe { bf16::bf16_bf16(a, stride, count, b, out) }
        }
        (Rows::F32(a), Panel::Bf16(b), Isa::NeonBf16 | Isa::Neon) => {
            assert!(fits(count, stride, b.len() / NR * 2, a.len()));
            // SAFETY: as above.
            unsafe { neon::f32_bf16(a, stride, count, b, out) }
        }
        (Rows::F32(a), Panel::F32(b), Isa::NeonBf16 | Isa::Neon) => {
            assert!(fits(count, stride, b.len() / NR, a.len()));
            // SAFETY: as above.
            unsafe { neon::f32_f32(a, stride, count, b, out) }
        }
        _ => return false,
    }
    true
}

/// The family multiplies panels alone.
pub(super) fn multiply_pieces(
    _: Supported,
    _: &[u32],
    _: usize,
    _: usize,
    _: Pieces<'_>,
    _: &mut Tile,
) -> bool {
    false
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
        Isa::NeonBf16 | Isa::Neon if isa.byte_products() => {
            // SAFETY: `Supported` was made only after the features were detected, and the lengths
            // were checked above.
            unsafe { int8::dotprod(a, count, b, out) }
        }
        Isa::NeonBf16 | Isa::Neon => {
            // SAFETY: as above.
            unsafe { int8::words(a, count, b, out) }
        }
        _ => return false,
    }
    true
}

/// Writes 16 dwords of each of 16 rows, from byte `first` on, to columns of `out`: line d (of
/// `width` dwords) gets dword d of the rows, in order. `false` if the family has no such instructions.
pub(super) fn transpose(
    isa: Supported,
    rows: &[&[u8]],
    first: usize,
    (out, width): (&mut [u32], usize),
) -> bool {
    if !matches!(isa.isa(), Isa::NeonBf16 | Isa::Neon) {
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

/// Returns false: rounding is portable code, which is NEON's here.
pub(super) fn round_to_pairs(_: Supported, _: &[f32], _: &mut [u32]) -> bool {
    false
}

/// Returns false: portable code is NEON's code here.
pub(super) fn softmax_rows(
    _: Supported,
    _: &mut [[f32; NR]],
    _: &[RowScores; MR],
    _: &mut [f32; MR],
    _: &mut [f32; MR],
) -> bool {
    false
}

/// Runs `rounds` rounds of multiplications in registers, in bf16 or f32, and returns how many
/// floating-point operations that were; `None` where the family has no such instructions.
pub(crate) fn spin(isa: Supported, bf16: bool, rounds: usize) -> Option<usize> {
    match (isa.isa(), bf16) {
        (Isa::NeonBf16, true) => {
            // SAFETY: `Supported` was made only after the features were detected.
            unsafe { peak::bf16(rounds) };
            Some(rounds * peak::BF16_FLOPS)
        }
        (Isa::NeonBf16 | Isa::Neon, false) => {
            // SAFETY: as above.
            unsafe { peak::f32(rounds) };
            Some(rounds * peak::F32_FLOPS)
        }
        _ => None,
    }
}
