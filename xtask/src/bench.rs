//! The first table: tokenizer, one forward pass, one HTTP round trip.

use anyhow::Result;

use crate::run::cargo;

/// Runs `prelude-bench table` with the rivals that can be compiled in.
pub(crate) fn run(args: &[String]) -> Result<()> {
    cargo([
        "run",
        "--release",
        "-p",
        "prelude-bench",
        "--features",
        "rivals",
        "--",
        "table",
    ])
    .args(args)
    .run()
}
