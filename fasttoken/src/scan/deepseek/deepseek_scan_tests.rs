//! The grammar against the matcher that other patterns run on, and against the reference.

use super::*;
use crate::Tokenizer;
use crate::family::Family;
use crate::pattern::Pattern;
use crate::scan::Grammar;
use crate::scan::class_masks::class_masks_tests::Naive;
use crate::scan::scan_tests::scanned;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::LazyLock;
use tokenizers::utils::SysRegex;

type Pieces = Vec<(usize, usize)>;

/// The pieces of `pieces` that one split leaves, matches and gaps.
fn split(text: &str, pieces: &[(usize, usize)], matches: impl Fn(&str) -> Pieces) -> Pieces {
    let mut all = Vec::new();
    for &(start, end) in pieces {
        let mut at = start;
        for (from, to) in matches(&text[start..end]) {
            let (from, to) = (start + from, start + to);
            all.extend((at < from).then_some((at, from)));
            all.push((from, to));
            at = to;
        }
        all.extend((at < end).then_some((at, end)));
    }
    all
}

fn whole(text: &str) -> Pieces {
    Vec::from_iter((!text.is_empty()).then_some((0, text.len())))
}

/// Splits by the general pattern matcher, the plain version of the scanner.
fn by_matcher(text: &str) -> Pieces {
    static PATTERNS: LazyLock<[Pattern; 3]> =
        LazyLock::new(|| DEEPSEEK3.map(|pattern| Pattern::new(pattern).expect("supported")));
    PATTERNS.iter().fold(whole(text), |pieces, pattern| {
        split(text, &pieces, |piece| pattern.matches(piece))
    })
}

fn by_reference(text: &str) -> Pieces {
    DEEPSEEK3.iter().fold(whole(text), |pieces, pattern| {
        let pattern = SysRegex::new(pattern).expect("the reference takes it");
        split(text, &pieces, |piece| pattern.find_iter(piece).collect())
    })
}

fn check(text: &str) {
    let scanned = scanned(Grammar::DeepSeek3, text);
    assert_eq!(scanned, by_matcher(text), "{text:?}");
}

fn check_with_reference(text: &str) {
    check(text);
    assert_eq!(by_matcher(text), by_reference(text), "{text:?}");
}

/// One of each kind, in each width that it has.
const PARTS: [&str; 32] = [
    "a",
    "Z",
    "é",
    "я",
    "한",
    "ก",
    "\u{301}",
    "𝒜",
    "1",
    "٣",
    "½",
    "𝟏",
    " ",
    "\n",
    "\r",
    "\t",
    "\u{A0}",
    "\u{3000}",
    "!",
    "'",
    "$",
    "“",
    "，",
    "🙂",
    "\0",
    "\u{7F}",
    "\u{200D}",
    "\u{E0001}",
    "漢",
    "か",
    "・",
    "\u{3040}",
];

#[test]
fn every_three_kinds_beside_each_other() {
    for a in PARTS {
        for b in PARTS {
            for c in PARTS {
                check(&[a, b, c].concat());
            }
        }
    }
}

/// Texts at the end of a block, and texts after it.
#[test]
fn every_two_kinds_across_the_end_of_a_block() {
    for filler in ["x", " ", "!", "\n", "\0", "7", "漢", "・", "é"] {
        for len in 56..=66 {
            let filler = filler.repeat(len / filler.len());
            for a in PARTS {
                for b in PARTS {
                    check(&[&filler, a, b].concat());
                    check(&[&filler, " .", a, b, "x"].concat());
                }
            }
        }
    }
}

#[test]
fn known_difficult_texts_split_as_the_reference_splits() {
    for text in [
        "",
        " ",
        "\0",
        "\0\0\0a",
        "\0\0\0!",
        "\0\0 a",
        " \0a",
        "  \0",
        "\u{200D}\u{200D}漢",
        "\u{3040}\u{3040}あ",
        "\u{3097}・\u{3098}か\u{3099}\u{309B}\u{309C}",
        "!abcé",
        "!!abc",
        " !abc",
        "\t!abc",
        "1!abc",
        "漢!abc",
        "'aébc'd",
        "“abc",
        "!\u{301}a",
        "\u{301}!a",
        "a\u{301}!",
        "a 1  2   3",
        "a  漢",
        "  \n 1",
        "  \n ・",
        " \u{3000}漢",
        "!\r\n\r\n  a",
        "! \n!",
        "・\n!・!\n",
        "12345678901",
        "1٣½2",
        "1234five67",
        "漢a漢é漢\u{301}",
        "一龥龦㐀䶿鿿",
        "ー゠ヿ\u{3100}",
        "👨\u{200D}👩\u{200D}👧 ❤\u{FE0F}a",
        "x\u{FEFF}y\u{FEFF}",
        "\u{85}a\u{2028}b\u{2029}\u{1C}c",
        "\r\n \r\n\ta",
    ] {
        check_with_reference(text);
    }
}

