//! `cargo xtask kernels`: the CUDA compiler, images, resources, and the emulation.

mod build;
mod compiler;
mod libraries;
mod mutate;
mod table;

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;

use crate::run::{cargo, test_programs};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Put NVIDIA's compiler into a cache folder, from PyPI wheels, and see that it works.
    Setup,
    /// Compile all families to images, into target/kernels.
    Build,
    /// Compile all families and compare registers, stack and shared memory with
    /// kernels/resources.toml.
    Table {
        /// Rewrite that file.
        #[arg(long)]
        accept: bool,
    },
    /// Compile all families with NVRTC of CUDA 13 and of 12, as a machine without images does when it starts.
    Nvrtc,
    /// Compare what is said to cuBLASLt with its headers and the library itself (430 MB).
    Cublaslt,
    /// Run the kernels' tests by emulation on this machine.
    Emu {
        /// Also with this random schedule.
        #[arg(long)]
        seed: Option<u64>,
        /// Compile with -fsanitize=undefined or -fsanitize=address.
        #[arg(long)]
        sanitize: Option<String>,
        /// Switch fibres as on processors other than x86-64.
        #[arg(long)]
        portable: bool,
        /// Instead, apply each patch of kernels/mutants.toml and see that a test catches it.
        #[arg(long, conflicts_with_all = ["seed", "sanitize", "portable"])]
        mutate: bool,
        /// Only tests, or patches, whose name contains this.
        filter: Option<String>,
    },
}

pub(crate) fn run(command: Command) -> Result<()> {
    match command {
        Command::Setup => {
            let compiler = compiler::Compiler::set_up()?;
            println!("the compiler is {}", compiler.nvcc().display());
            Ok(())
        }
        Command::Build => build::run(&compiler::Compiler::find()?),
        Command::Table { accept } => table::run(&compiler::Compiler::find()?, accept),
        Command::Nvrtc => libraries::run(&libraries::set_up()?),
        Command::Cublaslt => libraries::run_cublaslt(&libraries::set_up_cublaslt()?),
        Command::Emu {
            mutate: true,
            filter,
            ..
        } => mutate::run(filter.as_deref()),
        Command::Emu {
            seed,
            sanitize,
            portable,
            filter,
            ..
        } => emulate(seed, sanitize.as_deref(), portable, filter.as_deref()),
    }
}

/// Puts the compiler into its cache folder, if it is not there.
pub(crate) fn set_up() -> Result<()> {
    compiler::Compiler::set_up().map(drop)
}

/// Finds the compiler, or returns the steps to set it up.
pub(crate) fn find_compiler() -> Result<()> {
    compiler::Compiler::find().map(drop)
}

/// Compiles what has changed, into `target/kernels`, if the compiler is set up.
pub(crate) fn build_images() -> Result<()> {
    build::run(&compiler::Compiler::find()?)
}

/// Checks, in `ci`, the resource table and NVRTC, if the compilers are installed or can be.
pub(crate) fn ci() -> Result<String> {
    let table = match compiler::Compiler::set_up() {
        Ok(compiler) => table::run(&compiler, false).map(|()| "pass".to_owned())?,
        Err(error) => format!("SKIP: no CUDA compiler: {error:#}"),
    };
    let nvrtc = match libraries::set_up() {
        Ok(folders) => libraries::run(&folders).map(|()| "pass".to_owned())?,
        Err(error) => format!("SKIP: no NVRTC: {error:#}"),
    };
    Ok(format!("table: {table}; nvrtc: {nvrtc}"))
}

fn emulate(
    seed: Option<u64>,
    sanitize: Option<&str>,
    portable: bool,
    filter: Option<&str>,
) -> Result<()> {
    let mut environment: Vec<(&str, String)> = Vec::new();
    if let Some(seed) = seed {
        environment.push(("PRELUDE_EMU_SEED", seed.to_string()));
    }
    if portable {
        environment.push(("PRELUDE_EMU_PORTABLE", "1".to_owned()));
    }
    match sanitize {
        None => {}
        Some("undefined") => environment.push(("PRELUDE_EMU_SANITIZE", "undefined".to_owned())),
        Some("address") => {
            environment.push(("PRELUDE_EMU_SANITIZE", "address".to_owned()));
            // Its runtime must be there before anything else; leaks are not what is looked for.
            let runtime = crate::run::program("g++").args(["-print-file-name=libasan.so"]);
            environment.push(("LD_PRELOAD", runtime.output()?.trim().to_owned()));
            environment.push(("ASAN_OPTIONS", "detect_leaks=0".to_owned()));
        }
        Some(other) => bail!("no sanitizer `{other}`: undefined or address"),
    }
    // Built first, so that the environment reaches the tests alone.
    let binary = test_binary()?;
    let mut tests = crate::run::program(binary);
    for (name, value) in &environment {
        tests = tests.env(name, value);
    }
    tests.args(filter).run()
}

/// Returns the test program, built if need be.
fn test_binary() -> Result<PathBuf> {
    let test = cargo("test -p prelude-kernels --test emulation".split(' '));
    let program = test_programs(test)?.remove("emulation");
    program.context("cargo named no test program")
}
