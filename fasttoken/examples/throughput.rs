//! Megabytes per second of this crate and of the reference, in one run.
//!
//! `cargo run --release -p fasttoken --example throughput -- tokenizer.json text.txt ...`
//!
//! Each text is encoded whole, in turns, several times; the best time of each
//! counts. Two threads share the tokenizer in the column `x2`.

use std::io::Write;
use std::time::Instant;

const ROUNDS: usize = 7;

fn best(mut run: impl FnMut() -> usize) -> (f64, usize) {
    let mut ids = 0;
    let times = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        ids = run();
        start.elapsed().as_secs_f64()
    });
    let best = times.fold(f64::INFINITY, f64::min);
    (best, ids)
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
        "{:<28} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "text", "ids", "MB/s", "x2", "decode", "reference"
    )?;
    for path in arguments {
        let text = std::fs::read_to_string(&path)?;
        let middle = (text.len() / 2..).find(|at| text.is_char_boundary(*at));
        let halves = text.split_at(middle.unwrap_or(0));
        let halves = [halves.0, halves.1];
        let mut buffer = Vec::new();
        let (time, count) = best(|| {
            buffer.clear();
            ours.encode_into(&text, false, &mut buffer);
            buffer.len()
        });
        let (shared, _) = best(|| ours.encode_batch(&halves, false, 2).len());
        let (decode, _) = best(|| ours.decode(&buffer, false).len());
        let (reference, _) = best(|| {
            let encoding = reference.encode_fast(text.as_str(), false);
            encoding.map_or(0, |encoding| encoding.len())
        });
        let rate = |seconds: f64| text.len() as f64 / 1e6 / seconds;
        let name = path.rsplit('/').next().unwrap_or(&path);
        writeln!(
            out,
            "{name:<28} {count:>9} {:>9.1} {:>9.1} {:>9.1} {:>9.1}",
            rate(time),
            rate(shared),
            rate(decode),
            rate(reference)
        )?;
    }
    Ok(())
}
