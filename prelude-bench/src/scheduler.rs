//! The command `sched` of the program: its flags, and the counter of allocations.

use crate::policy::Policy;
use anyhow::Result;
use clap::builder::RangedU64ValueParser;
use prelude_bench::sched::{self, Config};

#[cfg(feature = "allocations")]
#[global_allocator]
static ALLOCATOR: &stats_alloc::StatsAlloc<std::alloc::System> = &stats_alloc::INSTRUMENTED_SYSTEM;

/// Measures the processor time of the scheduler's own work in a step. No model runs; outputs are
/// made up.
///
/// While 256 generations run, the given numbers of requests wait under each policy, once with
/// prompts that share nothing and once with prompts that share their first 1,000 tokens. Times are
/// processor time of one thread, so other programs hardly change them.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Numbers of waiting requests. A million requests take about 8 GB if their prompts share a
    /// prefix.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "10,100,1000,10000,100000,1000000"
    )]
    waiting: Vec<usize>,
    /// Scheduling policies to measure.
    #[arg(long, value_delimiter = ',', default_value = "fcfs,srjf,groups,laps")]
    policy: Vec<Policy>,
    /// Number of measured steps; the median is printed.
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

/// Returns the counter of this process's allocations, if compiled in.
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
