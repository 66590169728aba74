use crate::{DevicePtr, Launch, params::params};

params! {
    /// Parameters of `prelude_quant_fp8_row`: `scale = max(max |x|, 2^-24) / 448` of each row, and
    /// `q = x / scale`.
    pub struct QuantFp8RowParams: 48 {
        /// bf16 `[rows, width]`.
        pub x: DevicePtr,
        /// e4m3 `[rows, width]`, without gaps.
        pub q: DevicePtr,
        /// f32 `[rows]`.
        pub scale: DevicePtr,
        /// Number of rows that count (u32), or null for all.
        pub live: DevicePtr,
        /// Rows of the launch.
        pub rows: u32,
        /// Elements of a row: a multiple of 8.
        pub width: u32,
        /// Elements from one row of `x` to the next: a multiple of 8.
        pub x_stride: u32,
        /// Nothing.
        pub reserved: u32,
    }
}

impl QuantFp8RowParams {
    /// A block a row, 8 elements a thread.
    #[must_use]
    pub fn launch(&self) -> Launch {
        let threads = (self.width / 8).next_multiple_of(32).clamp(32, 1024);
        Launch::linear("prelude_quant_fp8_row", self.rows, threads)
    }
}
