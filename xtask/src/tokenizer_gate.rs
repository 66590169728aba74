//! Equality of the tokenizer with the reference, at length.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::{TEST_FEATURES, run::cargo};

/// The amount of text to compare.
#[derive(Args)]
pub(crate) struct Options {
    /// Adversarial strings per vocabulary.
    #[arg(long, default_value_t = 100_000)]
    strings: usize,
    /// Threads; by default as many as there are cores.
    #[arg(long)]
    threads: Option<usize>,
    /// Folder of texts to compare on too, as fasttoken/scripts/collect_texts.py makes it.
    #[arg(long)]
    texts: Option<PathBuf>,
    /// Folder with a folder per vocabulary; by default the one beside the checkout.
    #[arg(long)]
    vocabularies: Option<PathBuf>,
    /// Compare only vocabularies whose name contains this (but for the demo's own test).
    #[arg(long)]
    vocabulary: Option<String>,
    /// Run only the tests whose name contains this.
    #[arg(long)]
    only: Option<String>,
}

/// Runs the tests that `cargo test` runs with few strings, one after the other with many.
pub(crate) fn run(options: &Options) -> Result<()> {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = options.threads.unwrap_or_else(cores);
    let mut test = cargo(["test", "--workspace", "--features", TEST_FEATURES])
        .args(["--test", "exact", "--"])
        .args(options.only.as_deref())
        .args(["--nocapture", "--test-threads=1"])
        .env("FASTTOKEN_STRINGS", options.strings.to_string())
        .env("FASTTOKEN_THREADS", threads.to_string());
    if let Some(part) = &options.vocabulary {
        test = test.env("FASTTOKEN_VOCABULARY", part);
    }
    for (name, folder) in [
        ("FASTTOKEN_TEXTS", &options.texts),
        ("PRELUDE_SHARED_TOKENIZERS", &options.vocabularies),
    ] {
        if let Some(folder) = folder {
            let folder = std::path::absolute(folder)?;
            test = test.env(name, &folder);
        }
    }
    test.run()
}
