//! AddressSanitizer over the crates with `unsafe` leaves.

use anyhow::Result;

use crate::run::{self, cargo_nightly};

/// Crates with unsafe leaves; their unit tests reach every one of them.
pub(crate) const CRATES: &[&str] = &["fasttoken", "prelude-models", "prelude-exec-cpu"];

/// Returns what to show: done, or why it was skipped.
pub(crate) fn run() -> Result<String> {
    let target = run::host()?;
    if !cargo_nightly(["--version"]).succeeds() {
        return Ok(
            "SKIP asan: no nightly toolchain (`rustup toolchain install nightly`)".to_owned(),
        );
    }
    if !target.contains("linux") {
        return Ok(format!("SKIP asan: not tried on {target}"));
    }
    // All at once: alone, some would be built with other features of what they share.
    cargo_nightly(["test", "--lib", "--target", &target])
        .args(["--target-dir", "target/asan"])
        .args(CRATES.iter().flat_map(|name| ["-p", name]))
        .env("RUSTFLAGS", "-Zsanitizer=address")
        .run()?;
    Ok(format!("asan: {} pass", CRATES.join(", ")))
}
