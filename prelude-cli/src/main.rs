//! The program `prelude`. Everything is in the library, for the Python package too.
#![forbid(unsafe_code)]

use std::{env, process::ExitCode};

fn main() -> ExitCode {
    ExitCode::from(prelude_cli::run(env::args_os()))
}
