use crate::{DevicePtr, Launch, params::params};

params! {
    /// An embedding to make: an element of [`PoolParams::row`].
    pub struct PoolRow: 24 {
        /// First of the row's hidden rows, in [`PoolParams::index`].
        pub first: u32,
        /// The number of hidden rows, at least 1; their positions ascend by one.
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
    /// Parameters of `prelude_pool` and `prelude_pool_bf16`: embeddings.
    pub struct PoolParams: 56 {
        /// [`PoolRow`] `[rows]`.
        pub row: DevicePtr,
        /// i32: rows of `hidden`.
        pub index: DevicePtr,
        /// bf16 `[_, width]`.
        pub hidden: DevicePtr,
        /// f32, or bf16, `[rows, dimensions of each]`.
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

params! {
    /// The tokens of a mean: an element of [`SegmentMeansParams::row`].
    pub struct MeanRow: 8 {
        /// The first, of the step's.
        pub first: u32,
        /// The number of tokens, at least 1.
        pub count: u32,
    }
}

params! {
    /// Parameters of `prelude_segment_means`: means over whole segments. bf16.
    pub struct SegmentMeansParams: 56 {
        /// [`MeanRow`] `[rows]`.
        pub row: DevicePtr,
        /// `[x_rows, width]`: hidden states of tokens `first..` of the step.
        pub x: DevicePtr,
        /// `[rows, width]`; a row stays whose tokens `x` does not hold.
        pub y: DevicePtr,
        /// Number of rows that count (u32), or null for all.
        pub live: DevicePtr,
        /// Rows of the launch.
        pub rows: u32,
        /// Elements of a row.
        pub width: u32,
        /// Rows of `x`.
        pub x_rows: u32,
        /// Token of the first row of `x`.
        pub first: u32,
        /// Elements from one row of `x` to the next.
        pub x_stride: u32,
        /// Elements from one row of `y` to the next.
        pub y_stride: u32,
    }
}

impl PoolParams {
    /// Returns a launch of one block for each row.
    #[must_use]
    pub const fn launch(&self) -> Launch {
        Launch::linear("prelude_pool", self.rows, 256)
    }

    /// Returns the launch for vectors in bf16, which are not scaled to length 1.
    #[must_use]
    pub const fn launch_bf16(&self) -> Launch {
        Launch::linear("prelude_pool_bf16", self.rows, 256)
    }
}

impl SegmentMeansParams {
    /// Returns a launch of one block for each row.
    #[must_use]
    pub const fn launch(&self) -> Launch {
        Launch::linear("prelude_segment_means", self.rows, 256)
    }
}
