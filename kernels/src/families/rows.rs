use crate::{DevicePtr, Launch, params::params};

params! {
    /// Parameters of `prelude_embed`: `h[t] = scale · table[id[t]]`. bf16.
    pub struct EmbedParams: 64 {
        /// i32 `[rows]`; `-(r + 1)` means row `r` of `sampled`.
        pub ids: DevicePtr,
        /// i32 `[sampled_rows]`, or null if no id is negative.
        pub sampled: DevicePtr,
        /// `[vocab, width]`.
        pub table: DevicePtr,
        /// `[rows, width]`; a row is NaN whose id is out of range.
        pub h: DevicePtr,
        /// Number of rows that count (u32), or null for all.
        pub live: DevicePtr,
        /// Rows of the launch.
        pub rows: u32,
        /// Elements of a row: a multiple of 8.
        pub width: u32,
        /// Rows of the table.
        pub vocab: u32,
        /// Ids at `sampled`.
        pub sampled_rows: u32,
        /// Elements from one row of `h` to the next: a multiple of 8.
        pub h_stride: u32,
        /// Factor on the rows; 1 copies them.
        pub scale: f32,
    }
}

params! {
    /// Parameters of `prelude_gather_rows`: `y[r] = x[index[r] - first]`. bf16.
    pub struct GatherRowsParams: 64 {
        /// i32 `[rows]`.
        pub index: DevicePtr,
        /// `[x_rows, width]`.
        pub x: DevicePtr,
        /// `[rows, width]`; a row is NaN whose index is out of range, or stays if `is_part`.
        pub y: DevicePtr,
        /// Number of rows that count (u32), or null for all.
        pub live: DevicePtr,
        /// Rows of the launch.
        pub rows: u32,
        /// Elements of a row: a multiple of 8.
        pub width: u32,
        /// Rows of `x`.
        pub x_rows: u32,
        /// Elements from one row of `x` to the next: a multiple of 8.
        pub x_stride: u32,
        /// Elements from one row of `y` to the next.
        pub y_stride: u32,
        /// Index of the first row of `x`.
        pub first: u32,
        /// 1 if indices may name rows that `x` does not hold.
        pub is_part: u32,
        /// 0.
        pub reserved: u32,
    }
}

params! {
    /// Parameters of `prelude_embed_sum`: rows of up to three tables, added up. bf16.
    pub struct EmbedSumParams: 80 {
        /// i32 `[rows]`: of a token of type `k`, its word's plus `k · num_words`.
        pub ids: DevicePtr,
        /// i32 `[rows]`; not read without a table of positions.
        pub positions: DevicePtr,
        /// `[num_words, width]`, or null: rows are added to those of `h`.
        pub words: DevicePtr,
        /// `[num_positions, width]`, or null.
        pub position_table: DevicePtr,
        /// `[num_types, width]`, or null.
        pub types: DevicePtr,
        /// `[rows, width]`; a row is NaN whose id or position is out of range.
        pub h: DevicePtr,
        /// Number of rows that count (u32), or null for all.
        pub live: DevicePtr,
        /// Rows of the launch.
        pub rows: u32,
        /// Elements of a row: a multiple of 8.
        pub width: u32,
        /// Number of words.
        pub num_words: u32,
        /// Rows of `position_table`.
        pub num_positions: u32,
        /// Types that ids have: not more than the rows of `types`, if there are those.
        pub num_types: u32,
        /// Elements from one row of `h` to the next: a multiple of 8.
        pub h_stride: u32,
    }
}

/// A warp a row.
const ROWS_PER_BLOCK: u32 = 8;

impl EmbedParams {
    /// Returns a launch of one warp for each row.
    #[must_use]
    pub const fn launch(&self) -> Launch {
        Launch::linear("prelude_embed", self.rows.div_ceil(ROWS_PER_BLOCK), 256)
    }
}

impl EmbedSumParams {
    /// Returns a launch of one warp for each row.
    #[must_use]
    pub const fn launch(&self) -> Launch {
        let blocks = self.rows.div_ceil(ROWS_PER_BLOCK);
        Launch::linear("prelude_embed_sum", blocks, 256)
    }
}

impl GatherRowsParams {
    /// Returns a launch of one warp for each row.
    #[must_use]
    pub const fn launch(&self) -> Launch {
        let blocks = self.rows.div_ceil(ROWS_PER_BLOCK);
        Launch::linear("prelude_gather_rows", blocks, 256)
    }
}
