//! Files of ranks and `tekken.json`: the ids of tiktoken and mistral-common.

use crate::common::tiktoken_models::real_ranks;
use crate::common::{Rng, adversarial};
use fasttoken::{Error, TiktokenEncoding, Tokenizer};
use serde::Deserialize;
use std::collections::BTreeMap;

const RANKS: &str = include_str!("../data/small.tiktoken");
const TEKKEN: &str = include_str!("../data/tekken.json");

/// A text and its ids, which `scripts/small_ranks.py` wrote: without special tokens for four
/// encodings, with `special` tokens for cl100k, and of `tekken` with `<s>`.
#[derive(Deserialize)]
struct Vector {
    text: String,
    tekken: Vec<u32>,
    r50k_base: Vec<u32>,
    cl100k_base: Vec<u32>,
    o200k_base: Vec<u32>,
    kimi: Vec<u32>,
    special: Vec<u32>,
}

fn vectors() -> Vec<Vector> {
    serde_json::from_str(include_str!("../data/ranks-vectors.json")).expect("written by a script")
}

/// The small ranks with the pattern of an encoding, and two special tokens.
fn small(name: &str) -> Tokenizer {
    let encoding = TiktokenEncoding::named(name).expect("a name of tiktoken");
    small_by(&encoding.pattern)
}

fn small_by(pattern: &str) -> Tokenizer {
    let encoding = TiktokenEncoding {
        pattern: pattern.to_owned(),
        special_tokens: vec![
            ("<|endoftext|>".to_owned(), 1000),
            ("<|endofprompt|>".to_owned(), 1007),
        ],
    };
    Tokenizer::from_tiktoken(RANKS.as_bytes(), &encoding).expect("loads")
}

fn plain(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    tokenizer.encode_plain_into(text, &mut ids);
    ids
}

#[test]
fn ranks_give_the_ids_of_tiktoken() {
    let [gpt2, cl100k, o200k] = ["r50k_base", "cl100k_base", "o200k_base"].map(small);
    let patterns = include_str!("../data/patterns.json");
    let patterns: BTreeMap<String, String> = serde_json::from_str(patterns).expect("JSON");
    let kimi = small_by(&patterns["kimi"]);
    for tokenizer in [&gpt2, &cl100k, &o200k, &kimi] {
        assert_eq!(tokenizer.warnings(), []);
    }
    let vectors = vectors();
    assert!(vectors.len() > 300);
    for vector in vectors {
        let text = &vector.text;
        assert_eq!(plain(&gpt2, text), vector.r50k_base, "gpt2: {text:?}");
        assert_eq!(plain(&cl100k, text), vector.cl100k_base, "cl100k: {text:?}");
        assert_eq!(plain(&o200k, text), vector.o200k_base, "o200k: {text:?}");
        assert_eq!(plain(&kimi, text), vector.kimi, "kimi: {text:?}");
        let ids = cl100k.encode(text, true);
        assert_eq!(ids, vector.special, "special: {text:?}");
        assert_eq!(cl100k.decode(&ids, false), *text);
    }
}

#[test]
fn tekken_gives_the_ids_of_mistral_common() {
    let tokenizer = Tokenizer::from_tekken(TEKKEN.as_bytes()).expect("loads");
    assert_eq!(tokenizer.warnings(), []);
    assert_eq!(tokenizer.token_to_id("[INST]"), Some(3));
    assert_eq!(tokenizer.token_to_id("<SPECIAL_20>"), Some(20));
    for vector in vectors() {
        let text = &vector.text;
        let (bos, ids) = vector.tekken.split_first().expect("<s> at least");
        assert_eq!(plain(&tokenizer, text), ids, "{text:?}");
        assert_eq!(tokenizer.encode("", true), [*bos]);
    }
}

