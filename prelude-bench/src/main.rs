//! The program `prelude-bench`.
#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program"
)]

mod cluster_command;
mod cpu_command;
mod papers_command;
mod policy;
mod replay_command;
mod scheduler;
mod simulate;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context as _;
use anyhow::Result;
use clap::{Parser, Subcommand};
use prelude_bench::{
    accuracy, gate,
    server::{self, Part, Rival},
    table::{self, TableConfig},
};

const EXAMPLES: &str = "\
Examples:
  prelude-bench table
      what a tokenization, a forward pass and an HTTP round trip of the demo models cost
  prelude-bench server --only overhead,versus --rounds 9
      the cost of HTTP, and the same requests to other servers that are installed
  prelude-bench cluster --envoy envoy/_bin/envoy
      two engines behind Envoy, with the endpoint picker and in turns without it
  prelude-bench cpu --peers vllm,hf --install-peers
      prompts and decoding on the CPU beside vLLM and transformers
  prelude-bench sched --waiting 1000,100000 --policy fcfs,srjf
      processor time of one scheduling step with so many waiting requests
  prelude-bench replay trace.csv --url http://127.0.0.1:8000 --lengths 0.1
      a minute of recorded traffic against a real server
  prelude-bench sim --workload toolbench --route round-robin,e2
      two routers of a simulated cluster, in virtual time
  prelude-bench papers
      the papers' tables and figures that simulation can show, beside the papers' own

Each command has more examples and all of its flags under `prelude-bench <command> --help`.";

/// Measures Prelude: the server, the scheduler, a simulated cluster, recorded traffic, and the
/// accuracy of the demo models.
///
/// Compare ratios of values from the same run. Absolute times depend on the machine and its load.
#[derive(Parser)]
#[command(name = "prelude-bench", version, max_term_width = 100, after_help = EXAMPLES)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Accuracy of the demo models over HTTP, next to the figures recorded when they were trained.
    Accuracy {
        /// Folder with the test.csv of banking77.
        #[arg(long)]
        data: PathBuf,
        /// URL of a server of the demo models.
        #[arg(long, default_value = "http://127.0.0.1:8000")]
        url: String,
        /// Percentage points by which a figure may be worse than the recorded one, for a server
        /// whose weights are rounded; better figures then pass too [default: 0.2 either way].
        #[arg(long, value_name = "POINTS")]
        may_lose: Option<f64>,
    },
    /// Engines behind Envoy: with the endpoint picker, and in turns without it.
    Cluster(cluster_command::Args),
    /// The CPU executor on random weights of Qwen3-0.6B's shape, beside other engines in process.
    Cpu(cpu_command::Args),
    /// The papers' tables and figures that simulation can show, beside the papers' own.
    Papers(papers_command::Args),
    /// A recorded trace against a real server, in an open loop, with a report as text, JSON and
    /// HTML.
    Replay(replay_command::Args),
    /// Processor time of the scheduler's own work in a step, by the number of waiting requests.
    Sched(scheduler::Args),
    /// The server under load, next to other servers on the same machine with the same requests.
    Server(ServerArgs),
    /// A simulated cluster in virtual time: workloads from papers and recorded traffic.
    Sim(simulate::Args),
    /// Do a fixed piece of work, whose instructions the benchmark gate counts.
    #[command(hide = true)]
    Work {
        part: gate::Part,
        /// The number of repetitions.
        #[arg(long)]
        times: usize,
    },
    /// A quick table of single costs: tokenizer, one forward pass and one HTTP round trip, on the
    /// demo models.
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
    /// Measure only these parts (default: all but `encoders`).
    #[arg(long, value_delimiter = ',')]
    only: Vec<Part>,
    /// Also measure these servers with the same requests.
    #[arg(long, value_delimiter = ',')]
    rival: Vec<Rival>,
    /// Path of llama.cpp's server program.
    #[arg(long)]
    llama_server: Option<PathBuf>,
    /// Path of text-embeddings-inference's program, text-embeddings-router.
    #[arg(long)]
    tei: Option<PathBuf>,
    /// Install the other servers into the output folder first. For llama.cpp, only the converter of
    /// its model format is installed.
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
    /// Yes/no questions in each decision of the overload part. Fewer questions make refused
    /// requests cheaper.
    #[arg(long, default_value_t = 16)]
    overload_questions: usize,
    /// Path of the program `prelude` (default: beside this program).
    #[arg(long)]
    program: Option<PathBuf>,
    /// Folder of the demo models, which the other servers load.
    #[arg(long, default_value = "prelude-server/demo")]
    models: PathBuf,
    /// Folder for results, installed servers and their logs.
    #[arg(long, default_value = "bench/out/server")]
    out: PathBuf,
    /// Also draw the ratios to the other servers, as versus.svg in the output folder.
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
        tei: args.tei.map(std::path::absolute).transpose()?,
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

/// Measures accuracy, and fails if a figure differs from the recorded one, or is worse by more
/// percentage points than it `may_lose`.
fn bench_accuracy(url: &str, data: &Path, may_lose: Option<f64>) -> Result<ExitCode> {
    let may_lose = may_lose.map(|points| points / 100.0);
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build()?;
    let report = |measure: &accuracy::Measure| println!("{}", measure.line(may_lose));
    let measures = runtime.block_on(accuracy::run(url, data, report))?;
    let Some(measures) = measures else {
        println!(
            "SKIP  {} has no test.csv: nothing was measured",
            data.display()
        );
        return Ok(ExitCode::SUCCESS);
    };
    Ok(
        match measures.iter().all(|measure| measure.passes(may_lose)) {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        },
    )
}

fn main() -> Result<ExitCode> {
    match Args::parse().command {
        Command::Accuracy {
            data,
            url,
            may_lose,
        } => bench_accuracy(&url, &data, may_lose),
        Command::Cluster(args) => {
            print!("{}", cluster_command::run(args)?);
            Ok(ExitCode::SUCCESS)
        }
        Command::Cpu(args) => {
            print!("{}", cpu_command::run(args)?);
            Ok(ExitCode::SUCCESS)
        }
        Command::Papers(args) => {
            print!("{}", papers_command::run(args)?);
            Ok(ExitCode::SUCCESS)
        }
        Command::Replay(args) => {
            print!("{}", replay_command::run(args)?);
            Ok(ExitCode::SUCCESS)
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
        Command::Work { part, times } => {
            gate::work(part, times)?;
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
