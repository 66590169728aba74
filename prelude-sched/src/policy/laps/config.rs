//! Knobs of length-aware prefill.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Knobs of [`Laps`](crate::Laps).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LapsConfig {
    /// Tokens to compute up to which a request is short (default 256), where the
    /// [time of steps](crate::SchedulerConfig::service) is not known; at least 1. More lets larger
    /// prompts into batches that small ones wait for, less makes medium prompts queue behind long
    /// ones.
    pub boundary_tokens: u32,
    /// Tokens that a step of long work computes of one prompt or request (default 2,048), at least
    /// 1. Less lets short requests in sooner and reads the weights more often for a long prompt.
    pub chunk_tokens: u32,
    /// Tokens with which a step of short one-shot requests is full enough (default 512), at least
    /// 1, and the most that prompts of short generations add to it. As many as the device computes
    /// in hardly more time than one: beyond, those who are in the step wait for those who were
    /// added.
    pub batch_tokens: u32,
    /// Least percentage of the device's time that either class gets while it has work (default 10,
    /// in 1..=50). More protects a class of which little comes, at the cost of the other.
    pub share_floor_percent: u32,
    /// Milliseconds from its arrival within which a request without a deadline should start to
    /// answer (default 400): that is its deadline then, for the order only. 0, for offline work: it
    /// has none, and short requests wait until a step is full, at most twice `max_window_us`.
    pub ttft_target_ms: u32,
    /// Microseconds of slack below which a request goes first though it is not its class's turn,
    /// and which waiting for others leaves (default 5,000). More meets more deadlines and disturbs
    /// shares more often.
    pub slack_us: u32,
    /// Most microseconds for which short requests wait for others (default 10,000), the first of
    /// them for twice as long in all; 0: they never do. More makes batches larger and each request
    /// later.
    pub max_window_us: u32,
}

impl Default for LapsConfig {
    fn default() -> Self {
        Self {
            boundary_tokens: 256,
            chunk_tokens: 2048,
            batch_tokens: 512,
            share_floor_percent: 10,
            ttft_target_ms: 400,
            slack_us: 5_000,
            max_window_us: 10_000,
        }
    }
}

impl LapsConfig {
    /// Returns the fields that have a range: name, value, allowed values, and whether the value is
    /// one of them.
    pub(crate) fn checks(&self) -> Vec<(&'static str, u64, &'static str, bool)> {
        let positive = |field, value: u32| (field, u64::from(value), "at least 1", value > 0);
        vec![
            positive("laps.boundary_tokens", self.boundary_tokens),
            positive("laps.chunk_tokens", self.chunk_tokens),
            positive("laps.batch_tokens", self.batch_tokens),
            (
                "laps.share_floor_percent",
                u64::from(self.share_floor_percent),
                "in 1..=50",
                (1..=50).contains(&self.share_floor_percent),
            ),
        ]
    }
}

pub(super) fn micros(us: u32) -> Duration {
    Duration::from_micros(u64::from(us))
}
