use super::expert_tiles;
use crate::{DevicePtr, Launch, params::params};

params! {
    /// Parameters of `prelude_gemm_experts_{up,down}`, `prelude_gemm_experts_{up,down}_fp8` and
    /// `prelude_gemm_experts_{up,down}_fp8_block`: products of rows that are sorted by expert with the
    /// weights of their experts. [`ExpertFactors`] says which is which.
    pub struct ExpertsGemmParams: 88 {
        /// bf16 or e4m3 `[x_rows, k]`.
        pub x: DevicePtr,
        /// bf16 or e4m3, `[experts, 2 · n, k]` for `up`, gates first; `[experts, n, k]` for `down`.
        pub w: DevicePtr,
        /// bf16 `[choices, n]`.
        pub y: DevicePtr,
        /// u32 `[choices]`: the row of `x` of each row of `y`; null for `down`, where they are the same.
        pub tokens: DevicePtr,
        /// u32 `[tiles, 4]`, by `prelude_experts_order`.
        pub tiles: DevicePtr,
        /// u32: the number of tiles that count.
        pub tile_count: DevicePtr,
        /// f32, the scales of `x`: `[x_rows]`, or as `fp8_scales.cuh` has them; null for bf16.
        pub x_scale: DevicePtr,
        /// f32, the scales of `w`, expert by expert: one for each row, or as `fp8_scales.cuh` has them; null
        /// for bf16.
        pub w_scale: DevicePtr,
        /// Elements of a row of `y`: a multiple of 8; of 128 for `up` with scales of blocks.
        pub n: u32,
        /// Elements of a row of `x` and of `w`: a multiple of 8; of e4m3 a multiple of 16, and of 128 with
        /// scales of blocks.
        pub k: u32,
        /// Rows of `x`.
        pub x_rows: u32,
        /// Elements from one row of `x` to the next: a multiple of 8, of e4m3 a multiple of 16.
        pub x_stride: u32,
        /// Elements from one row of `y` to the next: a multiple of 8.
        pub y_stride: u32,
        /// 0.
        pub reserved: u32,
    }
}

/// The type of both factors of the experts' products, and what their scales are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertFactors {
    /// bf16 without scales.
    Bf16,
    /// e4m3 with a scale for each row of either factor.
    Fp8Rows,
    /// e4m3 with a scale for 128 elements of a row of `x` and for a block of 128 × 128 of `w`.
    Fp8Blocks,
}

/// 4 stages of 64 + 128 rows of 64 bytes.
const SHARED_BYTES: u32 = 4 * (64 + 128) * 64;

impl ExpertsGemmParams {
    /// `silu(g) · u`: a block for each 64 columns and each tile that there may be.
    #[must_use]
    pub const fn launch_up(&self, factors: ExpertFactors, choices: u32, experts: u32) -> Launch {
        let kernel = match factors {
            ExpertFactors::Bf16 => "prelude_gemm_experts_up",
            ExpertFactors::Fp8Rows => "prelude_gemm_experts_up_fp8",
            ExpertFactors::Fp8Blocks => "prelude_gemm_experts_up_fp8_block",
        };
        launch(kernel, self.n.div_ceil(64), choices, experts)
    }

    /// The plain product: a block for each 128 columns and each tile that there may be.
    #[must_use]
    pub const fn launch_down(&self, factors: ExpertFactors, choices: u32, experts: u32) -> Launch {
        let kernel = match factors {
            ExpertFactors::Bf16 => "prelude_gemm_experts_down",
            ExpertFactors::Fp8Rows => "prelude_gemm_experts_down_fp8",
            ExpertFactors::Fp8Blocks => "prelude_gemm_experts_down_fp8_block",
        };
        launch(kernel, self.n.div_ceil(128), choices, experts)
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
