//! `Precompiled`: the replacements of a SentencePiece model, in its double array.
//!
//! The reference looks graphemes up, and takes the *shortest* string of the map that a grapheme
//! begins with for all of it. Graphemes that are longer, or not in the map, are looked up character
//! by character.

use super::aligned::Aligned;
use crate::error::Error;
use crate::json::Component;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use unicode_segmentation::UnicodeSegmentation as _;

/// The replacements of a SentencePiece model.
#[derive(Debug, Clone)]
pub(crate) struct Charsmap {
    /// The units of the double array.
    units: Vec<u32>,
    /// The replacements, each of which ends before a NUL.
    replacements: String,
    /// The place of the replacement of each ASCII character, or [`NONE`].
    ascii: [u32; 128],
}

/// The mark of a character that stays.
const NONE: u32 = u32::MAX;

/// Upper bound of the bytes of a string of the map; those of published files have at most 12.
const KEY_MAX: usize = 255;

/// Graphemes of more bytes are not looked up.
const GRAPHEME_MAX: usize = 5;

impl Charsmap {
    pub(super) fn load(component: &Component, path: &str) -> Result<Self, Error> {
        let path = &format!("{path}.precompiled_charsmap");
        let invalid = |problem: &str| Error::invalid(path, problem);
        let text = component
            .get("precompiled_charsmap")
            .and_then(|map| map.as_str());
        let text = text.ok_or_else(|| invalid("must be a string in Base64"))?;
        let bytes = BASE64.decode(text).map_err(|_| invalid("is not Base64"))?;
        Self::parse(&bytes).map_err(invalid)
    }

    /// Reads a map as SentencePiece writes it: the number of bytes of the double array, the array,
    /// and all replacements. Returns the problem if it is malformed.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let short = "is shorter than it says";
        let (size, rest) = bytes.split_first_chunk::<4>().ok_or(short)?;
        let size = u32::from_le_bytes(*size) as usize / 4 * 4;
        let units = rest.get(..size).ok_or(short)?;
        let replacements = String::from_utf8(rest[size..].to_vec());
        let (units, _) = units.as_chunks::<4>();
        if units.is_empty() {
            return Err("has no units");
        }
        let mut this = Self {
            units: units.iter().map(|unit| u32::from_le_bytes(*unit)).collect(),
            replacements: replacements.map_err(|_| "has replacements that are no UTF-8")?,
            ascii: [NONE; 128],
        };
        for code in 0..128u8 {
            this.ascii[usize::from(code)] = this.find(&[code]).unwrap_or(NONE);
        }
        Ok(this)
    }

    /// Returns the bytes that [`Charsmap::parse`] reads.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let units = self.units.iter().flat_map(|unit| unit.to_le_bytes());
        let size = (4 * self.units.len() as u32).to_le_bytes();
        let replacements = self.replacements.bytes();
        size.into_iter().chain(units).chain(replacements).collect()
    }

    /// Returns the place of the replacement of the shortest string that `key` begins with.
    fn find(&self, key: &[u8]) -> Option<u32> {
        let mut at = offset(*self.units.first()?);
        for &byte in key.iter().take_while(|byte| **byte != 0) {
            at ^= u32::from(byte);
            // A damaged array can lead out of itself.
            let unit = *self.units.get(at as usize)?;
            if unit & (1 << 31 | 0xFF) != u32::from(byte) {
                return None;
            }
            at ^= offset(unit);
            if unit >> 8 & 1 == 1 {
                return Some(self.units.get(at as usize)? & ((1 << 31) - 1));
            }
        }
        None
    }

    /// Returns the length and the replacement of the longest string that `text` begins with. Strings
    /// of a damaged map that are longer than 255 bytes, or end inside of a character, are not found.
    pub(crate) fn longest<'a>(&'a self, text: &str) -> Option<(usize, &'a str)> {
        let mut at = offset(*self.units.first()?);
        let mut longest = None;
        for (n, &byte) in text.as_bytes().iter().take(KEY_MAX).enumerate() {
            at ^= u32::from(byte);
            let Some(&unit) = self.units.get(at as usize) else {
                break;
            };
            if unit & (1 << 31 | 0xFF) != u32::from(byte) {
                break;
            }
            at ^= offset(unit);
            if unit >> 8 & 1 == 1
                && let Some(place) = self.units.get(at as usize)
                && text.is_char_boundary(n + 1)
            {
                longest = Some((n + 1, place & ((1 << 31) - 1)));
            }
        }
        longest.map(|(len, place)| (len, self.replacement(place)))
    }

    /// Returns the bytes of the longest replacement that any place can have.
    pub(crate) fn longest_replacement(&self) -> usize {
        let lens = self.replacements.split('\0').map(str::len);
        lens.max().unwrap_or(0)
    }

    fn replacement(&self, place: u32) -> &str {
        // A damaged map can have places inside of characters.
        let rest = self.replacements.get(place as usize..).unwrap_or_default();
        let end = memchr::memchr(0, rest.as_bytes()).unwrap_or(rest.len());
        &rest[..end]
    }

    fn replace(&self, part: &str) -> Option<&str> {
        self.find(part.as_bytes())
            .map(|place| self.replacement(place))
    }

    /// Calls `each` with every part of `text` that is looked up and its replacement, if it has one.
    fn parts<'t>(&self, text: &'t str, mut each: impl FnMut(&'t str, Option<&str>)) {
        for grapheme in text.graphemes(true) {
            if grapheme.len() <= GRAPHEME_MAX
                && let Some(new) = self.replace(grapheme)
            {
                each(grapheme, Some(new));
                continue;
            }
            for (at, c) in grapheme.char_indices() {
                let part = &grapheme[at..at + c.len_utf8()];
                each(part, self.replace(part));
            }
        }
    }

    /// Returns the normalized text, unless it is `text`.
    pub(super) fn apply(&self, text: &str) -> Option<String> {
        let mut out = String::with_capacity(text.len() + 16);
        let mut changed = false;
        let mut at = 0;
        while at < text.len() {
            // Between two plain characters there is always an end of a grapheme.
            let (plain, mixed) = (plain_end(text, at), text.len());
            self.push_plain(&text[at..plain], &mut out, &mut changed);
            let mixed = plain + mixed_len(&text[plain..mixed]);
            self.parts(&text[plain..mixed], |part, new| {
                changed |= new.is_some();
                out.push_str(new.unwrap_or(part));
            });
            at = mixed;
        }
        changed.then_some(out)
    }

    /// Appends what becomes of characters that are graphemes.
    fn push_plain(&self, text: &str, out: &mut String, changed: &mut bool) {
        let mut kept = 0;
        for (at, c) in text.char_indices() {
            let end = at + c.len_utf8();
            let place = if c.is_ascii() {
                let place = self.ascii[c as usize];
                (place != NONE).then_some(place)
            } else {
                self.find(&text.as_bytes()[at..end])
            };
            if let Some(place) = place {
                out.push_str(&text[kept..at]);
                out.push_str(self.replacement(place));
                kept = end;
                *changed = true;
            }
        }
        out.push_str(&text[kept..]);
    }

    /// Does to a text and its ranges what [`Charsmap::apply`] does to the text.
    pub(super) fn align(&self, text: &mut Aligned) {
        let mut edits: Vec<(char, isize)> = Vec::with_capacity(text.text.len());
        let mut changed = false;
        self.parts(&text.text, |part, new| {
            let Some(new) = new else {
                edits.extend(part.chars().map(|c| (c, 0)));
                return;
            };
            changed = true;
            let more = new.chars().count() as isize - part.chars().count() as isize;
            edits.extend(new.chars().map(|c| (c, 0)));
            if more > 0 {
                let inserted = edits.iter_mut().rev().take(more as usize);
                inserted.for_each(|(_, change)| *change = 1);
            } else if let Some((_, change)) = edits.last_mut() {
                // What goes at the beginning is not counted.
                *change += more;
            }
        });
        if changed {
            text.transform(edits, 0);
        }
    }
}

