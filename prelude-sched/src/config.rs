//! Settings of the scheduler and what they trade.

use prelude_core::{BadServiceTime, Capacity, ServiceTime};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{Auto, Fcfs, Groups, Laps, LapsConfig, RoundRobin, SchedulerPolicy, Srjf};

/// Settings of a [`crate::Scheduler`]. Every queue has its bound here. Programs set the fields that
/// serde skips from settings of their own, or leave the default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SchedulerConfig {
    /// Most uncached tokens that a step computes, at least 2, and clamped to
    /// [`Capacity::max_step_tokens`]. By default 2,048 while a generation waits or runs; without one,
    /// prompts of up to 2,048 tokens fill a step of [`Capacity::full_step_tokens`]. More fills a
    /// device better and makes running generations wait longer for their next token. A lone or
    /// unsplittable prompt may exceed it, up to the capacity.
    pub max_batch_tokens: Option<u32>,
    /// Most one-shot output rows of a step (default 256). Sequences add one row each:
    /// generations are bounded by `max_num_seqs`, one-shot prompts computed in chunks by the
    /// blocks they hold.
    pub max_batch_rows: u32,
    /// Most `Decode` sequences running (default 256), clamped to half of the effective
    /// `max_batch_tokens`, so that generations never take a whole step. Each choice of a request
    /// is a sequence.
    pub max_num_seqs: u32,
    /// Most rows waiting (default 16,384). A row that draws or generates `n` choices counts `n`.
    #[serde(skip)]
    pub max_queued_rows: u32,
    /// Most prompt tokens waiting (default 4,194,304), counted once where a request's own prompts
    /// share them. Bounds the memory of the queue: 4 bytes a token.
    #[serde(skip)]
    pub max_queued_tokens: u64,
    /// Most tokens that one chunked prompt computes in a step (default 2,048). Smaller leaves
    /// room for others beside a long prompt and makes that prompt slower.
    pub prefill_chunk_tokens: u32,
    /// Milliseconds that a slice of a long one-shot prompt is to take, at least 1, and that one-shot
    /// rows may add to a step in which generations decode, if more than one row does: for so long
    /// one-shot work keeps other work waiting. More lets one-shot work end sooner beside other work.
    /// By default what the executor says ([`PassCapacity::slice_ms`](prelude_core::PassCapacity)): 20
    /// on the host, 5 on a GPU. Slices concern executors with [`Capacity::passes`].
    pub slice_ms: Option<u32>,
    /// Percentage of the device's time that one-shot work has while generations have work too,
    /// prompts or decoding (default 50, in 1..=99). What a class does not use, the other takes. One-shot
    /// work joins steps for about `slice_ms` at once, and then sits steps out until generations have
    /// had their share. More answers decisions sooner and makes texts grow more slowly.
    pub oneshot_share_percent: u32,
    /// True if K/V of prompt prefixes are kept for later requests (default true). Without it,
    /// the choices of a generation compute their shared prompt each.
    pub enable_prefix_caching: bool,
    /// Most steps for which a waiter is held back while another computes the next block of its
    /// prefix, counted anew whenever that block appears (default 2); 0 turns it off. Higher saves
    /// more recomputation and can delay a waiter for longer.
    pub defer_max: u32,
    /// Milliseconds after which a generation whose next tokens are not known yet (a constraint
    /// still works them out) is no longer left out of steps: one such generation joins each step,
    /// which then waits for it (default 5,000). Masks keep coming while a generation is left out,
    /// so this is for constraints that fall behind: less makes everybody wait for the slowest
    /// constraint sooner.
    #[serde(skip)]
    pub mask_patience_ms: u32,
    /// Milliseconds after which the request that has waited longest for its first step goes before
    /// all others, whatever its priority and the policy (default 30,000), one request at a time, and
    /// under `auto` for a quarter of the device's time at most; 0: never, and steady traffic of better
    /// priority holds up the rest for good. Less keeps what is less urgent from being forgotten under
    /// overload, more keeps what is urgent from waiting for it.
    pub max_wait_ms: u32,
    /// Most milliseconds for which the device is left idle because the policy would rather wait
    /// for more than take up what waits (default 50); 0: never. Only policies that gather requests
    /// (`laps`) ever do; this bounds what a wrong one can cost.
    #[serde(skip)]
    pub max_idle_ms: u32,
    /// Order of admission (default first come, first served).
    pub policy: PolicyConfig,
    /// Tokens by which a request's score falls with each second that it waits, under the policy `srjf`
    /// (default 500); 0 only with `max_wait_ms`. More is fairer: a request with m tokens to compute
    /// overtakes one with M that came t seconds earlier only if t is below (M - m) / this. Less favours
    /// short requests, and those whose prefix is cached. With a profile scores are times, and a token
    /// counts as the time that it takes in a step of `srjf_saturation_tokens`.
    pub srjf_tokens_per_second: u32,
    /// One-shot tokens of a step beyond which no further row is taken up for it, under the policy
    /// `srjf` (default 2,048), at least 1. As many as the device computes in hardly more time than one:
    /// beyond, those who are in the step wait for those who were added.
    pub srjf_saturation_tokens: u32,
    /// Knobs of the policy `laps`.
    pub laps: LapsConfig,
    /// The measured time of the executor's steps (default: not known), which a
    /// [`Profile`](prelude_core::Profile) has. With it `srjf` orders by time in place of tokens, and
    /// `laps` takes its boundary and its costs from it.
    #[serde(skip)]
    pub service: Option<ServiceTime>,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            max_batch_tokens: None,
            max_batch_rows: 256,
            max_num_seqs: 256,
            max_queued_rows: 16_384,
            max_queued_tokens: 4_194_304,
            prefill_chunk_tokens: 2048,
            slice_ms: None,
            oneshot_share_percent: 50,
            enable_prefix_caching: true,
            defer_max: 2,
            mask_patience_ms: 5_000,
            max_wait_ms: 30_000,
            max_idle_ms: 50,
            policy: PolicyConfig::Auto,
            srjf_tokens_per_second: 500,
            srjf_saturation_tokens: 2048,
            laps: LapsConfig::default(),
            service: None,
        }
    }
}

