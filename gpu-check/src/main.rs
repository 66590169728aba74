//! Checks and measures Prelude on a GPU, or walks through all of it without one.
//!
//! `cargo xtask gpu` packs this program with all it needs; `run.sh` of that bundle starts it. Each
//! part of a run is a process of its own, so that one that hangs, crashes or loses the GPU costs
//! its own results and no others'.
//!
//! | file | |
//! | --- | --- |
//! | `supervisor` | starts parts, and ends those that do not end by themselves |
//! | `process` | programs that are run for their output |
//! | `session` | what a part works with: target, deadline, results |
//! | `results` | what is written down, and how |
//! | `clocks` | clocks, power and memory of the GPU, ten times a second |
//! | `batches` | batches for executors, by hand |
//! | `golden` | recorded outputs of the reference implementation |
//! | `hang` | a GPU that hangs, and what an executor makes of it |
//! | `longest` | the longest prompt that a memory holds, by strategy |
//! | `make_model` | checkpoints of any size with random weights |
//! | `reference` | what to hold large models against: `transformers`, or the CPU executor |
//! | `same` | answers to the same rows in other company |
//! | `values` | inputs and weights of single operations |
//! | `nvcc` | kernels compiled where they run |
//! | `parts/` | one file each |
#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program"
)]

mod batches;
mod clocks;
mod golden;
mod hang;
mod longest;
mod make_model;
mod nvcc;
mod parts;
mod process;
mod reference;
mod results;
mod same;
mod session;
mod supervisor;
mod values;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

/// Checks and measures Prelude on a GPU.
#[derive(Debug, Parser)]
#[command(name = "gpu-check", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run parts one after the other, each as a process of its own.
    Run {
        /// Parts to run, in this order.
        #[arg(long, value_delimiter = ',', value_name = "A,B,..")]
        parts: Vec<String>,
        /// Longest that all of them together may take. They share it; one that is not reached is
        /// a SKIP.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(supervisor::TOTAL))]
        total: Option<u64>,
        #[command(flatten)]
        common: Common,
    },
    /// Run one part in this process; `run` has begun the results.
    Part {
        /// The part's name.
        name: String,
        #[command(flatten)]
        common: Common,
    },
    /// Write a checkpoint with random weights: config.json, model.safetensors, tokenizer.
    MakeModel {
        /// qwen3-0.6b, qwen3-4b, qwen3-4b-fp8 or tiny.
        shape: String,
        /// Layers, if not as many as the real model has.
        #[arg(long)]
        layers: Option<usize>,
        /// The folder to write to.
        folder: PathBuf,
    },
    /// Make the GPU hang, and print how soon an executor says so. The process must end by itself.
    Hang {
        #[command(flatten)]
        common: Common,
    },
    /// Print the longest prompt that a memory holds, by strategy, as a Markdown table.
    Longest {
        /// qwen3-0.6b, qwen3-4b or tiny.
        #[arg(
            long,
            value_delimiter = ',',
            value_name = "A,B,..",
            default_value = "qwen3-0.6b,qwen3-4b"
        )]
        shapes: Vec<String>,
        /// Sizes of memory.
        #[arg(long, value_delimiter = ',', value_name = "GIB,..", default_value = "24,80", value_parser = clap::value_parser!(u32).range(1..=4096))]
        memory_gib: Vec<u32>,
    },
}

#[derive(Clone, Debug, Args)]
struct Common {
    /// The folder for results.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The folder with images, kernel sources and golden models. By default the folder of
    /// this program.
    #[arg(long, value_name = "DIR")]
    home: Option<PathBuf>,
    /// Longest that a part may take.
    #[arg(long, value_name = "N", default_value_t = 540, value_parser = clap::value_parser!(u64).range(session::SECONDS))]
    seconds: u64,
    /// Walk through everything without a GPU: emulated kernels, tiny shapes, no times.
    #[arg(long)]
    smoke: bool,
    /// Only a little of part `kernels`: what a sanitizer gets through.
    #[arg(long)]
    small: bool,
    /// Number of the GPU, as the driver counts them.
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// The folder in which checkpoints with random weights are made and found again; by default
    /// beside the results' folder, in the same parent.
    #[arg(long, value_name = "DIR")]
    models: Option<PathBuf>,
    /// The folder in which compiled emulations are found again (--smoke).
    #[arg(long, value_name = "DIR")]
    emu_cache: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("gpu-check: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Returns true if nothing was wrong.
fn run(command: Command) -> Result<bool> {
    match command {
        Command::Run {
            parts,
            total,
            common,
        } => supervisor::run(&parts, total, &common),
        Command::Part { name, common } => parts::run(&name, &common),
        Command::MakeModel {
            shape,
            layers,
            folder,
        } => {
            let tokenizer = session::home(None)?.join("golden/demo-lm/model");
            let bytes = make_model::make(&shape, layers, &tokenizer, &folder)?;
            println!("{bytes} bytes in {}", folder.display());
            Ok(true)
        }
        Command::Hang { common } => hang::run(&common),
        Command::Longest { shapes, memory_gib } => {
            let shapes: Result<Vec<_>> =
                shapes.iter().map(|name| make_model::shape(name)).collect();
            print!("{}", longest::table(&shapes?, &memory_gib)?);
            Ok(true)
        }
    }
}
