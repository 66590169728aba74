use crate::{DevicePtr, Launch, params::params};

params! {
    /// Parameters of `prelude_qk_norm_rope_store` and its wide form: normalises q and k, rotates them, places K and
    /// V. bf16 unless stated. `D` is `head_dim`.
    pub struct QkNormRopeStoreParams: 136 {
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
        /// The layer's keys: `[block][kv_head][block_size][D]`.
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
        /// A multiple of 8, at most 256.
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
        /// Added to the weights of norms.
        pub offset: f32,
        /// 0.
        pub reserved: u32,
    }
}

impl QkNormRopeStoreParams {
    /// Returns a launch of half a warp for each head of a token, or of a warp for heads of more than
    /// 128 elements.
    #[must_use]
    pub fn launch(&self) -> Launch {
        let heads = u64::from(self.rows) * u64::from(self.heads + 2 * self.kv_heads);
        let (kernel, per_block) = match self.head_dim {
            0..=128 => ("prelude_qk_norm_rope_store", 16),
            _ => ("prelude_qk_norm_rope_store_wide", 8),
        };
        let blocks = u32::try_from(heads.div_ceil(per_block)).unwrap_or(u32::MAX);
        Launch::linear(kernel, blocks, 256)
    }
}
