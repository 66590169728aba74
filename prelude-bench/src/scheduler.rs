//! The command `sched` of the program: its flags, and the counter of allocations.

use anyhow::Result;
use clap::builder::RangedU64ValueParser;
use prelude_bench::sched::{self, Config};
use prelude_sched::PolicyConfig;

#[cfg(feature = "allocations")]
#[global_allocator]
static ALLOCATOR: &stats_alloc::StatsAlloc<std::alloc::System> = &stats_alloc::INSTRUMENTED_SYSTEM;

/// Measures what the scheduler's own work costs a step: nothing is computed, answers are made up.
///
/// Beside 256 generations that run, so many requests wait, under each policy, with prompts that
/// share nothing and with prompts that share their first 1,000 tokens. Times are processor time of
/// one thread, so what else runs on the machine hardly counts.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many requests wait. A million take about 8 GB where prompts share a prefix.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "10,100,1000,10000,100000,1000000"
    )]
    waiting: Vec<usize>,
    /// Under these policies only.
    #[arg(long, value_delimiter = ',', default_value = "fcfs,srjf,groups,laps")]
    policy: Vec<Policy>,
    /// Steps of which the median counts.
    #[arg(long, default_value_t = 200, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    steps: usize,
    /// Blocks of the prefix cache in which a prompt of 4,096 tokens is matched, 256 or more.
    #[arg(long, value_delimiter = ',', default_value = "1000,10000,100000,1000000",
          value_parser = RangedU64ValueParser::<u32>::new().range(256..))]
    blocks: Vec<u32>,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Policy {
    /// First come, first served.
    Fcfs,
    /// Shortest remaining job first.
    Srjf,
    /// Priority groups by cached share.
    Groups,
    /// Length-aware prefill.
    Laps,
}

impl Policy {
    const fn config(self) -> (&'static str, PolicyConfig) {
        match self {
            Self::Fcfs => ("fcfs", PolicyConfig::Fcfs),
            Self::Srjf => ("srjf", PolicyConfig::Srjf),
            Self::Groups => ("groups", PolicyConfig::Groups),
            Self::Laps => ("laps", PolicyConfig::Laps),
        }
    }
}

/// Runs the command and returns what it prints.
pub(crate) fn run(args: Args) -> Result<String> {
    let config = Config {
        waiting: args.waiting,
        policies: args.policy.into_iter().map(Policy::config).collect(),
        steps: args.steps,
        blocks: args.blocks,
    };
    let report = sched::run(&config, counter(), |part| eprintln!("measuring: {part}"))?;
    Ok(match args.json {
        true => serde_json::to_string_pretty(&report)? + "\n",
        false => report.render(),
    })
}

/// Returns what counts the allocations of this process, if it was compiled to.
#[cfg(feature = "allocations")]
fn counter() -> Option<&'static dyn Fn() -> u64> {
    Some(&|| {
        let stats = ALLOCATOR.stats();
        (stats.allocations + stats.reallocations) as u64
    })
}

#[cfg(not(feature = "allocations"))]
fn counter() -> Option<&'static dyn Fn() -> u64> {
    None
}
