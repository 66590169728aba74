//! Says whether models can run on a GPU of this machine, and what is missing if they cannot.
//!
//! `cargo run -p prelude-exec-cuda --example this_machine`
#![expect(clippy::print_stdout, reason = "an example that prints")]

use prelude_exec_cuda::{CudaConfig, info};

fn main() {
    let lines = info(&CudaConfig::default());
    println!("{}", lines.join("\n"));
    assert!(lines[0].starts_with("yes") || lines[0].starts_with("no"));
}
