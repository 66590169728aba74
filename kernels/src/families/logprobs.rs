use crate::{DevicePtr, Launch, params::params};

params! {
    /// A row of logits to read: an element of [`LogprobsParams::row`].
    pub struct LogprobRow: 24 {
        /// f32 `[vocab]`.
        pub logits: DevicePtr,
        /// First of the row's targets, and where in `lp` and `rank` their results go.
        pub target_first: u32,
        /// The number of targets.
        pub target_count: u32,
        /// The index in `top_id` and `top_lp` of the first of the likeliest tokens.
        pub top_first: u32,
        /// The number of likeliest tokens wanted; at most [`LogprobRow::TOP_MAX`] are written.
        pub top_n: u32,
    }
}

impl LogprobRow {
    /// Most of the likeliest tokens that the kernel finds.
    pub const TOP_MAX: u32 = 64;
}

params! {
    /// Parameters of `prelude_logprobs`: scores and ranks of given tokens, and the likeliest.
    pub struct LogprobsParams: 72 {
        /// [`LogprobRow`] `[rows]`.
        pub row: DevicePtr,
        /// i32: the tokens to score; may have been sampled in the same step.
        pub target: DevicePtr,
        /// f32: log-probabilities of the targets.
        pub lp: DevicePtr,
        /// u32: ranks of the targets, from 1; 0 where there is none.
        pub rank: DevicePtr,
        /// i32: likeliest tokens, best first.
        pub top_id: DevicePtr,
        /// f32: the log-probabilities of the likeliest tokens.
        pub top_lp: DevicePtr,
        /// f32 `[rows]`: `ln Σ e^logit`; NaN if the logits are not all finite.
        pub lse: DevicePtr,
        /// Number of rows that count (u32), or null for all.
        pub live: DevicePtr,
        /// Rows of the launch.
        pub rows: u32,
        /// Logits of a row.
        pub vocab: u32,
    }
}

impl LogprobsParams {
    /// Returns a launch of one block for each row.
    #[must_use]
    pub const fn launch(&self) -> Launch {
        Launch::linear("prelude_logprobs", self.rows, 1024)
    }
}