/// The vocabularies that `tiktoken-rs` carries, against its own ids.
#[test]
fn real_ranks_give_the_ids_of_tiktoken() {
    for (name, bpe, ranks) in real_ranks() {
        let encoding = TiktokenEncoding::named(name).expect("a name of tiktoken");
        let tokenizer = Tokenizer::from_tiktoken(&ranks, &encoding).expect("loads");
        assert_eq!(tokenizer.warnings(), []);
        for (token, id) in &encoding.special_tokens {
            assert_eq!(tokenizer.token_to_id(token), Some(*id));
        }
        let mut rng = Rng(7);
        for _ in 0..3_000 {
            // Its regular expressions know characters of another Unicode version.
            let text = adversarial(&mut rng, &[]);
            let text: String = text.chars().filter(|c| *c < '\u{3000}').collect();
            assert_eq!(
                plain(&tokenizer, &text),
                bpe.encode_ordinary(&text),
                "{name}: {text:?}"
            );
        }
    }
}

fn refusal(ranks: &str) -> String {
    let encoding = TiktokenEncoding::named("gpt2").expect("a name of tiktoken");
    match Tokenizer::from_tiktoken(ranks.as_bytes(), &encoding) {
        Ok(_) => panic!("loaded"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn damaged_ranks_are_refused() {
    for (changed, part) in [
        (RANKS.replacen("AA== 0\n", "", 1), "byte 0x00"),
        (RANKS.replacen("AA== 0\n", "AA=\n", 1), "line 1 "),
        (RANKS.replacen("AA== 0\n", "AA== -1\n", 1), "line 1 "),
        (
            RANKS.replacen("AA== 0\n", "AA== 99999999999\n", 1),
            "line 1 ",
        ),
        (RANKS.replacen("AA== 0\n", "AA==0\n", 1), "line 1 "),
        (format!("{RANKS}AA== 2000\n"), "twice"),
        (format!("{RANKS}QUJDREVGRw== 7\n"), "id 7"),
        (format!("{RANKS} 2000\n"), "line "),
        (
            format!("{RANKS}{} 2000\n", "QUJD".repeat(1000)),
            "1024 bytes",
        ),
    ] {
        let problem = refusal(&changed);
        assert!(problem.contains(part), "{problem}");
    }
    assert_eq!(TiktokenEncoding::named("cl200k_base"), None);
}

/// Ranks in which a token is joined from one of a higher rank are refused, since merge rules in the
/// order of ranks would not make it where tiktoken does.
#[test]
fn ranks_out_of_order_are_refused() {
    let bytes: Vec<&str> = RANKS.lines().take(256).collect();
    let bytes = bytes.join("\n");
    // "qxz" before "xz", which it is joined from: tiktoken makes it, merge rules do not.
    let problem = refusal(&format!("{bytes}\ncXh6 256\neHo= 257\n"));
    assert!(problem.contains("qxz"), "{problem}");
    // No two tokens join to "qxz", which is a token only where it is a word.
    let encoding = TiktokenEncoding::named("gpt2").expect("a name of tiktoken");
    let ranks = format!("{bytes}\ncXh6 256\n");
    let tokenizer = Tokenizer::from_tiktoken(ranks.as_bytes(), &encoding).expect("loads");
    assert_eq!(plain(&tokenizer, "qxz"), [256]);
    assert_eq!(plain(&tokenizer, "qxzq").len(), 4);
}

#[test]
fn damaged_tekken_files_are_refused() {
    let check = |from: &str, to: &str, part: &str| {
        let changed = TEKKEN.replacen(from, to, 1);
        assert_ne!(changed, TEKKEN, "{from}");
        match Tokenizer::from_tekken(changed.as_bytes()) {
            Ok(_) => panic!("loaded: {to}"),
            Err(error) => assert!(error.to_string().contains(part), "{error}"),
        }
    };
    check(r#""rank": 1,"#, r#""rank": 2,"#, "$.vocab[1]");
    check("AA==", "AA=", "$.vocab[0]");
    check(
        r#""default_vocab_size": "#,
        r#""default_vocab_size": 9"#,
        "$.config",
    );
    check(r#"tokens": 24"#, r#"tokens": 4000000000"#, "$.config");
    check(r#"tokens": 24"#, r#"tokens": 19"#, "rank 19");
    let twice = r#""special_tokens": [{"rank": 1, "token_str": "a"}, {"rank": 1, "token_str": "b"}], "vocab""#;
    check(r#""vocab""#, twice, "rank 1 has two");
    assert!(matches!(Tokenizer::from_tekken(b"{}"), Err(Error::Json(_))));
}
