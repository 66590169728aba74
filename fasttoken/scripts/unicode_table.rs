//! Prints `src/unicode/category_table.rs`, made by asking the reference.
//!
//! `cargo run -p fasttoken --example unicode_table > fasttoken/src/unicode/category_table.rs`

#[path = "../tests/common/onig.rs"]
mod onig;

use std::fmt::Write as _;
use std::io::Write as _;

fn main() -> std::io::Result<()> {
    let classes = onig::class_bytes();
    let mut runs: Vec<(usize, u8)> = Vec::new();
    for (code, &class) in classes.iter().enumerate() {
        if runs.last().is_none_or(|run| run.1 != class) {
            runs.push((code, class));
        }
    }
    let mut text = String::from(
        "//! Written by `scripts/unicode_table.rs`; do not edit.\n\
         //!\n\
         //! First code point of each run of equal classes, and the class: category\n\
         //! number in bits 0 to 4, `\\s` in bit 5, `\\w` in bit 6, left by NFC in bit 7.\n\n\
         #[rustfmt::skip]\npub(super) static RUNS: &[(u32, u8)] = &[\n",
    );
    for line in runs.chunks(8) {
        text.push_str("   ");
        for (code, class) in line {
            write!(text, " (0x{code:X}, {class}),").expect("writing to a string");
        }
        text.push('\n');
    }
    text.push_str("];\n");
    std::io::stdout().write_all(text.as_bytes())
}
