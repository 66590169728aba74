use super::silu_mul::blocks_of_eights;
use crate::{DevicePtr, Launch, params::params};

params! {
    /// Parameters of the kernels of [`Function`]: `x = f(x)`, in place. bf16.
    pub struct ActivateParams: 32 {
        /// `[rows, width]`.
        pub x: DevicePtr,
        /// Number of rows that count (u32), or null for all.
        pub live: DevicePtr,
        /// Rows of the launch.
        pub rows: u32,
        /// Elements of a row: a multiple of 8.
        pub width: u32,
        /// Elements from one row to the next: a multiple of 8.
        pub stride: u32,
        /// 0.
        pub reserved: u32,
    }
}

/// A function of each number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// GELU by the error function.
    GeluErf,
    /// GELU, approximated by tanh.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `tanh(x)`.
    Tanh,
}

impl ActivateParams {
    /// Returns a launch of one thread for every 8 elements.
    #[must_use]
    pub fn launch(&self, function: Function) -> Launch {
        let kernel = match function {
            Function::GeluErf => "prelude_activate_gelu_erf",
            Function::GeluTanh => "prelude_activate_gelu",
            Function::Relu => "prelude_activate_relu",
            Function::Tanh => "prelude_activate_tanh",
        };
        Launch::linear(kernel, blocks_of_eights(self.rows, self.width), 256)
    }
}
