//! The command `fasttoken`: one subcommand per file, each with its own help.
#![forbid(unsafe_code)]

mod bench;
mod check;
mod compile;
mod count;
mod decode;
mod encode;
mod progress;
mod text_sources;

use anyhow::{Context as _, anyhow};
use clap::{Args, Parser, Subcommand};
use fasttoken::{Error, Tokenizer};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Exact, fast tokenizer for Hugging Face tokenizer.json files.
///
/// Ids are those of the crate `tokenizers` 0.23 for every input. A file with a component that
/// this program does not implement exactly is refused, with the name of the component.
///
/// Start with:
///
///   echo 'Where is my card?' | fasttoken encode -t tokenizer.json
///   fasttoken count -t tokenizer.json README.md src/*.rs
///   fasttoken encode -t tokenizer.json a.txt | fasttoken decode -t tokenizer.json
///
/// Exit codes: 0 done, 1 something failed, 2 the command line is wrong, 3 `check` found a
/// difference.
#[derive(Parser)]
#[command(
    name = "fasttoken",
    version,
    max_term_width = 100,
    verbatim_doc_comment
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Encode text to ids, as lines of numbers or as JSON.
    Encode(encode::Arguments),
    /// Decode ids to text.
    Decode(decode::Arguments),
    /// Count the tokens of each file.
    Count(count::Arguments),
    /// Compile a tokenizer.json or a SentencePiece .model to a file that loads without parsing.
    Compile(compile::Arguments),
    /// Compare with the reference crate on your own texts and show the first difference.
    Check(check::Arguments),
    /// Measure loading, encoding and decoding on your own texts.
    Bench(bench::Arguments),
}

/// The extension of compiled tokenizers, as `fasttoken compile` writes them.
const COMPILED_EXTENSION: &str = "ftk";
/// The extension of SentencePiece models.
const MODEL_EXTENSION: &str = "model";

/// The tokenizer to use, the same in every subcommand.
#[derive(Args)]
struct TokenizerFile {
    /// A tokenizer.json, a folder with one, a SentencePiece model (.model), or a compiled
    /// tokenizer (.ftk).
    #[arg(
        short,
        long = "tokenizer",
        value_name = "FILE",
        env = "FASTTOKEN_TOKENIZER"
    )]
    tokenizer: PathBuf,
}

impl TokenizerFile {
    fn path(&self) -> PathBuf {
        tokenizer_path(&self.tokenizer)
    }

    fn load(&self) -> anyhow::Result<Tokenizer> {
        let path = self.path();
        let is = |extension| path.extension().is_some_and(|e| e == extension);
        let tokenizer = if is(COMPILED_EXTENSION) {
            Tokenizer::from_compiled(&path)
        } else if is(MODEL_EXTENSION) {
            let model =
                std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            Tokenizer::from_sentencepiece(&model)
        } else {
            Tokenizer::from_file(&path)
        };
        // The library's messages have those of their sources in them: a chain would repeat these.
        tokenizer.map_err(|error| match error {
            Error::Io { .. } | Error::Compiled { .. } => anyhow!("{error}"),
            error => anyhow!("cannot use {}: {error}", path.display()),
        })
    }
}

fn tokenizer_path(path: &Path) -> PathBuf {
    if path.is_dir() {
        path.join("tokenizer.json")
    } else {
        path.to_owned()
    }
}

/// The outcome of a command that ran to its end.
enum Outcome {
    Done,
    #[cfg_attr(
        not(feature = "reference"),
        expect(dead_code, reason = "only `check` finds differences")
    )]
    Different,
}

fn run(command: Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Encode(arguments) => encode::run(&arguments),
        Command::Decode(arguments) => decode::run(&arguments),
        Command::Count(arguments) => count::run(&arguments),
        Command::Compile(arguments) => compile::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
    }
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Different) => ExitCode::from(3),
        // The reader of our output has seen enough, as with `| head`.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to do when even this cannot be written.
            let _ = writeln!(std::io::stderr(), "fasttoken: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
