//! `fasttoken compile`

use crate::Outcome;
use anyhow::{Context as _, anyhow};
use clap::Args;
use fasttoken::Tokenizer;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Compile a tokenizer.json or a SentencePiece .model to a file that is mapped instead of parsed.
///
/// The file holds all tables as they lie in memory, with checksums and the hash of the
/// file that it was made from; processes that use the same file share its pages. Give it to --tokenizer, or to
/// `Tokenizer::from_compiled`. It fits only this version of fasttoken and this kind of machine.
#[derive(Args)]
pub(crate) struct Arguments {
    /// A tokenizer.json, a folder with one, or a SentencePiece model (.model).
    #[arg(value_name = "FILE")]
    tokenizer: PathBuf,
    /// Output file. By default it lies beside the file, with the extension ftk.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let path = crate::tokenizer_path(&arguments.tokenizer);
    let contents =
        std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let is_model = path
        .extension()
        .is_some_and(|e| e == crate::MODEL_EXTENSION);
    let compiled = if is_model {
        Tokenizer::compile_sentencepiece(&contents)
    } else {
        Tokenizer::compile(&contents)
    };
    let compiled =
        compiled.map_err(|error| anyhow!("cannot compile {}: {error}", path.display()))?;
    let output = arguments
        .output
        .clone()
        .unwrap_or_else(|| path.with_extension(crate::COMPILED_EXTENSION));
    replace(&output, &compiled).with_context(|| format!("cannot write {}", output.display()))?;
    let (from, to) = (contents.len(), compiled.len());
    let output = output.display();
    writeln!(std::io::stdout(), "{output}: {to} bytes from {from} bytes")?;
    Ok(Outcome::Done)
}

/// Replaces a file by a new one, because other processes may have mapped the old one.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = path.with_file_name(name);
    let written = std::fs::write(&new, bytes).and_then(|()| std::fs::rename(&new, path));
    if written.is_err() {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&new);
    }
    written
}
