//! The Python module `prelude_serve._prelude_serve`: an engine with the server's handlers, without a
//! server. The package `prelude_serve` builds its class `LLM` on it.
//!
//! Its types and descriptions for Python are in `python/prelude_serve/_prelude_serve.pyi`.
#![forbid(unsafe_code)]

mod engine;
mod errors;
mod load;
mod options;
mod wait;

use pyo3::prelude::*;

/// The compiled part of the package `prelude_serve`.
#[pymodule]
mod _prelude_serve {
    #[pymodule_export]
    use crate::engine::{Call, Engine};
    #[pymodule_export]
    use crate::errors::{LoadError, PreludeError};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
