//! The gate: equality with the reference on adversarial strings and on real text.
//!
//! `cargo test` tries some thousand strings per vocabulary; `cargo xtask tokenizer-gate`
//! tries 100,000 and whole folders of text.

#![expect(
    clippy::print_stdout,
    reason = "the gate says what it compared and how long it took"
)]

mod common;

use common::{Both, DEMO, shared_vocabularies, skip, tiktoken_models};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Strings for the demo vocabulary; `FASTTOKEN_STRINGS` sets all three.
const DEMO_STRINGS: usize = 20_000;
/// Strings for each vocabulary that `tiktoken-rs` carries.
const BUNDLED_STRINGS: usize = 2_000;
/// Strings for each real vocabulary.
const SHARED_STRINGS: usize = 2_000;
/// Strings that one thread takes at a time, from a seed of their own.
const STRINGS_PER_SEED: usize = 250;
/// About the length of the pieces of real text.
const DOCUMENT_BYTES: usize = 8_192;

const SMALL: [(&str, &[u8]); 2] = [
    ("wordpiece", include_bytes!("data/wordpiece.json")),
    ("unigram", include_bytes!("data/unigram.json")),
];

fn strings(default: usize) -> usize {
    std::env::var("FASTTOKEN_STRINGS").map_or(default, |n| n.parse().expect("a number of strings"))
}

/// Returns true if `FASTTOKEN_VOCABULARY` is unset or names a part of the vocabulary's name.
fn is_wanted(name: &str) -> bool {
    std::env::var("FASTTOKEN_VOCABULARY").map_or(true, |part| name.contains(&part))
}

fn threads() -> usize {
    std::env::var("FASTTOKEN_THREADS").map_or(2, |n| n.parse().expect("a number of threads"))
}

