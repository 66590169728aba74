//! The search for the strings of added tokens in a text.
//!
//! In most files all strings begin with one character, such as `<`, and the next character rules
//! out nearly all other places where it stands. Such places are found with vector instructions and
//! compared by their first eight bytes. An automaton, whose search begins anew after each match,
//! takes 50 ns for each token of a chat, and this search 20 ns.

use aho_corasick::{AhoCorasick, Anchored, BuildError, Input, MatchKind, StartKind};
use std::ops::Range;

/// The largest number of different first bytes.
const FIRSTS: usize = 3;
/// The largest number of beginnings that are compared at one place.
const BEGINNINGS: usize = 32;
/// The largest number of strings with one beginning that are compared in turn, and their largest
/// length in bytes.
const ALIKE: usize = 4;
const LONGEST: usize = 64;

/// Finds the longest string at the leftmost place, again and again.
#[derive(Debug)]
pub(super) enum Search {
    Quick(Box<Quick>),
    Automaton(AhoCorasick),
}

/// A search for strings of at least two bytes that begin with one of a few ASCII signs.
#[derive(Debug)]
pub(super) struct Quick {
    /// The first bytes, some of them twice.
    firsts: [u8; FIRSTS],
    /// For each second byte, the index into `lists` of its strings.
    by_second: [u8; 256],
    lists: Vec<Vec<Beginning>>,
    /// The automaton for strings that are too many to be compared in turn. Building one takes a
    /// tenth of the time in which a compiled tokenizer is opened, so it is built only for such
    /// strings.
    automaton: Option<AhoCorasick>,
}

/// A beginning of strings with one second byte.
#[derive(Debug)]
struct Beginning {
    /// Up to eight bytes, and the mask of the bits that are compared.
    bytes: u64,
    compared: u64,
    /// The strings with it and their numbers, the longest first; none if they are too many
    /// to be compared in turn.
    strings: Vec<(Box<[u8]>, usize)>,
}

impl Search {
    /// Creates a search for different strings, none of which is empty.
    pub(super) fn new(strings: &[&str]) -> Result<Self, BuildError> {
        let Some(mut quick) = Quick::new(strings) else {
            return Ok(Self::Automaton(automaton(strings, StartKind::Unanchored)?));
        };
        if quick.needs_automaton() {
            quick.automaton = Some(automaton(strings, StartKind::Anchored)?);
        }
        Ok(Self::Quick(Box::new(quick)))
    }

    /// Returns the number of the next string from `at` on, and its range.
    #[inline]
    pub(super) fn find(&self, text: &[u8], at: usize) -> Option<(usize, Range<usize>)> {
        match self {
            Self::Quick(quick) => quick.find(text, at),
            Self::Automaton(automaton) => {
                let found = automaton.find(Input::new(text).range(at..))?;
                Some((found.pattern().as_usize(), found.range()))
            }
        }
    }
}

fn automaton(strings: &[&str], start: StartKind) -> Result<AhoCorasick, BuildError> {
    AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .start_kind(start)
        .build(strings)
}

