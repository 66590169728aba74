//! Hand-written scanners for the split patterns that most models use.
//!
//! Each is a function from a position to the end of the match that begins there.
//! These patterns match at every position, so their matches cover the text
//! without gaps; DeepSeek's do not, and what they leave counts as a match.
//! They look at each character a bounded number of times: a run of
//! blanks is walked once for its end, whatever follows it.
//!
//! [`Scanner::fill`] finds many ends at once with vector instructions, and falls back
//! to these functions for words of unusual length and on machines without them.
//!
//! The naive twin of every scanner is [`crate::pattern`] on the same pattern.

mod block;
mod deepseek;
mod fill;
mod planes;

use crate::unicode::{Classes, Kind, char_at, classes};
pub(crate) use block::ENDS;
pub(crate) use deepseek::DEEPSEEK3;
pub(crate) use planes::BLOCK;

/// The regular expression that `ByteLevel` splits by when `use_regex` is set.
pub(crate) const GPT2: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Qwen 2, 2.5 and 3.
pub(crate) const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Llama 3, GPT-4 (cl100k) and many others.
pub(crate) const CL100K: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// GPT-4o and its successors.
pub(crate) const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Which hand-written scanner to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grammar {
    /// [`GPT2`]
    Gpt2,
    /// [`QWEN2`] (one digit) and [`CL100K`] (up to three).
    Cl100k {
        /// Longest run of digits in one piece.
        digits_max: u8,
    },
    /// [`O200K`]
    O200k,
    /// [`DEEPSEEK3`]
    DeepSeek3,
}

impl Grammar {
    /// The scanner for a pattern spelled exactly as one of the constants.
    pub(crate) fn recognise(pattern: &str) -> Option<Self> {
        match pattern {
            GPT2 => Some(Self::Gpt2),
            QWEN2 => Some(Self::Cl100k { digits_max: 1 }),
            CL100K => Some(Self::Cl100k { digits_max: 3 }),
            O200K => Some(Self::O200k),
            _ => None,
        }
    }

    /// The scanner for splits that follow each other and keep every piece, with exactly
    /// these patterns.
    pub(crate) fn recognise_sequence<S: AsRef<str>>(patterns: &[S]) -> Option<Self> {
        let patterns = patterns.iter().map(AsRef::as_ref);
        patterns.eq(DEEPSEEK3).then_some(Self::DeepSeek3)
    }
}

