//! Miri over the `unsafe` leaves that it can interpret: no mapped files, no AVX-512.

use anyhow::Result;

use crate::run::{self, cargo_nightly};

/// Tests of fasttoken's leaves that it can run, and that end within minutes.
const TESTS: &[&str] = &[
    "compare::",
    "parallel::job::",
    "parallel::pool::",
    "scan::class_masks::class_masks_tests::class_masks_are_those_of_the_twin",
    "store::store_tests::arrays_outlive",
    "store::store_tests::parts_that_do_not_fit",
    "store::store_tests::spare_memory",
];

/// The target features that Miri reports, which code is compiled for.
const VECTORS: &str = "-Ctarget-feature=+avx2,+bmi1,+bmi2,+lzcnt,+popcnt";

/// Returns what to show: done, or why it was skipped.
pub(crate) fn run() -> Result<String> {
    if !cargo_nightly(["miri", "--version"]).succeeds() {
        return Ok(
            "SKIP miri: not installed (`rustup component add miri rust-src --toolchain nightly`)"
                .to_owned(),
        );
    }
    let mut miri = cargo_nightly(["miri", "test", "-p", "fasttoken", "--lib"])
        .args(["--target-dir", "target/miri", "--"])
        .args(TESTS)
        // Tests write files, and random ones take as long as they have cases.
        .env("MIRIFLAGS", "-Zmiri-disable-isolation")
        .env("PROPTEST_CASES", "3");
    if run::host()?.starts_with("x86_64") {
        miri = miri.env("RUSTFLAGS", VECTORS);
    }
    miri.run()?;
    Ok("miri: leaves of fasttoken pass".to_owned())
}
