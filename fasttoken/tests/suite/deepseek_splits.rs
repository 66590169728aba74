//! The splits of DeepSeek V3, which run as one grammar, and splits that are nearly these,
//! which do not.

use crate::common::Both;
use crate::common::small::{Small, byte_level, split};
use serde_json::{Value, json};

pub(crate) fn splits() -> Vec<Value> {
    vec![
        split(r"\p{N}{1,3}", "Isolated", false),
        split("[一-龥\u{3040}-ゟ゠-ヿ]+", "Isolated", false),
        split(
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
            "Isolated",
            false,
        ),
    ]
}

/// Merges reach over every border that a wrong split could miss.
fn check(name: &str, steps: Vec<Value>, last: Value, strings: usize) {
    let mut small = Small::new();
    let letters = [
        "Ġ", "Ċ", "č", "ĉ", "a", "b", "s", "S", "1", "2", "!", "'", "ã", "ä", "¸", "Ń",
    ];
    for left in letters {
        for right in letters {
            small = small.merge(left, right);
        }
    }
    let steps = steps.into_iter().chain([last]).collect::<Vec<_>>();
    let pre_tokenizer = json!({"type": "Sequence", "pretokenizers": steps});
    let json = small.with("pre_tokenizer", pre_tokenizer).bytes();
    let both = Both::from_json(name, &json);
    for text in [
        "a  1 \n2\n\n  b",
        "!ab's !a\t!a 12345!",
        "ab 中 a中b・!\n・\n か\u{3099}\u{3040}か",
        "\u{0}\u{0}a \u{0}\u{0}!\u{200D}中\u{200D}a",
        "a\u{301}b\u{301}!\u{301} é!é!aé",
    ] {
        both.check_text(text);
    }
    both.check_many(31, strings);
}

#[test]
fn the_splits_are_exact() {
    check("the splits", splits(), byte_level(false, false), 4_000);
}

#[test]
fn splits_that_are_nearly_these_are_exact() {
    let plain = || byte_level(false, false);
    let mut swapped = splits();
    swapped.swap(0, 1);
    check("swapped", swapped, plain(), 300);
    let mut inverted = splits();
    inverted[2]["invert"] = true.into();
    check("inverted", inverted, plain(), 300);
    let mut removed = splits();
    removed[2]["behavior"] = "Removed".into();
    check("removed", removed, plain(), 300);
    let mut digits = splits();
    digits.insert(0, json!({"type": "Digits", "individual_digits": true}));
    check("digits first", digits, plain(), 300);
    check("without the third", splits()[..2].to_vec(), plain(), 300);
    check("prefixed", splits(), byte_level(false, true), 300);
    check(
        "split by GPT-2 after it",
        splits(),
        byte_level(true, false),
        300,
    );
}