/// A scanner over one piece of text.
#[derive(Clone, Copy)]
pub(crate) struct Scanner<'a> {
    text: &'a str,
    classes: &'static Classes,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self {
            text,
            classes: classes(),
        }
    }

    /// End of the match that begins at `at`, which must be inside the text and on
    /// a character boundary. The result is larger than `at`.
    #[inline]
    pub(crate) fn end_of_match(self, grammar: Grammar, at: usize) -> usize {
        match grammar {
            Grammar::Gpt2 => self.gpt2(at),
            Grammar::Cl100k { digits_max } => self.cl100k(usize::from(digits_max), at),
            Grammar::O200k => self.o200k(at),
            Grammar::DeepSeek3 => self.deepseek3(at),
        }
    }

    fn gpt2(self, at: usize) -> usize {
        let first = self.byte(at);
        if first == Some(b'\'')
            && let Some(end) = self.contraction(at, false)
        {
            return end;
        }
        let start = if first == Some(b' ') { at + 1 } else { at };
        match self.kind(start) {
            Some((Kind::Space, len)) if start == at => self.blanks(at, at + len),
            // A blank after the optional space: the space begins a run of blanks.
            Some((Kind::Space, _)) | None => self.blanks(at, start),
            Some((kind, len)) => self.run(kind, start + len),
        }
    }

    fn cl100k(self, digits_max: usize, at: usize) -> usize {
        let first = self.byte(at);
        if first == Some(b'\'')
            && let Some(end) = self.contraction(at, true)
        {
            return end;
        }
        let Some((kind, len)) = self.kind(at) else {
            return at;
        };
        let next = at + len;
        match kind {
            Kind::Letter => self.run(Kind::Letter, next),
            Kind::Number => self.digits(digits_max, next),
            Kind::Space | Kind::Other => {
                let newline = matches!(first, Some(b'\r' | b'\n'));
                let follow = self.kind(next);
                if let Some((Kind::Letter, len)) = follow
                    && !newline
                {
                    return self.run(Kind::Letter, next + len);
                }
                match (kind, follow) {
                    (Kind::Other, _) => self.newlines(self.run(Kind::Other, next), false),
                    (_, Some((Kind::Other, len))) if first == Some(b' ') => {
                        self.newlines(self.run(Kind::Other, next + len), false)
                    }
                    _ => self.blanks_with_newlines(at, next),
                }
            }
        }
    }

    fn o200k(self, at: usize) -> usize {
        let first = self.byte(at);
        let Some((kind, len)) = self.kind(at) else {
            return at;
        };
        let next = at + len;
        let newline = matches!(first, Some(b'\r' | b'\n'));
        // With the optional prefix, and without it where that cannot match. A mark
        // can be either the prefix or the first of the word.
        let prefixed = !newline && matches!(kind, Kind::Space | Kind::Other);
        let starts = [prefixed.then_some(next), Some(at)];
        for word in [Self::lower_word, Self::upper_word] {
            for start in starts.into_iter().flatten() {
                if let Some(end) = word(self, start) {
                    return self.contraction(end, true).unwrap_or(end);
                }
            }
        }
        match kind {
            Kind::Number => self.digits(3, next),
            Kind::Other => self.newlines(self.run(Kind::Other, next), true),
            _ => match self.kind(next) {
                Some((Kind::Other, len)) if first == Some(b' ') => {
                    self.newlines(self.run(Kind::Other, next + len), true)
                }
                _ => self.blanks_with_newlines(at, next),
            },
        }
    }

    /// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+`
    fn lower_word(self, start: usize) -> Option<usize> {
        let (mut at, mut low_end) = (start, None);
        while let Some((case, len)) = self.case(at) {
            if case == Case::Lower {
                break;
            }
            at += len;
            if case == Case::Both {
                low_end = Some(at);
            }
        }
        let lower_start = at;
        while let Some((Case::Lower | Case::Both, len)) = self.case(at) {
            at += len;
        }
        // Without a lower-case letter the upper run gives back to its last
        // character that also counts as lower.
        if at > lower_start { Some(at) } else { low_end }
    }

    /// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*`
    fn upper_word(self, start: usize) -> Option<usize> {
        let mut at = start;
        while let Some((Case::Upper | Case::Both, len)) = self.case(at) {
            at += len;
        }
        if at == start {
            return None;
        }
        while let Some((Case::Lower | Case::Both, len)) = self.case(at) {
            at += len;
        }
        Some(at)
    }

    fn byte(self, at: usize) -> Option<u8> {
        self.text.as_bytes().get(at).copied()
    }

    #[inline]
    fn kind(self, at: usize) -> Option<(Kind, usize)> {
        self.classes.kind_at(self.text, at)
    }

    /// Which of the two letter runs of [`O200K`] accepts the character at `at`.
    fn case(self, at: usize) -> Option<(Case, usize)> {
        let c = char_at(self.text, at)?;
        let case = if c.is_ascii() {
            match c {
                'A'..='Z' => Case::Upper,
                'a'..='z' => Case::Lower,
                _ => return None,
            }
        } else {
            // Categories in the order of `unicode::CATEGORIES`.
            match self.classes.class(c).category() {
                0 | 2 => Case::Upper,
                1 => Case::Lower,
                3..=7 => Case::Both,
                _ => return None,
            }
        };
        Some((case, c.len_utf8()))
    }

    /// `'s|'t|'re|'ve|'m|'ll|'d` at `at`. Without regard to case, `ſ` counts as `s`.
    fn contraction(self, at: usize, fold_case: bool) -> Option<usize> {
        let rest = self.text.as_bytes().get(at..)?;
        if rest.first() != Some(&b'\'') {
            return None;
        }
        let fold = |b: &u8| {
            if fold_case {
                b.to_ascii_lowercase()
            } else {
                *b
            }
        };
        match (rest.get(1).map(fold)?, rest.get(2).map(fold)) {
            (b's' | b't' | b'm' | b'd', _) => Some(at + 2),
            (b'r' | b'v', Some(b'e')) | (b'l', Some(b'l')) => Some(at + 3),
            // U+017F, a long s, in UTF-8
            (0xC5, Some(0xBF)) if fold_case => Some(at + 3),
            _ => None,
        }
    }

    /// End of the run of characters of one kind that continues at `at`.
    #[inline]
    fn run(self, kind: Kind, mut at: usize) -> usize {
        while let Some((next, len)) = self.kind(at) {
            if next != kind {
                break;
            }
            at += len;
        }
        at
    }

    /// End of up to `max` numbers, of which the first ends at `at`.
    fn digits(self, max: usize, mut at: usize) -> usize {
        for _ in 1..max {
            match self.kind(at) {
                Some((Kind::Number, len)) => at += len,
                _ => break,
            }
        }
        at
    }

    /// `[\r\n]*`, or `[\r\n/]*` with `slash`.
    fn newlines(self, mut at: usize, slash: bool) -> usize {
        while let Some(b) = self.byte(at) {
            if !(matches!(b, b'\r' | b'\n') || slash && b == b'/') {
                break;
            }
            at += 1;
        }
        at
    }

    /// `\s+(?!\S)|\s+` for the blanks that begin at `start` and go on at `next`.
    fn blanks(self, start: usize, next: usize) -> usize {
        let (end, last) = self.blank_run(start, next);
        self.leave_last_blank(start, end, last)
    }

    /// `\s*[\r\n]+|\s+(?!\S)|\s+` for the same.
    fn blanks_with_newlines(self, start: usize, next: usize) -> usize {
        let (end, last) = self.blank_run(start, next);
        let run = &self.text.as_bytes()[start..end];
        match run.iter().rposition(|b| matches!(b, b'\r' | b'\n')) {
            Some(newline) => start + newline + 1,
            None => self.leave_last_blank(start, end, last),
        }
    }

    /// End of the run of blanks, and where its last blank begins.
    fn blank_run(self, start: usize, next: usize) -> (usize, usize) {
        let (mut at, mut last) = (next, start);
        while let Some((Kind::Space, len)) = self.kind(at) {
            last = at;
            at += len;
        }
        (at, last)
    }

    /// A run of blanks leaves its last one to the word after it, unless it is alone.
    fn leave_last_blank(self, start: usize, end: usize, last: usize) -> usize {
        if end == self.text.len() || last == start {
            end
        } else {
            last
        }
    }
}

