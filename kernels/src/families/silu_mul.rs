use crate::{DevicePtr, Launch, params::params};

params! {
    /// Parameters of the kernels of [`Gate`]: `a = f(g) · u`. bf16.
    pub struct SiluMulParams: 40 {
        /// `[rows, 2 · width]`: g, then u.
        pub gate_up: DevicePtr,
        /// `[rows, width]`.
        pub a: DevicePtr,
        /// Number of rows that count (u32), or null for all.
        pub live: DevicePtr,
        /// Rows of the launch.
        pub rows: u32,
        /// Elements of a row of `a`: a multiple of 8.
        pub width: u32,
        /// Elements from one row of `gate_up` to the next: a multiple of 8.
        pub gate_up_stride: u32,
        /// Elements from one row of `a` to the next.
        pub a_stride: u32,
    }
}

/// The function of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// `g / (1 + e^-g)`.
    Silu,
    /// GELU, approximated by tanh.
    GeluTanh,
    /// GELU by the error function.
    GeluErf,
    /// `max(g, 0)`.
    Relu,
}

/// Returns the number of blocks of 256 threads that work on 8 elements each.
pub(super) fn blocks_of_eights(rows: u32, width: u32) -> u32 {
    let vectors = u64::from(rows) * u64::from(width / 8);
    u32::try_from(vectors.div_ceil(256)).unwrap_or(u32::MAX)
}

impl SiluMulParams {
    /// Returns a launch of one thread for every 8 elements.
    #[must_use]
    pub fn launch(&self, gate: Gate) -> Launch {
        let kernel = match gate {
            Gate::Silu => "prelude_silu_mul",
            Gate::GeluTanh => "prelude_gelu_mul",
            Gate::GeluErf => "prelude_gelu_erf_mul",
            Gate::Relu => "prelude_relu_mul",
        };
        Launch::linear(kernel, blocks_of_eights(self.rows, self.width), 256)
    }
}
