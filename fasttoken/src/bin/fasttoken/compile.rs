//! `fasttoken compile`

use crate::Outcome;
use anyhow::Context as _;
use clap::Args;
use fasttoken::Tokenizer;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Compile a tokenizer.json to a file that is mapped instead of parsed.
///
/// The file holds all tables as they lie in memory, with checksums and the hash of the JSON;
/// processes that use the same file share its pages. Give it to --tokenizer, or to
/// `Tokenizer::from_compiled`. It fits only this version of fasttoken and this kind of machine.
#[derive(Args)]
pub(crate) struct Arguments {
    /// A tokenizer.json, or a folder with one.
    #[arg(value_name = "FILE")]
    tokenizer: PathBuf,
    /// Output file. By default it lies beside the JSON, with the extension ftk.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let json_path = crate::tokenizer_path(&arguments.tokenizer);
    let json = std::fs::read(&json_path)
        .with_context(|| format!("cannot read {}", json_path.display()))?;
    let compiled = Tokenizer::compile(&json)
        .with_context(|| format!("cannot compile {}", json_path.display()))?;
    let output = arguments
        .output
        .clone()
        .unwrap_or_else(|| json_path.with_extension(crate::COMPILED_EXTENSION));
    replace(&output, &compiled).with_context(|| format!("cannot write {}", output.display()))?;
    let (from, to) = (json.len(), compiled.len());
    let output = output.display();
    writeln!(
        std::io::stdout(),
        "{output}: {to} bytes from {from} bytes of JSON"
    )?;
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
