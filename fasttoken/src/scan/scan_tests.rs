//! Every scanner, and every way to fill, against Oniguruma and the general matcher.

use super::*;
use crate::pattern::Pattern;
use proptest::prelude::*;
use tokenizers::utils::SysRegex;

const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SEED: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const KIMI: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// A spelling of cl100k, but with any number of digits, no contractions and slashes behind punctuation.
const OTHER: &str =
    r"[^\n\r\p{N}\p{L}]?+\p{L}++|\p{N}+| ?[^\p{N}\s\p{L}]++[/\n\r]*+|\s*[\r\n]|\s+(?!\S)|\s";

/// As tiktoken splits: all blanks at the end of a text are one word.
const TIKTOKEN: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++(?![\s\S])|\s*[\r\n]|\s+(?!\S)|\s";

const PATTERNS: [&str; 10] = [
    GPT2, QWEN2, CL100K, O200K, QWEN35, TEKKEN, SEED, KIMI, OTHER, TIKTOKEN,
];

fn known(pattern: &str) -> Grammar {
    Grammar::recognise(pattern).expect("a constant of this module")
}

/// Returns the words that the scanner finds, and checks that every way to fill finds the same.
pub(super) fn scanned(grammar: Grammar, text: &str) -> Vec<(usize, usize)> {
    let scanner = Scanner::new(text);
    let (mut at, mut scanned) = (0, Vec::new());
    while at < text.len() {
        let end = scanner.end_of_match(grammar, at);
        assert!(end > at, "{grammar:?} stands still at {at} of {text:?}");
        scanned.push((at, end));
        at = end;
    }
    check_fill(scanner, grammar, &scanned);
    scanned
}

fn check(pattern: &str, text: &str) {
    let reference: Vec<_> = SysRegex::new(pattern).unwrap().find_iter(text).collect();
    let scanned = scanned(known(pattern), text);
    assert_eq!(scanned, reference, "{pattern} on {text:?}");
    let matched = Pattern::new(pattern).expect("supported").matches(text);
    assert_eq!(matched, reference, "naive twin: {pattern} on {text:?}");
}

/// Checks that every way to fill finds what the scanner finds one by one.
fn check_fill(scanner: Scanner<'_>, grammar: Grammar, expected: &[(usize, usize)]) {
    for (n, fill) in fill::every_way().iter().enumerate() {
        let (mut found, mut at) = (Vec::new(), 0);
        let mut ends = [0; ENDS];
        loop {
            let count = fill(scanner, grammar, at, &mut ends, 0);
            for &end in &ends[..count] {
                found.push((at, end));
                at = end;
            }
            if count == 0 {
                break;
            }
        }
        assert_eq!(found, expected, "{n} {grammar:?} on {:?}", scanner.text);
    }
}

#[test]
fn known_difficult_texts_split_as_the_reference_splits() {
    for pattern in PATTERNS {
        for text in [
            "",
            " ",
            "  ",
            "   a",
            "a   ",
            " \n ",
            "\n\n a",
            " \r\n\t b",
            "'",
            "''s",
            "'S'ſ'ſs",
            "'re've'll'LL'rE",
            "don't I'M",
            "a'",
            "'l",
            " 's",
            "  's",
            "\u{85}a",
            "\u{A0}\u{A0}a",
            "\u{3000}x",
            "\u{2028}\n",
            "\u{200B}a",
            "\u{FEFF}a",
            "12345",
            "½Ⅷ٣",
            " 1",
            "  1",
            "!!\n\n!",
            " !\r\n",
            "\t!",
            "\ta",
            "//\n/",
            "!/\n",
            "HelloWorld",
            "HELLO",
            "HELLOworld's",
            "ÀÉ\u{301}a",
            "\u{301}a",
            " \u{301}",
            "\u{301}\u{301}",
            "ǅa",
            "ʰA",
            "漢字kana",
            "A漢a",
            "A漢A",
            " A漢A'S",
            "!A",
            "!!A",
            "\nA",
            "\u{1F600}a",
            "a\u{0}b",
            "×",
            "a×b÷c",
            "é×é÷é",
            " ×÷ é",
            "Ã×Ö÷Ø",
            "\u{4DC0}",
            "䶿\u{4DC0}\u{4DFF}一",
            "a\u{4DC0}b\u{4DFF}c",
            "漢\u{4DC0}漢 \u{4DFF}\u{4DFF}",
            "Привет, мир×да÷нет",
            " ЁЖёж҂ѿҀ",
            "한국어 \u{AC00}\u{AFFF}\u{B000}\u{CFFF}\u{D000}",
            "한글×한글",
            "漢字〇々⺀⺀a漢A漢",
            " 漢 a漢\u{301}漢's漢",
            "1〇2〡34〇〇〇〇",
            "!⺀!漢",
            "!!\u{301}a",
            "1\u{301}1 \u{301}\n\u{301}",
            "/\n/!/\n/a",
            "漢АБ漢аБ АБвГД漢ABc漢AB!",
            "a漢B漢C漢 бアВ one's漢B",
            "ءABء!ABءab ﬁXアỲỳỶ",
            "a\n  ",
            "a \n \n",
            "!\n  ",
            "a\u{3000}\n\u{A0}\u{3000}",
        ] {
            check(pattern, text);
        }
    }
}

