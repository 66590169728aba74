//! `fasttoken bench`

use crate::text_sources::{Texts, documents};
use crate::{Outcome, TokenizerFile};
use anyhow::ensure;
use clap::Args;
use std::hint::black_box;
use std::io::Write as _;
use std::time::Instant;

/// Measure loading, encoding and decoding on your own texts.
///
/// Cuts the texts into documents, and reports for loading, encoding (with one thread and with
/// several), counting and decoding the best of several rounds: the machine's other work can
/// only slow a round down. MB are 1,000,000 bytes of text.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    tokenizer: TokenizerFile,
    #[command(flatten)]
    texts: Texts,
    /// Number of rounds; the best is printed.
    #[arg(short, long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Approximate bytes of a document; 0 takes texts whole.
    #[arg(
        short,
        long,
        value_name = "BYTES",
        default_value_t = 4096,
        conflicts_with = "lines"
    )]
    document_bytes: usize,
    /// Threads of the multi-threaded row (default: all cores).
    #[arg(short = 'j', long)]
    threads: Option<usize>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let sources = arguments.texts.read()?;
    let mut texts = Vec::new();
    for source in &sources {
        match (arguments.document_bytes, arguments.texts.of(source)) {
            (bytes @ 1.., whole) if whole.len() == 1 => texts.extend(documents(whole[0], bytes)),
            (_, parts) => texts.extend(parts),
        }
    }
    let bytes: usize = texts.iter().map(|text| text.len()).sum();
    ensure!(bytes > 0, "there is no text to measure with");
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = arguments.threads.unwrap_or_else(cores).max(1);

    let start = Instant::now();
    let tokenizer = arguments.tokenizer.load()?;
    let load_ms = start.elapsed().as_secs_f64() * 1e3;
    let ids: Vec<Vec<u32>> = tokenizer.encode_batch(&texts, false, threads);
    let count: usize = ids.iter().map(Vec::len).sum();

    let mut buffer = Vec::new();
    let mut rows: [(String, &mut dyn FnMut()); 4] = [
        ("encode, 1 thread".into(), &mut || {
            for text in &texts {
                buffer.clear();
                tokenizer.encode_into(text, false, &mut buffer);
                black_box(&buffer);
            }
        }),
        (format!("encode, {threads} threads"), &mut || {
            black_box(tokenizer.encode_batch(&texts, false, threads));
        }),
        ("count, 1 thread".into(), &mut || {
            for text in &texts {
                black_box(tokenizer.count(text, false));
            }
        }),
        ("decode, 1 thread".into(), &mut || {
            for ids in &ids {
                black_box(tokenizer.decode(ids, false));
            }
        }),
    ];
    let mut best = [f64::INFINITY; 4];
    for _ in 0..arguments.rounds {
        for ((_, run), best) in rows.iter_mut().zip(&mut best) {
            let start = Instant::now();
            run();
            *best = best.min(start.elapsed().as_secs_f64());
        }
    }

    let mut out = std::io::stdout().lock();
    let documents = texts.len();
    writeln!(
        out,
        "{bytes} bytes in {documents} documents, {count} ids; load {load_ms:.1} ms"
    )?;
    for ((name, _), seconds) in rows.iter().zip(best) {
        let seconds = seconds.max(f64::MIN_POSITIVE);
        let (mb_s, ids_s) = (bytes as f64 / 1e6 / seconds, count as f64 / 1e6 / seconds);
        writeln!(out, "{name:<20} {mb_s:>9.1} MB/s {ids_s:>9.2} M ids/s")?;
    }
    Ok(Outcome::Done)
}
