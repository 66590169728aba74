//! Knobs of length-aware prefill.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Knobs of [`Laps`](crate::Laps).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LapsConfig {
    /// Tokens to compute up to which a request is short (default 256), where `costs` are not known;
    /// at least 1. More lets larger prompts into batches that small ones wait for, less makes
    /// medium prompts queue behind long ones.
    pub boundary_tokens: u32,
    /// Least boundary that `costs` may give (default 128), at least 1.
    pub min_boundary_tokens: u32,
    /// Largest boundary that `costs` may give (default 512), at least `min_boundary_tokens`.
    pub max_boundary_tokens: u32,
    /// Tokens that a step of long work computes of one prompt or request (default 2,048), at least
    /// 1. Less lets short requests in sooner and reads the weights more often for a long prompt.
    pub chunk_tokens: u32,
    /// Tokens with which a step of short one-shot requests is full enough (default 512), at least
    /// 1, and the most that prompts of short generations add to it. As many as the device computes
    /// in hardly more time than one: beyond, those who are in the step wait for those who were
    /// added.
    pub batch_tokens: u32,
    /// Milliseconds over which the load that each class offers is averaged (default 10,000), at
    /// least 1. More keeps shares steady, less follows a change of traffic sooner.
    pub load_window_ms: u32,
    /// Least percentage of the device's time that either class gets while it has work (default 10,
    /// in 1..=50). More protects a class of which little comes, at the cost of the other.
    pub share_floor_percent: u32,
    /// Milliseconds from its arrival within which a request without a deadline should start to
    /// answer (default 400): that is its deadline then, for the order only. 0: it has none, and
    /// neither hurries nor waits for others.
    pub ttft_target_ms: u32,
    /// Microseconds of slack below which a request goes first though it is not its class's turn
    /// (default 5,000). More meets more deadlines and disturbs shares more often.
    pub slack_us: u32,
    /// Least microseconds for which short requests wait for others (default 0).
    pub min_window_us: u32,
    /// Most microseconds for which short requests wait for others (default 10,000), at least
    /// `min_window_us`; 0: they never do. More makes batches larger and each request later.
    pub max_window_us: u32,
    /// Microseconds of slack that waiting leaves beside `slack_us` (default 5,000).
    pub window_margin_us: u32,
    /// Most microseconds for which the first short request waits in all (default twice
    /// `max_window_us`).
    pub max_head_wait_us: Option<u32>,
    /// Most short requests to wait for (default 64), at least 1. Requests beyond that go
    /// along while the step has room.
    pub max_depth: u32,
    /// The time that computing takes on this device, from which the boundary follows (default: not
    /// known).
    pub costs: Option<PrefillCosts>,
}

/// The coefficients of the time that prefill takes, in femtoseconds (1 ms is 10^12): `L` tokens
/// behind `H` cached ones take `max(alpha L (L + 2H) + beta L, gw L + gr H)`, the first for
/// computing, the second for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefillCosts {
    /// Attention, per pair of tokens; at least 1.
    pub alpha_fs: u64,
    /// All other products, per token.
    pub beta_fs: u64,
    /// Memory traffic of a token that is computed.
    pub gw_fs: u64,
    /// Memory traffic of a cached token that is read.
    pub gr_fs: u64,
}

impl Default for LapsConfig {
    fn default() -> Self {
        Self {
            boundary_tokens: 256,
            min_boundary_tokens: 128,
            max_boundary_tokens: 512,
            chunk_tokens: 2048,
            batch_tokens: 512,
            load_window_ms: 10_000,
            share_floor_percent: 10,
            ttft_target_ms: 400,
            slack_us: 5_000,
            min_window_us: 0,
            max_window_us: 10_000,
            window_margin_us: 5_000,
            max_head_wait_us: None,
            max_depth: 64,
            costs: None,
        }
    }
}

impl LapsConfig {
    /// Most time for which the first short request waits in all.
    pub(crate) fn max_head_wait(&self) -> Duration {
        let twice = self.max_window_us.saturating_mul(2);
        micros(self.max_head_wait_us.unwrap_or(twice))
    }

    /// Each field that has a range: its name, its value, what it must be, and whether it is.
    pub(crate) fn checks(&self) -> Vec<(&'static str, u64, &'static str, bool)> {
        let positive = |field, value: u32| (field, u64::from(value), "at least 1", value > 0);
        vec![
            positive("laps.boundary_tokens", self.boundary_tokens),
            positive("laps.min_boundary_tokens", self.min_boundary_tokens),
            (
                "laps.max_boundary_tokens",
                u64::from(self.max_boundary_tokens),
                "at least `min_boundary_tokens`",
                self.max_boundary_tokens >= self.min_boundary_tokens,
            ),
            positive("laps.chunk_tokens", self.chunk_tokens),
            positive("laps.batch_tokens", self.batch_tokens),
            positive("laps.load_window_ms", self.load_window_ms),
            (
                "laps.share_floor_percent",
                u64::from(self.share_floor_percent),
                "in 1..=50",
                (1..=50).contains(&self.share_floor_percent),
            ),
            (
                "laps.max_window_us",
                u64::from(self.max_window_us),
                "at least `min_window_us`",
                self.max_window_us >= self.min_window_us,
            ),
            positive("laps.max_depth", self.max_depth),
            (
                "laps.costs.alpha_fs",
                self.costs.map_or(1, |costs| costs.alpha_fs),
                "at least 1",
                self.costs.is_none_or(|costs| costs.alpha_fs > 0),
            ),
        ]
    }
}

pub(super) fn micros(us: u32) -> Duration {
    Duration::from_micros(u64::from(us))
}