/// Runs `each` of `0..parts` on several threads, with a bar on a terminal, and a line at the end
/// that says how long it took.
fn in_parts(what: &str, parts: usize, each: impl Fn(usize) + Sync) {
    let bar = ProgressBar::new(parts as u64).with_message(what.to_owned());
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}") {
        bar.set_style(style);
    }
    let (start, next) = (Instant::now(), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..threads() {
            scope.spawn(|| {
                loop {
                    let part = next.fetch_add(1, Ordering::Relaxed);
                    if part >= parts {
                        return;
                    }
                    each(part);
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    println!("{what}: exact, {:.1} s", start.elapsed().as_secs_f64());
}

fn check_strings(both: &Both, strings: usize) {
    let what = format!("{}: {strings} strings", both.name);
    in_parts(&what, strings.div_ceil(STRINGS_PER_SEED), |seed| {
        both.check_many(1 + seed as u64, STRINGS_PER_SEED);
    });
}

#[test]
fn demo_vocabulary_is_exact() {
    let both = Both::demo();
    both.check_vocabulary();
    check_strings(&both, strings(DEMO_STRINGS));
}

/// The demo vocabulary, split as other models split.
#[test]
fn split_patterns_are_exact() {
    let all = common::split_patterns().into_iter();
    for (name, json) in all.filter(|(name, _)| is_wanted(name)) {
        let both = Both::from_json(&name, &json);
        check_strings(&both, strings(BUNDLED_STRINGS));
        check_long_inputs(&both, 1 << 16);
    }
}

/// WordPiece and Unigram, of which no real vocabularies are at hand.
#[test]
fn small_models_are_exact() {
    for (name, json) in SMALL.iter().filter(|(name, _)| is_wanted(name)) {
        let both = Both::from_json(name, json);
        both.check_vocabulary();
        check_strings(&both, strings(BUNDLED_STRINGS));
        check_long_inputs(&both, 1 << 16);
    }
}

#[test]
fn bundled_vocabularies_are_exact() {
    for (name, json) in tiktoken_models::bundled().filter(|(name, _)| is_wanted(name)) {
        let both = Both::from_json(name, &json);
        both.check_vocabulary();
        check_strings(&both, strings(BUNDLED_STRINGS));
    }
}

#[test]
fn shared_vocabularies_are_exact() {
    let all = shared_vocabularies().into_iter();
    for (name, path) in all.filter(|(name, _)| is_wanted(name)) {
        let both = Both::from_json(&name, &std::fs::read(path).expect("readable"));
        both.check_vocabulary();
        check_strings(&both, strings(SHARED_STRINGS));
    }
}

/// All vocabularies on every text of a folder, which `fasttoken/scripts/collect_texts.py`
/// fills.
#[test]
fn real_texts_are_exact() {
    let Some(folder) = std::env::var_os("FASTTOKEN_TEXTS").map(PathBuf::from) else {
        skip(
            "no folder of texts (make one with fasttoken/scripts/collect_texts.py and name it in FASTTOKEN_TEXTS)",
        );
        return;
    };
    let texts = read_texts(&folder);
    let bytes: usize = texts.iter().map(|(_, text)| text.len()).sum();
    println!("{bytes} bytes of text in {} files", texts.len());
    let demo = std::iter::once(("demo", DEMO.to_vec()));
    let bundled = demo.chain(tiktoken_models::bundled());
    let bundled = bundled.map(|(name, json)| (name.to_owned(), json));
    let shared = shared_vocabularies().into_iter();
    let shared = shared.map(|(name, path)| (name, std::fs::read(path).expect("readable")));
    for (name, json) in shared.chain(bundled).filter(|(name, _)| is_wanted(name)) {
        let both = Both::from_json(&name, &json);
        let documents: Vec<&str> = texts.iter().flat_map(|(_, t)| documents(t)).collect();
        let what = format!("{name}: {bytes} bytes of text");
        in_parts(&what, documents.len(), |n| {
            both.check_document(documents[n]);
        });
    }
}

fn read_texts(folder: &Path) -> Vec<(PathBuf, String)> {
    let entries = std::fs::read_dir(folder).expect("FASTTOKEN_TEXTS is a folder");
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let read = |path: PathBuf| Some((path.clone(), std::fs::read_to_string(path).ok()?));
    let texts: Vec<_> = paths.into_iter().filter_map(read).collect();
    assert!(!texts.is_empty(), "no texts in {}", folder.display());
    texts
}

/// Pieces that end at line ends, or anywhere in a line that is long.
fn documents(text: &str) -> Vec<&str> {
    let mut documents = Vec::new();
    let mut rest = text;
    while rest.len() > DOCUMENT_BYTES {
        let near = (DOCUMENT_BYTES..).find(|at| rest.is_char_boundary(*at));
        let near = near.expect("the end is a boundary");
        let line = rest[near..].find('\n').filter(|at| *at < DOCUMENT_BYTES);
        let (document, after) = rest.split_at(line.map_or(near, |at| near + at + 1));
        documents.push(document);
        rest = after;
    }
    documents.push(rest);
    documents
}

/// No input takes quadratic time; a quadratic step would take minutes here. The
/// reference is asked for a shorter text, since it is slow on some of these.
#[test]
fn long_inputs_are_exact_and_finish() {
    check_long_inputs(&Both::demo(), 1 << 20);
    for (name, json) in tiktoken_models::bundled() {
        check_long_inputs(&Both::from_json(name, &json), 1 << 16);
    }
    for (name, path) in shared_vocabularies() {
        let both = Both::from_json(&name, &std::fs::read(path).expect("readable"));
        check_long_inputs(&both, 1 << 16);
    }
}

fn check_long_inputs(both: &Both, long: usize) {
    let base64 = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWZnaGlqa2xtbm9wcXJzdHV2d3h5ejAxMjM0NTY3";
    let scripts = "aжα漢あ가אبกა";
    for unit in [
        "a", "A", " ", "\n", " \n", "\t", "\u{3000}", "🙂", "漢", "漢A", "aA", "1", "!", "'", "'s",
        "\u{301}", "a\u{301}", "각", base64, "<", "<|", "[", "한", scripts, "ab ", "\u{200D}",
    ] {
        let text = unit.repeat(long / unit.len());
        let ids = both.ours.encode(&text, false);
        assert_eq!(both.ours.count(&text, false), ids.len());
        let (prefix, _) = both.ours.encode_prefix(&text, 1000);
        assert_eq!(prefix, ids[..ids.len().min(1000)]);
        both.check_text(&unit.repeat(3_000 / unit.len()));
    }
    // Nothing in it repeats, so no cache and no table helps.
    let mut rng = common::Rng(9);
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let random: String = (0..long)
        .map(|_| char::from(letters[rng.below(64)]))
        .collect();
    assert_eq!(
        both.ours.count(&random, false),
        both.ours.encode(&random, false).len()
    );
    both.check_text(&random[..3_000]);
}
