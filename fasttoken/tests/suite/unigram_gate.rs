//! The gate for Unigram: equality with the reference in the shapes of published files, and in
//! unusual ones that the format allows.

use super::encode_settings::check_settings;
use crate::common::scored::{
    Scored, metaspace, normalizers, precompiled, pretokenizers, replace_regex,
};
use crate::common::sentencepiece_models::replace;
use crate::common::{Both, Rng, adversarial};
use fasttoken::Tokenizer;
use serde_json::{Value, json};

/// Strings for each published shape in every run, and for each unusual one.
const PUBLISHED_STRINGS: usize = 10_000;
const UNUSUAL_STRINGS: usize = 2_000;

fn both(name: &str, scored: &Scored) -> Both {
    Both::from_json(name, &scored.bytes())
}

fn check(shapes: Vec<(&str, Scored)>, strings: usize) {
    let all: Vec<Both> = shapes.iter().map(|(name, s)| both(name, s)).collect();
    std::thread::scope(|scope| {
        for (n, both) in all.iter().enumerate() {
            scope.spawn(move || {
                both.check_vocabulary();
                both.check_many(n as u64, strings);
            });
        }
    });
}

#[test]
fn published_shapes_are_exact() {
    let shapes = vec![
        ("XLM-R", Scored::xlm_r()),
        ("XLM-R, converted", Scored::converted()),
        ("T5", Scored::t5()),
        ("ALBERT", Scored::albert()),
        ("with bytes", Scored::converted().bytes_too()),
    ];
    check(shapes, PUBLISHED_STRINGS);
}

#[test]
fn unusual_shapes_are_exact() {
    let strip = |left: bool, right: bool| json!({"type": "Strip", "strip_left": left, "strip_right": right});
    let kind = |kind: &str| json!({"type": kind});
    let normalizer = |steps: Vec<Value>| Scored::converted().with("normalizer", normalizers(steps));
    let splitter = |value: Value| Scored::converted().with("pre_tokenizer", value);
    let mut scores = Scored::xlm_r();
    for (n, entry) in scores.json["model"]["vocab"]
        .as_array_mut()
        .expect("a list")
        .iter_mut()
        .enumerate()
    {
        // Ties everywhere, and tokens that are worth less than unknown text.
        entry[1] = json!(f64::from(n as u32 % 3) - if n % 50 == 0 { 40.0 } else { 3.0 });
    }
    let shapes = vec![
        (
            "no normalizer",
            Scored::xlm_r().with("normalizer", Value::Null),
        ),
        (
            "Nmt and NFKC",
            normalizer(vec![kind("Nmt"), kind("NFKC"), strip(true, true)]),
        ),
        (
            "strip left",
            normalizer(vec![strip(true, false), kind("Lowercase")]),
        ),
        (
            "strip right",
            normalizer(vec![kind("NFKD"), strip(false, true)]),
        ),
        (
            "map after NFD",
            normalizer(vec![kind("NFD"), precompiled(), kind("StripAccents")]),
        ),
        (
            "map twice",
            normalizer(vec![precompiled(), replace(" ", "  "), precompiled()]),
        ),
        (
            "prepended",
            normalizer(vec![
                json!({"type": "Prepend", "prepend": "▁"}),
                precompiled(),
            ]),
        ),
        (
            "a pattern",
            normalizer(vec![replace_regex(r"[0-9]+|\p{L}e", "é▁"), precompiled()]),
        ),
        (
            "blanks go",
            normalizer(vec![replace_regex(r"\s+", ""), precompiled()]),
        ),
        ("first", splitter(metaspace("first", true))),
        (
            "first after the map",
            Scored::converted().with("pre_tokenizer", metaspace("first", false)),
        ),
        (
            "first after normalizers that remove",
            normalizer(vec![strip(true, false), replace(" ", ""), precompiled()])
                .with("pre_tokenizer", metaspace("first", true))
                .added("card", &["normalized"]),
        ),
        (
            "never",
            splitter(metaspace("never", true)).with("decoder", metaspace("never", true)),
        ),
        (
            "whole",
            splitter(metaspace("always", false)).with("decoder", metaspace("first", true)),
        ),
        (
            "many steps",
            splitter(pretokenizers(vec![
                kind("WhitespaceSplit"),
                json!({"type": "Punctuation", "behavior": "Isolated"}),
                json!({"type": "Digits", "individual_digits": true}),
                metaspace("first", true),
            ])),
        ),
        ("no pre-tokenizer", splitter(Value::Null)),
        ("ties", scores),
        (
            "another unknown token",
            Scored::converted().model("unk_id", json!(700)),
        ),
        (
            "unknown bytes",
            Scored::xlm_r()
                .bytes_too()
                .with("pre_tokenizer", metaspace("never", false)),
        ),
        (
            "few bytes",
            Scored::xlm_r().model("byte_fallback", json!(true)),
        ),
        (
            "added tokens",
            Scored::converted()
                .added("Café", &["normalized"])
                .added("<x>", &["lstrip", "rstrip", "normalized"])
                .added("▁▁", &["normalized"])
                .added("ﬁ", &["normalized", "single_word"])
                .added("漢", &[]),
        ),
    ];
    check(shapes, UNUSUAL_STRINGS);
}

