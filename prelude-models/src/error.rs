//! Errors of reading a checkpoint.

use std::{fmt, path::PathBuf};

use thiserror::Error;

/// The reason why a model cannot be read or loaded. Messages name the file, the field or the
/// tensor.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A folder without weights in a form that Prelude reads.
    #[error("{} holds no weights: {hint}", path.display())]
    NoWeights {
        /// The folder.
        path: PathBuf,
        /// A hint how to get weights that can be read.
        hint: &'static str,
    },
    /// A file is not JSON, or larger than such files ever are.
    #[error("{file} is not a usable JSON document: {what}")]
    Json {
        /// The file.
        file: String,
        /// The parser's error.
        what: String,
    },
    /// A safetensors file is damaged: truncated, overlapping, mislabelled.
    #[error("{file} is not a valid safetensors file: {what}")]
    Container {
        /// The file.
        file: String,
        /// The rule that is broken, and the tensor that breaks it.
        what: String,
    },
    /// A GGUF file is damaged, or holds what Prelude does not read from such files.
    #[error("{file} cannot be read as GGUF: {what}")]
    Gguf {
        /// The file.
        file: String,
        /// The rule that is broken, or the setting, type or tensor that is not read.
        what: String,
    },
    /// The shard index and the shards disagree.
    #[error("{file}: {what}")]
    Index {
        /// The index file.
        file: String,
        /// The entry that is wrong, and the reason.
        what: String,
    },
    /// A configuration field is missing, malformed or out of range.
    #[error("{file}: `{field}` {what}")]
    Field {
        /// The file.
        file: String,
        /// The field.
        field: String,
        /// The expected value, and the one found.
        what: String,
    },
    /// The files of a decision model are not those of a format that is served.
    #[error("{file} {what}")]
    Decision {
        /// The file or the folder.
        file: String,
        /// What is wrong with it.
        what: String,
    },
    /// The checkpoint asks for something that Prelude does not compute. It is refused, since
    /// ignoring it would give wrong numbers.
    #[error("{file}: {what} is not supported")]
    Unsupported {
        /// The file.
        file: String,
        /// The feature.
        what: String,
    },
    /// No model definition has this name.
    #[error("architecture {name:?} is not supported;\nserved are {known}, as docs/models.md says")]
    Architecture {
        /// The name in `config.json`.
        name: String,
        /// The families that would do.
        known: String,
    },
    /// A tensor was asked for that no file holds.
    #[error("the checkpoint has no tensor {0:?}")]
    NoTensor(String),
    /// The tensors on disk are not those of the architecture.
    #[error("the tensors do not fit {architecture}: {defects}")]
    Tensors {
        /// The architecture.
        architecture: String,
        /// The differences between the file's tensors and the model's.
        defects: TensorDefects,
    },
    /// A tensor has an element type that Prelude does not compute with.
    #[error("{file}: tensor {tensor:?} has type {dtype}; bf16, f16 and f32 are supported")]
    DType {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The tensor's type, as in the file.
        dtype: String,
    },
    /// A weight is infinite or not a number: the file was damaged or badly converted.
    #[error(
        "tensor {tensor:?} has a non-finite value at element {index}; fetch or convert it anew"
    )]
    NotFinite {
        /// The tensor.
        tensor: String,
        /// Index of the first such element, row-major.
        index: usize,
    },
    /// The executor refused a weight.
    #[error("loading {weight}: {source}")]
    Loader {
        /// The weight.
        weight: String,
        /// The executor's reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// The differences between a checkpoint's tensors and those of its architecture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorDefects {
    /// Tensors that the architecture has and the checkpoint lacks.
    pub missing: Vec<String>,
    /// Tensors that the architecture would not read.
    pub unexpected: Vec<String>,
    /// Tensors of another shape: name, expected, found.
    pub misshaped: Vec<(String, Vec<usize>, Vec<usize>)>,
}

impl TensorDefects {
    /// Returns true if there is no difference.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.misshaped.is_empty()
    }
}

impl fmt::Display for TensorDefects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        let mut group = |what: &str, items: Vec<String>| {
            if items.is_empty() {
                return Ok(());
            }
            write!(f, "{separator}{what} {}", first_few(&items))?;
            separator = "; ";
            Ok(())
        };
        group("missing", self.missing.clone())?;
        group("unexpected", self.unexpected.clone())?;
        let misshaped = self
            .misshaped
            .iter()
            .map(|(name, expected, found)| format!("{name} {found:?} instead of {expected:?}"));
        group("misshaped", misshaped.collect())
    }
}

/// Returns the first three items and how many follow: messages stay readable for 400 missing
/// tensors.
pub(crate) fn first_few(items: &[String]) -> String {
    const SHOWN: usize = 3;
    let shown = items[..items.len().min(SHOWN)].join(", ");
    match items.len().checked_sub(SHOWN) {
        None | Some(0) => shown,
        Some(more) => format!("{shown} and {more} more"),
    }
}
