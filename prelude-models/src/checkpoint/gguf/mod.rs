//! GGUF files of the decoders that Prelude computes: llama.cpp's container, in which a model is one
//! file with its configuration.
//!
//! The tokenizer's vocabulary in the file is not read: a `tokenizer.json` has what the model was made
//! with, pre-tokenizer included.

mod header;
mod model;

use std::{
    fs,
    path::{Path, PathBuf},
};

use self::header::Header;
use super::{
    Checkpoint,
    stored::Entry,
    weights::{Bytes, WeightFile, Weights},
};
use crate::{Error, config::Companions};

/// The end of the names of GGUF files.
const EXTENSION: &str = "gguf";

impl Checkpoint {
    /// Opens a GGUF file of a decoder (`llama`, `qwen2` or `qwen3`) whose tensors have the types F32,
    /// F16, BF16 and Q8_0. The last one is widened to bf16 when it is read, which rounds a weight by
    /// at most 1 part in 512.
    ///
    /// The file is mapped into memory, as by [`Checkpoint::open`].
    ///
    /// # Errors
    /// [`Error::Gguf`] for a damaged file, and for a type, an architecture or a setting that is not
    /// read; the errors of [`Checkpoint::open`].
    pub fn open_gguf(path: &Path) -> Result<Self, Error> {
        let bytes = Bytes::mapped(path)?;
        let name = path
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        Self::of_gguf(name, bytes)
    }

    /// Returns true if a path has the extension of GGUF files.
    #[must_use]
    pub fn is_gguf(path: &Path) -> bool {
        let extension = path.extension();
        extension.is_some_and(|extension| extension.eq_ignore_ascii_case(EXTENSION))
    }

    fn of_gguf(name: String, bytes: Bytes) -> Result<Self, Error> {
        let wrong = |what| Error::Gguf {
            file: name.clone(),
            what,
        };
        let header = Header::parse(&bytes).map_err(wrong)?;
        let config = model::config(&header, &bytes).map_err(wrong)?;
        let entries = model::entries(&header).map_err(wrong)?;
        let config = config.to_string();
        let template = header.text("tokenizer.chat_template");
        let template = template.map_err(wrong)?.map(str::to_owned);
        let documents = Companions {
            config: config.as_bytes(),
            ..Companions::default()
        };
        let of_file = |entry: Entry| (entry.name.clone(), (0, entry));
        let weights = Weights {
            tensors: entries.into_iter().map(of_file).collect(),
            files: vec![WeightFile {
                name: name.clone(),
                bytes,
            }],
            ..Weights::default()
        };
        let mut checkpoint = Self::assemble(&name, &documents, weights, None)?;
        checkpoint.chat_template = template;
        Ok(checkpoint)
    }
}

/// Returns the GGUF file of a folder that holds one of them.
pub(super) fn only_file(folder: &Path) -> Option<PathBuf> {
    let paths = fs::read_dir(folder).ok()?;
    let paths = paths.filter_map(|entry| Some(entry.ok()?.path()));
    let mut found = paths.filter(|path| Checkpoint::is_gguf(path));
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests;
