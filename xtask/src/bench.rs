//! Measuring: the first table, and the tokenizer against its rivals.

use anyhow::Result;

use crate::run::cargo;

/// Runs `prelude-bench table` with the rivals that can be compiled in, or, if the first argument
/// is `tokenizer`, the race in `bench/tokenizer`, which is a workspace of its own: only this
/// command compiles the rivals.
pub(crate) fn run(args: &[String]) -> Result<()> {
    match args.split_first() {
        Some((first, rest)) if first == "tokenizer" => tokenizer(rest),
        _ => table(args),
    }
}

fn table(args: &[String]) -> Result<()> {
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

fn tokenizer(args: &[String]) -> Result<()> {
    cargo([
        "run",
        "--release",
        "--manifest-path",
        "bench/tokenizer/Cargo.toml",
        "--target-dir",
        "target/bench-tokenizer",
        "--",
    ])
    .args(args)
    .run()
}
