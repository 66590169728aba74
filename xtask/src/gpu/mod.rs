//! `cargo xtask gpu`: everything that needs a GPU, in one folder that is carried to one.
//!
//! GPU machines have no toolchain and no network, so programs, compiled kernels, models and
//! scripts are packed here, and one command does the rest there. `--smoke` walks through all of it
//! on this machine.

mod bundle;
mod elf;
mod import;
mod results;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, Subcommand};

use crate::{files, run::root};

/// Longest that a walk through all parts may take.
const SMOKE_WITHIN: Duration = Duration::from_secs(180);
/// The seconds of each part in a smoke run; no part needs half of them.
const SMOKE_PART_SECONDS: u64 = 90;
/// Lines of `table.txt`.
const TABLE_LINES_MAX: usize = 120;
/// Returns the names of all parts, in the order of a run.
fn parts() -> Vec<&'static str> {
    include_str!("../../../gpu-check/parts.txt")
        .lines()
        .collect()
}

#[derive(Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Option<Gpu>,
    /// Walk through every part on this machine, without a GPU: emulated kernels, tiny shapes.
    #[arg(long)]
    smoke: bool,
    /// Only these parts.
    #[arg(long, value_delimiter = ',', value_name = "A,B,..")]
    parts: Vec<String>,
}

#[derive(Subcommand)]
enum Gpu {
    /// File the results of a run under bench/gpu/.
    Import {
        /// The folder that `run.sh --out` named.
        folder: PathBuf,
        /// Compare later runs with this one.
        #[arg(long)]
        baseline: bool,
    },
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if let Some(Gpu::Import { folder, baseline }) = &options.command {
        return import::run(folder, &root().join("bench/gpu"), *baseline);
    }
    for part in &options.parts {
        if !parts().contains(&part.as_str()) {
            bail!("no part `{part}`; there are: {}", parts().join(", "));
        }
    }
    if options.smoke {
        return smoke(&options.parts).map(|line| println!("{line}"));
    }
    let bundle = bundle::build(true)?;
    let command = command_line(&options.parts);
    if !Path::new("/proc/driver/nvidia/version").exists() {
        println!(
            "There is no GPU here. Carry {} to one, unpack it (tar -xzf) and run in its folder:",
            bundle.with_extension("tar.gz").display()
        );
        println!("  {command}");
        println!("then, here: cargo xtask gpu import DIR");
        return Ok(());
    }
    let status = run_sh(&bundle, &options.parts).status();
    let status = status.context("cannot start run.sh")?;
    ensure!(status.success(), "`{command}` ended with {status}");
    Ok(())
}

fn command_line(parts: &[String]) -> String {
    match parts {
        [] => "./run.sh".to_owned(),
        some => format!("./run.sh --parts {}", some.join(",")),
    }
}

fn run_sh(bundle: &Path, parts: &[String]) -> Command {
    let mut command = Command::new("./run.sh");
    command.current_dir(bundle).stdin(Stdio::null());
    if !parts.is_empty() {
        command.args(["--parts", &parts.join(",")]);
    }
    command
}

/// Checks, in `ci`, the bundle, its size, and a run through every part.
pub(crate) fn ci() -> Result<String> {
    if !crate::run::program("g++").args(["--version"]).succeeds() {
        return Ok("SKIP: no g++ to emulate with".to_owned());
    }
    smoke(&[])
}

fn smoke(parts: &[String]) -> Result<String> {
    let bundle = bundle::build(false)?;
    refuses_bad_arguments(&bundle)?;
    let folder = root().join("target/gpu");
    let out = folder.join("smoke");
    files::remove(&out)?;
    let start = Instant::now();
    let status = run_sh(&bundle, parts)
        .args([
            "--smoke",
            "--seconds",
            &SMOKE_PART_SECONDS.to_string(),
            "--out",
        ])
        .arg(&out)
        .arg("--models")
        .arg(folder.join("smoke-models"))
        .arg("--emu-cache")
        .arg(root().join("target/kernels-emu"))
        .status()
        .context("cannot start run.sh")?;
    let took = start.elapsed();
    ensure!(status.success(), "run.sh --smoke ended with {status}");
    let wanted: Vec<&str> = match parts {
        [] => self::parts(),
        some => some.iter().map(String::as_str).collect(),
    };
    let summary = results::read(&out)?.check_smoke(&wanted)?;
    let table = fs::read_to_string(out.join("table.txt"))?;
    let lines = table.lines().count();
    ensure!(lines <= TABLE_LINES_MAX, "table.txt has {lines} lines");
    ensure!(
        took <= SMOKE_WITHIN,
        "the walk took {:.0} s",
        took.as_secs_f64()
    );
    // The results can be filed.
    let filed = folder.join("smoke-import");
    files::remove(&filed)?;
    import::file(&out, &filed, false)?;
    Ok(format!("pass: {summary}, {:.0} s", took.as_secs_f64()))
}

/// Checks that `run.sh` explains what is wrong before it starts anything.
fn refuses_bad_arguments(bundle: &Path) -> Result<()> {
    for (arguments, reason) in [
        (&["--parts", "env,nonsense"][..], "no part `nonsense`"),
        (&["--seconds", "566"], "5 to 565"),
        (&["--seconds", "ten"], "5 to 565"),
        (&["--seconds"], "needs a value"),
        (&["--total", "10"], "60 to 86400"),
        (&["--total", "1e3"], "60 to 86400"),
        (
            &["--models", "./results/models"],
            "outside the folder of results",
        ),
        (
            &["--out", "a", "--models", "a/"],
            "outside the folder of results",
        ),
        (&["--out", ""], "needs a value"),
        (&["--device", "x"], "--device takes a number"),
        (&["--fast"], "no option `--fast`"),
        (&["env"], "no option `env`"),
    ] {
        let output = Command::new("./run.sh")
            .current_dir(bundle)
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .context("cannot start run.sh")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.code() == Some(2) && said.contains(reason) && said.contains("usage:"),
            "run.sh {arguments:?} ended with {} and said: {said}",
            output.status
        );
    }
    Ok(())
}
