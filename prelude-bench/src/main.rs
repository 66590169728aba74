//! The program `prelude-bench`.
#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program"
)]

use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};
use prelude_bench::table::{self, TableConfig};

/// Measures Prelude.
///
/// Ratios of what was measured in the same run are what to read; absolute times belong to the
/// machine and the moment.
#[derive(Parser)]
#[command(name = "prelude-bench", version, max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The first table: tokenizer, one forward pass, one HTTP round trip, on the demo models.
    Table {
        /// Rounds of each measurement; the median counts.
        #[arg(long, default_value_t = 9)]
        rounds: usize,
        /// Milliseconds per round of each measurement.
        #[arg(long, default_value_t = 120)]
        round_ms: u64,
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
}

fn main() -> Result<()> {
    match Args::parse().command {
        Command::Table {
            rounds,
            round_ms,
            json,
        } => {
            let config = TableConfig {
                rounds,
                round: Duration::from_millis(round_ms),
            };
            let rows = table::run(config, |part| eprintln!("measuring: {part}"))?;
            if json {
                println!("{}", serde_json::to_string_pretty(&rows)?);
            } else {
                print!("{}", table::render(&rows));
            }
            Ok(())
        }
    }
}
