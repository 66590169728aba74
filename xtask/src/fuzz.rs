//! Fuzzing of the tokenizer and of the server, for as long as one has time.

use anyhow::{Result, bail};

use crate::run::cargo_nightly;

/// Targets that are built together.
struct Group {
    folder: &'static str,
    targets: &'static [&'static str],
    /// Longest input, in bytes.
    max_len: u32,
    /// A server that runs until the process ends has not leaked what its threads hold.
    detect_leaks: bool,
    /// Quick enough to build that every commit runs it for a while.
    is_short: bool,
}

const GROUPS: &[Group] = &[
    Group {
        folder: "fasttoken/fuzz",
        targets: &["encode", "decode", "compiled", "json", "model"],
        // Longer inputs are slow in the reference and find nothing more.
        max_len: 2_048,
        detect_leaks: true,
        is_short: true,
    },
    Group {
        folder: "prelude-server/fuzz",
        targets: &[
            "body", "template", "schema", "config", "batch", "wire", "pickle",
        ],
        max_len: 2_048,
        detect_leaks: false,
        is_short: false,
    },
];

/// Runs the groups that build quickly; says how the others are run.
pub(crate) fn run_short(seconds: u32) -> Result<String> {
    let long = GROUPS
        .iter()
        .filter(|g| !g.is_short)
        .flat_map(|g| g.targets);
    for target in long {
        println!(
            "SKIP fuzz {target}: builds for too long here; `cargo xtask fuzz --target {target}`"
        );
    }
    run_groups(
        seconds,
        None,
        GROUPS.iter().filter(|g| g.is_short).collect(),
    )
}

/// Runs one target, or all.
pub(crate) fn run(seconds: u32, only: Option<&str>) -> Result<String> {
    run_groups(seconds, only, GROUPS.iter().collect())
}

/// Returns what to show: done, or why it was skipped.
fn run_groups(seconds: u32, only: Option<&str>, groups: Vec<&Group>) -> Result<String> {
    let names: Vec<&str> = groups.iter().flat_map(|g| g.targets).copied().collect();
    if let Some(name) = only.filter(|name| !names.contains(name)) {
        bail!("no fuzz target {name}; there are: {}", names.join(", "));
    }
    if !cargo_nightly(["--version"]).succeeds() {
        return Ok(
            "SKIP fuzz: no nightly toolchain (`rustup toolchain install nightly`)".to_owned(),
        );
    }
    if !cargo_nightly(["fuzz", "--version"]).succeeds() {
        return Ok("SKIP fuzz: no cargo-fuzz (`cargo install cargo-fuzz`)".to_owned());
    }
    for group in groups {
        for target in group.targets {
            if only.is_some_and(|name| name != *target) {
                continue;
            }
            cargo_nightly(["fuzz", "run", "--codegen-units=16", "--fuzz-dir"])
                .args([group.folder, target, "--"])
                .args([
                    format!("-max_total_time={seconds}"),
                    format!("-max_len={}", group.max_len),
                    "-timeout=20".to_owned(),
                    "-print_final_stats=1".to_owned(),
                    format!("-detect_leaks={}", u8::from(group.detect_leaks)),
                    // Bodies of requests are long from the first input on: grown from nothing, a
                    // schema had eight bytes after ten minutes.
                    format!("-len_control={}", if group.is_short { 100 } else { 0 }),
                ])
                .run()?;
        }
    }
    let names = only.map_or_else(|| names.join(", "), str::to_owned);
    Ok(format!("fuzz: {names}, {seconds} s each, nothing found"))
}
