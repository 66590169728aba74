use crate::{DevicePtr, Launch, params::params};

params! {
    /// A row of logits to change: an element of [`AdjustParams::row`]. Lists are
    /// `first..first + count` of the arrays in the parameters.
    pub struct AdjustRow: 64 {
        /// f32 `[vocab]`.
        pub logits: DevicePtr,
        /// f32 `[vocab]`: the changed copy.
        pub out: DevicePtr,
        /// Ids seen so far, each once: pairs of [`AdjustParams::seen`].
        pub seen_first: u32,
        /// The number of tokens seen.
        pub seen_count: u32,
        /// Pairs of [`AdjustParams::bias`].
        pub bias_first: u32,
        /// The number of biases.
        pub bias_count: u32,
        /// Index of the row's first id in [`AdjustParams::allowed`].
        pub allowed_first: u32,
        /// The number of allowed tokens.
        pub allowed_count: u32,
        /// Index of the row's first id in [`AdjustParams::masked`].
        pub masked_first: u32,
        /// The number of masked tokens.
        pub masked_count: u32,
        /// Divides positive and multiplies other logits of ids seen.
        pub repetition: f32,
        /// Subtracted for each occurrence in the output.
        pub frequency: f32,
        /// Subtracted once if there is an occurrence in the output.
        pub presence: f32,
        /// 1 if there is no list of allowed ids, else 0.
        pub allows_all: u32,
    }
}

params! {
    /// A row to draw from: an element of [`SampleParams::row`].
    pub struct SampleRow: 56 {
        /// f32 `[vocab]`: to draw from.
        pub logits: DevicePtr,
        /// f32 `[vocab]`: must be finite; `logits` itself where nothing was changed.
        pub raw: DevicePtr,
        /// Key of the generator.
        pub seed: u64,
        /// Tokens generated before this one.
        pub output_position: u32,
        /// Number of the first draw among the request's choices.
        pub choice: u32,
        /// The number of draws.
        pub draws: u32,
        /// The index in [`SampleParams::ids`] of the first draw's token.
        pub first: u32,
        /// Keep this many of the largest; 0 keeps all.
        pub top_k: u32,
        /// 0 takes the largest.
        pub temperature: f32,
        /// Keep the fewest that weigh this share; 1 keeps all.
        pub top_p: f32,
        /// Keep those at least this fraction of the likeliest.
        pub min_p: f32,
    }
}

/// The outcome of sampling a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleStatus {
    /// The row has its ids.
    Sampled,
    /// The row's logits are infinite or not numbers.
    NotFinite,
    /// The row's masks allow no id.
    NothingAllowed,
}

impl SampleStatus {
    /// Returns the status for the code that kernels write.
    #[must_use]
    pub const fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::Sampled),
            1 => Some(Self::NotFinite),
            2 => Some(Self::NothingAllowed),
            _ => None,
        }
    }
}

params! {
    /// Parameters of `prelude_adjust_logits`: penalties, biases and masks, into copies of rows.
    pub struct AdjustParams: 48 {
        /// [`AdjustRow`] `[rows]`.
        pub row: DevicePtr,
        /// u32 pairs: id, occurrences in the output.
        pub seen: DevicePtr,
        /// u32 pairs: id, bits of an f32 to add; in the caller's order.
        pub bias: DevicePtr,
        /// u32: ids.
        pub allowed: DevicePtr,
        /// u32: ids.
        pub masked: DevicePtr,
        /// Rows of the launch.
        pub rows: u32,
        /// Logits of a row.
        pub vocab: u32,
    }
}

params! {
    /// Parameters of `prelude_sample`: tokens, by the rows' rules.
    pub struct SampleParams: 40 {
        /// [`SampleRow`] `[rows]`.
        pub row: DevicePtr,
        /// i32: the drawn ids, or -1.
        pub ids: DevicePtr,
        /// u32 `[rows]`: see [`SampleStatus`].
        pub status: DevicePtr,
        /// Number of rows that count (u32), or null for all.
        pub live: DevicePtr,
        /// Rows of the launch.
        pub rows: u32,
        /// Logits of a row.
        pub vocab: u32,
    }
}

params! {
    /// Parameters of `prelude_argmax`: the largest logit of each row, ties to the smaller id.
    pub struct ArgmaxParams: 48 {
        /// f32 `[rows, vocab]`.
        pub logits: DevicePtr,
        /// i32 `[rows]`: the ids, or -1.
        pub ids: DevicePtr,
        /// u32 `[rows]`: see [`SampleStatus`].
        pub status: DevicePtr,
        /// Number of rows that count (u32), or null for all.
        pub live: DevicePtr,
        /// Rows of the launch.
        pub rows: u32,
        /// Logits of a row.
        pub vocab: u32,
        /// Elements from one row of logits to the next.
        pub logits_stride: u32,
        /// 0.
        pub reserved: u32,
    }
}

/// Threads of a row's block.
const THREADS: u32 = 1024;

impl AdjustParams {
    /// Returns a launch of one block for each row, with one bit of shared memory for each id.
    #[must_use]
    pub const fn launch(&self) -> Launch {
        Launch {
            shared_bytes: self.vocab.div_ceil(32) * 4,
            ..Launch::linear("prelude_adjust_logits", self.rows, THREADS)
        }
    }
}

impl SampleParams {
    /// Returns a launch of one block for each row.
    #[must_use]
    pub const fn launch(&self) -> Launch {
        Launch::linear("prelude_sample", self.rows, THREADS)
    }
}

impl ArgmaxParams {
    /// Returns a launch of one block for each row.
    #[must_use]
    pub const fn launch(&self) -> Launch {
        Launch::linear("prelude_argmax", self.rows, THREADS)
    }
}
