//! Errors in a model's files or in the options of serving it.

use std::{
    io,
    path::{Path, PathBuf},
};

use prelude_engine::EngineError;
use prelude_text::{template::TemplateError, tokenizer::TokenizerError};
use thiserror::Error;

/// The reason why a model could not be loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The model's folder is missing.
    #[error(
        "{0:?} is not a folder; give the folder that holds config.json and model.safetensors{hub}",
        hub = of_hub(.0)
    )]
    NoFolder(PathBuf),
    /// The GGUF file is missing.
    #[error("there is no file {0:?}")]
    NoGguf(PathBuf),
    /// A file that must be there is not.
    #[error("{folder:?} has no {file}")]
    NoFile {
        /// The model's folder.
        folder: PathBuf,
        /// The file.
        file: &'static str,
    },
    /// The folder holds something else than a model that can be served, or more.
    #[error("{folder:?} {what}")]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The content, and what to do.
        what: String,
    },
    /// A file cannot be read.
    #[error("cannot read {path:?}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A file does not say what it should.
    #[error("{file} {what}")]
    Document {
        /// The file's name.
        file: &'static str,
        /// The fault.
        what: String,
    },
    /// `tokenizer.json` cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// Configuration or weights cannot be used.
    #[error(transparent)]
    Model(#[from] prelude_models::Error),
    /// The chat template does not parse.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The executor cannot hold or run the model.
    #[error("the model cannot be run: {0}")]
    Executor(String),
    /// The models of a process do not fit into memory together.
    #[error("{0}")]
    Together(String),
    /// The engine did not start.
    #[error("the engine did not start: {0}")]
    Engine(#[from] EngineError),
    /// An option contradicts the model.
    #[error("{0}")]
    Option(String),
}

/// Returns the advice for a path that looks like the name of a model on the Hugging Face Hub.
fn of_hub(path: &Path) -> String {
    let text = path.to_str().unwrap_or_default();
    let is_part = |part: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !part.is_empty() && !part.starts_with('.') && part.chars().all(is_plain)
    };
    match text.split_once('/') {
        Some((owner, name)) if is_part(owner) && is_part(name) => format!(
            ". If this is a name on the Hugging Face Hub, `prelude pull {text}` downloads the model \
             and prints its folder"
        ),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_the_hub_says_what_to_do() {
        let text = |path: &str| LoadError::NoFolder(path.into()).to_string();
        let hub = text("Qwen/Qwen3-0.6B");
        assert!(hub.contains("`prelude pull Qwen/Qwen3-0.6B`"), "{hub}");
        for path in ["./Qwen3-0.6B", "/models/a", "Qwen3", "a/b/c", "../b", "a/"] {
            assert!(!text(path).contains("pull"), "{path}");
        }
    }
}
