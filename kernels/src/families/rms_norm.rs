use crate::{DevicePtr, Launch, params::params};

params! {
    /// Parameters of the kernels of [`RmsNormForm`]. bf16.
    pub struct RmsNormParams: 72 {
        /// `[rows, width]`; not written by the plain form.
        pub h: DevicePtr,
        /// `[rows, width]`; not read by the plain form.
        pub d: DevicePtr,
        /// `[width]`.
        pub w: DevicePtr,
        /// `[rows, width]`; not written by [`RmsNormForm::Behind`].
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
        /// Added to `w`.
        pub offset: f32,
        /// 0.
        pub reserved: u32,
    }
}

/// The place of a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RmsNormForm {
    /// `x = norm(h) · w`.
    Plain,
    /// `h += d`, then `x = norm(h) · w`.
    AfterSum,
    /// `h += norm(d) · w`.
    Behind,
}

impl RmsNormParams {
    /// Returns a launch of one block for each row.
    #[must_use]
    pub fn launch(&self, form: RmsNormForm) -> Launch {
        let kernel = match form {
            RmsNormForm::Plain => "prelude_rms_norm",
            RmsNormForm::AfterSum => "prelude_add_rms_norm",
            RmsNormForm::Behind => "prelude_rms_norm_add",
        };
        let threads = self.width.div_ceil(8).next_multiple_of(32).min(1024);
        Launch::linear(kernel, self.rows, threads)
    }
}
