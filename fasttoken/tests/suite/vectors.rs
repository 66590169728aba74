//! Recorded results of the reference for the demo vocabulary, so that the crate can
//! be checked without it, and so that a new reference version shows as a change.

use crate::common::Both;
use fasttoken::{EncodeOptions, Offsets};
use serde_json::{Value, json};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/vectors.json");

const TEXTS: &[&str] = &[
    "",
    " ",
    "a",
    "Where is my card?",
    "I am still waiting on my card, it's been 2 weeks!",
    "<|im_start|>user\nHow do I top up?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "<|im_start",
    "|im_end|>",
    "<think",
    "tabs\tand\r\nlines \n\n  indented",
    "   ",
    "a   b",
    "a   ",
    "don't DON'T don'ſt we'LL",
    "12345 3.14 ½ Ⅷ ٣٤",
    "naïve café e\u{301} Å",
    "각 가각",
    "你好，世界",
    "日本語テキスト",
    "Привет, мир",
    "مرحبا",
    "🙂👩‍👩‍👧‍👦🇩🇪",
    "\u{A0}\u{3000}\u{200B}\u{FEFF}\u{85}x",
    "£100.50 (€5)",
    "a_b.c/d\\e",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
];

#[test]
fn recorded_vectors_hold() {
    let json = std::fs::read(FILE).expect("the vectors are part of the crate");
    let vectors: Vec<Value> = serde_json::from_slice(&json).expect("a list");
    assert!(vectors.len() > TEXTS.len());
    let both = Both::demo();
    for vector in vectors {
        let text = vector["text"].as_str().expect("a text");
        let encoding = both.ours.encode_with_offsets(text, false);
        assert_eq!(json!(encoding.ids), vector["ids"], "{text:?}");
        assert_eq!(json!(encoding.offsets), vector["offsets"], "{text:?}");
        assert_eq!(
            both.ours.decode(&encoding.ids, false),
            vector["decoded"],
            "{text:?}"
        );
    }
}

/// Compares with what the reference's Python package made of texts. It counts offsets in
/// characters.
fn check_recorded(name: &str, file: &[u8], vectors: &str) {
    let both = Both::from_json(name, file);
    both.check_vocabulary();
    let vectors: Vec<Value> = serde_json::from_str(vectors).expect("a list");
    assert!(vectors.len() > 300);
    let options = EncodeOptions::new()
        .add_special_tokens(true)
        .offsets(Offsets::Chars);
    for vector in vectors {
        let text = vector["text"].as_str().expect("a text");
        let encoding = both.ours.encode_with(text, &options).expect("no limits");
        assert_eq!(json!(encoding.ids), vector["ids"], "{text:?}");
        assert_eq!(json!(encoding.offsets), vector["offsets"], "{text:?}");
        let decoded = both.ours.decode(&encoding.ids, false);
        assert_eq!(decoded, vector["decoded"], "{text:?}");
        both.check_text(text);
    }
}

#[test]
fn recorded_wordpiece_vectors_hold() {
    let file = include_bytes!("../data/wordpiece.json");
    let vectors = include_str!("../data/wordpiece-vectors.json");
    check_recorded("wordpiece", file, vectors);
}

#[test]
fn recorded_unigram_vectors_hold() {
    let file = include_bytes!("../data/unigram.json");
    let vectors = include_str!("../data/unigram-vectors.json");
    check_recorded("unigram", file, vectors);
}

#[test]
#[ignore = "writes tests/data/vectors.json from the reference; run it when that changes"]
fn record_vectors() {
    let both = Both::demo();
    let mut rng = crate::common::Rng(2026);
    let mut texts: Vec<String> = TEXTS.iter().map(|text| (*text).to_owned()).collect();
    texts.extend((0..100).map(|_| crate::common::adversarial(&mut rng, &both.added)));
    let lines: Vec<String> = texts
        .iter()
        .map(|text| {
            let encoding = both
                .reference
                .encode(text.as_str(), false)
                .expect("encodes");
            let ids = encoding.get_ids();
            let decoded = both.reference.decode(ids, false).expect("decodes");
            let vector = json!({
                "text": text, "ids": ids, "offsets": encoding.get_offsets(), "decoded": decoded,
            });
            vector.to_string()
        })
        .collect();
    std::fs::write(FILE, format!("[\n{}\n]\n", lines.join(",\n"))).expect("writable");
}
