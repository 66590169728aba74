//! `fasttoken count`

use crate::text_sources::Texts;
use crate::{Outcome, TokenizerFile, progress};
use clap::Args;
use std::io::Write as _;

/// Count tokens.
///
/// Prints tokens, bytes and bytes per token of each file, and their sum if there are several.
/// With --lines, each line of a file is tokenized on its own.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    tokenizer: TokenizerFile,
    #[command(flatten)]
    texts: Texts,
    /// Count the special tokens that the file's template puts around each text.
    #[arg(short, long)]
    special: bool,
    /// Print only the number of all tokens.
    #[arg(short, long)]
    quiet: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let tokenizer = arguments.tokenizer.load()?;
    let sources = arguments.texts.read()?;
    let bytes = sources.iter().map(|source| source.text.len() as u64).sum();
    let bar = progress::bytes(bytes, "counting");
    let mut out = std::io::stdout().lock();
    let mut row = |tokens: usize, bytes: usize, name: &str| -> std::io::Result<()> {
        if arguments.quiet {
            return Ok(());
        }
        let per_token = bytes as f64 / tokens.max(1) as f64;
        writeln!(
            out,
            "{tokens:>10} tokens {bytes:>12} bytes {per_token:>6.2} per token  {name}"
        )
    };
    let mut all = 0;
    for source in &sources {
        let mut tokens = 0;
        for text in arguments.texts.of(source) {
            tokens += tokenizer.count(text, arguments.special);
            bar.inc(text.len() as u64);
        }
        row(tokens, source.text.len(), &source.name)?;
        all += tokens;
    }
    if sources.len() > 1 {
        row(all, bytes as usize, "all")?;
    }
    if arguments.quiet {
        writeln!(out, "{all}")?;
    }
    bar.finish_and_clear();
    Ok(Outcome::Done)
}