/// Every character, alone and between others, as the reference sees it.
#[test]
fn every_character() {
    let pattern = |n: usize| Pattern::new(DEEPSEEK3[n]).expect("supported");
    let (cut, word) = (pattern(1), pattern(2));
    let classes = crate::unicode::classes();
    let scanner = Scanner::new("");
    let mut stack = Vec::new();
    for c in '\0'..=char::MAX {
        let kind = scanner.deepseek_kind(c);
        let category = crate::unicode::CATEGORIES[classes.class(c).category()];
        let expected = match &category[..1] {
            "L" | "M" => Some(Part::Letter),
            "P" | "S" => Some(Part::Sign),
            _ => Some(Part::Control),
        };
        match kind {
            Kind::Number => assert_eq!(&category[..1], "N", "{c:?}"),
            Kind::Space => assert_eq!(expected, Some(Part::Control), "{c:?}"),
            Kind::Word(part, _) => assert_eq!(Some(part), expected, "{c:?}"),
        }
        let text = c.to_string();
        let out = cut.find(&text, 0, &mut stack).is_some();
        assert_eq!(matches!(kind, Kind::Word(_, Cut::Out)), out, "{c:?}");
        let alone = word.find(&text, 0, &mut stack).is_some();
        let control = matches!(kind, Kind::Number | Kind::Word(Part::Control, _));
        assert_eq!(alone, !control, "{c:?}");
        assert_eq!(c.is_ascii_punctuation(), c.is_ascii() && kind == Kind::SIGN);

        let mut block = [0; BLOCK];
        let len = c.encode_utf8(&mut block).len();
        if len > 1 {
            let marked = cut_out::<Naive>(&block) == 1;
            assert_eq!(marked, out, "{c:?}");
            let wide = Naive::wide(&block);
            if wide.punctuation == 1 {
                assert_eq!(kind, Kind::SIGN, "{c:?}");
            }
        }
    }
}

/// Returns the parts of which several fit into a block, in any position there.
fn parts() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        4 => r"[ \t\r\n\u{A0}\u{3000}\u{85}'/!.$]",
        3 => r"[!'(_-][a-zA-Z]{1,5}|[“，。🙂][a-zé]{1,3}",
        3 => r"[a-cX-Z]{1,9}|[a-zé\u{301}]{1,6}",
        2 => r"[0-9]{1,7}|[0-9½Ⅷ٣]{1,4}",
        3 => r"[\u{301}\u{940}\u{20DD}\u{FE0F}ʰ漢ñÜ🙂\u{200B}\u{200D}\u{0}\u{7F}]",
        3 => r"[漢字一龥かナー]{1,12}|[・゠\u{309B}\u{3040}\u{3097}\u{3099}か]{1,4}|[龥龦㐀鿿\u{4DC0}]{1,4}",
        2 => r"[Привет]{1,9}|[éÃ×÷ß]{1,6}|[한국]{1,9}|[हिन्दी]{1,6}|[𝒜𝟏\u{E0001}\u{10FFFF}]{1,3}",
        2 => r"[ \n]{0,5}|[ /\n!]{0,5}|[\r\n]{0,4}|[!?，]{0,5}[\r\n]{0,3}",
        1 => r"[ \t]{0,70}|[0-9]{0,80}|[aB]{0,70}|[漢字]{0,30}|[!.]{0,70}|[\u{0}]{0,70}",
    ];
    prop::collection::vec(part, 0..60).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn blocks_and_scanner_are_the_matcher(text in parts()) {
        check(&text);
    }

    #[test]
    fn ascii_is_the_matcher(text in r"[ \n\r'/!a1sAS\t\x00]{0,200}") {
        check(&text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn scanner_and_matcher_are_the_reference(text in parts(), any in r"\PC{0,14}") {
        check_with_reference(&text);
        check_with_reference(&any);
    }
}

/// A change of the steps of a file.
type Change<'a> = &'a dyn Fn(&mut Vec<Value>);

/// Files that differ from the real one in one place, which must not be taken for it.
#[test]
fn nothing_else_is_recognised() {
    let file = |change: Change<'_>| {
        let mut json: Value =
            serde_json::from_slice(include_bytes!("../../../tests/data/tokenizer.json")).unwrap();
        let mut all: Vec<Value> = DEEPSEEK3
            .iter()
            .map(|pattern| {
                json!({"type": "Split", "pattern": {"Regex": pattern},
                       "behavior": "Isolated", "invert": false})
            })
            .collect();
        all.push(
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                        "use_regex": false}),
        );
        change(&mut all);
        json["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": all});
        let tokenizer = Tokenizer::from_bytes(&serde_json::to_vec(&json).unwrap()).unwrap();
        let Family::ByteLevel(model) = &tokenizer.family else {
            panic!("the file is byte-level");
        };
        model.pre_tokenizer.only_grammar()
    };
    assert_eq!(file(&|_| ()), Some(Grammar::DeepSeek3));
    let others: [Change<'_>; 9] = [
        &|steps| steps.swap(0, 1),
        &|steps| drop(steps.remove(0)),
        &|steps| drop(steps.remove(2)),
        &|steps| steps.insert(2, steps[1].clone()),
        &|steps| steps[0]["pattern"]["Regex"] = json!(r"\p{N}{1,2}"),
        &|steps| steps[1]["pattern"]["Regex"] = json!("[一-龥ぁ-ゟ゠-ヿ]+"),
        &|steps| steps[2]["behavior"] = json!("Removed"),
        &|steps| steps[3]["use_regex"] = json!(true),
        &|steps| steps[3]["add_prefix_space"] = json!(true),
    ];
    for (n, other) in others.into_iter().enumerate() {
        assert_eq!(file(other), None, "{n}");
    }
}
