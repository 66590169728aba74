//! The search for the strings of added tokens in a text.
//!
//! In most files all strings begin with one character, such as `<`. Places where it stands are found
//! with vector instructions, and a trie tells which string is there. An automaton, whose search begins
//! anew after each match, takes more than twice as long for the tokens of a chat.

use crate::trie::Trie;
use aho_corasick::{AhoCorasick, AhoCorasickKind, BuildError, Input, MatchKind};
use std::ops::Range;

/// The largest number of different first bytes.
const FIRSTS: usize = 3;

/// The most bytes of strings whose automaton may get a table of all its steps: making it takes the
/// square of a string's length where the string repeats itself.
const TABLE_BYTES_MAX: usize = 8 << 10;

/// Finds the longest string at the leftmost place, again and again.
#[derive(Debug)]
pub(super) enum Search {
    /// The added tokens begin with one of a few ASCII signs, some of which may be there twice.
    Places([u8; FIRSTS], Trie),
    Automaton(AhoCorasick),
}

impl Search {
    /// Creates a search for different strings, none of which is empty.
    pub(super) fn new(strings: &[&str]) -> Result<Self, BuildError> {
        let trie = || Trie::new(strings.iter().copied().zip(0..), "$.added_tokens").ok();
        match firsts(strings).and_then(|firsts| Some((firsts, trie()?))) {
            Some((firsts, trie)) => Ok(Self::Places(firsts, trie)),
            None => Ok(Self::Automaton(automaton(strings)?)),
        }
    }

    /// Returns the number of the next string from `at` on, and its range.
    #[inline]
    pub(super) fn find(&self, text: &[u8], mut at: usize) -> Option<(usize, Range<usize>)> {
        let (firsts, trie) = match self {
            Self::Places(firsts, trie) => (firsts, trie),
            Self::Automaton(automaton) => {
                let found = automaton.find(Input::new(text).range(at..))?;
                return Some((found.pattern().as_usize(), found.range()));
            }
        };
        loop {
            let start = at + first(*firsts, text.get(at..)?)?;
            if let Some((len, n)) = trie.longest(trie.root(), &text[start..], |_, _| true) {
                return Some((n as usize, start..start + len));
            }
            at = start + 1;
        }
    }
}

fn automaton(strings: &[&str]) -> Result<AhoCorasick, BuildError> {
    let bytes: usize = strings.iter().map(|s| s.len()).sum();
    AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .kind((bytes > TABLE_BYTES_MAX).then_some(AhoCorasickKind::ContiguousNFA))
        .build(strings)
}

/// Returns the first bytes of all strings, if they are few signs.
fn firsts(strings: &[&str]) -> Option<[u8; FIRSTS]> {
    let mut firsts: Vec<u8> = strings.iter().map(|s| s.as_bytes()[0]).collect();
    firsts.sort_unstable();
    firsts.dedup();
    let fits = firsts.len() <= FIRSTS && firsts.iter().all(u8::is_ascii_punctuation);
    firsts.resize(FIRSTS, *firsts.last()?);
    fits.then_some([firsts[0], firsts[1], firsts[2]])
}

/// Returns the position of the first byte that is one of `firsts`.
#[inline]
fn first(firsts: [u8; FIRSTS], text: &[u8]) -> Option<usize> {
    let [a, b, c] = firsts;
    // In a short text a vector search takes longer.
    match (text.len() < 16, a == c) {
        (true, true) => text.iter().position(|byte| *byte == a),
        (true, false) => text.iter().position(|byte| firsts.contains(byte)),
        (false, true) => memchr::memchr(a, text),
        (false, false) => memchr::memchr3(a, b, c, text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns all matches of the search, which must equal those of the automaton.
    fn check(strings: &[&str], text: &str) -> Vec<(usize, Range<usize>)> {
        let search = Search::new(strings).expect("they are few");
        let (mut found, mut at) = (Vec::new(), 0);
        while let Some((n, range)) = search.find(text.as_bytes(), at) {
            at = range.end;
            found.push((n, range));
        }
        let automaton = automaton(strings).expect("they are few");
        let all = automaton.find_iter(text);
        let expected: Vec<_> = all.map(|m| (m.pattern().as_usize(), m.range())).collect();
        assert_eq!(found, expected, "{strings:?} in {text:?}");
        found
    }

    #[test]
    fn the_longest_string_at_the_leftmost_place() {
        let strings = ["<a", "<a>", "<a>b", "<|start|>", "<|start_of|>", "[<"];
        assert_eq!(
            check(&strings, "<a>b<a><a <|start_of|>"),
            [(2, 0..4), (1, 4..7), (0, 7..9), (4, 10..22),]
        );
        assert_eq!(check(&strings, "[<a>"), [(5, 0..2)]);
        assert_eq!(check(&strings, "<|start_o|><"), []);
    }

    #[test]
    fn most_files_are_searched_quickly() {
        let quick = |strings: &[&str]| matches!(Search::new(strings), Ok(Search::Places(..)));
        assert!(quick(&["<|im_start|>", "<think>", "[INST]", "{x}"]));
        // Too many first bytes, and one that texts are full of.
        assert!(!quick(&["<a", "[a", "{a", "(a"]));
        assert!(!quick(&["  ", "<a>"]) && !quick(&["ab", "<a>"]) && !quick(&["ä"]));
    }

    #[test]
    fn many_strings_that_begin_alike() {
        let mut strings: Vec<String> = (0..300).map(|n| format!("<|reserved_{n}|>")).collect();
        strings.extend(["<|r".to_owned(), "<|res".to_owned(), "x".repeat(100)]);
        strings[302].insert_str(0, "<|reserved");
        let strings: Vec<&str> = strings.iter().map(String::as_str).collect();
        let text = "<|reserved_7|><|reserved_77|><|reserved_301|><|rest<|reserved_";
        let found = check(
            &strings,
            &format!("{text}{}{}", strings[302], &strings[302][..50]),
        );
        let found: Vec<usize> = found.iter().map(|(n, _)| *n).collect();
        assert_eq!(found, [7, 77, 301, 301, 301, 302, 301]);
    }

    #[test]
    fn long_strings_that_repeat_themselves() {
        // A table of all steps of each takes a second, and of all of them minutes.
        let strings: Vec<String> = (0..90)
            .map(|n| format!("{}{n}", "x".repeat(4_000)))
            .collect();
        let strings: Vec<&str> = strings.iter().map(String::as_str).collect();
        let text = format!("{}{}y{}", strings[7], "x".repeat(3_999), strings[77]);
        let found: Vec<usize> = check(&strings, &text).iter().map(|(n, _)| *n).collect();
        assert_eq!(found, [7, 77]);
    }

    proptest! {
        #[test]
        fn the_search_finds_what_the_automaton_finds(
            strings in prop::collection::hash_set("[<>\\[][<|a\0]{1,9}", 1..40),
            parts in prop::collection::vec(("[<|a>\0]{0,3}", any::<prop::sample::Index>()), 0..20),
        ) {
            let strings: Vec<&str> = strings.iter().map(String::as_str).collect();
            let text: Vec<String> = parts
                .iter()
                .map(|(before, n)| format!("{before}{}", n.get(&strings)))
                .collect();
            let text = text.concat();
            for end in (0..=text.len()).rev().take(10) {
                check(&strings, &text[..end]);
            }
        }
    }
}
