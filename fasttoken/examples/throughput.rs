//! Megabytes per second of this crate and of the reference, in one run.
//!
//! `cargo run --release -p fasttoken --example throughput -- tokenizer.json text.txt ...`
//!
//! Each text is cut into documents of about four kilobytes, which are encoded one by
//! one. The engines take turns, and the best of several rounds counts. Two threads
//! share the tokenizer in the column `x2`; the reference runs on one.

use std::io::Write;
use std::time::Instant;

const ROUNDS: usize = 5;
const DOCUMENT_BYTES: usize = 4096;

/// Cuts `text` at the ends of lines where it can.
fn documents(text: &str) -> Vec<&str> {
    let mut documents = Vec::new();
    let mut rest = text;
    while rest.len() > DOCUMENT_BYTES {
        let from_here = |at: usize| rest.is_char_boundary(at);
        let near = (DOCUMENT_BYTES..)
            .find(|at| from_here(*at))
            .unwrap_or(rest.len());
        let end = rest[near..]
            .find('\n')
            .map_or(rest.len(), |at| near + at + 1);
        documents.push(&rest[..end]);
        rest = &rest[end..];
    }
    documents.push(rest);
    documents
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or("give a tokenizer.json and texts")?;
    let mut out = std::io::stdout().lock();

    let start = Instant::now();
    let ours = fasttoken::Tokenizer::from_file(&file)?;
    let load_ms = start.elapsed().as_secs_f64() * 1e3;
    let start = Instant::now();
    let reference = tokenizers::Tokenizer::from_file(&file).map_err(|e| e.to_string())?;
    let reference_load_ms = start.elapsed().as_secs_f64() * 1e3;
    writeln!(
        out,
        "load: {load_ms:.0} ms, reference {reference_load_ms:.0} ms"
    )?;
    writeln!(
        out,
        "{:<22} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "MB/s", "ids", "encode", "x2", "decode", "reference"
    )?;

    for path in arguments {
        let text = std::fs::read_to_string(&path)?;
        let documents = documents(&text);
        let ids: Vec<Vec<u32>> = documents.iter().map(|d| ours.encode(d, false)).collect();
        let mut best = [f64::INFINITY; 4];
        let mut buffer = Vec::new();
        for _ in 0..ROUNDS {
            let mut engines: [&mut dyn FnMut(); 4] = [
                &mut || {
                    for document in &documents {
                        buffer.clear();
                        ours.encode_into(document, false, &mut buffer);
                    }
                },
                &mut || drop(ours.encode_batch(&documents, false, 2)),
                &mut || drop(ours.decode_batch(&ids, false, 1)),
                &mut || {
                    for document in &documents {
                        drop(reference.encode_fast(*document, false));
                    }
                },
            ];
            for (engine, best) in engines.iter_mut().zip(&mut best) {
                let start = Instant::now();
                engine();
                *best = best.min(start.elapsed().as_secs_f64());
            }
        }
        let name = path.rsplit('/').next().unwrap_or(&path);
        let count: usize = ids.iter().map(Vec::len).sum();
        write!(out, "{name:<22} {count:>9}")?;
        for seconds in best {
            write!(out, " {:>9.1}", text.len() as f64 / 1e6 / seconds)?;
        }
        writeln!(out)?;
    }
    Ok(())
}