impl Quick {
    fn new(strings: &[&str]) -> Option<Self> {
        let mut firsts: Vec<u8> = strings.iter().map(|s| s.as_bytes()[0]).collect();
        firsts.sort_unstable();
        firsts.dedup();
        let last = *firsts.last()?;
        if firsts.len() > FIRSTS || !firsts.iter().all(u8::is_ascii_punctuation) {
            return None;
        }
        firsts.resize(FIRSTS, last);
        let mut this = Self {
            firsts: [firsts[0], firsts[1], firsts[2]],
            by_second: [0; 256],
            lists: vec![Vec::new()],
            automaton: None,
        };
        // The longest first.
        let mut order: Vec<usize> = (0..strings.len()).collect();
        order.sort_by_key(|n| std::cmp::Reverse(strings[*n].len()));
        for n in order {
            let string = strings[n].as_bytes();
            let list = &mut this.by_second[usize::from(*string.get(1)?)];
            if *list == 0 {
                *list = u8::try_from(this.lists.len()).ok()?;
                this.lists.push(Vec::new());
            }
            let list = &mut this.lists[usize::from(*list)];
            let (bytes, compared) = (eight(string), mask(string.len()));
            let is = |other: &&mut Beginning| (other.bytes, other.compared) == (bytes, compared);
            let string = (string.into(), n);
            match list.iter_mut().find(is) {
                Some(beginning) => beginning.strings.push(string),
                None => list.push(Beginning {
                    bytes,
                    compared,
                    strings: vec![string],
                }),
            }
        }
        for list in &mut this.lists {
            if list.len() > BEGINNINGS {
                return None;
            }
            for Beginning { strings, .. } in list {
                if strings.len() > ALIKE || strings.iter().any(|(s, _)| s.len() > LONGEST) {
                    strings.clear();
                }
            }
        }
        Some(this)
    }

    fn needs_automaton(&self) -> bool {
        let mut all = self.lists.iter().flatten();
        all.any(|beginning| beginning.strings.is_empty())
    }

    #[inline]
    fn find(&self, text: &[u8], mut at: usize) -> Option<(usize, Range<usize>)> {
        loop {
            let rest = text.get(at..)?;
            let start = at + self.first(rest)?;
            let second = *text.get(start + 1)?;
            let list = self.by_second[usize::from(second)];
            if list != 0
                && let Some((n, len)) = self.longest(usize::from(list), &text[start..])
            {
                return Some((n, start..start + len));
            }
            at = start + 1;
        }
    }

    /// Returns the position of the first byte that begins a string.
    #[inline]
    fn first(&self, text: &[u8]) -> Option<usize> {
        let [a, b, c] = self.firsts;
        if text.len() < 16 {
            // A vector search takes longer.
            return text
                .iter()
                .position(|&byte| byte == a || byte == b || byte == c);
        }
        if a == c {
            memchr::memchr(a, text)
        } else {
            memchr::memchr3(a, b, c, text)
        }
    }

    /// Returns the number and the length of the longest string of a list that `rest` begins with.
    fn longest(&self, list: usize, rest: &[u8]) -> Option<(usize, usize)> {
        let bytes = eight(rest);
        for beginning in &self.lists[list] {
            if (bytes ^ beginning.bytes) & beginning.compared != 0 {
                continue;
            }
            if beginning.strings.is_empty() {
                // Any match of the automaton is valid, even with another beginning.
                let rest = Input::new(rest).anchored(Anchored::Yes);
                let found = self.automaton.as_ref()?.find(rest)?;
                return Some((found.pattern().as_usize(), found.len()));
            }
            for (string, n) in &beginning.strings {
                if rest.starts_with(string) {
                    return Some((*n, string.len()));
                }
            }
        }
        None
    }
}

/// Returns the first eight bytes, padded with zeros.
#[inline]
fn eight(bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<8>() {
        Some(eight) => u64::from_le_bytes(*eight),
        None => {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(padded)
        }
    }
}

/// The bits of the first `len` of eight bytes.
fn mask(len: usize) -> u64 {
    if len < 8 {
        (1 << (8 * len)) - 1
    } else {
        u64::MAX
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
        let automaton = automaton(strings, StartKind::Unanchored).expect("they are few");
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
        let quick = |strings: &[&str]| matches!(Search::new(strings), Ok(Search::Quick(_)));
        assert!(quick(&["<|im_start|>", "<think>", "[INST]", "{x}"]));
        // Too many first bytes, one that texts are full of, and nothing that follows it.
        assert!(!quick(&["<a", "[a", "{a", "(a"]));
        assert!(!quick(&["  ", "<a>"]) && !quick(&["ab", "<a>"]) && !quick(&["ä"]));
        assert!(!quick(&["<", "<a>"]));
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

    proptest! {
        #[test]
        fn it_finds_what_the_automaton_finds(
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
