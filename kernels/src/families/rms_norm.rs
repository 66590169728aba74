use crate::{DevicePtr, Launch, params::params};

params! {
    /// Parameters of `prelude_rms_norm` and `prelude_add_rms_norm`: `x = norm(h) · w`, the latter
    /// after
    /// `h += d`. bf16.
    pub struct RmsNormParams: 64 {
        /// `[rows, width]`; written by the add form.
        pub h: DevicePtr,
        /// `[rows, width]`; read by the add form alone.
        pub d: DevicePtr,
        /// `[width]`.
        pub w: DevicePtr,
        /// `[rows, width]`.
        pub x: DevicePtr,
        /// Number of rows that count (u32), or null for all.
        pub live: DevicePtr,
        /// Rows of the launch.
        pub rows: u32,
        /// Elements of a row: a multiple of 8.
        pub width: u32,
        /// Elements from one row of `h` to the next: a multiple of 8, as the others.
        pub h_stride: u32,
        /// Elements from one row of `d` to the next.
        pub d_stride: u32,
        /// Elements from one row of `x` to the next.
        pub x_stride: u32,
        /// Added to the mean square.
        pub eps: f32,
    }
}

impl RmsNormParams {
    /// A block a row.
    #[must_use]
    pub fn launch(&self, add: bool) -> Launch {
        let kernel = if add {
            "prelude_add_rms_norm"
        } else {
            "prelude_rms_norm"
        };
        let threads = self.width.div_ceil(8).next_multiple_of(32).min(1024);
        Launch::linear(kernel, self.rows, threads)
    }
}
