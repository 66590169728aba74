//! Measuring: the first table, the server and the tokenizer against their rivals, policies in
//! simulation, and how long a first build takes.

mod build;
pub(crate) mod gate;

use anyhow::{Result, bail};

use crate::{python, run::cargo};

/// The profile of published programs, which is measured.
const PROFILE: [&str; 2] = ["--profile", "dist"];

/// Words that name a part of what can be measured.
pub(crate) const PARTS: [&str; 11] = [
    "build",
    "cluster",
    "cpu",
    "gate",
    "papers",
    "python",
    "replay",
    "sched",
    "server",
    "sim",
    "tokenizer",
];

/// Runs `prelude-bench table` with the rivals that can be compiled in, or the [part](PARTS) that
/// the first argument names. `tokenizer` is the race in `bench/tokenizer`, which is a workspace of
/// its own: only this command compiles the rivals.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let first = args.first().filter(|first| !first.starts_with('-'));
    if let Some(unknown) = first.filter(|first| !PARTS.contains(&first.as_str())) {
        bail!(
            "cargo xtask bench has no {unknown}, but {}",
            PARTS.join(", ")
        );
    }
    match args.split_first() {
        Some((first, rest)) if first == "tokenizer" => tokenizer(rest),
        Some((first, rest)) if first == "server" => beside(&["prelude-cli"], first, rest),
        Some((first, rest)) if first == "cluster" => {
            beside(&["prelude-cli", "prelude-epp"], first, rest)
        }
        Some((first, rest)) if ["cpu", "sim", "papers", "replay"].contains(&first.as_str()) => {
            command(None, first, rest)
        }
        // It counts allocations too.
        Some((first, rest)) if first == "sched" => command(Some("allocations"), first, rest),
        Some((first, rest)) if first == "build" => build::run(rest),
        Some((first, rest)) if first == "python" => python::serve::overhead(rest),
        Some((first, rest)) if first == "gate" || first == "--gate" => gate::run(rest),
        _ => command(Some("rivals"), "table", args),
    }
}

/// Runs a command of `prelude-bench` against the programs of other packages, built the same way.
fn beside(packages: &[&str], name: &str, args: &[String]) -> Result<()> {
    let packages = packages.iter().flat_map(|package| ["-p", package]);
    let build = cargo(["build", "-p", "prelude-bench"]).args(PROFILE);
    build.args(packages).run()?;
    command(None, name, args)
}

/// Runs a command of `prelude-bench`, which is built with a feature if one is named.
fn command(feature: Option<&str>, command: &str, args: &[String]) -> Result<()> {
    cargo(["run", "-p", "prelude-bench"])
        .args(PROFILE)
        .args(feature.map(|name| format!("--features={name}")))
        .args(["--", command])
        .args(args)
        .run()
}

/// Runs the race against the rivals, with `--python` the one of their Python packages, or with
/// `--ablation` the race of fasttoken without each of its fast paths.
fn tokenizer(args: &[String]) -> Result<()> {
    if let Some((first, rest)) = args.split_first()
        && first == "--python"
    {
        return python::race(rest);
    }
    // Only a build with the feature can leave fast paths out.
    let has_ablation = args.iter().any(|arg| arg == "--ablation");
    let run = "run --release --manifest-path bench/tokenizer/Cargo.toml --target-dir target/bench-tokenizer";
    cargo(run.split(' '))
        .args(has_ablation.then_some("--features=ablation"))
        .args(["--"])
        .args(args)
        .run()
}
