//! Commands that cargo lacks. `cargo xtask --help` lists them.
#![expect(clippy::print_stdout, reason = "a command-line program")]

mod aarch64;
mod accuracy;
mod asan;
mod bench;
mod ci;
mod clients;
mod demo;
mod deny;
mod envoy;
mod files;
mod fuzz;
mod golden;
mod gpu;
mod kernels;
mod metadata;
mod miri;
mod package;
mod packages;
mod published;
mod python;
mod quick;
mod release;
mod run;
mod tidy;
mod tokenizer_gate;
mod ui;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Developer commands of Prelude.
///
/// While working, `cargo xtask quick`; before a commit, `cargo xtask ci`.
#[derive(Parser)]
#[command(name = "cargo xtask", max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run all tests of all crates: unit, integration, documentation.
    Test {
        /// Passed on to `cargo test`, for example a filter.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Run what finds most mistakes in the least time: format, tidy, and lints and tests of the crates
    /// that differ from a branch and of those that stand on them.
    Quick {
        /// The branch; its own newer commits do not count.
        #[arg(long, default_value = "main")]
        base: String,
    },
    /// Run everything that a commit must pass: format, lints, tests, documentation, tidy, parity,
    /// sanitizer, smoke. A check that lacks its tool says SKIP.
    Ci {
        /// Leave out the named steps (see the list that `ci` prints).
        #[arg(long, value_delimiter = ',')]
        skip: Vec<String>,
        /// Run only the named steps.
        #[arg(long, value_delimiter = ',')]
        only: Vec<String>,
        /// Run the step `clients` too, which installs other people's clients.
        #[arg(long)]
        clients: bool,
    },
    /// Install other people's clients into target/clients and run them, unmodified, against the
    /// demo models. PRELUDE_REQUIRE_CLIENTS=1 fails where one cannot be installed.
    Clients {
        /// Only these; all by default.
        names: Vec<String>,
    },
    /// Check what compilers do not: dependency arrows between our crates, where `unsafe`
    /// is, notes on golden data, READMEs, growth over `sizes.toml`.
    Tidy {
        /// Lower the figures of `sizes.toml` to what is there.
        #[arg(long)]
        update: bool,
    },
    /// Compare every golden model with Hugging Face transformers' recorded outputs, in f32 and
    /// bf16, and the chat templates with their recorded renderings.
    Parity,
    /// Measure: tokenizer, one forward pass, one HTTP round trip.
    ///
    /// `bench server` measures the server under load, beside rivals if they are installed.
    /// `bench cluster --envoy PATH` measures engines behind Envoy, with the endpoint picker and in
    /// turns without it.
    /// `bench sim` simulates several engines with a scheduling and a routing policy, in virtual
    /// time; `bench sim --help` says more.
    /// `bench papers` prints the papers' tables and figures that simulation can show, beside the
    /// papers' own.
    /// `bench replay TRACE` sends recorded traffic to a running server, in an open loop.
    /// `bench sched` measures what planning and completing a step costs, by how many requests wait,
    /// and what matching a long prompt does.
    /// `bench gate` fails if a simulation's table or the instructions of a hot path changed.
    /// `bench python` measures what calling the engine from Python adds to its own time.
    /// `bench build` measures how long the first `cargo run --release` of a newcomer takes.
    /// `bench tokenizer` measures the tokenizer alone, against every rival, over the whole table of
    /// targets; `bench tokenizer --help` says more. `bench tokenizer --python` races Python packages.
    Bench {
        /// Passed on to `prelude-bench table`, or to the race of tokenizers.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Make the files of a release for this machine's kind, into `target/releases`: a Python wheel of
    /// the module `prelude_serve`, in which the program is a function, the Python wheel of the
    /// tokenizer, an archive of the programs, checksums. All are tried without Rust. It builds for ten
    /// minutes and takes the wheel's tool from PyPI. Beside them it makes a container image (an OCI
    /// layout) of the archive's programs, without a base image and without Docker.
    Release {
        /// Make nothing but the container image of this archive, beside it, and try it.
        #[arg(long, value_name = "ARCHIVE")]
        container: Option<std::path::PathBuf>,
    },
    /// Start the demo server as the README says, ask it three questions, stop it.
    Smoke,
    /// Use the page at `/ui` in Chromium by keyboard alone, and compare what it shows with what the
    /// server says (needs Chromium and PyPI; npm for the check of accessibility). Pictures of it are in
    /// `target/ui`.
    Ui,
    /// Ask the demo models, as they are and with weights in int8 and fp8, about banking77's 3,080 test
    /// messages over HTTP and compare with the accuracy recorded at their training.
    Accuracy {
        /// Folder with test.csv; by default the one beside the checkout, if there is one.
        #[arg(long)]
        data: Option<std::path::PathBuf>,
    },
    /// Run the tests of crates with `unsafe` under AddressSanitizer (needs a nightly toolchain).
    Asan,
    /// Interpret tests of the tokenizer's `unsafe` leaves with Miri (needs nightly and Miri).
    Miri,
    /// Compile everything for ARM, and run the tests of crates with `unsafe` there in emulation
    /// (needs the target, a C compiler for it, and QEMU).
    Aarch64,
    /// CUDA kernels: set up the compiler, build images, check resources, run the emulation.
    #[command(subcommand)]
    Kernels(kernels::Command),
    /// Check and measure on a GPU: pack what it needs into one folder, and run it if there is a GPU
    /// here; `--smoke` walks through it without one, `import DIR` files what a run found.
    Gpu(gpu::Options),
    /// Compare the tokenizer with the reference: 100,000 adversarial strings for each vocabulary,
    /// and a folder of texts if there is one.
    TokenizerGate(tokenizer_gate::Options),
    /// Feed tokenizer and server random input under AddressSanitizer (needs nightly and cargo-fuzz).
    Fuzz {
        /// Seconds for which each target runs.
        #[arg(long, default_value_t = 60)]
        seconds: u32,
        /// Run only this target.
        #[arg(long)]
        target: Option<String>,
    },
    /// Check that the golden files are the ones that golden/MANIFEST lists.
    Golden {
        /// Rewrite the manifest from the files.
        #[arg(long)]
        accept: bool,
    },
}

fn main() -> Result<()> {
    let show = |outcome: String| println!("{outcome}");
    match Args::parse().command {
        Command::Test { args } => test(&args),
        Command::Quick { base } => quick::run(&base),
        Command::Ci {
            skip,
            only,
            clients,
        } => ci::run(&skip, &only, clients),
        Command::Clients { names } => clients::run(&names).map(show),
        Command::Tidy { update: true } => tidy::update(),
        Command::Tidy { update: false } => tidy::run(),
        Command::Parity => parity(),
        Command::Bench { args } => bench::run(&args),
        Command::Release { container: None } => release::run(),
        Command::Release {
            container: Some(archive),
        } => release::container(&archive).map(show),
        Command::Smoke => demo::smoke(),
        Command::Ui => ui::run().map(show),
        Command::Accuracy { data } => accuracy::run(data).map(show),
        Command::Asan => asan::run().map(show),
        Command::Miri => miri::run().map(show),
        Command::Aarch64 => aarch64::run(aarch64::Tests::All).map(show),
        Command::Kernels(command) => kernels::run(command),
        Command::Gpu(options) => gpu::run(&options),
        Command::TokenizerGate(options) => tokenizer_gate::run(&options),
        Command::Fuzz { seconds, target } => fuzz::run(seconds, target.as_deref()).map(show),
        Command::Golden { accept } => golden::run(accept),
    }
}

/// The features that tests need beyond the default ones: the tokenizer's command, the reference
/// behind the server, and its traces. One list, so that no crate is built twice.
pub(crate) const TEST_FEATURES: &str =
    "fasttoken/reference,prelude-cli/hf-fallback,prelude-cli/otlp,prelude-text/hf-fallback";

/// Runs all tests.
fn test(args: &[String]) -> Result<()> {
    let mut tests = run::cargo(["test", "--workspace", "--features", TEST_FEATURES]);
    // Where there is a compiler, tests of kernels that do not find it fail and are not skipped.
    if run::program("g++").args(["--version"]).succeeds() {
        tests = tests.env("PRELUDE_REQUIRE_EMU", "1");
    }
    tests.args(args).run()
}

/// Runs the tests of parity and shows their tables.
fn parity() -> Result<()> {
    golden::run(false)?;
    run::cargo(["test", "--workspace", "--features", TEST_FEATURES])
        .args(["--test", "parity", "--", "--nocapture"])
        .run()?;
    unit_tests("template::").run()
}

/// Returns a command that runs unit tests by a part of their names, built as [`test()`] builds them.
/// The Python modules have none, and would be built for `--lib`.
pub(crate) fn unit_tests(filter: &str) -> run::Invocation {
    run::cargo(["test", "--workspace", "--features", TEST_FEATURES])
        .args(["--exclude=prelude-python", "--exclude=fasttoken-python"])
        .args(["--lib", filter])
}
