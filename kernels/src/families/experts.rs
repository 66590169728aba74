use crate::{DevicePtr, Launch, params::params};

params! {
    /// Parameters of `prelude_experts_route`: the experts of each token, and their shares.
    pub struct ExpertsRouteParams: 48 {
        /// f32 `[rows, experts]`.
        pub logits: DevicePtr,
        /// u32 `[rows, per_token]`: numbers of experts, ascending.
        pub chosen: DevicePtr,
        /// f32 `[rows, per_token]`.
        pub shares: DevicePtr,
        /// Tokens.
        pub rows: u32,
        /// Experts: at most [`EXPERTS_MAX`].
        pub experts: u32,
        /// Experts of a token: at most [`EXPERTS_PER_TOKEN_MAX`], and at most `experts`.
        pub per_token: u32,
        /// Elements from one row of `logits` to the next.
        pub logits_stride: u32,
        /// 1 if the shares of a token add up to 1, 0 if those of all experts would.
        pub normalise: u32,
        /// 0.
        pub reserved: u32,
    }
}

params! {
    /// Parameters of `prelude_experts_order`: all tokens' choices, sorted by expert and by token.
    pub struct ExpertsOrderParams: 56 {
        /// u32 `[choices]`.
        pub chosen: DevicePtr,
        /// u32 `[choices]`: the token of each sorted row.
        pub tokens: DevicePtr,
        /// u32 `[choices]`: the sorted row of each choice.
        pub places: DevicePtr,
        /// u32 `[tiles, 4]`, of [`expert_tiles`]: an expert, its first row, the number of rows, 0.
        pub tiles: DevicePtr,
        /// u32: the number of tiles that were made.
        pub tile_count: DevicePtr,
        /// Tokens · `per_token`.
        pub choices: u32,
        /// Experts of a token.
        pub per_token: u32,
        /// Experts: at most [`EXPERTS_MAX`].
        pub experts: u32,
        /// 0.
        pub reserved: u32,
    }
}

params! {
    /// Parameters of `prelude_experts_sum`: `h += ` the sum of the experts' outputs by their shares.
    pub struct ExpertsSumParams: 56 {
        /// bf16 `[choices, width]`, sorted.
        pub out: DevicePtr,
        /// u32 `[rows, per_token]`: rows of `out`.
        pub places: DevicePtr,
        /// f32 `[rows, per_token]`.
        pub shares: DevicePtr,
        /// bf16 `[rows, width]`.
        pub h: DevicePtr,
        /// Tokens.
        pub rows: u32,
        /// Elements of a row: a multiple of 8.
        pub width: u32,
        /// Experts of a token.
        pub per_token: u32,
        /// Elements from one row of `out` to the next: a multiple of 8.
        pub out_stride: u32,
        /// Elements from one row of `h` to the next: a multiple of 8.
        pub h_stride: u32,
        /// 0.
        pub reserved: u32,
    }
}

/// Most experts that the kernels of a mixture take.
pub const EXPERTS_MAX: u32 = 1 << 12;
/// Most experts of one token: a lane each.
pub const EXPERTS_PER_TOKEN_MAX: u32 = 32;
/// Most sorted rows of a tile.
const EXPERT_TILE: u32 = 64;

/// Returns the most tiles that so many choices among so many experts make, whatever they are.
#[must_use]
pub const fn expert_tiles(choices: u32, experts: u32) -> u32 {
    let partial = if choices < experts { choices } else { experts };
    choices / EXPERT_TILE + partial
}

impl ExpertsRouteParams {
    /// A warp a token.
    #[must_use]
    pub const fn launch(&self) -> Launch {
        Launch::linear("prelude_experts_route", self.rows.div_ceil(8), 256)
    }
}

impl ExpertsOrderParams {
    /// A block an expert.
    #[must_use]
    pub const fn launch(&self) -> Launch {
        Launch {
            shared_bytes: 4 * self.experts,
            ..Launch::linear("prelude_experts_order", self.experts, 256)
        }
    }
}

impl ExpertsSumParams {
    /// 8 elements a thread.
    #[must_use]
    pub fn launch(&self) -> Launch {
        let vectors = u64::from(self.rows) * u64::from(self.width / 8);
        let blocks = u32::try_from(vectors.div_ceil(256)).unwrap_or(u32::MAX);
        Launch::linear("prelude_experts_sum", blocks, 256)
    }
}