#[test]
fn every_setting_is_exact() {
    let bytes = Scored::converted().bytes_too();
    for (name, scored) in [
        ("XLM-R", Scored::xlm_r()),
        ("T5", Scored::t5()),
        ("bytes", bytes),
    ] {
        let seen = check_settings(name, &scored.bytes(), 31, 300);
        assert!(seen.is_enough(), "{name}: {seen:?}");
    }
}

/// Compares every character alone, after a letter, and before a mark.
#[test]
fn every_character_is_exact() {
    let nmt = Scored::xlm_r().with("normalizer", json!({"type": "Nmt"}));
    for (name, scored) in [
        ("map", Scored::xlm_r()),
        ("ALBERT", Scored::albert()),
        ("Nmt", nmt),
    ] {
        let both = both(name, &scored);
        let all: Vec<char> = ('\0'..=char::MAX).collect();
        for chunk in all.chunks(512) {
            let mut text = String::new();
            for &c in chunk {
                text.extend(['e', c, ' ', c, '\u{301}', c, c]);
            }
            let theirs = both.reference.encode(text.as_str(), false).expect("works");
            let ours = both.ours.encode_with_offsets(&text, false);
            assert_eq!(ours.ids, theirs.get_ids(), "{name}: {:?}", chunk[0]);
            assert_eq!(ours.offsets, theirs.get_offsets(), "{name}: {:?}", chunk[0]);
        }
    }
}

/// No input takes quadratic time; a quadratic step would take minutes here.
#[test]
fn long_inputs_are_exact_and_finish() {
    let whole = Scored::converted().with("pre_tokenizer", metaspace("always", false));
    for (name, scored) in [("XLM-R", Scored::xlm_r()), ("whole texts", whole)] {
        let both = both(name, &scored);
        for unit in [
            "a", "e", " ", "e\u{301}", "\u{301}", "漢", "각", "🙂", ".", "the ", "<s>", "ﬁ", "\0",
            "\u{200D}", "ab", "<", "\r\n",
        ] {
            let text = unit.repeat((1 << 19) / unit.len());
            let ids = both.ours.encode(&text, false);
            assert_eq!(both.ours.count(&text, false), ids.len());
            let (prefix, _) = both.ours.encode_prefix(&text, 1000);
            assert_eq!(prefix, ids[..ids.len().min(1000)]);
            both.check_text(&unit.repeat(2_000 / unit.len()));
        }
    }
}

#[test]
fn a_prefix_ends_before_the_next_id() {
    let ours = both("prefix", &Scored::xlm_r()).ours;
    let mut rng = Rng(6);
    for _ in 0..1_000 {
        let text = adversarial(&mut rng, &[]);
        let all = ours.encode(&text, false);
        for limit in 0..all.len() + 2 {
            let (ids, bytes) = ours.encode_prefix(&text, limit);
            assert_eq!(ids, all[..limit.min(all.len())], "{limit} of {text:?}");
            assert!(text.is_char_boundary(bytes));
        }
    }
}

