use crate::{DevicePtr, Launch, params::params};

params! {
    /// Parameters of `prelude_gemm_mma`, `prelude_gemm_mma_add` and `prelude_gemm_mma_f32`, and of
    /// `prelude_gemm_skinny_{8,16}`, `prelude_gemm_skinny_add_{8,16}` and
    /// `prelude_gemm_skinny_f32_{8,16}`:
    /// `y = x · wᵀ (+ bias)`, or `y += …`. bf16 unless stated.
    pub struct GemmParams: 64 {
        /// `[m, k]`.
        pub x: DevicePtr,
        /// `[n, k]`.
        pub w: DevicePtr,
        /// `[n]`, or null.
        pub bias: DevicePtr,
        /// `[m, n]`, f32 for [`GemmOutput::F32`].
        pub y: DevicePtr,
        /// Number of rows that count (u32), or null for all.
        pub live: DevicePtr,
        /// Rows of the launch.
        pub m: u32,
        /// Rows of `w`.
        pub n: u32,
        /// Elements of a row of `x` and of `w`: a multiple of 8.
        pub k: u32,
        /// Elements from one row of `x` to the next: a multiple of 8.
        pub x_stride: u32,
        /// Elements from one row of `w` to the next.
        pub w_stride: u32,
        /// Elements from one row of `y` to the next, a multiple of 2.
        pub y_stride: u32,
    }
}

/// The use of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GemmOutput {
    /// `y = x · wᵀ (+ bias)`, bf16.
    Write,
    /// `y += x · wᵀ (+ bias)`, bf16, rounded once.
    Add,
    /// `y = x · wᵀ (+ bias)`, f32.
    F32,
}

/// Most rows of [`GemmParams::launch_skinny`].
const SKINNY_ROWS: u32 = 16;
/// Rows of `w` of one of its blocks.
const SKINNY_TILE: u32 = 16;
/// With fewer blocks than this, more than some GPUs have multiprocessors, blocks are larger.
const SKINNY_BLOCKS: u32 = 132;

/// Rows and columns of `y` that a block computes.
const TILE: u32 = 128;
/// 3 stages of 2 × 128 rows of 32 elements of 2 bytes.
const SHARED_BYTES: u32 = 3 * 2 * 128 * 32 * 2;

impl GemmParams {
    /// The kernels for few rows: 16 rows of `w` a block. None for more than 16 rows.
    #[must_use]
    pub const fn launch_skinny(&self, output: GemmOutput) -> Option<Launch> {
        if self.m > SKINNY_ROWS {
            return None;
        }
        let kernel = match (output, self.m <= 8) {
            (GemmOutput::Write, true) => "prelude_gemm_skinny_8",
            (GemmOutput::Write, false) => "prelude_gemm_skinny_16",
            (GemmOutput::Add, true) => "prelude_gemm_skinny_add_8",
            (GemmOutput::Add, false) => "prelude_gemm_skinny_add_16",
            (GemmOutput::F32, true) => "prelude_gemm_skinny_f32_8",
            (GemmOutput::F32, false) => "prelude_gemm_skinny_f32_16",
        };
        let blocks = self.n.div_ceil(SKINNY_TILE);
        let warps = if blocks < SKINNY_BLOCKS { 16 } else { 8 };
        let sums = if self.m <= 8 { 8 } else { 16 };
        Some(Launch {
            kernel,
            grid: [blocks, 1, 1],
            block: [32 * warps, 1, 1],
            shared_bytes: warps * SKINNY_TILE * (sums + 1) * 4,
        })
    }

    /// A block for each 128 × 128 elements of `y`.
    #[must_use]
    pub const fn launch(&self, output: GemmOutput) -> Launch {
        Launch {
            kernel: match output {
                GemmOutput::Write => "prelude_gemm_mma",
                GemmOutput::Add => "prelude_gemm_mma_add",
                GemmOutput::F32 => "prelude_gemm_mma_f32",
            },
            grid: [self.n.div_ceil(TILE), self.m.div_ceil(TILE), 1],
            block: [256, 1, 1],
            shared_bytes: SHARED_BYTES,
        }
    }
}
