//! The exceptions of loading a model. Those of requests are made in Python, from their answers.

use prelude_server::assets;
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;

create_exception!(
    prelude_serve,
    PreludeError,
    PyException,
    "The base of all exceptions of this package that are about a model or a request."
);
create_exception!(
    prelude_serve,
    LoadError,
    PreludeError,
    "A model cannot be found, downloaded, read or put on its device. The message says which and what to do."
);

/// The reason why a model is not in service.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An option is wrong, or contradicts the model: a `ValueError`.
    Option(String),
    /// The model is at fault, or the machine.
    Model(String),
}

impl From<assets::LoadError> for Failure {
    fn from(error: assets::LoadError) -> Self {
        match error {
            assets::LoadError::Option(message) => Self::Option(message),
            error => Self::Model(format!("the model cannot be loaded: {error}")),
        }
    }
}

impl From<prelude_hub::Error> for Failure {
    fn from(error: prelude_hub::Error) -> Self {
        match error {
            prelude_hub::Error::Name(_) | prelude_hub::Error::Config { .. } => {
                Self::Option(error.to_string())
            }
            error => Self::Model(error.to_string()),
        }
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Option(message) => PyValueError::new_err(message),
            Failure::Model(message) => LoadError::new_err(message),
        }
    }
}
