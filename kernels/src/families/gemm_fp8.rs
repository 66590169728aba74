use super::{GemmOutput, GemmParams, GemmTile};
use crate::{DevicePtr, Launch, params::params};

params! {
    /// Parameters of `prelude_gemm_fp8`, `prelude_gemm_fp8_add`, `prelude_gemm_fp8_few_{8,16}` and
    /// `prelude_gemm_fp8_few_add_{8,16}`: `y = x · wᵀ` times the scale of the row of `x` and of the
    /// row of `w`, `(+ bias)`, or `y += …`; and of their likes with scales of blocks, see
    /// [`GemmFp8Params::launch_blocks`].
    pub struct GemmFp8Params: 80 {
        /// e4m3 `[m, k]`.
        pub x: DevicePtr,
        /// e4m3 `[n, k]`.
        pub w: DevicePtr,
        /// f32 `[m]`, or as `fp8_scales.cuh` has them.
        pub x_scale: DevicePtr,
        /// f32 `[n]`, or as there.
        pub w_scale: DevicePtr,
        /// bf16 `[n]`, or null.
        pub bias: DevicePtr,
        /// bf16 `[m, n]`.
        pub y: DevicePtr,
        /// Number of rows that count (u32), or null for all.
        pub live: DevicePtr,
        /// Rows of the launch.
        pub m: u32,
        /// Rows of `w`.
        pub n: u32,
        /// Elements of a row of `x` and of `w`: a multiple of 16.
        pub k: u32,
        /// Elements from one row of `x` to the next: a multiple of 16.
        pub x_stride: u32,
        /// Elements from one row of `w` to the next: a multiple of 16.
        pub w_stride: u32,
        /// Elements from one row of `y` to the next, a multiple of 2.
        pub y_stride: u32,
    }
}

impl GemmFp8Params {
    /// The sizes that the launch of a product in bf16, whose code and shape these have, is made of.
    pub(super) fn plain(&self) -> GemmParams {
        GemmParams {
            m: self.m,
            n: self.n,
            ..bytemuck::Zeroable::zeroed()
        }
    }

    /// The kernels for few rows: 16 rows of `w` a block. None for more than 16 rows, and for f32.
    #[must_use]
    pub fn launch_few(&self, output: GemmOutput) -> Option<Launch> {
        let kernel = match (output, self.m <= 8) {
            (GemmOutput::Write, true) => "prelude_gemm_fp8_few_8",
            (GemmOutput::Write, false) => "prelude_gemm_fp8_few_16",
            (GemmOutput::Add, true) => "prelude_gemm_fp8_few_add_8",
            (GemmOutput::Add, false) => "prelude_gemm_fp8_few_add_16",
            (GemmOutput::F32, _) => return None,
        };
        let launch = self.plain().launch_skinny(output)?;
        Some(Launch { kernel, ..launch })
    }

    /// A block for each 64 × 64 elements of `y`. None for f32.
    #[must_use]
    pub fn launch(&self, output: GemmOutput) -> Option<Launch> {
        let kernel = match output {
            GemmOutput::Write => "prelude_gemm_fp8",
            GemmOutput::Add => "prelude_gemm_fp8_add",
            GemmOutput::F32 => return None,
        };
        let launch = self.plain().launch_tile(output, &GemmTile::MIDDLE);
        Some(Launch { kernel, ..launch })
    }
}
