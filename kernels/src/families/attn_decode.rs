use super::attn_varlen::{is_near, padded_head_dim};
use crate::{DevicePtr, Launch, params::params};

params! {
    /// One query whose keys and values are all in the pool.
    #[derive(PartialEq, Eq)]
    pub struct DecodeRow: 16 {
        /// Row of `q` and `out`.
        pub q_row: u32,
        /// Positions that it sees, its own among them; 0 for a row that does not count.
        pub context_len: u32,
        /// Position `p` is in block `tables[block_first + p / block_size]`.
        pub block_first: u32,
        /// 0.
        pub reserved: u32,
    }
}

params! {
    /// Parameters of `prelude_attn_decode_{32,64,128}`, `prelude_attn_decode_near_{32,64,128,256}` and
    /// `prelude_attn_combine`: attention of rows of one token. bf16 unless stated. `D` is `head_dim`.
    pub struct AttnDecodeParams: 112 {
        /// `[_, heads · D]`.
        pub q: DevicePtr,
        /// `[_, heads · D]`; may be `q`.
        pub out: DevicePtr,
        /// This layer's: `[block][kv_head][block_size][D]`.
        pub k_pages: DevicePtr,
        /// Values, laid out as keys are.
        pub v_pages: DevicePtr,
        /// i32: block tables.
        pub tables: DevicePtr,
        /// `[rows_max]` [`DecodeRow`]s.
        pub rows: DevicePtr,
        /// f32 `[rows_max · heads · splits, D + 2]`; not touched if `splits` is 1.
        pub partial: DevicePtr,
        /// Number of rows that count (u32), or null for all.
        pub live: DevicePtr,
        /// Rows of the launch.
        pub rows_max: u32,
        /// Splits of the longest context: see [`AttnDecodeParams::SPLIT_KEYS`].
        pub splits: u32,
        /// Query heads.
        pub heads: u32,
        /// Key-value heads.
        pub kv_heads: u32,
        /// A multiple of 8, at most 256.
        pub head_dim: u32,
        /// Elements from one row of `q` to the next: a multiple of 8.
        pub q_stride: u32,
        /// Elements from one row of `out` to the next.
        pub out_stride: u32,
        /// Positions of a block: a power of two, at least 16.
        pub block_size: u32,
        /// Factor on q · k, above 0.
        pub scale: f32,
        /// Positions before its own that a row sees at most, or [`super::NO_WINDOW`].
        pub window: u32,
        /// Bound of the scaled scores, or 0.
        pub cap: f32,
        /// 0.
        pub reserved: u32,
    }
}

/// Query heads of a block.
const HEADS_PER_BLOCK: u32 = 16;

impl AttnDecodeParams {
    /// Keys of a split, at absolute positions.
    pub const SPLIT_KEYS: u32 = 256;

    /// Bytes of shared memory of a block for heads of this size: of all kernels of attention, those
    /// that decode take the most. None for a `head_dim` that no kernel takes.
    #[must_use]
    pub const fn shared_bytes(head_dim: u32) -> Option<u32> {
        match padded_head_dim(head_dim) {
            // Two stages of 16 rows of K and of V for each of 4 warps, of bf16, 8 elements apart.
            Some(padded) => Some(4 * 2 * 2 * 16 * (padded + 8) * 2),
            None => None,
        }
    }

    /// A block a row, key-value head and split. None for a `head_dim` that no kernel takes.
    #[must_use]
    pub fn launch(&self) -> Option<Launch> {
        let near = is_near(self.window, self.cap, self.head_dim);
        let kernel = match padded_head_dim(self.head_dim) {
            Some(32) if near => "prelude_attn_decode_near_32",
            Some(64) if near => "prelude_attn_decode_near_64",
            Some(128) if near => "prelude_attn_decode_near_128",
            Some(256) => "prelude_attn_decode_near_256",
            Some(32) => "prelude_attn_decode_32",
            Some(64) => "prelude_attn_decode_64",
            Some(128) => "prelude_attn_decode_128",
            _ => return None,
        };
        let slices = (self.heads / self.kv_heads).div_ceil(HEADS_PER_BLOCK);
        Some(Launch {
            kernel,
            grid: [self.rows_max, self.kv_heads * slices, self.splits],
            block: [128, 1, 1],
            shared_bytes: Self::shared_bytes(self.head_dim)?,
        })
    }

    /// Returns the launch that merges the splits: a block a row and head. None if there is one
    /// split, which [`AttnDecodeParams::launch`] writes out itself.
    #[must_use]
    pub const fn launch_combine(&self) -> Option<Launch> {
        if self.splits < 2 {
            return None;
        }
        Some(Launch {
            kernel: "prelude_attn_combine",
            grid: [self.rows_max, self.heads, 1],
            block: [if self.head_dim > 128 { 256 } else { 128 }, 1, 1],
            shared_bytes: 0,
        })
    }
}
