//! The Python module `prelude_serve._prelude_serve`: an engine with the server's handlers, without a
//! server, and the program `prelude` as a function. The package `prelude_serve` builds its class `LLM` on
//! the one and its commands on the other.
//!
//! Its types and descriptions for Python are in `python/prelude_serve/_prelude_serve.pyi`.
#![forbid(unsafe_code)]

mod engine;
mod errors;
mod load;
mod options;
mod program;
mod wait;

use pyo3::prelude::*;

/// The compiled part of the package `prelude_serve`.
#[pymodule]
mod _prelude_serve {
    #[pymodule_export]
    use crate::engine::{Call, Engine};
    #[pymodule_export]
    use crate::errors::{LoadError, PreludeError};
    #[pymodule_export]
    use crate::program::run;
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
