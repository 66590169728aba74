//! Prints `src/unicode/category_table.bin`, made by asking the reference; `src/unicode.rs` says what the
//! bytes mean.
//!
//! `cargo run -p fasttoken --example unicode_table > fasttoken/src/unicode/category_table.bin`

#[path = "../tests/common/onig.rs"]
mod onig;

use std::io::Write as _;

fn main() -> std::io::Result<()> {
    let runs = onig::class_runs().into_iter();
    let runs = runs.map(|(code, class)| code << 8 | u32::from(class));
    let bytes: Vec<u8> = runs.flat_map(u32::to_le_bytes).collect();
    std::io::stdout().write_all(&bytes)
}
