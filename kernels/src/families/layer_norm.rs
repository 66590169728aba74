use crate::{DevicePtr, Launch, params::params};

params! {
    /// Parameters of `prelude_layer_norm`: rows moved to mean 0 and variance 1, then scaled and
    /// moved. bf16.
    pub struct LayerNormParams: 64 {
        /// `[rows, width]`.
        pub h: DevicePtr,
        /// `[width]`: the factor of each number.
        pub w: DevicePtr,
        /// `[width]`: added to each number.
        pub b: DevicePtr,
        /// `[rows, width]`; may be `h`.
        pub x: DevicePtr,
        /// Number of rows that count (u32), or null for all.
        pub live: DevicePtr,
        /// Rows of the launch.
        pub rows: u32,
        /// Elements of a row: a multiple of 8.
        pub width: u32,
        /// Elements from one row of `h` to the next: a multiple of 8.
        pub h_stride: u32,
        /// Elements from one row of `x` to the next: a multiple of 8.
        pub x_stride: u32,
        /// Added to the variance.
        pub eps: f32,
        /// 0.
        pub reserved: u32,
    }
}

impl LayerNormParams {
    /// Returns a launch of one block for each row.
    #[must_use]
    pub fn launch(&self) -> Launch {
        let threads = self.width.div_ceil(8).next_multiple_of(32).min(1024);
        Launch::linear("prelude_layer_norm", self.rows, threads)
    }
}
