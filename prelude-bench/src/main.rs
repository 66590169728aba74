//! The program `prelude-bench`.
#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program"
)]

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Result;
use clap::{Parser, Subcommand};
use prelude_bench::{
    accuracy,
    table::{self, TableConfig},
};

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
    /// Accuracy of the demo models over HTTP, beside the figures recorded at their training.
    Accuracy {
        /// Folder with the test.csv of banking77.
        #[arg(long)]
        data: PathBuf,
        /// A server of the demo models.
        #[arg(long, default_value = "http://127.0.0.1:8000")]
        url: String,
    },
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

fn main() -> Result<ExitCode> {
    match Args::parse().command {
        Command::Accuracy { data, url } => {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build()?;
            let report = |measure: &accuracy::Measure| println!("{}", measure.line());
            let measures = runtime.block_on(accuracy::run(&url, &data, report))?;
            let Some(measures) = measures else {
                println!(
                    "SKIP  {} has no test.csv: nothing was measured",
                    data.display()
                );
                return Ok(ExitCode::SUCCESS);
            };
            let passes = measures.iter().all(accuracy::Measure::passes);
            Ok(if passes {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
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
            Ok(ExitCode::SUCCESS)
        }
    }
}
