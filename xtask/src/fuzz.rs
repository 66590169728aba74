//! Fuzzing of the tokenizer, for as long as one has time.

use anyhow::{Result, bail};

use crate::run::cargo_nightly;

const TARGETS: &[&str] = &["encode", "decode", "image", "json"];

/// Returns what to show: done, or why it was skipped.
pub(crate) fn run(seconds: u32, only: Option<&str>) -> Result<String> {
    if let Some(name) = only.filter(|name| !TARGETS.contains(name)) {
        bail!("no fuzz target {name}; there are: {}", TARGETS.join(", "));
    }
    if !cargo_nightly(["--version"]).succeeds() {
        return Ok(
            "SKIP fuzz: no nightly toolchain (`rustup toolchain install nightly`)".to_owned(),
        );
    }
    if !cargo_nightly(["fuzz", "--version"]).succeeds() {
        return Ok("SKIP fuzz: no cargo-fuzz (`cargo install cargo-fuzz`)".to_owned());
    }
    let targets = TARGETS
        .iter()
        .filter(|name| only.is_none_or(|o| o == **name));
    for target in targets {
        cargo_nightly(["fuzz", "run", "--fuzz-dir", "fasttoken/fuzz", target, "--"])
            .args([
                format!("-max_total_time={seconds}"),
                // Longer inputs are slow in the reference and find nothing more.
                "-max_len=2048".to_owned(),
                "-timeout=20".to_owned(),
                "-print_final_stats=1".to_owned(),
            ])
            .run()?;
    }
    let names = only.map_or_else(|| TARGETS.join(", "), str::to_owned);
    Ok(format!("fuzz: {names}, {seconds} s each, nothing found"))
}