impl SchedulerConfig {
    /// Returns the most tokens of a step while a generation waits or runs. A longer prompt is not
    /// taken up whole beside others.
    #[must_use]
    pub fn shared_step_tokens(&self, capacity: &Capacity) -> u32 {
        let tokens = self.max_batch_tokens.unwrap_or(SHARED_STEP_TOKENS);
        tokens.min(capacity.max_step_tokens)
    }

    /// Returns the most tokens of a step of several prompts while no generation waits or runs.
    #[must_use]
    pub fn oneshot_step_tokens(&self, capacity: &Capacity) -> u32 {
        let full = capacity.full_step_tokens.max(SHARED_STEP_TOKENS);
        let tokens = self.max_batch_tokens.unwrap_or(full);
        tokens.min(capacity.max_step_tokens)
    }
}

/// The default of [`SchedulerConfig::max_batch_tokens`] while a generation waits or runs.
const SHARED_STEP_TOKENS: u32 = 2048;

/// The [`SchedulerPolicy`] that orders admission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PolicyConfig {
    /// [`Auto`].
    #[default]
    Auto,
    /// [`Fcfs`].
    Fcfs,
    /// [`Srjf`].
    Srjf,
    /// [`Groups`].
    Groups,
    /// [`Laps`].
    Laps,
    /// [`RoundRobin`], with chunks of [`SchedulerConfig::prefill_chunk_tokens`]. Written
    /// `round-robin`, as the router's policy is; `round_robin` is read too.
    #[serde(rename = "round-robin", alias = "round_robin")]
    RoundRobin,
}

impl PolicyConfig {
    pub(crate) fn build(self, config: &SchedulerConfig) -> Box<dyn SchedulerPolicy> {
        match self {
            Self::Auto => Box::new(Auto::new(config.service)),
            Self::Fcfs => Box::new(Fcfs),
            Self::Groups => Box::new(Groups::new()),
            Self::Laps => Box::new(Laps::new(config.laps.clone(), config.service)),
            Self::RoundRobin => Box::new(RoundRobin::new(config.prefill_chunk_tokens)),
            Self::Srjf => Box::new(Srjf::new(
                config.srjf_tokens_per_second,
                config.srjf_saturation_tokens,
                config.service,
            )),
        }
    }
}

/// The reason why a scheduler cannot be built.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A field of the config or of the executor's capacity is out of range.
    #[error("{field} is {value}, but must be {must_be}")]
    OutOfRange {
        /// The field.
        field: &'static str,
        /// The setting's value.
        value: u64,
        /// The allowed values.
        must_be: &'static str,
    },
    /// The time of the executor's steps is none.
    #[error(transparent)]
    Service(#[from] BadServiceTime),
}

