use super::{FP8_BLOCK, QuantFp8RowParams, RmsNormFp8RowParams};
use crate::Launch;

/// `prelude_quant_fp8_group` and `prelude_silu_mul_fp8_group`: `scale` is f32, of groups of [`FP8_BLOCK`]
/// elements, of which `width` is a multiple, in the order of `fp8_scales.cuh`.
impl QuantFp8RowParams {
    /// Returns a launch of one block for each row, with one thread for every 8 elements.
    #[must_use]
    pub fn launch_groups(&self) -> Launch {
        let threads = (self.width / 8).next_multiple_of(32).clamp(32, 1024);
        Launch::linear("prelude_quant_fp8_group", self.rows, threads)
    }

    /// Returns the launch of the kernel of gates: one block for each row, with one thread for some 16
    /// elements.
    #[must_use]
    pub fn launch_silu_mul_groups(&self) -> Launch {
        let threads = self.width.div_ceil(16).next_multiple_of(32).clamp(32, 512);
        Launch::linear("prelude_silu_mul_fp8_group", self.rows, threads)
    }
}

/// `prelude_rms_norm_fp8_group`: `scale` as above.
impl RmsNormFp8RowParams {
    /// Returns a launch of one block for each row, with as many threads as `rms_norm` has: the order of
    /// its sums depends on them.
    #[must_use]
    pub fn launch_groups(&self) -> Launch {
        Launch {
            kernel: "prelude_rms_norm_fp8_group",
            ..self.launch()
        }
    }
}

const _: () = assert!(FP8_BLOCK == 128, "mirrors `fp8::BLOCK`");
