use crate::{DevicePtr, Launch, params::params};

params! {
    /// Parameters of `prelude_label_logits`: wanted logits, and what [`LabelMergeParams`] makes the
    /// log-sum-exp of, without writing the others.
    pub struct LabelLogitsParams: 96 {
        /// u32 `[rows]`: rows of `hidden`.
        pub index: DevicePtr,
        /// bf16 `[_, width]`.
        pub hidden: DevicePtr,
        /// bf16 `[vocab, width]`.
        pub table: DevicePtr,
        /// u32 `[pairs]`: row of the launch whose logit is wanted.
        pub pair_row: DevicePtr,
        /// u32 `[pairs]`: of this id; ascending.
        pub pair_id: DevicePtr,
        /// u32 `[pairs]`: the element of `out` that a pair's logit goes to.
        pub pair_out: DevicePtr,
        /// f32.
        pub out: DevicePtr,
        /// f32 `[slabs, rows, 2]`: the maximum, and the sum of exponentials relative to the
        /// maximum.
        pub partial: DevicePtr,
        /// Number of rows that count (u32), or null for all.
        pub live: DevicePtr,
        /// Rows of the launch.
        pub rows: u32,
        /// Wanted logits.
        pub pairs: u32,
        /// Elements of a row: a multiple of 8.
        pub width: u32,
        /// Rows of `table`.
        pub vocab: u32,
        /// Elements from one row of `hidden` to the next: a multiple of 8.
        pub hidden_stride: u32,
        /// Bound of the logits, or 0.
        pub cap: f32,
    }
}

params! {
    /// Parameters of `prelude_label_merge`: `lse[r] = ln Σ e^logit`.
    pub struct LabelMergeParams: 32 {
        /// The sums of [`LabelLogitsParams::partial`].
        pub partial: DevicePtr,
        /// f32 `[rows]`.
        pub lse: DevicePtr,
        /// Number of rows that count (u32), or null for all.
        pub live: DevicePtr,
        /// Rows of the launch.
        pub rows: u32,
        /// [`LabelLogitsParams::slabs`].
        pub slabs: u32,
    }
}

/// Vocabulary rows of a block.
const SLAB: u32 = 256;
/// Hidden rows of a block.
const ROWS: u32 = 64;
/// Two stages of 256 + 64 rows of 64 elements, 72 apart.
const SHARED_BYTES: u32 = 2 * (SLAB + ROWS) * 72 * 2;

impl LabelLogitsParams {
    /// Returns the number of blocks along the vocabulary.
    #[must_use]
    pub const fn slabs(&self) -> u32 {
        self.vocab.div_ceil(SLAB)
    }

    /// Returns a launch of one block for each slab and 64 rows.
    #[must_use]
    pub const fn launch(&self) -> Launch {
        Launch {
            kernel: "prelude_label_logits",
            grid: [self.slabs(), self.rows.div_ceil(ROWS), 1],
            block: [256, 1, 1],
            shared_bytes: SHARED_BYTES,
        }
    }
}

impl LabelMergeParams {
    /// Returns a launch of one block for each row.
    #[must_use]
    pub const fn launch(&self) -> Launch {
        Launch::linear("prelude_label_merge", self.rows, 256)
    }
}