impl SchedulerConfig {
    /// Checks the config together with an executor's capacity.
    ///
    /// # Errors
    /// The first field out of range.
    pub fn validate(&self, capacity: &Capacity) -> Result<(), ConfigError> {
        if let Some(service) = &self.service {
            service.validate()?;
        }
        let own = self.least_values().map(at_least);
        let others = [
            (
                "srjf_tokens_per_second",
                u64::from(self.srjf_tokens_per_second),
                "at least 1 unless `max_wait_ms` is",
                self.srjf_tokens_per_second > 0 || self.max_wait_ms > 0,
            ),
            (
                "oneshot_share_percent",
                u64::from(self.oneshot_share_percent),
                "in 1..=99",
                (1..=99).contains(&self.oneshot_share_percent),
            ),
        ];
        let of_capacity = [
            ("capacity.block_size", capacity.block_size, 1),
            ("capacity.num_blocks", capacity.num_blocks, 1),
            ("capacity.max_step_tokens", capacity.max_step_tokens, 2),
            ("capacity.max_context_len", capacity.max_context_len, 1),
            ("capacity.vocab_size", capacity.vocab_size, 1),
            ("capacity.pipeline_depth", capacity.pipeline_depth, 1),
        ];
        let of_capacity = of_capacity.map(|(field, value, least)| (field, u64::from(value), least));
        let checks = own.into_iter().chain(others);
        let checks = checks.chain(of_capacity.map(at_least));
        match checks.chain(self.laps.checks()).find(|(.., ok)| !ok) {
            Some((field, value, must_be, _)) => Err(ConfigError::OutOfRange {
                field,
                value,
                must_be,
            }),
            None => Ok(()),
        }
    }

    /// Returns the fields that only have a least value, with their values and that one.
    fn least_values(&self) -> [(&'static str, u64, u64); 8] {
        [
            (
                "max_batch_tokens",
                self.max_batch_tokens.unwrap_or(2).into(),
                2,
            ),
            ("max_batch_rows", self.max_batch_rows.into(), 1),
            ("max_num_seqs", self.max_num_seqs.into(), 1),
            ("max_queued_rows", self.max_queued_rows.into(), 1),
            ("max_queued_tokens", self.max_queued_tokens, 1),
            ("prefill_chunk_tokens", self.prefill_chunk_tokens.into(), 1),
            ("slice_ms", self.slice_ms.unwrap_or(1).into(), 1),
            (
                "srjf_saturation_tokens",
                self.srjf_saturation_tokens.into(),
                1,
            ),
        ]
    }
}

/// Returns a check that a field has at least a value, 1 or 2.
const fn at_least(
    (field, value, least): (&'static str, u64, u64),
) -> (&'static str, u64, &'static str, bool) {
    let must_be = if least == 1 {
        "at least 1"
    } else {
        "at least 2"
    };
    (field, value, must_be, value >= least)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(change: impl FnOnce(&mut SchedulerConfig, &mut Capacity), expected: Result<(), &str>) {
        let mut config = SchedulerConfig::default();
        let mut capacity = Capacity {
            block_size: 16,
            num_blocks: 8,
            max_step_tokens: 64,
            full_step_tokens: 2048,
            max_context_len: 128,
            vocab_size: 100,
            pipeline_depth: 1,
            passes: None,
            attention: prelude_core::Attention::Causal,
            host_blocks: 0,
        };
        change(&mut config, &mut capacity);
        let got = config.validate(&capacity).map_err(|e| e.to_string());
        assert_eq!(got, expected.map_err(str::to_owned));
    }

    #[test]
    fn names_the_field_out_of_range() {
        check(|_, _| (), Ok(()));
        check(
            |c, _| c.max_batch_tokens = Some(1),
            Err("max_batch_tokens is 1, but must be at least 2"),
        );
        check(
            |c, _| c.oneshot_share_percent = 100,
            Err("oneshot_share_percent is 100, but must be in 1..=99"),
        );
        // Long requests would starve.
        let no_fairness = |c: &mut SchedulerConfig, max_wait_ms| {
            (c.srjf_tokens_per_second, c.max_wait_ms) = (0, max_wait_ms);
        };
        check(|c, _| no_fairness(c, 1), Ok(()));
        check(
            |c, _| no_fairness(c, 0),
            Err("srjf_tokens_per_second is 0, but must be at least 1 unless `max_wait_ms` is"),
        );
        check(
            |c, _| c.laps.share_floor_percent = 51,
            Err("laps.share_floor_percent is 51, but must be in 1..=50"),
        );
        let service = ServiceTime {
            floor_ms: -1.0,
            ..ServiceTime::default()
        };
        check(
            |c, _| c.service = Some(service),
            Err("service time: floor_ms is -1, and must be a number from 0 to 1e6"),
        );
        check(
            |_, k| k.pipeline_depth = 0,
            Err("capacity.pipeline_depth is 0, but must be at least 1"),
        );
    }
}