/// Which letter runs of [`O200K`] accept a letter or mark.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    /// `Lu`, `Lt`
    Upper,
    /// `Ll`
    Lower,
    /// `Lm`, `Lo`, marks
    Both,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::pattern::Pattern;
    use proptest::prelude::*;
    use tokenizers::utils::SysRegex;

    const PATTERNS: [&str; 4] = [GPT2, QWEN2, CL100K, O200K];

    fn check(pattern: &str, text: &str) {
        let grammar = Grammar::recognise(pattern).expect("a constant of this module");
        let scanner = Scanner::new(text);
        let mut at = 0;
        let mut scanned = Vec::new();
        while at < text.len() {
            let end = scanner.end_of_match(grammar, at);
            assert!(end > at, "{pattern} stands still at {at} of {text:?}");
            scanned.push((at, end));
            at = end;
        }
        check_fill(scanner, grammar, &scanned);
        let reference: Vec<_> = SysRegex::new(pattern).unwrap().find_iter(text).collect();
        assert_eq!(scanned, reference, "{pattern} on {text:?}");

        let twin = Pattern::new(pattern).expect("supported");
        let mut stack = Vec::new();
        let mut at = 0;
        let mut matched = Vec::new();
        while let Some((start, end)) = twin.find(text, at, &mut stack) {
            matched.push((start, end));
            at = end;
        }
        assert_eq!(matched, reference, "naive twin: {pattern} on {text:?}");
    }

    /// Every way to fill finds what the scanner found one by one.
    pub(super) fn check_fill(scanner: Scanner<'_>, grammar: Grammar, expected: &[(usize, usize)]) {
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
    fn traps() {
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
            ] {
                check(pattern, text);
            }
        }
    }

    /// Parts of which several fit into a block, in any position there.
    fn parts() -> impl Strategy<Value = String> {
        let part = prop_oneof![
            r"[ \t\r\n\u{A0}\u{3000}'/!.]",
            r"['’](s|S|ſ|t|re|RE|vE|ll|l|m|d)",
            r"[a-cX-Z]{1,9}",
            r"[0-9½Ⅷ]{1,4}",
            r"[\u{301}\u{940}\u{20DD}ǅʰ漢ñÜ🙂\u{200B}\u{85}]",
            r"[×÷\u{4DC0}\u{4DFF}]{1,3}",
            r"[Привет]{1,9}|[éÃ×÷ß]{1,6}|[한국\u{AFFF}\u{B000}\u{CFFF}\u{D000}]{1,9}|[䶿一\u{4DC0}]{1,6}|[ѿҀ҂]{1,3}",
            r"[ \n]{0,5}|[ /\n!]{0,5}|[ \t]{0,70}|[0-9]{0,80}|[aB]{0,70}|[漢字]{0,30}",
        ];
        prop::collection::vec(part, 0..60).prop_map(|parts| parts.concat())
    }

    fn check_blocks(text: &str) {
        for pattern in PATTERNS {
            let grammar = Grammar::recognise(pattern).expect("a constant of this module");
            let scanner = Scanner::new(text);
            let (mut at, mut scanned) = (0, Vec::new());
            while at < text.len() {
                let end = scanner.end_of_match(grammar, at);
                scanned.push((at, end));
                at = end;
            }
            check_fill(scanner, grammar, &scanned);
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
            text in r"([ \t\r\n\u{A0}\u{3000}'/!.]|['’](s|S|ſ|t|re|RE|vE|ll|l|m|d)|[a-cX-Z]{1,3}|[0-9½Ⅷ]{1,4}|[\u{301}\u{940}\u{20DD}ǅʰ漢ñÜ🙂\u{200B}\u{85}]|\PC){0,14}"
        ) {
            for pattern in PATTERNS {
                check(pattern, &text);
            }
        }
    }
}
