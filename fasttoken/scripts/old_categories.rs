//! Prints `src/unicode/old_table.rs`, made by asking the crate that the reference asks.
//!
//! `cargo run -p fasttoken --example old_categories > fasttoken/src/unicode/old_table.rs`

use std::fmt::Write as _;
use std::io::Write as _;
use unicode_categories::UnicodeCategories as _;

fn main() -> std::io::Result<()> {
    let flags = |code: u32| {
        char::from_u32(code).map_or(0, |c| {
            u8::from(c.is_other())
                | u8::from(c.is_mark_nonspacing()) << 1
                | u8::from(c.is_punctuation()) << 2
        })
    };
    let mut runs: Vec<(u32, u8)> = Vec::new();
    for code in 0..0x11_0000 {
        let flags = flags(code);
        if runs.last().is_none_or(|run| run.1 != flags) {
            runs.push((code, flags));
        }
    }
    let mut text = String::from(
        "//! Written by `scripts/old_categories.rs`; do not edit.\n\
         //!\n\
         //! First code point of each run of equal flags, and the flags: 1 for control, format and private\n\
         //! use, 2 for nonspacing marks, 4 for punctuation.\n\n\
         #[rustfmt::skip]\npub(super) static RUNS: &[(u32, u8)] = &[\n",
    );
    for line in runs.chunks(8) {
        text.push_str("   ");
        for (code, flags) in line {
            write!(text, " (0x{code:X}, {flags}),").expect("writing to a string");
        }
        text.push('\n');
    }
    text.push_str("];\n");
    std::io::stdout().write_all(text.as_bytes())
}
