//! Matrices that tensor copies read: `cp.async.bulk.tensor`, on Hopper and later.

use bytemuck::{Pod, Zeroable};

use crate::DevicePtr;

/// A matrix and a box of it as a kernel takes them in its parameters: encoded by the driver, or by
/// [`TensorTile::emulated`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C, align(128))]
pub struct TensorMap([u64; 16]);

impl TensorMap {
    /// Returns the map that the driver wrote.
    #[must_use]
    pub const fn new(words: [u64; 16]) -> Self {
        Self(words)
    }
}

/// A matrix of bf16, row-major, and the box that one copy moves to shared memory, under the 128-byte
/// swizzle. What lies outside of the matrix is copied as zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorTile {
    /// The first element: a multiple of 16 bytes.
    pub at: DevicePtr,
    /// Columns of the matrix.
    pub columns: u64,
    /// Rows of the matrix.
    pub rows: u64,
    /// Elements from one row to the next: a multiple of 8.
    pub stride: u64,
    /// Columns of the box: a multiple of 8, at most 64.
    pub box_columns: u32,
    /// Rows of the box: at most 256.
    pub box_rows: u32,
}

/// Marks maps for the emulation, as in `kernels/emu/async.h`.
const EMULATED: u64 = 0x5041_4d4c_4552_5021;

impl TensorTile {
    /// Returns true if a tensor copy can move the box, as cuTensorMapEncodeTiled asks.
    #[must_use]
    pub const fn is_valid(&self) -> bool {
        self.at.0.is_multiple_of(16)
            && self.columns > 0
            && self.columns < 1 << 31
            && self.rows > 0
            && self.rows < 1 << 31
            && self.stride.is_multiple_of(8)
            && self.stride >= self.columns
            && self.stride < 1 << 39
            && self.box_columns.is_multiple_of(8)
            && self.box_columns > 0
            && self.box_columns <= 64
            && self.box_rows > 0
            && self.box_rows <= 256
    }

    /// Returns the map that the emulation takes.
    #[must_use]
    pub fn emulated(&self) -> TensorMap {
        let mut words = [0; 16];
        words[..7].copy_from_slice(&[
            EMULATED,
            self.at.0,
            self.columns,
            self.rows,
            2 * self.stride,
            u64::from(self.box_columns),
            u64::from(self.box_rows),
        ]);
        TensorMap(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_that_no_copy_can_move() {
        let tile = TensorTile {
            at: DevicePtr(32),
            columns: 128,
            rows: 10,
            stride: 128,
            box_columns: 64,
            box_rows: 16,
        };
        assert!(tile.is_valid());
        let of = |change: fn(&mut TensorTile)| {
            let mut tile = tile;
            change(&mut tile);
            tile
        };
        let none = [
            of(|t| t.at = DevicePtr(8)),
            of(|t| t.rows = 0),
            of(|t| t.columns = 0),
            of(|t| t.stride = 132),
            of(|t| t.stride = 120),
            of(|t| t.box_columns = 72),
            of(|t| t.box_columns = 60),
            of(|t| t.box_rows = 257),
        ];
        for tile in none {
            assert!(!tile.is_valid(), "{tile:?}");
        }
    }
}
