//! Products on matrix units that hold whole tiles in registers. Intel AMX is the one there is
//! (`super::x86`); elsewhere no path leads here.

#[cfg(target_arch = "x86_64")]
pub(crate) use super::x86::amx::{gate, multiply, pack_rows};

/// Rows of a left tile.
pub(crate) const ROWS: usize = 16;
/// Inputs of a left tile.
pub(crate) const DEPTH: usize = 32;
/// Dwords of a tile.
pub(crate) const TILE: usize = ROWS * DEPTH / 2;

#[cfg(not(target_arch = "x86_64"))]
mod elsewhere {
    use crate::{kernels::Supported, pool::TileMut};

    pub(crate) fn pack_rows(_: Supported, _: &[f32], _: usize, _: &mut [u32]) {
        unreachable!("tiles exist on x86-64 alone");
    }

    pub(crate) fn gate(
        _: Supported,
        _: (&[u32], usize),
        _: [&[u32]; 2],
        _: [&[u32]; 2],
        _: &mut TileMut<'_, u32>,
    ) {
        unreachable!("tiles exist on x86-64 alone");
    }

    pub(crate) fn multiply(
        _: Supported,
        _: &[u32],
        _: (&[u32], &[u32]),
        _: Option<&[f32]>,
        _: bool,
        _: &mut TileMut<'_, f32>,
    ) {
        unreachable!("tiles exist on x86-64 alone");
    }
}
#[cfg(not(target_arch = "x86_64"))]
pub(crate) use elsewhere::{gate, multiply, pack_rows};
