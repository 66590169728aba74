//! Whether crates can be published, and with the oldest compiler they promise.

use anyhow::Result;

use crate::run::cargo;

/// The oldest compiler of `fasttoken`; its Cargo.toml says so too.
const FASTTOKEN_RUST: &str = "1.89";

/// Packages `fasttoken` and builds it from the package, as its users will.
pub(crate) fn publish() -> Result<()> {
    cargo(["publish", "--dry-run", "--allow-dirty", "-p", "fasttoken"]).run()
}

/// Returns what to show: done, or why it was skipped. Clippy's `incompatible_msrv` looks
/// at every call in any case.
pub(crate) fn oldest_compiler() -> Result<String> {
    let toolchain = |args: &[&str]| crate::run::cargo_of(FASTTOKEN_RUST, args);
    if !toolchain(&["--version"]).succeeds() {
        return Ok(format!(
            "SKIP msrv: no toolchain {FASTTOKEN_RUST} (`rustup toolchain install {FASTTOKEN_RUST}`)"
        ));
    }
    toolchain(&[
        "check",
        "-p",
        "fasttoken",
        "--features",
        "cli",
        "--target-dir",
        "target/msrv",
    ])
    .run()?;
    Ok(format!("msrv: fasttoken builds with {FASTTOKEN_RUST}"))
}
