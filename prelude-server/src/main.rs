//! The `prelude` binary.
fn main() {}
