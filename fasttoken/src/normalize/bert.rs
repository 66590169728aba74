//! `BertNormalizer`: control characters, Chinese characters, accents and upper case.

use super::aligned::Aligned;
use super::form::{Form, is_whole};
use super::letters::push_lower;
use crate::error::Error;
use crate::json::Component;
use crate::unicode::{is_old_mark, is_old_other};
use serde_json::Value;
use unicode_normalization_alignments::char::{canonical_combining_class, decompose_canonical};

/// The settings of a `BertNormalizer`.
#[derive(Debug, Clone)]
pub(super) struct Bert {
    clean_text: bool,
    chinese_chars: bool,
    strip_accents: bool,
    lowercase: bool,
    /// The character that each ASCII character becomes, or [`GONE`].
    ascii: [u8; 128],
}

/// The mark of an ASCII character that is taken out.
const GONE: u8 = 0xFF;

impl Bert {
    pub(super) fn load(component: &Component, path: &str) -> Result<Self, Error> {
        let lowercase = component.bool("lowercase", path)?;
        let strip_accents = match component.get("strip_accents") {
            // Accents go with upper case.
            None | Some(Value::Null) => lowercase,
            Some(_) => component.bool("strip_accents", path)?,
        };
        let mut this = Self {
            clean_text: component.bool("clean_text", path)?,
            chinese_chars: component.bool("handle_chinese_chars", path)?,
            strip_accents,
            lowercase,
            ascii: [0; 128],
        };
        for code in 0..128u8 {
            let c = char::from(code);
            this.ascii[usize::from(code)] = match this.cleaned(c) {
                None => GONE,
                Some(c) if lowercase => c.to_ascii_lowercase() as u8,
                Some(c) => c as u8,
            };
        }
        Ok(this)
    }

    /// Returns what `clean_text` leaves of a character.
    fn cleaned(&self, c: char) -> Option<char> {
        if !self.clean_text {
            return Some(c);
        }
        let blank = matches!(c, '\t' | '\n' | '\r');
        let gone = matches!(c, '\0' | '\u{FFFD}') || !blank && is_old_other(c);
        let blank = blank || c.is_whitespace();
        (!gone).then_some(if blank { ' ' } else { c })
    }

    /// Returns the normalized text, unless it is `text`.
    pub(super) fn apply(&self, text: &str) -> Option<String> {
        let mut out = String::with_capacity(text.len() + 16);
        let mut marks = Marks::default();
        let mut rest = text;
        while !rest.is_empty() {
            let bytes = rest.as_bytes();
            let ascii = bytes.iter().position(|byte| !byte.is_ascii());
            let (run, after) = rest.split_at(ascii.unwrap_or(bytes.len()));
            if !run.is_empty() {
                marks.flush(self, &mut out);
                let kept = run.bytes().map(|byte| self.ascii[usize::from(byte & 0x7F)]);
                out.extend(kept.filter(|byte| *byte != GONE).map(char::from));
            }
            rest = after;
            while let Some(c) = rest.chars().next().filter(|c| !c.is_ascii()) {
                rest = &rest[c.len_utf8()..];
                if let '\u{AC00}'..='\u{D7A3}' = c {
                    marks.flush(self, &mut out);
                    self.push_hangul(c, &mut out);
                } else if let Some(c) = self.cleaned(c) {
                    self.push(c, &mut marks, &mut out);
                }
            }
        }
        marks.flush(self, &mut out);
        (out != text).then_some(out)
    }

    /// Appends what becomes of a character that is no ASCII.
    fn push(&self, c: char, marks: &mut Marks, out: &mut String) {
        if self.chinese_chars && is_chinese(c) {
            marks.flush(self, out);
            out.push(' ');
            self.decompose(c, marks, out);
            marks.flush(self, out);
            out.push(' ');
        } else {
            self.decompose(c, marks, out);
        }
    }

