//! Texts full of added tokens: ids come from words of many segments at a time, offsets from
//! one segment after the other, and both are the reference's.

use crate::common::Both;
use crate::common::small::{Small, sequence, split};
use crate::common::tiktoken_models::{CL100K, O200K};
use crate::deepseek_splits::splits;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::LazyLock;

/// Contents and flags of added tokens, of up to 15 bytes, of up to 31, and longer; some are
/// words of the vocabulary, words of others' blanks, or begin as others do.
const ADDED: &[(&str, &[&str])] = &[
    ("<|im_start|>", &["special"]),
    ("<|im_end|>", &["special"]),
    ("<|im", &[]),
    ("<|a rather long token|>", &["special"]),
    ("<|a token that is longer than a word may be|>", &[]),
    ("<l>", &["lstrip"]),
    ("<r>", &["rstrip"]),
    ("<lr>", &["lstrip", "rstrip"]),
    ("ab", &["single_word"]),
    ("  ", &[]),
    ("\n\n", &["rstrip"]),
    ("éx", &["normalized"]),
    ("<n>", &["normalized", "lstrip"]),
    ("xyz", &["normalized", "single_word"]),
    ("中", &[]),
];

/// Texts are made of these; added tokens come as often.
const PARTS: &[&str] = &[
    "a",
    "b",
    "ab",
    "abab",
    " ab",
    "xyz",
    " xyz",
    "x",
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    " \n",
    "\t",
    "1",
    "123",
    "12345",
    "'s",
    "'",
    "e\u{301}",
    "e",
    "\u{301}",
    "é",
    "É",
    "ﬁ",
    "Å",
    "\u{327}\u{301}",
    "<",
    "<|",
    "<|im_start",
    "|>",
    "中文",
    "中",
    "。",
    "🙂",
    "\u{3000}",
    "\u{A0}",
    "/",
    "!!\n",
    ";",
    "a word and another, and more than a block of them before the end of this segment",
    "internationalization",
    "internationalisationists of antidisestablishmentarianism",
];

/// A tokenizer for each split that has a scanner, one without, and each normalization.
fn all() -> Vec<Both> {
    let qwen2 = CL100K.replace("{1,3}", "");
    let alone = |pattern: &str| sequence(vec![split(pattern, "Isolated", false)]);
    let form = |name: &str| json!({ "type": name });
    let nothing = || Value::Null;
    let shapes = [
        ("gpt2", None, nothing()),
        ("gpt2 nfc", None, form("NFC")),
        ("qwen2 nfc", Some(alone(&qwen2)), form("NFC")),
        ("cl100k nfkc", Some(alone(CL100K)), form("NFKC")),
        ("o200k nfd", Some(alone(O200K)), form("NFD")),
        ("deepseek", Some(sequence(splits())), nothing()),
        ("own", Some(alone(r"\p{L}+|[^\p{L}]")), form("NFC")),
    ];
    let mut all = Vec::new();
    for (name, splits, normalizer) in shapes {
        // All tokens, and those without the ones that are searched in normalized text.
        for normalized in [true, false] {
            let mut small = Small::new()
                .merge("a", "b")
                .merge("ab", "ab")
                .merge("Ġ", "ab")
                .merge("Ġ", "Ġ")
                .merge("Ċ", "Ċ")
                .merge("i", "m")
                .merge("|", ">");
            if let Some(splits) = &splits {
                small = small.with("pre_tokenizer", splits.clone());
            }
            small = small.with("normalizer", normalizer.clone());
            for (content, flags) in ADDED {
                if normalized || !flags.contains(&"normalized") {
                    small = small.added(content, flags);
                }
            }
            all.push(Both::from_json(name, &small.bytes()));
        }
    }
    all
}

static ALL: LazyLock<Vec<Both>> = LazyLock::new(all);

fn text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        (0..PARTS.len()).prop_map(|n| PARTS[n]),
        (0..ADDED.len()).prop_map(|n| ADDED[n].0),
    ];
    let few = prop::collection::vec(part.clone(), 0..12);
    let many = prop::collection::vec(part, 0..120);
    prop_oneof![few, many].prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn segments_are_encoded_as_the_reference_does(text in text()) {
        for both in ALL.iter() {
            both.check_text(&text);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// More words than are collected at a time, so that these end anywhere.
    #[test]
    fn words_of_many_segments_are_those_of_each(text in text(), times in 1usize..12) {
        let text = text.repeat(times);
        for both in ALL.iter() {
            let ids = both.ours.encode(&text, false);
            let segments = both.ours.encode_with_offsets(&text, false);
            prop_assert_eq!(&ids, &segments.ids, "{}: {:?}", both.name, text);
            prop_assert_eq!(both.ours.count(&text, false), ids.len());
        }
    }

    /// Plain text has the ids of a text in which no added token is found.
    #[test]
    fn plain_text_has_no_added_tokens(text in text()) {
        for both in ALL.iter() {
            let mut ids = Vec::new();
            both.ours.encode_plain_into(&text, &mut ids);
            for (id, token) in both.ours.added_tokens() {
                let byte = token.content.len() == 1;
                prop_assert!(byte || !ids.contains(&id), "{}: {:?}", both.name, text);
            }
        }
    }
}

#[test]
fn added_tokens_are_not_remembered_as_words() {
    // The same bytes as a word: first known as a token of the text, then not.
    for both in ALL.iter() {
        let ours = &both.ours;
        let mut plain = Vec::new();
        for _ in 0..3 {
            let id = ours.token_to_id("<|im_end|>").expect("it is there");
            assert_eq!(ours.encode("<|im_end|><|im_end|>", false), [id, id]);
            plain.clear();
            ours.encode_plain_into("<|im_end|>", &mut plain);
            assert!(!plain.contains(&id), "{}", both.name);
            let none = "<|im_end|";
            both.check_text(none);
        }
    }
}

#[test]
fn segments_of_every_length_end_where_groups_do() {
    // Words go in groups of 64, and up to 576 are collected.
    for both in ALL.iter() {
        for words in (0..70)
            .chain(500..590)
            .chain([1150, 1151, 1152, 1153, 1154])
        {
            let text = format!(
                "{}<|im_end|>{}",
                " b".repeat(words),
                "\n x".repeat(words % 67)
            );
            let ids = both.ours.encode(&text, false);
            let segments = both.ours.encode_with_offsets(&text, false);
            assert_eq!(ids, segments.ids, "{} {words}", both.name);
        }
        both.check_text(&"<|im_end|>".repeat(1200));
        both.check_text(&"<|im_end|>a <r>  b".repeat(700));
    }
}
