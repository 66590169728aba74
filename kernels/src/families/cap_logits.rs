use crate::{DevicePtr, Launch, params::params};

params! {
    /// Parameters of `prelude_cap_logits`: `x = cap · tanh(x / cap)` in place, f32.
    pub struct CapLogitsParams: 32 {
        /// `[rows, width]`.
        pub x: DevicePtr,
        /// Number of rows that count (u32), or null for all.
        pub live: DevicePtr,
        /// Rows of the launch.
        pub rows: u32,
        /// Elements of a row.
        pub width: u32,
        /// Elements from one row to the next.
        pub stride: u32,
        /// The bound, above 0.
        pub cap: f32,
    }
}

/// Elements of a row that a block has.
const BLOCK_ELEMENTS: u32 = 2048;

impl CapLogitsParams {
    /// Returns a launch of one block for each 2,048 elements of a row.
    #[must_use]
    pub const fn launch(&self) -> Launch {
        Launch {
            kernel: "prelude_cap_logits",
            grid: [self.width.div_ceil(BLOCK_ELEMENTS), self.rows, 1],
            block: [256, 1, 1],
            shared_bytes: 0,
        }
    }
}
