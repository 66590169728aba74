//! The matcher against the reference and against the definition.

use super::*;
use proptest::prelude::*;
use tokenizers::utils::SysRegex;

fn ours(pattern: &str, text: &str) -> Vec<(usize, usize)> {
    Pattern::new(pattern).expect("supported").matches(text)
}

fn check(pattern: &str, text: &str) {
    let reference: Vec<_> = SysRegex::new(pattern).unwrap().find_iter(text).collect();
    assert_eq!(ours(pattern, text), reference, "{pattern} on {text:?}");
}

fn check_refused(pattern: &str) {
    assert!(Pattern::new(pattern).is_err(), "{pattern}");
}

/// Shapes beyond the patterns of real files, small enough to backtrack often.
const SHAPES: &[&str] = &[
    r"a*ab|b+|c",
    r"a{2,3}b?|[^a]",
    r"(?:ab|a)(?:c|bc)",
    r"(?:ab)?(?:ac|b+)?c|a",
    r"\s+(?!\S)|\s+",
    r"\S+(?=\s)|b",
    r"a++b|a?+b|ab*+",
    r"((?:a|b+)?c)?(?!b)x|b{2,}",
    r"[ab-c]+c|\p{Lu}\P{L}*",
    r"(?i:'s|k)",
    r"\d+|\D",
    r"[\s\S]{1,3}(?!a)",
    r"[a-c&&[^b]]+|[[9K]x]+",
    r"[\p{L}&&[^a\p{Lu}]\p{N}&&\S]+",
    r"[^[a-c]\s]+|[^a-c&&\p{L}]{1,2}",
    r"[^(\s|[c'])]+|[\p{Han}x]+|\P{Han}",
    r"[\P{Han}&&\p{L}]+",
];

proptest! {
    #[test]
    fn shapes_match_like_the_reference(text in "[abcxKSſ\u{212A}' \n9٣½Ü漢〇々]{0,12}") {
        for pattern in SHAPES {
            check(pattern, &text);
        }
    }
}

/// Spec trap: `'ſ` matches `'s` without regard to case, and nothing else does.
#[test]
fn case_folding_is_that_of_the_reference_for_every_character() {
    let pattern = "(?i:'s|'t|'re|'ve|'m|'ll|'d|'k)";
    check(pattern, "'ſ'S's'ſs");
    let every: String = ('\0'..=char::MAX)
        .flat_map(|c| ['\'', c, 'e', '\'', 'r', c, '\'', 'l', c])
        .collect();
    check(pattern, &every);
    let beyond_ascii: String = ('\u{80}'..=char::MAX).flat_map(|c| ['\'', c]).collect();
    assert_eq!(
        ours(pattern, &beyond_ascii).len(),
        2,
        "long s and Kelvin sign"
    );
}

#[test]
fn patterns_that_would_not_be_exact_are_refused() {
    for pattern in [
        "a*",
        "",
        "a|",
        "(",
        "a)",
        "[a",
        "[]",
        "[[:alpha:]]",
        "[a&&]",
        "[&&a]",
        "[[a]",
        r"\p{Latin}",
        "(?i:[[a]])",
        "(?i:[^a])",
        "^a",
        "a$",
        ".",
        r"\w",
        r"\b",
        r"\p{^L}",
        "a+?",
        "a{2}+",
        "a**",
        "(a+)+",
        "(?<n>a)",
        "(?m:a)",
        "(?i:ss)",
        "(?i:é)",
        r"(?i:\p{L})",
        "a{3,2}",
        "a{9999999999}",
        r"\u12",
        "[z-a]",
        r"[\s-a]",
        "(a|b*)+",
        "(ab)+",
        "(ab)*",
        "(ab){2}",
        "(ab)?+",
        "(a|a)*b",
        "(a?)?",
    ] {
        check_refused(pattern);
    }
    check_refused(&"(".repeat(10_000));
    check_refused(&"[".repeat(10_000));
    check_refused(&"ab".repeat(10_000));
}

#[test]
fn long_runs_do_not_take_quadratic_time() {
    let text = " ".repeat(1 << 20);
    assert_eq!(ours(r"\s*[\r\n]+|\s+(?!\S)|\s+", &text).len(), 1);
}
