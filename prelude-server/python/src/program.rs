//! The function `run`: the server's command line, for the commands that the package installs.

use std::{
    ffi::OsString,
    iter,
    panic::{AssertUnwindSafe, catch_unwind},
};

use pyo3::prelude::*;

/// The exit code of a Rust program that panicked.
const PANICKED: u8 = 101;

/// Runs the program `prelude` with the arguments behind its name, and returns its exit code.
#[pyfunction]
pub(crate) fn run(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    let arguments = iter::once("prelude".into()).chain(arguments);
    let run = AssertUnwindSafe(|| prelude_cli::run(arguments));
    // The panic hook has said where it happened. An exception would print the message, which may quote
    // a request.
    py.detach(|| catch_unwind(run).unwrap_or(PANICKED))
}
