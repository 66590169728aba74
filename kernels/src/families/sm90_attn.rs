use super::attn_varlen::Tile;
use crate::{DevicePtr, Launch, TensorMap, TensorTile, params::params};

params! {
    /// Parameters of `prelude_sm90_attn_{64,128}`: attention of prompts on Hopper. bf16 unless stated.
    /// `D` is 64 or 128.
    pub struct Sm90AttnParams: 1408 {
        /// Keys of the step by 16 rows and by one, keys of the pages likewise, and keys of the step by
        /// 128 rows: [`Sm90AttnParams::boxes`] of `[step_rows, kv_heads · D]` and of
        /// `[blocks · kv_heads · block_size, D]`.
        pub k: [TensorMap; 5],
        /// Values, laid out as keys are.
        pub v: [TensorMap; 5],
        /// `[rows, heads · D]`.
        pub q: DevicePtr,
        /// `[rows, heads · D]`; may be `q`.
        pub out: DevicePtr,
        /// i32: block tables.
        pub tables: DevicePtr,
        /// [`super::Segment`]s.
        pub segments: DevicePtr,
        /// [`super::Span`]s.
        pub spans: DevicePtr,
        /// `[tiles_max]` [`Tile`]s of [`Tile::ROWS_WIDE`] rows, best those that see most keys first.
        pub tiles: DevicePtr,
        /// Number of tiles that count (u32), or null for all.
        pub live: DevicePtr,
        /// Tiles of the launch.
        pub tiles_max: u32,
        /// Query heads: `kv_heads` times at most 128.
        pub heads: u32,
        /// Key-value heads.
        pub kv_heads: u32,
        /// Elements from one row of `q` to the next: a multiple of 8.
        pub q_stride: u32,
        /// Elements from one row of `out` to the next: a multiple of 8.
        pub out_stride: u32,
        /// Rows of the step's keys and values.
        pub step_rows: u32,
        /// Positions of a block: a power of two.
        pub block_size: u32,
        /// Factor on q · k, above 0.
        pub scale: f32,
        /// 0.
        pub reserved: [u32; 10],
    }
}

impl Sm90AttnParams {
    /// Columns of a box.
    const COLUMNS: u32 = 64;

    /// Returns the boxes in which the kernel copies keys or values from a matrix: of 16 rows, of one
    /// and, from the step's alone, of 128.
    #[must_use]
    pub fn boxes(at: DevicePtr, rows: u64, columns: u64, stride: u64) -> [TensorTile; 3] {
        [16, 1, 128].map(|box_rows| TensorTile {
            at,
            columns,
            rows,
            stride,
            box_columns: Self::COLUMNS,
            box_rows,
        })
    }

    /// Returns the launch on a GPU of so many multiprocessors, which share out the tiles of each
    /// key-value head among them. None for heads that no kernel takes.
    #[must_use]
    pub fn launch(&self, head_dim: u32, multiprocessors: u32) -> Option<Launch> {
        let kernel = match head_dim {
            64 => "prelude_sm90_attn_64",
            128 => "prelude_sm90_attn_128",
            _ => return None,
        };
        Some(Launch {
            kernel,
            grid: [multiprocessors.min(self.tiles_max * self.kv_heads), 1, 1],
            block: [384, 1, 1],
            // Two of Q, two stages each of K and V, and eight barriers.
            shared_bytes: 6 * Tile::ROWS_WIDE * head_dim * 2 + 64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_follow_head_dim_and_multiprocessors() {
        let params = Sm90AttnParams {
            tiles_max: 3,
            kv_heads: 2,
            ..bytemuck::Zeroable::zeroed()
        };
        let shared = |head_dim| params.launch(head_dim, 132).map(|l| l.shared_bytes);
        assert_eq!([64, 128].map(shared), [Some(98_368), Some(196_672)]);
        assert_eq!([32, 72, 256].map(shared), [None; 3]);
        let blocks = |multiprocessors| params.launch(64, multiprocessors).unwrap().grid;
        assert_eq!([4, 6, 132].map(blocks), [[4, 1, 1], [6, 1, 1], [6, 1, 1]]);
    }
}
