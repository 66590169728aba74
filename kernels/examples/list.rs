//! The CUDA kernels that this crate carries, and the launch of one.
//!
//! `cargo run -p prelude-kernels --example list`
#![expect(clippy::print_stdout, reason = "an example that prints")]

use bytemuck::Zeroable as _;
use prelude_kernels::{
    FAMILIES, HEADERS,
    families::{RmsNormForm, RmsNormParams},
};

fn main() {
    for family in FAMILIES {
        println!("{}.cu: {}", family.name, family.kernels.join(", "));
    }
    let headers: Vec<&str> = HEADERS.iter().map(|header| header.name).collect();
    println!(
        "NVRTC compiles them with {} headers: {}",
        headers.len(),
        headers.join(", ")
    );
    // A norm of 32 rows of 1,024 elements. A program that launches it sets the pointers too.
    let params = RmsNormParams {
        rows: 32,
        width: 1024,
        ..RmsNormParams::zeroed()
    };
    let launch = params.launch(RmsNormForm::Plain);
    println!("{launch:?}");
    assert!(
        FAMILIES
            .iter()
            .any(|family| family.kernels.contains(&launch.kernel))
    );
}
