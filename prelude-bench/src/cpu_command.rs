//! The command `cpu`.

use std::path::PathBuf;

use anyhow::Result;
use prelude_bench::{
    cpu::{self, Config, Peer},
    server,
};

const EXAMPLES: &str = "\
Examples:
  prelude-bench cpu
      the executor alone: times, and shares of what the processor's units can do
  prelude-bench cpu --peers vllm,hf --install-peers
      beside vLLM and transformers, which are installed first, in turns, with a plot";

/// The CPU executor on random weights of Qwen3-0.6B's shape, beside other engines in process.
///
/// Writes a checkpoint of 1.2 GB. All engines are loaded at once, which takes about 10 GB with vLLM
/// and transformers. Leave the machine alone meanwhile: each engine uses all cores.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Also measure these engines.
    #[arg(long, value_delimiter = ',')]
    peers: Vec<Peer>,
    /// Install the engines into the output folder first.
    #[arg(long)]
    install_peers: bool,
    /// Rounds; the median counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Folder for the report, its plot, the checkpoint and installed engines.
    #[arg(long, default_value = "bench/out/server")]
    out: PathBuf,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Runs the command and returns what it prints.
pub(crate) fn run(args: Args) -> Result<String> {
    let config = Config {
        rounds: args.rounds,
        peers: args.peers,
        install: args.install_peers,
        out: std::path::absolute(args.out)?,
    };
    let report = cpu::run(&config)?;
    let json = serde_json::to_string_pretty(&report)?;
    std::fs::write(config.out.join("cpu.json"), &json)?;
    std::fs::write(config.out.join("cpu.txt"), report.render())?;
    server::draw(&report, &config.out.join("cpu.svg"))?;
    Ok(match args.json {
        true => json + "\n",
        false => report.render(),
    })
}
