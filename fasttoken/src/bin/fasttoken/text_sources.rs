//! Texts from files and from standard input.

use anyhow::{Context as _, bail};
use clap::Args;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// The source of texts.
#[derive(Args)]
pub(crate) struct Texts {
    /// Text files in UTF-8; `-` or none is standard input.
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Take each line as a text of its own, without its line end.
    #[arg(short, long)]
    lines: bool,
}

/// A file that was read.
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) text: String,
}

impl Texts {
    /// Reads all files.
    pub(crate) fn read(&self) -> anyhow::Result<Vec<Source>> {
        let stdin = [PathBuf::from("-")];
        let files = if self.files.is_empty() {
            &stdin
        } else {
            &self.files[..]
        };
        files.iter().map(|file| Source::read(file)).collect()
    }

    /// Returns the texts of `source`: the whole, or its lines.
    pub(crate) fn of<'s>(&self, source: &'s Source) -> Vec<&'s str> {
        if self.lines {
            source.text.lines().collect()
        } else {
            vec![&source.text]
        }
    }
}

impl Source {
    fn read(path: &Path) -> anyhow::Result<Self> {
        let name = if path == Path::new("-") {
            "standard input".to_owned()
        } else {
            path.display().to_string()
        };
        let bytes = read_bytes(path).with_context(|| format!("cannot read {name}"))?;
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Self { name, text }),
            Err(error) => bail!(
                "{name} is not UTF-8: see byte {}; convert it first, for example with iconv",
                error.utf8_error().valid_up_to()
            ),
        }
    }
}

fn read_bytes(path: &Path) -> std::io::Result<Vec<u8>> {
    if path == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes)?;
        return Ok(bytes);
    }
    std::fs::read(path)
}

/// Cuts `text` into documents of about `bytes` bytes, at ends of lines where it can.
pub(crate) fn documents(text: &str, bytes: usize) -> Vec<&str> {
    let mut documents = Vec::new();
    let mut rest = text;
    while rest.len() > bytes {
        let mut near = bytes;
        while !rest.is_char_boundary(near) {
            near += 1;
        }
        // A line may be long: look no further than a document for its end.
        let mut far = (2 * bytes).min(rest.len());
        while !rest.is_char_boundary(far) {
            far += 1;
        }
        let end = rest[near..far].find('\n').map_or(near, |at| near + at + 1);
        documents.push(&rest[..end]);
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        documents.push(rest);
    }
    documents
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_the_text() {
        let text = "one\ntwo\n漢字漢字漢字\nfour and five and six";
        for bytes in 1..20 {
            let documents = documents(text, bytes);
            assert_eq!(documents.concat(), text);
            assert!(documents.iter().all(|d| d.len() <= 2 * bytes + 4));
        }
        assert_eq!(documents("", 5).len(), 0);
    }
}
