//! Prints the ids of a text, with the token and the bytes each stands for.
//!
//! `cargo run -p fasttoken --example encode_text -- path/to/tokenizer.json "some text"`

use fasttoken::Tokenizer;
use std::io::Write;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer.json");
    let file = arguments.next().unwrap_or_else(|| demo.to_owned());
    let text = arguments
        .next()
        .unwrap_or_else(|| "I'm waiting for my card.<|im_end|>".to_owned());

    let tokenizer = Tokenizer::from_file(file)?;
    let encoding = tokenizer.encode_with_offsets(&text, true);
    let mut out = std::io::stdout().lock();
    for (id, (start, end)) in encoding.ids.iter().zip(&encoding.offsets) {
        let token = tokenizer.id_to_token(*id).unwrap_or_default();
        writeln!(
            out,
            "{id:>7}  {token:<20}  {start}..{end}  {:?}",
            &text[*start..*end]
        )?;
    }
    writeln!(out, "{}", tokenizer.decode(&encoding.ids, true))?;
    Ok(())
}
