//! Prints text as ids arrive, as a model makes them: never half a character.
//!
//! `cargo run -p fasttoken --example streaming_decode -- path/to/tokenizer.json "some text"`

use fasttoken::Tokenizer;
use std::io::Write;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer.json");
    let tokenizer = Tokenizer::from_file(arguments.next().unwrap_or_else(|| demo.to_owned()))?;
    let text = arguments
        .next()
        .unwrap_or_else(|| "€5 for 漢字 🙂".to_owned());

    let mut decoder = tokenizer.stream_decoder(true);
    let mut chunk = String::new();
    let mut out = std::io::stdout().lock();
    for id in tokenizer.encode(&text, false) {
        decoder.push(id, &mut chunk);
        // An id that ends inside a character gives nothing yet.
        writeln!(out, "{id:>7} {chunk:?}")?;
        chunk.clear();
    }
    decoder.finish(&mut chunk);
    writeln!(out, "    end {chunk:?}")?;
    Ok(())
}
