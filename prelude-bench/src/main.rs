//! The program `prelude-bench`.
#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program"
)]

mod papers_command;
mod simulate;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use prelude_bench::{
    accuracy, cluster, cpu, gate, replay,
    sched::{self, Policy},
    server::{self, Part, Rival},
    table,
};

#[cfg(feature = "allocations")]
#[global_allocator]
static ALLOCATOR: &stats_alloc::StatsAlloc<std::alloc::System> = &stats_alloc::INSTRUMENTED_SYSTEM;

const EXAMPLES: &str = "\
Examples:
  prelude-bench table
      what a tokenization, a forward pass and an HTTP round trip of the demo models and a step of
      the scheduler cost
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
    Cluster(Printed<cluster::Config>),
    /// The CPU executor on random weights of Qwen3-0.6B's shape, beside other engines in process.
    Cpu(Printed<cpu::Config>),
    /// The papers' tables and figures that simulation can show, beside the papers' own.
    Papers(papers_command::Args),
    /// A recorded trace against a real server, in an open loop, with a report as text, JSON and
    /// HTML.
    Replay(Printed<replay::Config>),
    /// Processor time of the scheduler's own work in a step, by the number of waiting requests.
    Sched(Printed<sched::Config>),
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
    /// A quick table of single costs: tokenizer, one forward pass and one HTTP round trip of the demo
    /// models, a step of the scheduler. Beside them is what the machine allows.
    Table {
        /// Rounds of each measurement; the median counts.
        #[arg(long, default_value_t = 9)]
        rounds: usize,
        /// Milliseconds per round of each measurement.
        #[arg(long, default_value_t = 120)]
        round_ms: u64,
        /// Folder for the dated record, which is JSON.
        #[arg(long, default_value = "bench/results")]
        out: PathBuf,
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
}

/// Flags of a command, and the form in which it prints its results.
#[derive(clap::Args)]
struct Printed<T: clap::Args> {
    #[command(flatten)]
    config: T,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Writes a report as NAME.json, NAME.txt and, if something was compared, as a plot to a folder, and
/// returns what to print.
fn published(
    report: &server::Report,
    out: &Path,
    (name, plot): (&str, Option<&str>),
    json: bool,
) -> Result<String> {
    let text = serde_json::to_string_pretty(report)? + "\n";
    std::fs::write(out.join(format!("{name}.json")), &text)?;
    std::fs::write(out.join(format!("{name}.txt")), report.render())?;
    if let Some(plot) = plot
        && !server::draw(report, &out.join(plot))?
    {
        eprintln!("SKIP  nothing to draw: no rival was measured");
    }
    Ok(if json { text } else { report.render() })
}

#[derive(clap::Args)]
struct ServerArgs {
    /// Measure only these parts (default: all but `encoders` and `decisions`).
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

fn bench_server(args: ServerArgs) -> Result<String> {
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
    let plot = args.plot.then_some("versus.svg");
    published(
        &server::run(&config)?,
        &config.out,
        ("report", plot),
        args.json,
    )
}

/// Replays a trace, and returns what to print.
fn bench_replay(config: &replay::Config, json: bool) -> Result<String> {
    let bar = ProgressBar::new(0);
    let style = "[{elapsed}] {bar:32} {pos} of {len} answered, {msg} in flight";
    bar.set_style(ProgressStyle::with_template(style)?);
    let report = replay::run(config, |progress| {
        bar.set_length(progress.requests as u64);
        bar.set_message((progress.sent - progress.ended).to_string());
        bar.set_position(progress.ended as u64);
    })?;
    bar.finish_and_clear();
    report.write(&config.out)?;
    let page = config.out.join("replay.html");
    Ok(match json {
        true => serde_json::to_string_pretty(&report)? + "\n",
        false => format!("{}\nreport: {}\n", report.render(), page.display()),
    })
}

/// Returns the counter of this process's allocations, if compiled in.
fn allocations() -> Option<&'static dyn Fn() -> u64> {
    #[cfg(feature = "allocations")]
    return Some(&|| {
        let stats = ALLOCATOR.stats();
        (stats.allocations + stats.reallocations) as u64
    });
    #[cfg(not(feature = "allocations"))]
    None
}

/// Measures accuracy, and fails if a figure differs from the recorded one, or is worse by more
/// percentage points than it `may_lose`.
fn bench_accuracy(url: &str, data: &Path, may_lose: Option<f64>) -> Result<ExitCode> {
    let may_lose = may_lose.map(|points| points / 100.0);
    let report = |measure: &accuracy::Measure| println!("{}", measure.line(may_lose));
    let measures = accuracy::run(url, data, report)?;
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
    let printed = match Args::parse().command {
        Command::Accuracy {
            data,
            url,
            may_lose,
        } => return bench_accuracy(&url, &data, may_lose),
        Command::Cluster(Printed { config, json }) => {
            let report = cluster::run(&config)?;
            published(&report, &config.out, ("report", Some("cluster.svg")), json)?
        }
        Command::Cpu(Printed { config, json }) => {
            let report = cpu::run(&config)?;
            let printed = published(&report, &config.out, ("cpu", Some("cpu.svg")), json)?;
            if report.missed() > 0 {
                print!("{printed}");
                eprintln!("{} aims were missed: see MISS", report.missed());
                return Ok(ExitCode::FAILURE);
            }
            printed
        }
        Command::Papers(args) => papers_command::run(args)?,
        Command::Replay(Printed { config, json }) => bench_replay(&config, json)?,
        Command::Sched(Printed { config, json }) => {
            let progress = |part: &str| eprintln!("measuring: {part}");
            sched::render(&sched::run(&config, allocations(), progress)?, json)?
        }
        Command::Server(args) => bench_server(args)?,
        Command::Sim(args) => simulate::run(args)?,
        Command::Work { part, times } => {
            gate::work(part, times)?;
            String::new()
        }
        Command::Table {
            rounds,
            round_ms,
            out,
            json,
        } => {
            let round = Duration::from_millis(round_ms);
            let record = table::run(rounds, round, |part| eprintln!("measuring: {part}"))?;
            let path = record.write(&out)?;
            eprintln!("record: {}", path.display());
            match json {
                true => serde_json::to_string_pretty(&record)? + "\n",
                false => record.table().text(),
            }
        }
    };
    print!("{printed}");
    Ok(ExitCode::SUCCESS)
}
