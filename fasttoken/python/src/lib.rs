//! The Python module `fasttoken._fasttoken`, from which the package `fasttoken` takes its classes.
//!
//! What users see, with types, is in `python/fasttoken/__init__.pyi`.
#![deny(unsafe_code)]

mod added;
mod buffer;
mod encoding;
mod errors;
mod input;
mod settings;
mod state;
mod threads;
mod tokenizer;

use pyo3::prelude::*;

/// The compiled part of the package `fasttoken`.
#[pymodule]
mod _fasttoken {
    #[pymodule_export]
    use crate::added::AddedToken;
    #[pymodule_export]
    use crate::encoding::Encoding;
    #[pymodule_export]
    use crate::errors::{EncodeError, LoadError, UnsupportedError};
    #[pymodule_export]
    use crate::tokenizer::{Tokenizer, restore};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
