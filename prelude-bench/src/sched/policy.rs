//! The flag `--policy` of the commands `sched` and `sim`.

use prelude_sched::PolicyConfig;

/// A scheduling policy with its default settings, named as in the server's flag `--policy`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Policy {
    /// Everything by the time that it takes, less a part of the time waited.
    Auto,
    /// First come, first served.
    Fcfs,
    /// Shortest remaining job first, without its cached tokens; for outputs of one token.
    Srjf,
    /// Priority groups by the cached share of the prompt.
    Groups,
    /// Length-aware prefill: short prompts apart from long ones.
    Laps,
    /// Prompts in turns, a chunk each.
    #[value(alias = "round_robin")]
    RoundRobin,
}

impl Policy {
    /// Returns the name in reports, and the configuration.
    #[must_use]
    pub const fn config(self) -> (&'static str, PolicyConfig) {
        match self {
            Self::Auto => ("auto", PolicyConfig::Auto),
            Self::Fcfs => ("fcfs", PolicyConfig::Fcfs),
            Self::Srjf => ("srjf", PolicyConfig::Srjf),
            Self::Groups => ("groups", PolicyConfig::Groups),
            Self::Laps => ("laps", PolicyConfig::Laps),
            Self::RoundRobin => ("round-robin", PolicyConfig::RoundRobin),
        }
    }
}
