use crate::{DevicePtr, Launch, params::params};

params! {
    /// Parameters of `prelude_quant_fp8_row`: `scale = max(max |x|, 2^-24) / 448` of each row, and
    /// `q = x / scale`; and of `prelude_silu_mul_fp8_row`, the same of `silu(g) · u`.
    pub struct QuantFp8RowParams: 48 {
        /// bf16 `[rows, width]`; of `silu_mul_fp8_row` `[rows, 2 · width]`: g, then u.
        pub x: DevicePtr,
        /// e4m3 `[rows, width]`, without gaps.
        pub q: DevicePtr,
        /// f32 `[rows]`, or of groups `[rows, width / 128]`.
        pub scale: DevicePtr,
        /// Number of rows that count (u32), or null for all.
        pub live: DevicePtr,
        /// Rows of the launch.
        pub rows: u32,
        /// Elements of a row of `q`: a multiple of 8.
        pub width: u32,
        /// Elements from one row of `x` to the next: a multiple of 8.
        pub x_stride: u32,
        /// Padding, which is not read.
        pub reserved: u32,
    }
}

params! {
    /// Parameters of `prelude_rms_norm_fp8_row`: as [`QuantFp8RowParams`], of `norm(h) · (offset + w)`.
    pub struct RmsNormFp8RowParams: 64 {
        /// bf16 `[rows, width]`.
        pub h: DevicePtr,
        /// bf16 `[width]`.
        pub w: DevicePtr,
        /// e4m3 `[rows, width]`, without gaps.
        pub q: DevicePtr,
        /// f32 `[rows]`, or of groups `[rows, width / 128]`.
        pub scale: DevicePtr,
        /// Number of rows that count (u32), or null for all.
        pub live: DevicePtr,
        /// Rows of the launch.
        pub rows: u32,
        /// Elements of a row: a multiple of 8.
        pub width: u32,
        /// Elements from one row of `h` to the next: a multiple of 8.
        pub h_stride: u32,
        /// Added to the mean square.
        pub eps: f32,
        /// Added to `w`.
        pub offset: f32,
        /// 0.
        pub reserved: u32,
    }
}

impl RmsNormFp8RowParams {
    /// Returns a launch of one block for each row, with as many threads as `rms_norm` has: the order of
    /// its sums depends on them.
    #[must_use]
    pub fn launch(&self) -> Launch {
        let threads = self.width.div_ceil(8).next_multiple_of(32).min(1024);
        Launch::linear("prelude_rms_norm_fp8_row", self.rows, threads)
    }
}

/// Most bytes of a row in shared memory: a block has 48 KiB without being asked for more, of which the
/// largest magnitude is found in some, aligned.
const SHARED_BYTES_MAX: u32 = 46 << 10;

impl QuantFp8RowParams {
    /// Returns the launch of the kernel of gates: one block for each row, with one thread for some 32
    /// elements. None for rows that do not fit into shared memory.
    #[must_use]
    pub fn launch_silu_mul(&self) -> Option<Launch> {
        let shared_bytes = self.width.checked_mul(2)?;
        if shared_bytes > SHARED_BYTES_MAX {
            return None;
        }
        let threads = self.width.div_ceil(32).next_multiple_of(32).clamp(32, 512);
        let launch = Launch::linear("prelude_silu_mul_fp8_row", self.rows, threads);
        Some(Launch {
            shared_bytes,
            ..launch
        })
    }

    /// Returns a launch of one block for each row, with one thread for every 8 elements.
    #[must_use]
    pub fn launch(&self) -> Launch {
        let threads = (self.width / 8).next_multiple_of(32).clamp(32, 1024);
        Launch::linear("prelude_quant_fp8_row", self.rows, threads)
    }
}
