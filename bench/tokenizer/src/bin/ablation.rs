//! The worth of each fast path of fasttoken: how much longer each row takes without it.
//!
//! Each round has new texts. All variants load the vocabulary anew, so that none knows a word, and
//! encode the same texts, in turns that begin with another variant each round. The figure is the
//! median over the rounds of the ratio within a round, so that a busy machine matters little.
//!
//! Started by `cargo xtask bench tokenizer --ablation`. The vocabularies are those that are given, or
//! Qwen 3's beside the checkout and the small ones of fasttoken's tests.

#[path = "../corpus.rs"]
mod corpus;
#[path = "../kind.rs"]
mod kind;
#[path = "../synth.rs"]
mod synth;
#[path = "../texts.rs"]
mod texts;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use cpu_time::ProcessTime;
use fasttoken::FastPath;
use fasttoken::Tokenizer;

use corpus::Corpus;
use kind::Kind;
use texts::{Texts, What};

#[derive(Parser)]
#[command(name = "cargo xtask bench tokenizer --ablation", max_term_width = 100)]
struct Args {
    /// The tokenizer.json files to measure with; by default Qwen 3's beside the checkout, and the
    /// small ones of fasttoken's tests.
    vocabularies: Vec<PathBuf>,
    /// Rounds of each measurement; the median counts.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Only these fast paths, by their names, such as `HugePages`.
    #[arg(long, value_delimiter = ',')]
    paths: Vec<String>,
    /// The folder of collected texts; generated text stands in for what is not there.
    #[arg(long)]
    texts: Option<PathBuf>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.ancestors().nth(2).unwrap_or(here);
    let texts = (args.texts).unwrap_or_else(|| root.join("bench/out/tokenizer/texts"));
    let mut vocabularies = args.vocabularies;
    if vocabularies.is_empty() {
        let data = root.join("fasttoken/tests/data");
        let qwen3 = root.join("../shared/tokenizers/qwen3/tokenizer.json");
        let own = ["tokenizer.json", "wordpiece.json", "unigram.json"].map(|file| data.join(file));
        vocabularies.extend([qwen3].into_iter().filter(|path| path.exists()).chain(own));
    }
    let wanted =
        |path: &FastPath| args.paths.is_empty() || args.paths.contains(&format!("{path:?}"));
    let paths: Vec<FastPath> = FastPath::ALL.into_iter().filter(wanted).collect();
    ensure!(!paths.is_empty(), "there is no fast path of that name");
    let mut corpus = Corpus::open(&texts)?;
    run(&vocabularies, &mut corpus, &paths, args.rounds.max(1))?;
    corpus.notes().iter().for_each(|note| println!("- {note}"));
    Ok(())
}

/// A path may go if it is worth less than this share on every row in three of four rounds.
const WORTH: f64 = 0.03;

/// A row: its name, its texts, and how often they are encoded in one turn.
struct Row {
    name: String,
    texts: Texts,
    passes: usize,
}

/// Returns the rows of a vocabulary after the row of loading.
fn rows() -> Vec<Row> {
    let row = |name: String, what, bytes, count, passes| Row {
        name,
        texts: Texts::new(what, bytes, count),
        passes,
    };
    let plain = |kind: Kind| {
        row(
            format!("fresh {}", kind.name()),
            What::Plain(kind),
            8192,
            24,
            1,
        )
    };
    let mut rows: Vec<Row> = Kind::ALL.into_iter().map(plain).collect();
    rows.push(row("fresh chat".to_owned(), What::Chat, 8192, 24, 1));
    for (bytes, count) in [(5, 10_000), (51, 3000), (674, 240)] {
        let name = format!("calls of {bytes} B");
        rows.push(row(name, What::Plain(Kind::English), bytes, count, 1));
    }
    for kind in [Kind::English, Kind::Chinese] {
        let name = format!("warm {}", kind.name());
        rows.push(row(name, What::Plain(kind), 8192, 24, 4));
    }
    let run: fn(usize) -> String = |bytes| "a".repeat(bytes);
    rows.push(row(
        "a run of a".to_owned(),
        What::Pattern(run),
        200_000,
        1,
        1,
    ));
    rows
}

