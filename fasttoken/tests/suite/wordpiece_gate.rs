//! The gate for WordPiece: equality with the reference in the shapes of published files, and in
//! unusual ones that the format allows.

use super::encode_settings::check_settings;
use crate::common::words::{LOWER, Words};
use crate::common::{Both, Rng, adversarial};
use fasttoken::{Error, Tokenizer};
use serde_json::{Value, json};

/// Strings for each published shape in every run, and for each unusual one.
const PUBLISHED_STRINGS: usize = 20_000;
const UNUSUAL_STRINGS: usize = 2_000;

fn both(name: &str, words: &Words) -> Both {
    Both::from_json(name, &words.bytes())
}

fn check(shapes: Vec<(&str, Words)>, strings: usize) {
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

fn bert_processing() -> Value {
    json!({"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]})
}

/// WordPiece whose post-processor trims offsets, as all-mpnet-base-v2 has it.
fn mpnet(add_prefix_space: bool) -> Words {
    let mut words = Words::uncased().with(
        "post_processor",
        json!({"type": "RobertaProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2],
            "trim_offsets": true, "add_prefix_space": add_prefix_space}),
    );
    words.add("<mask>", &["special", "lstrip"]);
    words.add("<end>", &["rstrip"]);
    words
}

#[test]
fn blanks_beside_added_tokens_are_trimmed() {
    for words in [mpnet(false), mpnet(true)] {
        let both = both("MPNet's", &words);
        for text in [
            "a <mask>",
            " <mask> b",
            "a  <mask>\t<mask>",
            "<end>  b <end>",
            "Ġa Ġ <mask>",
            "  ",
        ] {
            both.check_text(text);
        }
    }
}

#[test]
fn published_shapes_are_exact() {
    let old = Words::cased().with("post_processor", bert_processing());
    let shapes = vec![
        ("uncased", Words::uncased()),
        ("cased", Words::cased()),
        ("cased with BertProcessing", old),
        ("MPNet's", mpnet(false)),
        ("MPNet's with a space", mpnet(true)),
    ];
    check(shapes, PUBLISHED_STRINGS);
}

#[test]
fn unusual_shapes_are_exact() {
    let yes = json!(true);
    let no = json!(false);
    let split = |kind: &str| json!({"type": kind});
    let punctuation = |behavior: &str| json!({"type": "Punctuation", "behavior": behavior});
    let sequence = |steps: Vec<Value>| json!({"type": "Sequence", "pretokenizers": steps});
    let digits = |alone: bool| json!({"type": "Digits", "individual_digits": alone});
    let decoder = |prefix: &str, cleanup: bool| json!({"type": "WordPiece", "prefix": prefix, "cleanup": cleanup});
    let forms = |steps: Vec<Value>| json!({"type": "Sequence", "normalizers": steps});
    let shapes = vec![
        (
            "accents stay",
            Words::uncased().normalizer("strip_accents", no.clone()),
        ),
        (
            "accents go",
            Words::cased().normalizer("strip_accents", yes),
        ),
        (
            "nothing is cleaned",
            Words::uncased().normalizer("clean_text", no.clone()),
        ),
        (
            "no spaces for Chinese",
            Words::cased().normalizer("handle_chinese_chars", no),
        ),
        (
            "no normalizer",
            Words::cased().with("normalizer", Value::Null),
        ),
        (
            "NFC, then BERT",
            Words::uncased().with(
                "normalizer",
                forms(vec![
                    json!({"type": "NFKC"}),
                    Words::uncased().json["normalizer"].clone(),
                ]),
            ),
        ),
        (
            "no pre-tokenizer",
            Words::uncased().with("pre_tokenizer", Value::Null),
        ),
        (
            "Whitespace",
            Words::uncased().with("pre_tokenizer", split("Whitespace")),
        ),
        (
            "WhitespaceSplit",
            Words::cased().with("pre_tokenizer", split("WhitespaceSplit")),
        ),
        (
            "Punctuation",
            Words::cased().with("pre_tokenizer", punctuation("Isolated")),
        ),
        (
            "no punctuation",
            Words::cased().with("pre_tokenizer", punctuation("Removed")),
        ),
        (
            "three steps",
            Words::uncased().with(
                "pre_tokenizer",
                sequence(vec![
                    split("WhitespaceSplit"),
                    punctuation("Contiguous"),
                    digits(true),
                ]),
            ),
        ),
        (
            "digits together",
            Words::uncased().with(
                "pre_tokenizer",
                sequence(vec![
                    digits(false),
                    sequence(vec![split("BertPreTokenizer")]),
                ]),
            ),
        ),
        ("no decoder", Words::uncased().with("decoder", Value::Null)),
        (
            "no cleanup",
            Words::uncased().with("decoder", decoder("##", false)),
        ),
        (
            "another prefix in the decoder",
            Words::uncased().with("decoder", decoder("#", true)),
        ),
        (
            "no prefix",
            Words::uncased().model("continuing_subword_prefix", json!("")),
        ),
        (
            "short words",
            Words::uncased().model("max_input_chars_per_word", json!(5)),
        ),
        (
            "another unknown token",
            Words::uncased().model("unk_token", json!("[MASK]")),
        ),
        (
            "added tokens",
            Words::uncased()
                .added("[NEW]", &["special"])
                .added("Café Ü", &["normalized"])
                .added("card", &["normalized", "single_word"])
                .added("<x>", &["lstrip", "rstrip", "normalized"])
                .added("漢", &[])
                .added("İ", &["normalized"]),
        ),
        (
            "added tokens with accents and blanks",
            Words::cased()
                .added("é\u{323}", &["normalized"])
                .added("  ", &["normalized"])
                .added("\u{301}", &["special"])
                .added("Where", &["rstrip"]),
        ),
    ];
    check(shapes, UNUSUAL_STRINGS);
}

#[test]
fn every_setting_is_exact() {
    let old = Words::cased().with("post_processor", bert_processing());
    let bare = Words::uncased().with("post_processor", Value::Null);
    for (name, words) in [
        ("template", Words::uncased()),
        ("BERT", old),
        ("none", bare),
    ] {
        let seen = check_settings(name, &words.bytes(), 21, 400);
        assert!(seen.is_enough(), "{name}: {seen:?}");
    }
}

/// Compares every character alone, after a letter, and before a mark.
#[test]
fn every_character_is_exact() {
    let shapes = [
        ("uncased", Words::uncased()),
        ("cased", Words::cased()),
        (
            "accents stay",
            Words::uncased().normalizer("strip_accents", json!(false)),
        ),
    ];
    for (name, words) in shapes {
        let both = both(name, &words);
        let all: Vec<char> = ('\0'..=char::MAX).collect();
        for chunk in all.chunks(512) {
            let mut text = String::new();
            for &c in chunk {
                text.extend(['e', c, ' ', c, '\u{334}', '\u{345}', c]);
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
    let long_words = Words::uncased().model("max_input_chars_per_word", json!(u64::MAX));
    for (name, words) in [("uncased", Words::uncased()), ("long words", long_words)] {
        let both = both(name, &words);
        for unit in [
            "a", "A", " ", "e\u{301}", "\u{301}", "漢", "각", "🙂", ".", "the ", "[CLS]", "İ",
            "\0", "\u{FFFD}", "ab", "[", "ß",
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
    let ours = both("prefix", &Words::uncased()).ours;
    let mut rng = Rng(5);
    for _ in 0..2_000 {
        let text = adversarial(&mut rng, &[]);
        let all = ours.encode(&text, false);
        let mut covered = 0;
        for limit in 0..all.len() + 2 {
            let (ids, bytes) = ours.encode_prefix(&text, limit);
            assert_eq!(ids, all[..limit.min(all.len())], "{limit} of {text:?}");
            assert!(bytes >= covered && text.is_char_boundary(bytes));
            covered = bytes;
        }
        assert_eq!(covered, text.len());
    }
}

/// Text from people must not speak as the program.
#[test]
fn plain_text_gives_no_added_tokens() {
    let words = Words::cased().with("pre_tokenizer", json!({"type": "WhitespaceSplit"}));
    let ours = both("plain", &words).ours;
    for text in ["[CLS]", "a [SEP] b", "[MASK]x", "[UNK] [PAD]"] {
        let mut ids = Vec::new();
        ours.encode_plain_into(text, &mut ids);
        let unknown = ours.token_to_id("[UNK]");
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

#[test]
fn batches_are_the_single_texts() {
    let ours = both("batch", &Words::uncased()).ours;
    let mut rng = Rng(8);
    let texts: Vec<String> = (0..300).map(|_| adversarial(&mut rng, &[])).collect();
    let one: Vec<Vec<u32>> = texts.iter().map(|text| ours.encode(text, true)).collect();
    assert_eq!(ours.encode_batch(&texts, true, 3), one);
}

fn refused(words: &Words) -> Error {
    match Tokenizer::from_bytes(&words.bytes()) {
        Ok(_) => panic!("loaded"),
        Err(error) => error,
    }
}

#[test]
fn settings_that_would_not_be_exact_are_refused_by_name() {
    let merged = json!({"type": "Punctuation", "behavior": "MergedWithNext"});
    let bert = json!({"type": "BertNormalizer"});
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
    });
    for (words, expected) in [
        (
            Words::cased().model("unk_token", json!("[NONE]")),
            "$.model.unk_token: \"[NONE]\"",
        ),
        (
            Words::cased().model("unk_token", Value::Null),
            "needs \"unk_token\"",
        ),
        (
            Words::cased().model("max_input_chars_per_word", Value::Null),
            "max_input_chars",
        ),
        (
            Words::cased().model("continuing_subword_prefix", Value::Null),
            "continuing_subword",
        ),
        (
            Words::cased().model("vocab", Value::Null),
            "a map \"vocab\"",
        ),
        (Words::cased().model("vocab", json!([])), "must be a map"),
        (
            Words::cased().with("pre_tokenizer", merged),
            "behavior MergedWithNext",
        ),
        (
            Words::cased().with("pre_tokenizer", byte_level.clone()),
            "pre-tokenizer ByteLevel",
        ),
        (
            Words::cased().with("normalizer", bert),
            "\"lowercase\" is missing",
        ),
        (
            Words::cased().with("normalizer", json!({"type": "Odd"})),
            "normalizer Odd",
        ),
        (
            Words::cased().with("decoder", json!({"type": "CTC"})),
            "decoder CTC",
        ),
        (
            Words::cased().with("post_processor", byte_level),
            "trims offsets",
        ),
    ] {
        let text = refused(&words).to_string();
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn the_vocabulary_is_of_use() {
    // Words that are one token, words of several, and unknown ones must all be there.
    let ours = both("use", &Words::uncased()).ours;
    let ids = ours.encode("the tokenizers are wonderful 🙂", false);
    let unknown = ours.token_to_id("[UNK]").expect("known");
    let spelled: Vec<&str> = ids.iter().map(|id| LOWER[*id as usize].as_str()).collect();
    assert!(
        spelled.contains(&"the") && ids.contains(&unknown),
        "{spelled:?}"
    );
    assert!(
        spelled.iter().any(|token| token.starts_with("##")),
        "{spelled:?}"
    );
}
