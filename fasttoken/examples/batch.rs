//! A batch of pairs as a model wants it: cut and filled up to one length, with masks.
//!
//! `cargo run -p fasttoken --example batch -- path/to/tokenizer.json`

use fasttoken::{EncodeOptions, Padding, Tokenizer, Truncation, TruncationStrategy};
use std::io::Write;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer.json");
    let file = std::env::args().nth(1);
    let tokenizer = Tokenizer::from_file(file.as_deref().unwrap_or(demo))?;

    let query = "Where is my card?";
    let documents = [
        "Cards arrive within five working days.",
        "Top up by bank transfer.",
        "A lost card can be frozen in the app, and a new one ordered from there.",
    ];
    let pairs = documents.map(|document| (query, document));
    let options = EncodeOptions::new()
        .add_special_tokens(true)
        .truncation(Some(
            Truncation::new(24).strategy(TruncationStrategy::OnlySecond),
        ))
        .padding(Some(Padding::new(0, "<pad>").pad_to_multiple_of(8)));
    let batch = tokenizer.encode_batch_with(&pairs, &options, 2)?;

    let mut out = std::io::stdout().lock();
    for encoding in &batch {
        writeln!(out, "ids            {:?}", encoding.ids)?;
        writeln!(out, "type_ids       {:?}", encoding.type_ids)?;
        writeln!(out, "attention_mask {:?}\n", encoding.attention_mask)?;
    }
    Ok(())
}
