//! The exceptions of the module.

use pyo3::create_exception;
use pyo3::exceptions::{PyNotImplementedError, PyOSError, PyValueError};
use pyo3::prelude::*;

create_exception!(
    fasttoken,
    LoadError,
    PyValueError,
    "A tokenizer.json is malformed, contradicts itself, or has a component that fasttoken does not implement exactly."
);
create_exception!(
    fasttoken,
    EncodeError,
    PyValueError,
    "Truncation or padding cannot do what is asked."
);
create_exception!(
    fasttoken,
    UnsupportedError,
    PyNotImplementedError,
    "tokenizers can do what was asked, and fasttoken cannot."
);

/// Returns the exception for an error of loading: an `OSError` for a file that cannot be read.
pub(crate) fn load_error(error: fasttoken::Error) -> PyErr {
    if let fasttoken::Error::Io { path, source } = &error
        && let Some(number) = source.raw_os_error()
    {
        // With a number, Python chooses the class, such as `FileNotFoundError`.
        let text = source.to_string();
        let text = text.split(" (os error").next().unwrap_or_default();
        let path = path.clone().into_os_string();
        return PyOSError::new_err((number, text.to_owned(), path));
    }
    match error {
        fasttoken::Error::Io { .. } => PyOSError::new_err(error.to_string()),
        error => LoadError::new_err(error.to_string()),
    }
}

/// Returns the exception for truncation or padding that cannot do what is asked.
pub(crate) fn encode_error(error: fasttoken::EncodeError) -> PyErr {
    EncodeError::new_err(error.to_string())
}
