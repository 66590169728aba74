//! The program `prelude-bench`.
#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program"
)]

mod scheduler;
mod simulate;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Context as _;
use anyhow::Result;
use clap::{Parser, Subcommand};
use prelude_bench::{
    accuracy,
    server::{self, Part, Rival},
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
    /// The cost of the scheduler's own work in a step, by the number of waiting requests.
    Sched(scheduler::Args),
    /// The server under load, beside rivals on the same machine with the same requests.
    Server(ServerArgs),
    /// Several engines in virtual time: workloads of the papers and recorded traffic.
    Sim(simulate::Args),
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

#[derive(clap::Args)]
struct ServerArgs {
    /// Measure only these parts.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Part>,
    /// Measure these beside us.
    #[arg(long, value_delimiter = ',')]
    rival: Vec<Rival>,
    /// The program of llama.cpp's server.
    #[arg(long)]
    llama_server: Option<PathBuf>,
    /// First install the rivals, into the output folder; of llama.cpp, what writes its format.
    #[arg(long)]
    install_rivals: bool,
    /// Rounds of each measurement; the median counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Milliseconds of one measurement in one round.
    #[arg(long, default_value_t = 2_000)]
    round_ms: u64,
    /// Seconds that the overload lasts.
    #[arg(long, default_value_t = 60)]
    overload_s: u64,
    /// Yes/no questions of each of its decisions: fewer are less work for each refusal.
    #[arg(long, default_value_t = 16)]
    overload_questions: usize,
    /// The program `prelude`; by default the one beside this program.
    #[arg(long)]
    program: Option<PathBuf>,
    /// The folder with the demo models' folders, which rivals load.
    #[arg(long, default_value = "prelude-server/demo")]
    models: PathBuf,
    /// Where results, rivals and their logs go.
    #[arg(long, default_value = "bench/out/server")]
    out: PathBuf,
    /// Also draw the ratios to rivals, as versus.svg in the output folder.
    #[arg(long)]
    plot: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

fn bench_server(args: ServerArgs) -> Result<()> {
    let beside = |name| {
        let me = std::env::current_exe().context("this program's own path")?;
        Ok::<_, anyhow::Error>(me.with_file_name(name))
    };
    // Rivals run in folders of their own.
    std::fs::create_dir_all(&args.out)?;
    let config = server::Config {
        rounds: args.rounds.max(1),
        time: Duration::from_millis(args.round_ms),
        parts: args.only,
        program: args.program.map_or_else(|| beside("prelude"), Ok)?,
        models: std::path::absolute(&args.models)?,
        out: std::path::absolute(&args.out)?,
        rivals: args.rival,
        llama_server: args.llama_server.map(std::path::absolute).transpose()?,
        install_rivals: args.install_rivals,
        overload: Duration::from_secs(args.overload_s),
        overload_questions: args.overload_questions.clamp(1, 120),
    };
    let report = server::run(&config)?;
    let json = serde_json::to_string_pretty(&report)?;
    std::fs::write(config.out.join("report.json"), &json)?;
    std::fs::write(config.out.join("report.txt"), report.render())?;
    if args.plot && !server::draw(&report, &config.out.join("versus.svg"))? {
        eprintln!("SKIP  nothing to draw: no rival was measured");
    }
    if args.json {
        println!("{json}");
    } else {
        print!("{}", report.render());
    }
    Ok(())
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
        Command::Sched(args) => {
            print!("{}", scheduler::run(args)?);
            Ok(ExitCode::SUCCESS)
        }
        Command::Server(args) => bench_server(args).map(|()| ExitCode::SUCCESS),
        Command::Sim(args) => {
            print!("{}", simulate::run(args)?);
            Ok(ExitCode::SUCCESS)
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