/// Returns the distance from a unit to the block of its children.
fn offset(unit: u32) -> u32 {
    (unit >> 10) << ((unit & (1 << 9)) >> 6)
}

/// Returns true for some characters that join no grapheme with another one of them. The carriage
/// return is none, since it joins with the line feed.
fn is_plain(c: char) -> bool {
    matches!(
        c,
        '\0'..='\u{C}'
            | '\u{E}'..='\u{7F}'
            | '\u{C0}'..='\u{2FF}'
            | '\u{370}'..='\u{482}'
            | '\u{48A}'..='\u{52F}'
            | '\u{5D0}'..='\u{5EA}'
            | '\u{620}'..='\u{64A}'
            | '\u{E01}'..='\u{E30}'
            | '\u{2010}'..='\u{2027}'
            | '\u{3001}'..='\u{3029}'
            | '\u{3041}'..='\u{3096}'
            | '\u{30A0}'..='\u{30FF}'
            | '\u{3400}'..='\u{4DBF}'
            | '\u{4E00}'..='\u{9FFF}'
            | '\u{AC00}'..='\u{D7A3}'
            | '\u{FF01}'..='\u{FF9D}'
    )
}

/// Returns the end of the plain characters from `at` on, without the last one if another character
/// follows, which may join it.
fn plain_end(text: &str, at: usize) -> usize {
    let mut last = at;
    for (n, c) in text[at..].char_indices() {
        if !is_plain(c) {
            return last;
        }
        last = at + n;
    }
    text.len()
}

/// Returns the length of what goes before the first two plain characters that stand side by side,
/// and the first of the two.
fn mixed_len(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1).peekable();
    while let Some((_, c)) = chars.next() {
        if let Some((at, next)) = chars.peek()
            && is_plain(c)
            && is_plain(*next)
        {
            return *at;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_characters_join_with_no_plain_one() {
        let plain: Vec<char> = ('\0'..=char::MAX).filter(|c| is_plain(*c)).collect();
        assert!(plain.len() > 30_000);
        for &c in &plain {
            for other in ['a', '\n', '中', 'Ж', '가', 'ぁ', 'ー', c] {
                for text in [format!("{c}{other}"), format!("{other}{c}")] {
                    assert_eq!(text.graphemes(true).count(), 2, "{text:?}");
                }
            }
        }
    }
}
