use super::expert_tiles;
use crate::{DevicePtr, Launch, params::params};

params! {
    /// Parameters of `prelude_gemm_experts_up` and `prelude_gemm_experts_down`: products of rows that
    /// are sorted by expert with the weights of their experts. bf16.
    pub struct ExpertsGemmParams: 64 {
        /// `[_, k]`.
        pub x: DevicePtr,
        /// `[experts, 2 · n, k]` for `up`, gates first; `[experts, n, k]` for `down`.
        pub w: DevicePtr,
        /// `[choices, n]`.
        pub y: DevicePtr,
        /// u32 `[choices]`: the row of `x` of each row of `y`; null for `down`, where they are the same.
        pub tokens: DevicePtr,
        /// u32 `[tiles, 4]`, by `prelude_experts_order`.
        pub tiles: DevicePtr,
        /// u32: the number of tiles that count.
        pub tile_count: DevicePtr,
        /// Elements of a row of `y`: a multiple of 8.
        pub n: u32,
        /// Elements of a row of `x` and of `w`: a multiple of 8.
        pub k: u32,
        /// Elements from one row of `x` to the next: a multiple of 8.
        pub x_stride: u32,
        /// Elements from one row of `y` to the next: a multiple of 8.
        pub y_stride: u32,
    }
}

/// 4 stages of 64 + 128 rows of 32 elements of 2 bytes.
const SHARED_BYTES: u32 = 4 * (64 + 128) * 32 * 2;

impl ExpertsGemmParams {
    /// `silu(g) · u`: a block for each 64 columns and each tile that there may be.
    #[must_use]
    pub const fn launch_up(&self, choices: u32, experts: u32) -> Launch {
        let columns = self.n.div_ceil(64);
        launch("prelude_gemm_experts_up", columns, choices, experts)
    }

    /// The plain product: a block for each 128 columns and each tile that there may be.
    #[must_use]
    pub const fn launch_down(&self, choices: u32, experts: u32) -> Launch {
        let columns = self.n.div_ceil(128);
        launch("prelude_gemm_experts_down", columns, choices, experts)
    }
}

const fn launch(kernel: &'static str, columns: u32, choices: u32, experts: u32) -> Launch {
    Launch {
        kernel,
        grid: [columns, expert_tiles(choices, experts), 1],
        block: [256, 1, 1],
        shared_bytes: SHARED_BYTES,
    }
}
