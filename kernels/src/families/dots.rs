use crate::{DevicePtr, Launch, params::params};

params! {
    /// Parameters of `prelude_classify`: every row times every label's weights, f32.
    pub struct ClassifyParams: 64 {
        /// i32 `[rows]`: rows of `hidden`.
        pub index: DevicePtr,
        /// bf16 `[_, width]`.
        pub hidden: DevicePtr,
        /// bf16 `[labels, width]`.
        pub score: DevicePtr,
        /// bf16 `[labels]`, or null.
        pub bias: DevicePtr,
        /// f32 `[rows, labels]`.
        pub out: DevicePtr,
        /// Number of rows that count (u32), or null for all.
        pub live: DevicePtr,
        /// Rows of the launch.
        pub rows: u32,
        /// Labels.
        pub labels: u32,
        /// Elements of a row: a multiple of 8.
        pub width: u32,
        /// Elements from one row of `hidden` to the next: a multiple of 8.
        pub hidden_stride: u32,
    }
}

params! {
    /// Parameters of `prelude_label_dots`: single rows of the head times hidden rows, f32.
    pub struct LabelDotsParams: 64 {
        /// u32 `[products]`: rows of `hidden`.
        pub row: DevicePtr,
        /// u32 `[products]`: rows of `table`.
        pub id: DevicePtr,
        /// bf16 `[_, width]`.
        pub hidden: DevicePtr,
        /// bf16 `[vocab, width]`.
        pub table: DevicePtr,
        /// f32 `[products]`.
        pub out: DevicePtr,
        /// Number of products that count (u32), or null for all.
        pub live: DevicePtr,
        /// Products of the launch.
        pub products: u32,
        /// Elements of a row: a multiple of 8.
        pub width: u32,
        /// Elements from one row of `hidden` to the next: a multiple of 8.
        pub hidden_stride: u32,
        /// Bound of the products, or 0.
        pub cap: f32,
    }
}

/// A warp a product.
const PRODUCTS_PER_BLOCK: u64 = 8;

fn blocks(products: u64) -> u32 {
    u32::try_from(products.div_ceil(PRODUCTS_PER_BLOCK)).unwrap_or(u32::MAX)
}

impl ClassifyParams {
    /// Returns a launch of one warp for each (row, label).
    #[must_use]
    pub fn launch(&self) -> Launch {
        let products = u64::from(self.rows) * u64::from(self.labels);
        Launch::linear("prelude_classify", blocks(products), 256)
    }
}

impl LabelDotsParams {
    /// Returns a launch of one warp for each product.
    #[must_use]
    pub fn launch(&self) -> Launch {
        Launch::linear("prelude_label_dots", blocks(u64::from(self.products)), 256)
    }
}
