use super::attn_varlen::{is_near, padded_head_dim};
use crate::{DevicePtr, Launch, params::params};

params! {
    /// A query whose keys and values are all in the pool.
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
    /// A split of rows of [`AttnDecodeParams::rows`] that are read together: of one row, or of several
    /// that have the split in the same blocks and see all of it and more.
    #[derive(PartialEq, Eq)]
    pub struct DecodeItem: 16 {
        /// The first of the rows, which follow each other.
        pub first: u32,
        /// Number of rows, at most [`AttnDecodeParams::rows_shared`]; 0 for an item that does not count.
        pub count: u32,
        /// The split: keys from `split` times [`AttnDecodeParams::SPLIT_KEYS`] on.
        pub split: u32,
        /// 0.
        pub reserved: u32,
    }
}

params! {
    /// Parameters of `prelude_attn_decode_{32,64,128}`, `prelude_attn_decode_near_{32,64,128,256}`, the same of
    /// `prelude_attn_decode_shared`, and `prelude_attn_combine`: attention of rows of one token. bf16 unless stated. `D` is `head_dim`.
    pub struct AttnDecodeParams: 120 {
        /// `[_, heads · D]`.
        pub q: DevicePtr,
        /// `[_, heads · D]`; may be `q`.
        pub out: DevicePtr,
        /// The layer's keys: `[block][kv_head][block_size][D]`.
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
        /// `[items_max]` [`DecodeItem`]s; null if `items_max` is 0.
        pub items: DevicePtr,
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
        /// Most positions before its own that a row sees, or [`super::NO_WINDOW`].
        pub window: u32,
        /// Bound of the scaled scores, or 0.
        pub cap: f32,
        /// Items of the launch, with every split of every row that counts; 0 if each row reads for
        /// itself.
        pub items_max: u32,
    }
}

/// Query heads of a block, where each row reads for itself.
const HEADS_PER_BLOCK: u32 = 16;

/// Returns the query heads of a block that rows may share, by the padded size of heads.
const fn heads_shared(padded: u32) -> u32 {
    if padded > 128 { 16 } else { 32 }
}

impl AttnDecodeParams {
    /// Keys of a split, at absolute positions.
    pub const SPLIT_KEYS: u32 = 256;

    /// Returns the bytes of shared memory of a block for heads of this size: of all kernels of
    /// attention, those that decode take the most. None for a `head_dim` that no kernel takes.
    #[must_use]
    pub const fn shared_bytes(head_dim: u32) -> Option<u32> {
        match padded_head_dim(head_dim) {
            Some(padded) => Some((Self::STAGED_ROWS + heads_shared(padded)) * (padded + 8) * 2),
            None => None,
        }
    }

    /// Rows of bf16, 8 elements apart, in shared memory: two stages of 16 rows of K and of V for each of
    /// 4 warps.
    const STAGED_ROWS: u32 = 4 * 2 * 2 * 16;

    /// Returns the most rows of an item; 1 if no two rows can be read together. `group`: query heads
    /// that share a key-value head.
    #[must_use]
    pub fn rows_shared(group: u32, head_dim: u32) -> u32 {
        padded_head_dim(head_dim).map_or(1, |padded| (heads_shared(padded) / group).max(1))
    }

    /// Returns a launch of one block for each row, key-value head and split, or for each item and
    /// key-value head. None for a `head_dim` that no kernel takes.
    #[must_use]
    pub fn launch(&self) -> Option<Launch> {
        let near = is_near(self.window, self.cap, self.head_dim);
        let is_shared = self.items_max > 0;
        let padded = padded_head_dim(self.head_dim)?;
        let kernel = match (padded, near, is_shared) {
            (32, false, false) => "prelude_attn_decode_32",
            (64, false, false) => "prelude_attn_decode_64",
            (128, false, false) => "prelude_attn_decode_128",
            (32, true, false) => "prelude_attn_decode_near_32",
            (64, true, false) => "prelude_attn_decode_near_64",
            (128, true, false) => "prelude_attn_decode_near_128",
            (_, _, false) => "prelude_attn_decode_near_256",
            (32, false, true) => "prelude_attn_decode_shared_32",
            (64, false, true) => "prelude_attn_decode_shared_64",
            (128, false, true) => "prelude_attn_decode_shared_128",
            (32, true, true) => "prelude_attn_decode_shared_near_32",
            (64, true, true) => "prelude_attn_decode_shared_near_64",
            (128, true, true) => "prelude_attn_decode_shared_near_128",
            (_, _, true) => "prelude_attn_decode_shared_near_256",
        };
        let (heads, staged) = match is_shared {
            true => (
                heads_shared(padded),
                Self::STAGED_ROWS + heads_shared(padded),
            ),
            false => (HEADS_PER_BLOCK, Self::STAGED_ROWS),
        };
        let groups = self.kv_heads * (self.heads / self.kv_heads).div_ceil(heads);
        Some(Launch {
            kernel,
            grid: match is_shared {
                true => [self.items_max, groups, 1],
                false => [self.rows_max, groups, self.splits],
            },
            block: [128, 1, 1],
            shared_bytes: staged * (padded + 8) * 2,
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
