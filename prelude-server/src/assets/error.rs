//! What can be wrong with a model's files or with how it is to be served.

use std::{io, path::PathBuf};

use prelude_engine::EngineError;
use thiserror::Error;

use crate::{template::TemplateError, tokenizer::advice};

/// Why a model could not be loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The model's folder is missing.
    #[error("{0:?} is not a folder; give the folder that holds config.json and model.safetensors")]
    NoFolder(PathBuf),
    /// A file that must be there is not.
    #[error("{folder:?} has no {file}")]
    NoFile {
        /// The model's folder.
        folder: PathBuf,
        /// The file.
        file: &'static str,
    },
    /// A file cannot be read.
    #[error("cannot read {path:?}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file does not say what it should.
    #[error("{file} {what}")]
    Document {
        /// Its name.
        file: &'static str,
        /// What is wrong with it.
        what: String,
    },
    /// `tokenizer.json` cannot be used.
    #[error("tokenizer.json: {0}{advice}", advice = advice(.0))]
    Tokenizer(#[from] fasttoken::Error),
    /// Neither fasttoken nor the reference crate can use `tokenizer.json`.
    #[error("tokenizer.json: {unsupported}; the reference crate refuses it too: {reference}")]
    Fallback {
        /// Why fasttoken refuses it.
        unsupported: fasttoken::Error,
        /// What the reference says.
        reference: String,
    },
    /// Configuration or weights cannot be used.
    #[error(transparent)]
    Model(#[from] prelude_models::Error),
    /// The chat template does not parse.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The executor cannot hold or run the model.
    #[error("the model cannot be run: {0}")]
    Executor(String),
    /// The engine did not start.
    #[error("the engine did not start: {0}")]
    Engine(#[from] EngineError),
    /// An option contradicts the model.
    #[error("{0}")]
    Option(String),
}
