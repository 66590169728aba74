//! Megabytes per second with each of several split patterns, in one run.
//!
//! `cargo run --release -p fasttoken --example patterns -- tokenizer.json text.txt ...`
//!
//! The vocabulary is that of the file, the pattern takes the place of its pre-tokenizer. Each text
//! is cut into documents of about four kilobytes, which are encoded one by one. The patterns take
//! turns, and the best of several rounds counts. Warnings about a pattern stand below its row.

use fasttoken::Tokenizer;
use serde_json::{Map, Value, json};
use std::io::Write;
use std::time::Instant;

const ROUNDS: usize = 7;
const DOCUMENT_BYTES: usize = 4096;
const PATTERNS: &str = include_str!("../tests/data/patterns.json");

/// Cuts `text` at characters.
fn documents(mut text: &str) -> Vec<&str> {
    let mut documents = Vec::new();
    while text.len() > DOCUMENT_BYTES {
        let near = (0..=DOCUMENT_BYTES)
            .rev()
            .find(|at| text.is_char_boundary(*at));
        let (document, rest) = text.split_at(near.unwrap_or(0));
        documents.push(document);
        text = rest;
    }
    documents.push(text);
    documents
}

fn with_pattern(mut file: Value, pattern: &Value) -> Result<Tokenizer, fasttoken::Error> {
    let split = json!({
        "type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false,
    });
    let bytes = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false,
    });
    file["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [split, bytes]});
    Tokenizer::from_bytes(file.to_string().as_bytes())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or("give a tokenizer.json and texts")?;
    let file: Value = serde_json::from_slice(&std::fs::read(file)?)?;
    let patterns: Map<String, Value> = serde_json::from_str(PATTERNS)?;
    let texts = arguments.map(std::fs::read_to_string);
    let texts: Vec<String> = texts.collect::<Result<_, _>>()?;
    let mut tokenizers = Vec::new();
    for (name, pattern) in &patterns {
        tokenizers.push((name, with_pattern(file.clone(), pattern)?));
    }
    let mut best = vec![vec![f64::INFINITY; texts.len()]; tokenizers.len()];
    let mut ids = Vec::new();
    for _ in 0..ROUNDS {
        for (n, text) in texts.iter().enumerate() {
            let documents = documents(text);
            for ((_, tokenizer), best) in tokenizers.iter().zip(&mut best) {
                let start = Instant::now();
                for document in &documents {
                    ids.clear();
                    tokenizer.encode_into(document, false, &mut ids);
                }
                best[n] = best[n].min(start.elapsed().as_secs_f64());
            }
        }
    }
    let mut out = std::io::stdout().lock();
    for ((name, tokenizer), best) in tokenizers.iter().zip(best) {
        write!(out, "{name:<16}")?;
        for (text, seconds) in texts.iter().zip(best) {
            write!(out, " {:>8.1}", text.len() as f64 / 1e6 / seconds)?;
        }
        writeln!(out)?;
        for warning in tokenizer.warnings() {
            writeln!(out, "    {warning}")?;
        }
    }
    Ok(())
}
