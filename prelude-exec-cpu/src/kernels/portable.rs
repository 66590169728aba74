//! Machines whose vector instructions no kernel uses: portable code runs there.

use super::{
    Isa, Supported,
    elementwise::RowScores,
    panel::{MR, NR, Pieces, Right, Rows, Tile},
};

pub(super) fn is_available(_: Isa) -> bool {
    false
}

pub(super) fn has_byte_products(_: Isa) -> bool {
    false
}

pub(super) fn has_fast_bf16() -> bool {
    false
}

pub(super) fn multiply(
    _: Supported,
    _: Rows<'_>,
    _: usize,
    _: usize,
    _: Right<'_>,
    _: &mut Tile,
) -> bool {
    false
}

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

pub(super) fn multiply_int8(
    _: Supported,
    _: (&[u32], usize, usize),
    _: (&[u32], (usize, usize)),
    _: &mut Tile,
) -> bool {
    false
}

pub(super) fn transpose(_: Supported, _: &[&[u8]], _: usize, _: (&mut [u32], usize)) -> bool {
    false
}

pub(super) fn round_to_pairs(_: Supported, _: &[f32], _: &mut [u32]) -> bool {
    false
}

pub(super) fn softmax_rows(
    _: Supported,
    _: &mut [[f32; NR]],
    _: &[RowScores; MR],
    _: &mut [f32; MR],
    _: &mut [f32; MR],
) -> bool {
    false
}

pub(crate) fn spin(_: Supported, _: bool, _: usize) -> Option<usize> {
    None
}