/// Text from people must not speak as the program.
#[test]
fn plain_text_gives_no_added_tokens() {
    for scored in [Scored::xlm_r(), Scored::converted().bytes_too()] {
        let ours = both("plain", &scored).ours;
        for text in ["<s>", "a </s> b", "<mask>x", "<unk> <pad>", "</s></s>"] {
            let mut ids = Vec::new();
            ours.encode_plain_into(text, &mut ids);
            let unknown = ours.token_to_id("<unk>");
            let added = ours.added_tokens().map(|(id, _)| id);
            let found: Vec<u32> = added
                .filter(|id| ids.contains(id) && Some(*id) != unknown)
                .collect();
            assert!(
                found.is_empty() && !ids.is_empty(),
                "{text:?}: {ids:?} has {found:?}"
            );
        }
    }
}

#[test]
fn settings_that_would_not_be_exact_are_refused_by_name() {
    let map = |map: &str| json!({"type": "Precompiled", "precompiled_charsmap": map});
    let after = pretokenizers(vec![
        metaspace("always", true),
        json!({"type": "WhitespaceSplit"}),
    ]);
    let nothing = replace_regex("a*", "");
    let twice = json!([["<unk>", 0.0], ["a", -1.0], ["a", -2.0]]);
    for (scored, expected) in [
        (
            Scored::xlm_r().model("unk_id", Value::Null),
            "$.model.unk_id",
        ),
        (
            Scored::xlm_r().model("unk_id", json!(1_000_000)),
            "not the id of one",
        ),
        (
            Scored::xlm_r().model("vocab", json!({})),
            "list of tokens with their scores",
        ),
        (
            Scored::xlm_r().model("vocab", Value::Null),
            "a list \"vocab\"",
        ),
        (
            Scored::xlm_r()
                .model("vocab", twice)
                .model("unk_id", json!(0)),
            "\"a\" twice",
        ),
        (Scored::xlm_r().with("normalizer", map("")), "shorter"),
        (Scored::xlm_r().with("normalizer", map("A")), "Base64"),
        (
            Scored::xlm_r().with("normalizer", map("CAAAAA==")),
            "shorter",
        ),
        (
            Scored::xlm_r().with("normalizer", map("AAAAAA==")),
            "no units",
        ),
        (Scored::xlm_r().with("normalizer", nothing), "match nothing"),
        (
            Scored::xlm_r().with("normalizer", replace("", "a")),
            "Replace of nothing",
        ),
        (
            Scored::xlm_r().with("pre_tokenizer", after),
            "WhitespaceSplit after Metaspace",
        ),
    ] {
        let error = Tokenizer::from_bytes(&scored.bytes()).expect_err(expected);
        let text = error.to_string();
        assert!(text.contains(expected), "{text}");
    }
}

/// A damaged map may give other text, but no panic.
#[test]
fn damaged_maps_do_no_harm() {
    let map = crate::common::scored::CHARSMAP.trim();
    let mut rng = Rng(9);
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut loaded = 0;
    for _ in 0..200 {
        let mut bytes = map.as_bytes().to_vec();
        for _ in 0..rng.below(2_000) {
            // The units come first, and the replacements after them stay UTF-8.
            let at = 8 + rng.below(bytes.len() * 2 / 3);
            bytes[at] = alphabet[rng.below(64)];
        }
        let damaged = String::from_utf8(bytes).expect("ASCII");
        let normalizer = json!({"type": "Precompiled", "precompiled_charsmap": damaged});
        let json = Scored::xlm_r().with("normalizer", normalizer).bytes();
        if let Ok(tokenizer) = Tokenizer::from_bytes(&json) {
            loaded += 1;
            for _ in 0..50 {
                let text = adversarial(&mut rng, &[]);
                let ids = tokenizer.encode(&text, true);
                assert_eq!(tokenizer.encode_with_offsets(&text, true).ids, ids);
            }
        }
    }
    assert!(loaded > 150, "{loaded}");
}
