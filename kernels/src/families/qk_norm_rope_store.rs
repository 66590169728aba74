use crate::{DevicePtr, Launch, params::params};

params! {
    /// Parameters of `prelude_qk_norm_rope_store`: normalises q and k, rotates them, places K and
    /// V. bf16 unless stated. `D` is `head_dim`.
    pub struct QkNormRopeStoreParams: 128 {
        /// `[rows, (heads + 2 · kv_heads) · D]`: q, k, v; q and k are rewritten.
        pub qkv: DevicePtr,
        /// i32 `[rows]`.
        pub positions: DevicePtr,
        /// i32 `[rows]`: `block · block_size + offset`, or -1 for a token that is not kept.
        pub slots: DevicePtr,
        /// f32 `[rope_positions, D]`: D/2 cosines, then D/2 sines.
        pub rope: DevicePtr,
        /// `[D]`, or null where heads are not normalised, as `k_norm` then.
        pub q_norm: DevicePtr,
        /// `[D]`, or null.
        pub k_norm: DevicePtr,
        /// This layer's: `[block][kv_head][block_size][D]`.
        pub k_pages: DevicePtr,
        /// Values, laid out as keys are.
        pub v_pages: DevicePtr,
        /// `[_, kv_heads · D]`, or null.
        pub k_step: DevicePtr,
        /// Values, laid out as keys are.
        pub v_step: DevicePtr,
        /// Number of rows that count (u32), or null for all.
        pub live: DevicePtr,
        /// Rows of the launch.
        pub rows: u32,
        /// Query heads.
        pub heads: u32,
        /// Key-value heads.
        pub kv_heads: u32,
        /// A multiple of 8, at most 128.
        pub head_dim: u32,
        /// Elements from one row of `qkv` to the next: a multiple of 8.
        pub qkv_stride: u32,
        /// Positions of a block: a power of two.
        pub block_size: u32,
        /// Row of `k_step` and `v_step` for row 0.
        pub step_first: u32,
        /// Elements from one row of `k_step` and `v_step` to the next: a multiple of 8.
        pub step_stride: u32,
        /// Rows of `rope`.
        pub rope_positions: u32,
        /// Added to the mean square.
        pub eps: f32,
    }
}

/// A warp a head of a token.
const HEADS_PER_BLOCK: u64 = 16;

impl QkNormRopeStoreParams {
    /// Half a warp a head of a token.
    #[must_use]
    pub fn launch(&self) -> Launch {
        let heads = u64::from(self.rows) * u64::from(self.heads + 2 * self.kv_heads);
        let blocks = u32::try_from(heads.div_ceil(HEADS_PER_BLOCK)).unwrap_or(u32::MAX);
        Launch::linear("prelude_qk_norm_rope_store", blocks, 256)
    }
}