/// Measures the vocabularies and prints their tables.
fn run(
    vocabularies: &[PathBuf],
    corpus: &mut Corpus,
    paths: &[FastPath],
    rounds: usize,
) -> Result<()> {
    let variants: Vec<Option<FastPath>> = std::iter::once(None)
        .chain(paths.iter().copied().map(Some))
        .collect();
    let mut most = vec![(0.0, String::new()); variants.len()];
    for path in vocabularies {
        let title = path.display();
        let json =
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let rows = rows();
        let mut seconds = vec![vec![Vec::new(); rows.len() + 1]; variants.len()];
        for round in 0..rounds {
            let texts: Vec<Vec<String>> = rows
                .iter()
                .map(|row| row.texts.next(corpus, true))
                .collect();
            let mut expected: Option<Vec<u32>> = None;
            for n in (0..variants.len()).map(|n| (n + round) % variants.len()) {
                let (found, ids) = turn(&json, variants[n], &rows, &texts)?;
                for (all, one) in seconds[n].iter_mut().zip(found) {
                    all.push(one);
                }
                let expected = expected.get_or_insert_with(|| ids.clone());
                ensure!(*expected == ids, "other ids without {:?}", variants[n]);
            }
        }
        println!("\n{title}: longer by, in percent, without");
        for (n, variant) in variants.iter().enumerate().skip(1) {
            let name = variant.map(|path| format!("{path:?}")).unwrap_or_default();
            print!("{name:<20}");
            for at in 0..=rows.len() {
                let [loss, median] = loss(&seconds[n][at], &seconds[0][at]);
                print!(" {:>6.1}", median * 100.0);
                if loss > most[n].0 {
                    let row = at.checked_sub(1).map_or("load", |at| &rows[at].name);
                    most[n] = (loss, format!("{title}, {row}"));
                }
            }
            println!();
        }
        let names = rows.iter().map(|row| row.name.as_str());
        let names: Vec<&str> = std::iter::once("load").chain(names).collect();
        println!("columns: {}", names.join(" | "));
    }
    println!("\nthe most that each path is worth on any row in three of four rounds:");
    for (variant, (loss, row)) in variants.iter().zip(&most).skip(1) {
        let name = variant.map(|path| format!("{path:?}")).unwrap_or_default();
        let verdict = if *loss < WORTH { "may go" } else { "" };
        println!("{name:<20} {:>6.1} % ({row}) {verdict}", loss * 100.0);
    }
    Ok(())
}

/// Loads the vocabulary and encodes all texts without one fast path. Returns the seconds of loading
/// and of each row, and the ids.
fn turn(
    json: &[u8],
    variant: Option<FastPath>,
    rows: &[Row],
    texts: &[Vec<String>],
) -> Result<(Vec<f64>, Vec<u32>)> {
    FastPath::leave_out(variant);
    let start = ProcessTime::now();
    let tokenizer = Tokenizer::from_bytes(json)?;
    let mut seconds = vec![start.elapsed().as_secs_f64()];
    let (mut ids, mut all) = (Vec::new(), Vec::new());
    for (row, texts) in rows.iter().zip(texts) {
        if row.passes > 1 {
            encode(&tokenizer, texts, &mut ids);
        }
        let start = ProcessTime::now();
        for _ in 0..row.passes {
            ids.clear();
            encode(&tokenizer, texts, &mut ids);
        }
        seconds.push(start.elapsed().as_secs_f64());
        all.extend_from_slice(&ids);
    }
    FastPath::leave_out(None);
    Ok((seconds, all))
}

fn encode(tokenizer: &Tokenizer, texts: &[String], ids: &mut Vec<u32>) {
    for text in texts {
        tokenizer.encode_into(text, false, ids);
    }
}

/// Returns the share by which `without` is longer than `with`: the lower quartile and the median
/// over the rounds.
fn loss(without: &[f64], with: &[f64]) -> [f64; 2] {
    let mut ratios: Vec<f64> = without.iter().zip(with).map(|(a, b)| a / b - 1.0).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    [ratios.len() / 4, ratios.len() / 2].map(|at| ratios.get(at).copied().unwrap_or_default())
}