    /// Appends what becomes of a syllable of Hangul. Only `strip_accents` changes it, which decomposes
    /// it into letters that have no case and are no marks.
    fn push_hangul(&self, c: char, out: &mut String) {
        /// The first letter of each of the three places, and the numbers of letters of the last two.
        const FIRST: [u32; 3] = [0x1100, 0x1161, 0x11A7];
        const VOWELS: u32 = 21;
        const FINALS: u32 = 28;
        if !self.strip_accents {
            out.push(c);
            return;
        }
        let n = u32::from(c) - 0xAC00;
        let places = [n / FINALS / VOWELS, n / FINALS % VOWELS, n % FINALS];
        let count = if places[2] == 0 { 2 } else { 3 };
        let letters = FIRST.into_iter().zip(places).take(count);
        out.extend(letters.filter_map(|(first, place)| char::from_u32(first + place)));
    }

    fn decompose(&self, c: char, marks: &mut Marks, out: &mut String) {
        if !self.strip_accents || is_whole(c) {
            marks.flush(self, out);
            self.push_lower(c, out);
            return;
        }
        decompose_canonical(c, |part| {
            let class = canonical_combining_class(part);
            if class == 0 {
                marks.flush(self, out);
                self.push_stripped(part, out);
            } else {
                marks.0.push((class, part));
            }
        });
    }

    fn push_stripped(&self, c: char, out: &mut String) {
        if !is_old_mark(c) {
            self.push_lower(c, out);
        }
    }

    fn push_lower(&self, c: char, out: &mut String) {
        if self.lowercase {
            push_lower(c, out);
        } else {
            out.push(c);
        }
    }

    /// Does to a text and its ranges what [`Bert::apply`] does to the text.
    pub(super) fn align(&self, text: &mut Aligned) {
        if self.clean_text {
            text.filter(|c| self.cleaned(c).is_some());
            text.map(|c| self.cleaned(c).unwrap_or(c));
        }
        if self.chinese_chars {
            let mut edits = Vec::with_capacity(text.text.len());
            for c in text.text.chars() {
                if is_chinese(c) {
                    edits.extend([(' ', 0), (c, 1), (' ', 1)]);
                } else {
                    edits.push((c, 0));
                }
            }
            text.transform(edits, 0);
        }
        if self.strip_accents {
            let mut edits = Vec::with_capacity(text.text.len());
            Form::Nfd.transform(&text.text, |edit| edits.push(edit));
            text.transform(edits, 0);
            text.filter(|c| !is_old_mark(c));
        }
        if self.lowercase {
            text.lowercase();
        }
    }
}

/// Marks that wait for the next character of class 0, since marks are put in the order of their
/// classes.
#[derive(Debug, Default)]
struct Marks(Vec<(u8, char)>);

impl Marks {
    #[inline]
    fn flush(&mut self, bert: &Bert, out: &mut String) {
        if !self.0.is_empty() {
            self.0.sort_by_key(|(class, _)| *class);
            for (_, c) in self.0.drain(..) {
                bert.push_stripped(c, out);
            }
        }
    }
}

/// Returns true for the characters that get a space at both sides.
fn is_chinese(c: char) -> bool {
    matches!(
        u32::from(c),
        0x4E00..=0x9FFF
            | 0x3400..=0x4DBF
            | 0x20000..=0x2A6DF
            | 0x2A700..=0x2B73F
            | 0x2B740..=0x2B81F
            | 0x2B920..=0x2CEAF
            | 0xF900..=0xFAFF
            | 0x2F800..=0x2FA1F
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hangul_is_decomposed_as_other_characters() {
        let bert = Bert {
            clean_text: true,
            chinese_chars: true,
            strip_accents: true,
            lowercase: true,
            ascii: [GONE; 128],
        };
        for c in '\u{ABF0}'..='\u{D7C0}' {
            let mut expected = String::new();
            if let Some(c) = bert.cleaned(c) {
                let mut marks = Marks::default();
                bert.push(c, &mut marks, &mut expected);
                marks.flush(&bert, &mut expected);
            }
            let text = c.to_string();
            assert_eq!(bert.apply(&text).unwrap_or(text), expected, "{c:?}");
        }
    }
}
