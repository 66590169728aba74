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
//! The plain reference version of every scanner is [`crate::pattern`] on the same pattern.

mod block;
mod cased;
mod class_masks;
mod deepseek;
mod fill;
mod grammar;

use crate::unicode::{Classes, Kind, char_at, classes, classes_with_marks, is_han};
pub(crate) use block::ENDS;
pub(crate) use class_masks::BLOCK;
#[cfg(test)]
pub(crate) use deepseek::DEEPSEEK3;
pub(crate) use grammar::Grammar;
#[cfg(test)]
pub(crate) use grammar::{CL100K, QWEN2};
pub(crate) use grammar::{GPT2, O200K};
use grammar::{Shape, Tail, Word};

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

    /// Selects the kinds of characters that `shape` distinguishes.
    #[inline]
    fn with_kinds(self, shape: Shape) -> Self {
        match shape.word {
            Word::Marked => Self {
                text: self.text,
                classes: classes_with_marks(),
            },
            Word::Plain | Word::Letters | Word::Cased => self,
        }
    }

    /// Returns the end of the match that begins at `at`, which must be inside the text and on a
    /// character boundary. The result is larger than `at`.
    #[inline]
    pub(crate) fn end_of_match(self, grammar: Grammar, at: usize) -> usize {
        let Some(shape) = grammar.shape() else {
            return self.deepseek3(at);
        };
        match shape.word {
            Word::Plain => self.gpt2(at),
            Word::Cased => self.cased(shape, at),
            Word::Letters | Word::Marked => self.with_kinds(shape).spaced(shape, at),
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

    /// Returns the end of the match of a pattern whose words do not end between lower and upper
    /// case.
    fn spaced(self, shape: Shape, at: usize) -> usize {
        let first = self.byte(at);
        if first == Some(b'\'')
            && shape.contractions
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
            Kind::Number => self.digits(shape.digits_max, next),
            Kind::Space | Kind::Other => {
                let newline = matches!(first, Some(b'\r' | b'\n'));
                let follow = self.kind(next);
                if let Some((Kind::Letter, len)) = follow
                    && !newline
                {
                    return self.run(Kind::Letter, next + len);
                }
                self.no_word(shape, kind, at, next)
            }
        }
    }

    /// Returns the end of the match of a pattern whose words end between lower and upper case.
    fn cased(self, shape: Shape, at: usize) -> usize {
        let first = self.byte(at);
        let Some((kind, len)) = self.kind(at) else {
            return at;
        };
        let next = at + len;
        if shape.han && self.is_han(at) {
            return self.han_run(next);
        }
        let newline = matches!(first, Some(b'\r' | b'\n'));
        // With the optional prefix, and without it where that cannot match. A mark
        // can be either the prefix or the first of the word.
        let prefixed = !newline && matches!(kind, Kind::Space | Kind::Other);
        let starts = [prefixed.then_some(next), Some(at)];
        for word in [Self::lower_word, Self::upper_word] {
            for start in starts.into_iter().flatten() {
                if let Some(end) = word(self, shape.han, start) {
                    let contraction = shape.contractions.then(|| self.contraction(end, true));
                    return contraction.flatten().unwrap_or(end);
                }
            }
        }
        match kind {
            Kind::Number => self.digits(shape.digits_max, next),
            _ => self.no_word(shape, kind, at, next),
        }
    }

    /// Returns the end of the match that begins with a blank or other character at `at`, and goes
    /// on at `next` with no word.
    #[inline]
    fn no_word(self, shape: Shape, kind: Kind, at: usize, next: usize) -> usize {
        match (kind, self.kind(next)) {
            (Kind::Other, _) => self.tail(self.run(Kind::Other, next), shape.tail),
            (_, Some((Kind::Other, len))) if self.byte(at) == Some(b' ') => {
                self.tail(self.run(Kind::Other, next + len), shape.tail)
            }
            _ if shape.last_blanks && self.blank_run(at, next).0 == self.text.len() => {
                self.text.len()
            }
            _ => self.blanks_with_newlines(at, next),
        }
    }

    fn is_han(self, at: usize) -> bool {
        char_at(self.text, at).is_some_and(is_han)
    }

    /// Returns the end of the run of Han characters that goes on at `at`.
    fn han_run(self, mut at: usize) -> usize {
        while let Some(c) = char_at(self.text, at) {
            if !is_han(c) {
                break;
            }
            at += c.len_utf8();
        }
        at
    }

    /// Matches `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+`, without Han characters
    /// if these are words of their own (`han`).
    fn lower_word(self, han: bool, start: usize) -> Option<usize> {
        let (mut at, mut low_end) = (start, None);
        while let Some((case, len)) = self.case(han, at) {
            if case == Case::Lower {
                break;
            }
            at += len;
            if case == Case::Both {
                low_end = Some(at);
            }
        }
        let lower_start = at;
        while let Some((Case::Lower | Case::Both, len)) = self.case(han, at) {
            at += len;
        }
        // Without a lower-case letter the upper run gives back to its last
        // character that also counts as lower.
        if at > lower_start { Some(at) } else { low_end }
    }

    /// Matches `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*`, without Han characters
    /// if these are words of their own (`han`).
    fn upper_word(self, han: bool, start: usize) -> Option<usize> {
        let mut at = start;
        while let Some((Case::Upper | Case::Both, len)) = self.case(han, at) {
            at += len;
        }
        if at == start {
            return None;
        }
        while let Some((Case::Lower | Case::Both, len)) = self.case(han, at) {
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

    /// Returns which of the two letter runs of [`grammar::O200K`] accept the character at `at`,
    /// of those that are not Han if `han`.
    fn case(self, han: bool, at: usize) -> Option<(Case, usize)> {
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
                3..=7 if han && is_han(c) => return None,
                3..=7 => Case::Both,
                _ => return None,
            }
        };
        Some((case, c.len_utf8()))
    }

    /// Matches `'s|'t|'re|'ve|'m|'ll|'d` at `at`. Without regard to case, `ſ` counts as `s`.
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

    /// Returns the end of the run of characters of one kind that continues at `at`.
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

    /// Returns the end of up to `max` numbers (0: of any number of them), of which the first ends
    /// at `at`.
    fn digits(self, max: u8, mut at: usize) -> usize {
        if max == 0 {
            return self.run(Kind::Number, at);
        }
        for _ in 1..max {
            match self.kind(at) {
                Some((Kind::Number, len)) => at += len,
                _ => break,
            }
        }
        at
    }

    /// Returns the end of the characters that follow a run of other characters in its word.
    fn tail(self, mut at: usize, tail: Tail) -> usize {
        while let Some(b) = self.byte(at) {
            let belongs = match b {
                b'\r' | b'\n' => tail != Tail::None,
                b'/' => tail == Tail::LineEndsAndSlashes,
                _ => false,
            };
            if !belongs {
                break;
            }
            at += 1;
        }
        at
    }

    /// Matches `\s+(?!\S)|\s+` for the blanks that begin at `start` and go on at `next`.
    fn blanks(self, start: usize, next: usize) -> usize {
        let (end, last) = self.blank_run(start, next);
        self.leave_last_blank(start, end, last)
    }

    /// Matches `\s*[\r\n]+|\s+(?!\S)|\s+` for the blanks that begin at `start` and go on at `next`.
    fn blanks_with_newlines(self, start: usize, next: usize) -> usize {
        let (end, last) = self.blank_run(start, next);
        let run = &self.text.as_bytes()[start..end];
        match run.iter().rposition(|b| matches!(b, b'\r' | b'\n')) {
            Some(newline) => start + newline + 1,
            None => self.leave_last_blank(start, end, last),
        }
    }

    /// Returns the end of the run of blanks, and where its last blank begins.
    fn blank_run(self, start: usize, next: usize) -> (usize, usize) {
        let (mut at, mut last) = (next, start);
        while let Some((Kind::Space, len)) = self.kind(at) {
            last = at;
            at += len;
        }
        (at, last)
    }

    /// Returns the end of a run of blanks, which leaves its last blank to the word after it unless
    /// that blank is the whole run or the text ends there.
    fn leave_last_blank(self, start: usize, end: usize, last: usize) -> usize {
        if end == self.text.len() || last == start {
            end
        } else {
            last
        }
    }
}

/// The letter runs of [`grammar::O200K`] that accept a letter or mark.
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
mod scan_tests;
