//! The vocabulary and the merges of a usual file, read in one pass over its bytes.
//!
//! A file of ten megabytes is nearly all these two values. `serde_json` would look at each
//! of their bytes to find where they end, and then they would be read; here they are
//! decoded on the way, eight bytes at a time, by the byte-level alphabet, and everything
//! around them is left to `serde_json`. What is not as usual, malformed or merely rare, is
//! not judged here: the answer is `None`, and the file is read the slower way, which says
//! what is wrong. With what is made of them, the two values of Qwen 3's file (7 MB) take 20
//! ms this way and 43 that way.

use crate::alphabet;
use std::ops::Range;

/// Reads forward; every `None` is final.
#[derive(Debug)]
pub(crate) struct Scanner<'a> {
    json: &'a [u8],
    at: usize,
}

/// The contents of a string.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Spelled {
    /// Only characters of the alphabet, of which the bytes were appended.
    Bytes,
    /// Something else, decoded.
    Other(String),
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(json: &'a [u8]) -> Self {
        Self { json, at: 0 }
    }

    /// Returns the position of the next byte.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Returns the bytes of a range that [`Scanner::merge`] gave.
    pub(crate) fn slice(&self, range: Range<usize>) -> &'a [u8] {
        &self.json[range]
    }

    /// Returns the number of bytes that are left.
    pub(crate) fn left(&self) -> usize {
        self.json.len() - self.at
    }

    /// The first byte of what comes next.
    #[inline]
    pub(crate) fn peek(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.json.get(self.at) {
            self.at += 1;
        }
        self.json.get(self.at).copied()
    }

    /// Steps over `byte`, which must come next.
    #[inline]
    pub(crate) fn expect(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    /// Steps over the byte after an entry of a list or map that ends with `close`. Returns true if
    /// another entry follows.
    #[inline]
    pub(crate) fn more(&mut self, close: u8) -> Option<bool> {
        let byte = self.peek()?;
        self.at += 1;
        match byte {
            b',' => Some(true),
            _ => (byte == close).then_some(false),
        }
    }

    /// Calls `each` with the keys of a map; it must step over the value.
    pub(crate) fn map(
        &mut self,
        mut each: impl FnMut(&mut Self, &'a [u8]) -> Option<()>,
    ) -> Option<()> {
        self.expect(b'{')?;
        if self.peek()? == b'}' {
            self.at += 1;
            return Some(());
        }
        loop {
            self.expect(b'"')?;
            let start = self.at;
            self.skip_string()?;
            let key = &self.json[start..self.at - 1];
            self.expect(b':')?;
            each(self, key)?;
            if !self.more(b'}')? {
                return Some(());
            }
        }
    }

    /// Steps to behind the end of the string that was begun.
    fn skip_string(&mut self) -> Option<()> {
        loop {
            match self.json.get(self.at)? {
                b'"' => break,
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        Some(())
    }

    /// Steps over any value. A malformed value is left for its reader to report.
    pub(crate) fn skip(&mut self) -> Option<()> {
        let mut depth = 0usize;
        loop {
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    self.skip_string()?;
                }
                b'{' | b'[' => {
                    self.at += 1;
                    depth += 1;
                    continue;
                }
                b'}' | b']' => {
                    self.at += 1;
                    depth = depth.checked_sub(1)?;
                }
                b',' | b':' => {
                    self.at += 1;
                    if depth == 0 {
                        return None;
                    }
                    continue;
                }
                _ => {
                    let rest = &self.json[self.at..];
                    let end =
                        |b: &u8| matches!(b, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t');
                    self.at += rest.iter().position(end).unwrap_or(rest.len());
                }
            }
            if depth == 0 {
                return Some(());
            }
        }
    }

    /// Reads a natural number of up to nine digits.
    #[inline]
    pub(crate) fn number(&mut self) -> Option<u32> {
        self.peek()?;
        let start = self.at;
        let mut number = 0;
        while let Some(digit @ b'0'..=b'9') = self.json.get(self.at) {
            if self.at - start == 9 {
                return None;
            }
            number = number * 10 + u32::from(digit - b'0');
            self.at += 1;
        }
        let len = self.at - start;
        // JSON has no leading zeros.
        (len == 1 || len > 1 && self.json[start] != b'0').then_some(number)
    }

    /// Reads a string. Appends to `out` the bytes that it spells, if all characters are of the
    /// alphabet.
    #[inline]
    pub(crate) fn spelled(&mut self, out: &mut Vec<u8>) -> Option<Spelled> {
        self.expect(b'"')?;
        let (start, before) = (self.at, out.len());
        self.plain(out);
        if self.json.get(self.at)? == &b'"' {
            self.at += 1;
            return Some(Spelled::Bytes);
        }
        out.truncate(before);
        self.other(start).map(Spelled::Other)
    }

    /// Reads a string and appends its text to `out`.
    #[inline]
    pub(crate) fn string(&mut self, out: &mut Vec<u8>) -> Option<()> {
        self.expect(b'"')?;
        let start = self.at;
        let rest = &self.json[start..];
        let mut len = 0;
        // Copies eight bytes at once, then cuts to the real number.
        while let Some(eight) = rest.get(len..).and_then(<[u8]>::first_chunk) {
            let stops = not_plain(u64::from_le_bytes(*eight));
            let count = stops.trailing_zeros() as usize / 8;
            let end = out.len() + count;
            out.extend_from_slice(eight);
            out.truncate(end);
            len += count;
            if count < 8 {
                break;
            }
        }
        if rest.get(len)? == &b'"' {
            self.at += len + 1;
            return Some(());
        }
        // Something rare, or the end of the file.
        out.truncate(out.len() - len);
        let text = self.other(start)?;
        out.extend_from_slice(text.as_bytes());
        Some(())
    }

    /// Reads two strings: one string with a space between both, or a list of two. Appends to `out`
    /// the bytes that both spell and returns where the second begins, or returns the range of the
    /// whole value if its characters are not of the alphabet.
    #[inline]
    pub(crate) fn merge(&mut self, out: &mut Vec<u8>) -> Option<Result<usize, Range<usize>>> {
        let is_list = self.peek()? == b'[';
        let (from, before) = (self.at, out.len());
        let cut = if is_list {
            self.at += 1;
            self.two_strings(out)
        } else {
            self.two_words(out)
        };
        if let Some(cut) = cut {
            return Some(Ok(cut));
        }
        out.truncate(before);
        self.at = from;
        self.skip()?;
        Some(Err(from..self.at))
    }

    /// `"a b"`
    #[inline]
    fn two_words(&mut self, out: &mut Vec<u8>) -> Option<usize> {
        self.expect(b'"')?;
        let before = out.len();
        self.plain(out);
        (self.json.get(self.at)? == &b' ').then(|| self.at += 1)?;
        // The version line of the older text format of merges.
        if out[before..].starts_with(b"#version") {
            return None;
        }
        let cut = out.len();
        self.plain(out);
        (self.json.get(self.at)? == &b'"').then(|| self.at += 1)?;
        Some(cut)
    }

    /// `"a", "b"]`
    #[inline]
    fn two_strings(&mut self, out: &mut Vec<u8>) -> Option<usize> {
        self.expect(b'"')?;
        self.plain(out);
        (self.json.get(self.at)? == &b'"').then(|| self.at += 1)?;
        self.expect(b',')?;
        let cut = out.len();
        self.expect(b'"')?;
        self.plain(out);
        (self.json.get(self.at)? == &b'"').then(|| self.at += 1)?;
        self.expect(b']')?;
        Some(cut)
    }

    /// Appends the bytes that the next characters spell, up to a character that is not of the
    /// alphabet or has a meaning in JSON.
    #[inline]
    fn plain(&mut self, out: &mut Vec<u8>) {
        loop {
            let rest = &self.json[self.at..];
            if let Some(eight) = rest.first_chunk::<8>() {
                let stops = not_graphic(u64::from_le_bytes(*eight));
                let count = stops.trailing_zeros() as usize / 8;
                // Copies all eight bytes at once, then cuts to the real number.
                let end = out.len() + count;
                out.extend_from_slice(eight);
                out.truncate(end);
                self.at += count;
                if count == 8 {
                    continue;
                }
            } else if let Some(byte @ (b'!' | b'#'..=b'[' | b']'..=b'~')) = rest.first() {
                out.push(*byte);
                self.at += 1;
                continue;
            }
            let [lead @ 0xC2..=0xC5, tail @ 0x80..=0xBF, ..] = self.json[self.at..] else {
                return;
            };
            let code = u32::from(lead & 0x1F) << 6 | u32::from(tail & 0x3F);
            let Some(byte) = char::from_u32(code).and_then(alphabet::byte) else {
                return;
            };
            out.push(byte);
            self.at += 2;
        }
    }

    /// Reads the string that began at `start`, with any characters.
    #[cold]
    fn other(&mut self, start: usize) -> Option<String> {
        self.at = start;
        self.skip_string()?;
        serde_json::from_slice(self.json.get(start - 1..self.at)?).ok()
    }
}

/// The upper bit of each byte, up to the first one, that is no visible ASCII character, or
/// a quotation mark or a backslash. Above the first one it may also be others'.
#[inline]
fn not_graphic(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const UPPER: u64 = 0x80 * ONES;
    let below = |word: u64, limit: u64| word.wrapping_sub(limit * ONES) & !word;
    let is = |byte: u64| below(word ^ (byte * ONES), 1);
    (word | below(word, 0x21) | is(0x22) | is(0x5C) | is(0x7F)) & UPPER
}

/// The upper bit of each byte, up to the first one, that is a control character, a quotation
/// mark or a backslash. Above the first one it may also be others'.
#[inline]
fn not_plain(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const UPPER: u64 = 0x80 * ONES;
    let below = |word: u64, limit: u64| word.wrapping_sub(limit * ONES) & !word;
    let is = |byte: u64| below(word ^ (byte * ONES), 1);
    (below(word, 0x20) | is(0x22) | is(0x5C)) & UPPER
}

#[cfg(test)]
mod one_pass_scanner_tests;