/// Returns the parts of which several fit into a block, in any position there.
fn parts() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        r"[ \t\r\n\u{A0}\u{3000}'/!.]",
        r"['’](s|S|ſ|t|re|RE|vE|ll|l|m|d)",
        r"[a-cX-Z]{1,9}",
        r"[0-9½Ⅷ]{1,4}",
        r"[\u{301}\u{940}\u{20DD}ǅʰ漢ñÜ🙂\u{200B}\u{85}]",
        r"[aBяЯ漢アء'ỳỶß]{1,12}|[×÷\u{4DC0}\u{4DFF}]{1,3}|[⺀〇々〡漢ア]{1,4}|[\u{301}\u{940}a!]{1,5}",
        r"[Привет]{1,9}|[éÃ×÷ß]{1,6}|[한국\u{AFFF}\u{B000}\u{CFFF}\u{D000}]{1,9}|[䶿一\u{4DC0}]{1,6}|[ѿҀ҂]{1,3}",
        r"[ \n]{0,5}|[ /\n!]{0,5}|[ \t]{0,70}|[0-9]{0,80}|[aB]{0,70}|[漢字]{0,30}",
    ];
    prop::collection::vec(part, 0..60).prop_map(|parts| parts.concat())
}

fn check_blocks(text: &str) {
    for pattern in PATTERNS {
        scanned(known(pattern), text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn blocks_are_the_scanners(text in parts()) {
        check_blocks(&text);
    }

    #[test]
    fn blocks_of_ascii_are_the_scanners(text in r"[ \n'/!a1sAS\t]{0,200}") {
        check_blocks(&text);
    }

    #[test]
    fn scanners_and_twin_match_the_reference(
        text in r"([ \t\r\n\u{A0}\u{3000}'/!.]|['’](s|S|ſ|t|re|RE|vE|ll|l|m|d)|[a-cX-Z]{1,3}|[0-9½Ⅷ]{1,4}|[\u{301}\u{940}\u{20DD}ǅʰ漢〇々⺀ñÜ🙂\u{200B}\u{85}]|\PC){0,14}"
    ) {
        for pattern in PATTERNS {
            check(pattern, &text);
        }
    }
}

/// Patterns of other shapes, and orders in which an alternative would win over another, have no
/// scanner.
#[test]
fn patterns_outside_the_family_have_no_scanner() {
    for (from, to) in [
        (r"|\s*[\r\n]+", ""),
        (r"\p{N}", r"\p{Nd}"),
        (r"[^\r\n\p{L}\p{N}]?", ""),
        (r"[^\r\n\p{L}\p{N}]?", r"[^\r\n\p{L}]?"),
        (r"\p{L}+|", r"[\p{L}\p{Mn}]+|"),
        (r"\p{L}+|", r"[\p{L}\p{M}]+|"),
        (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", "(?i:'s|'t)"),
        (r"(?i:'s|", "(?:'s|"),
        (r"|\s+(?!\S)", ""),
        (r"|\s+", r"|\s+|\p{L}"),
        (r"(?i:", r"\p{Han}+|(?i:"),
        (r"[\r\n]*|", r"[\r]*|"),
    ] {
        let pattern = QWEN2.replacen(from, to, 1);
        assert_ne!(pattern, QWEN2);
        assert_eq!(Grammar::recognise(&pattern), None, "{pattern}");
    }
    let unknown = |from: &str, to: &str| {
        let pattern = KIMI.replacen(from, to, 1);
        assert_ne!(pattern, KIMI);
        Grammar::first_unknown(&pattern)
    };
    assert_eq!(Grammar::first_unknown(KIMI), None);
    assert_eq!(unknown(r"[\p{Han}]+|", r"[\p{Lo}]+|"), Some(1));
    assert_eq!(unknown(r"]+(?i:", r"](?i:"), Some(2));
    assert_eq!(unknown(r"{1,3}", r"{1,4}"), Some(4));
    assert_eq!(unknown(r"|\s*[\r\n]+", ""), Some(6));
    let tail = unknown(r"|\s+(?!\S)|\s+", r"|\s+(?!\S)|\s+|\p{L}");
    assert_eq!(tail, Some(9));
    let both = format!("(?i:'s|'t|'re|'ve|'m|'ll|'d)|{O200K}");
    assert_eq!(Grammar::recognise(&both), None);
    let spelled = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s*[\r\n]|\s+(?!\S)|\s";
    assert_eq!(Grammar::recognise(spelled), Some(Grammar::Cl100k));
}

/// Upper, lower and no case, what ends words, and what is left to the scalar scanner, in every order.
#[test]
fn every_six_characters_of_cased_words() {
    let grammars = [O200K, KIMI].map(known);
    let characters = ["A", "б", "漢", "'", "s", "\u{301}", " "];
    for n in 0..characters.len().pow(6) {
        let place = |power: u32| characters[n / characters.len().pow(power) % characters.len()];
        let text: String = (0..6).map(place).collect();
        for grammar in grammars {
            scanned(grammar, &text);
        }
    }
}
