//! The program `prelude`. Everything is in the library.
#![forbid(unsafe_code)]

use std::{env, process::ExitCode};

fn main() -> ExitCode {
    ExitCode::from(prelude_server::cli::run(env::args_os()))
}
