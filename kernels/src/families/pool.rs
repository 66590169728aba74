use crate::{DevicePtr, Launch, params::params};

params! {
    /// An embedding to make: an element of [`PoolParams::row`].
    pub struct PoolRow: 24 {
        /// First of its hidden rows, in [`PoolParams::index`].
        pub first: u32,
        /// The number of rows, at least 1; their positions ascend by one.
        pub count: u32,
        /// Position of the first: chunks of means are cut at absolute positions.
        pub first_position: u32,
        /// [`PoolRow::MEAN`] (else the last state), [`PoolRow::NORMALISE`].
        pub flags: u32,
        /// Elements to make, at most the width.
        pub dimensions: u32,
        /// 0.
        pub reserved: u32,
    }
}

impl PoolRow {
    /// The mean of all states.
    pub const MEAN: u32 = 1;
    /// Scaled to length 1.
    pub const NORMALISE: u32 = 2;
}

params! {
    /// Parameters of `prelude_pool`: embeddings, f32.
    pub struct PoolParams: 56 {
        /// [`PoolRow`] `[rows]`.
        pub row: DevicePtr,
        /// i32: rows of `hidden`.
        pub index: DevicePtr,
        /// bf16 `[_, width]`.
        pub hidden: DevicePtr,
        /// f32 `[rows, dimensions of each]`.
        pub out: DevicePtr,
        /// Number of rows that count (u32), or null for all.
        pub live: DevicePtr,
        /// Rows of the launch.
        pub rows: u32,
        /// Elements of a hidden row.
        pub width: u32,
        /// Elements from one row of `hidden` to the next.
        pub hidden_stride: u32,
        /// Elements from one row of `out` to the next.
        pub out_stride: u32,
    }
}

impl PoolParams {
    /// A block a row.
    #[must_use]
    pub const fn launch(&self) -> Launch {
        Launch::linear("prelude_pool", self.rows, 256)
    }
}
