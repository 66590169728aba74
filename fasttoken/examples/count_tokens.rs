//! Counts tokens of texts, and cuts one to a budget without encoding all of it.
//!
//! `cargo run -p fasttoken --example count_tokens -- path/to/tokenizer.json a.txt b.txt`

use fasttoken::Tokenizer;
use std::io::Write;

const BUDGET: usize = 8;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer.json");
    let tokenizer = Tokenizer::from_file(arguments.next().unwrap_or_else(|| demo.to_owned()))?;
    let mut out = std::io::stdout().lock();
    for path in arguments {
        let text = std::fs::read_to_string(&path)?;
        writeln!(out, "{:>9} {path}", tokenizer.count(&text, false))?;
    }
    let text = "I am still waiting on my card, it has been two weeks!";
    let (ids, bytes) = tokenizer.encode_prefix(text, BUDGET);
    let (kept, rest) = text.split_at(bytes);
    writeln!(
        out,
        "{} of {}: {kept:?}, then {rest:?}",
        ids.len(),
        tokenizer.count(text, false)
    )?;
    Ok(())
}
