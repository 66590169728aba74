//! `fasttoken decode`

use crate::{Outcome, TokenizerFile};
use anyhow::{Context as _, bail};
use clap::Args;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Decode ids to text.
///
/// Reads ids as numbers between blanks or commas, with or without brackets, so the
/// output of `encode` and lists in JSON both work. Each line is a text of its own and is
/// written followed by a line end; with --join, all lines are one text and nothing is added.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    tokenizer: TokenizerFile,
    /// Files with ids; `-` or none is standard input.
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Leave special tokens out.
    #[arg(short, long)]
    skip_special: bool,
    /// Take all lines of all files as one text.
    #[arg(short, long)]
    join: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let tokenizer = arguments.tokenizer.load()?;
    let mut decoder = tokenizer.stream_decoder(arguments.skip_special);
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut text = String::new();
    let stdin = [PathBuf::from("-")];
    let files = if arguments.files.is_empty() {
        &stdin
    } else {
        &arguments.files[..]
    };
    for file in files {
        for (number, line) in open(file)?.lines().enumerate() {
            let place = || format!("{}, line {}", file.display(), number + 1);
            let line = line.with_context(place)?;
            for id in ids(&line) {
                decoder.push(id.with_context(place)?, &mut text);
            }
            if !arguments.join {
                decoder.finish(&mut text);
                text.push('\n');
            }
            out.write_all(text.as_bytes())?;
            text.clear();
        }
    }
    decoder.finish(&mut text);
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(Outcome::Done)
}

fn open(path: &Path) -> anyhow::Result<Box<dyn BufRead>> {
    if path == Path::new("-") {
        return Ok(Box::new(std::io::stdin().lock()));
    }
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Box::new(BufReader::new(file)))
}

/// Returns the numbers of a line.
fn ids(line: &str) -> impl Iterator<Item = anyhow::Result<u32>> {
    line.split(|c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']'))
        .filter(|word| !word.is_empty())
        .map(|word| match word.parse() {
            Ok(id) => Ok(id),
            Err(_) => bail!("{word:?} is not an id: ids are numbers from 0 to 4294967295"),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_ids_have_several_forms() {
        let check = |line: &str, expected: &[u32]| {
            let ids: anyhow::Result<Vec<u32>> = ids(line).collect();
            assert_eq!(ids.unwrap(), expected);
        };
        check("1 2\t3", &[1, 2, 3]);
        check("[1, 2,3]", &[1, 2, 3]);
        check("", &[]);
        let error = ids("1 -2").find_map(Result::err).unwrap();
        assert!(error.to_string().contains("\"-2\" is not an id"));
        assert!(ids("4294967296").any(|id| id.is_err()));
    }
}
