//! The table of characters: their tokens, and their classes for rules that join characters.
//!
//! Texts are encoded in a spelling of their own, in which a space stands for `▁`, and `▁`
//! for a space: then ordinary text is read as it is, and its words have two bytes less than
//! with `▁`. A word is looked up by its bytes, so more of them are short.

use super::NO_ID;
use crate::format::CompiledError;
use crate::format::{Reader, Section, Writer};
use crate::pieces::META;
use crate::store::{Flat, Relocatable};
use bytemuck::{Pod, Zeroable};

/// Characters of a block of [`LetterTable`].
const BLOCK: usize = 64;
const END: usize = char::MAX as usize + 1;

/// The properties of a character that rules depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Letter {
    /// The character's token, or [`NO_ID`].
    pub(super) id: u32,
    /// The character's class as the left one of two characters; see [`super::cut_table`].
    pub(super) left: u16,
    /// The character's class as the right one of two characters.
    pub(super) right: u16,
}

impl Letter {
    /// A character that no rule knows.
    pub(super) const NONE: Self = Self {
        id: NO_ID,
        left: 0,
        right: 0,
    };
}

/// The table of all characters, in two levels that share empty blocks.
#[derive(Debug)]
pub(super) struct LetterTable {
    /// Block of each 64 code points; the first is empty.
    index: Flat<u16>,
    letters: Flat<Letter>,
}

/// [`LetterTable`] that are being filled.
pub(super) struct Builder {
    index: Vec<u16>,
    letters: Vec<Letter>,
}

impl Builder {
    /// Creates a table of the tokens of one character, in the usual spelling.
    pub(super) fn new(tokens: impl Iterator<Item = (char, u32)>) -> Self {
        let mut index = vec![0u16; END / BLOCK];
        let mut letters = vec![Letter::NONE; BLOCK];
        for (c, id) in tokens {
            let c = swapped(c) as usize;
            let block = &mut index[c / BLOCK];
            if *block == 0 {
                *block = (letters.len() / BLOCK) as u16;
                letters.resize(letters.len() + BLOCK, Letter::NONE);
            }
            letters[usize::from(*block) * BLOCK + c % BLOCK].id = id;
        }
        Self { index, letters }
    }

    /// Returns a number for each character that has a token, below [`Builder::len`].
    pub(super) fn place(&self, c: char) -> Option<usize> {
        let c = swapped(c) as usize;
        let at = usize::from(self.index[c / BLOCK]) * BLOCK + c % BLOCK;
        (self.letters[at].id != NO_ID).then_some(at)
    }

    pub(super) fn len(&self) -> usize {
        self.letters.len()
    }

    pub(super) fn get(&self, place: usize) -> Letter {
        self.letters[place]
    }

    pub(super) fn at(&mut self, place: usize) -> &mut Letter {
        &mut self.letters[place]
    }

    pub(super) fn finish(self) -> LetterTable {
        LetterTable {
            index: self.index.into(),
            letters: self.letters.into(),
        }
    }
}

impl LetterTable {
    pub(super) fn write(&self, writer: &mut Writer) {
        writer.put(Section::LetterIndex, &self.index);
        writer.put(Section::Letters, &self.letters);
    }

    /// Reads the table. Numbers and classes are checked where they are used.
    pub(super) fn read(reader: &Reader) -> Result<Self, CompiledError> {
        let index = reader.get::<u16>(Section::LetterIndex)?;
        if index.len() != END / BLOCK {
            return Err(Section::LetterIndex.invalid("it is not of all characters"));
        }
        Ok(Self {
            index,
            letters: reader.get(Section::Letters)?,
        })
    }

    pub(super) fn tables(&mut self) -> [&mut dyn Relocatable; 2] {
        [&mut self.index, &mut self.letters]
    }

    /// Returns a view for many lookups.
    #[inline(always)]
    pub(super) fn view(&self) -> LetterView<'_> {
        let index = self.index.first_chunk();
        LetterView {
            index: index.expect("the index is built with this length, and another one is refused"),
            letters: &self.letters,
        }
    }

    /// Returns a character by its code point in the spelling of texts.
    #[inline(always)]
    pub(super) fn get(&self, code: u32) -> Letter {
        self.view().get(code)
    }

    /// Returns a character of the usual spelling.
    #[inline]
    pub(super) fn of(&self, c: char) -> Letter {
        self.get(swapped(c) as u32)
    }
}

/// The tables of [`LetterTable`].
#[derive(Debug, Clone, Copy)]
pub(super) struct LetterView<'a> {
    index: &'a [u16; END / BLOCK],
    letters: &'a [Letter],
}

impl LetterView<'_> {
    /// Returns the letter of a code point, as [`LetterTable::get`] does.
    #[inline(always)]
    pub(super) fn get(self, code: u32) -> Letter {
        let block = self.index.get(code as usize / BLOCK).copied().unwrap_or(0);
        self.of_block(block, code as usize)
    }

    /// Returns [`LetterView::get`] of a code point of 16 bits, which the index always has.
    #[inline(always)]
    pub(super) fn get_narrow(self, code: u16) -> Letter {
        let code = usize::from(code);
        self.of_block(self.index[code / BLOCK], code)
    }

    #[inline(always)]
    fn of_block(self, block: u16, code: usize) -> Letter {
        let at = usize::from(block) * BLOCK + code % BLOCK;
        self.letters.get(at).copied().unwrap_or(Letter::NONE)
    }
}

/// Returns a character in the other spelling.
#[inline]
pub(super) fn swapped(c: char) -> char {
    match c {
        ' ' => META,
        META => ' ',
        c => c,
    }
}

/// The bytes of `▁`.
pub(super) const META_BYTES: [u8; 3] = {
    let mut bytes = [0; 3];
    META.encode_utf8(&mut bytes);
    bytes
};

/// Appends a text of the usual spelling to one of the other.
pub(super) fn push_swapped(text: &str, out: &mut Vec<u8>) {
    push(text.as_bytes(), &META_BYTES, out);
}

/// Appends a text in which both `▁` and spaces stand for `▁`.
pub(super) fn push_blanks(text: &str, out: &mut Vec<u8>) {
    let bytes = text.as_bytes();
    let is_meta = |three: &[u8]| {
        let [a, b, c] = META_BYTES;
        (three[0] == a) & (three[1] == b) & (three[2] == c)
    };
    // Hardly any text has a `▁`; compilers vectorize this search.
    let (mut at, mut found) = (0, false);
    while let Some(window) = bytes.get(at..at + 66) {
        found |= (0..64).fold(false, |any, n| any | is_meta(&window[n..n + 3]));
        at += 64;
    }
    found |= bytes[at..].windows(3).any(is_meta);
    if found {
        push(bytes, b" ", out);
    } else {
        out.extend_from_slice(bytes);
    }
}

/// Appends a text with a space for each `▁`, and `blank` for each space.
fn push(text: &[u8], blank: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    while let [first, after @ ..] = rest {
        if let Some(after) = rest.strip_prefix(&META_BYTES) {
            out.push(b' ');
            rest = after;
            continue;
        }
        match first {
            b' ' => out.extend_from_slice(blank),
            other => out.push(*other),
        }
        rest = after;
    }
}

/// Returns the code point of the character that these four bytes begin with; what follows the
/// character does not matter.
#[inline(always)]
pub(super) fn code(four: [u8; 4]) -> u32 {
    /// The shift and the mask of a character's bits, by the upper five bits of its first byte.
    const KINDS: [(u32, u32); 32] = {
        let mut kinds = [(18, 0x7F); 32];
        let mut lead = 0b11000;
        while lead < 32 {
            kinds[lead] = match lead {
                0b11000..0b11100 => (12, 0x7FF),
                0b11100..0b11110 => (6, 0xFFFF),
                _ => (0, 0x1F_FFFF),
            };
            lead += 1;
        }
        kinds
    };
    let [a, b, c, d] = four.map(u32::from);
    let bits = a << 18 | (b & 0x3F) << 12 | (c & 0x3F) << 6 | d & 0x3F;
    let (shift, mask) = KINDS[(a >> 3) as usize % 32];
    bits >> shift & mask
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_characters() {
        for c in ('\0'..=char::MAX).step_by(7).chain([
            '\u{7F}',
            '\u{80}',
            '\u{7FF}',
            '\u{800}',
            '\u{FFFF}',
            '\u{10000}',
            char::MAX,
        ]) {
            for after in [0, 0x7F, 0x80, 0xBF, 0xF0] {
                let mut four = [after; 4];
                c.encode_utf8(&mut four);
                assert_eq!(code(four), u32::from(c), "{c:?}");
            }
        }
    }

    #[test]
    fn spellings_are_swapped_everywhere() {
        for n in 0..150 {
            for text in [" ", "▁", "a ▁", "▁▁ x", "é▂\u{2580}"] {
                let text = format!("{}{text}{}", "x".repeat(n), "y".repeat(n % 70));
                let (mut swapped_text, mut blanks) = (Vec::new(), Vec::new());
                push_swapped(&text, &mut swapped_text);
                push_blanks(&text, &mut blanks);
                let expected: String = text.chars().map(swapped).collect();
                assert_eq!(swapped_text, expected.as_bytes());
                assert_eq!(blanks, text.replace('▁', " ").as_bytes());
            }
        }
    }

    #[test]
    fn characters_have_their_tokens() {
        let tokens = [('▁', 7), ('a', 3), ('漢', 9), (char::MAX, 5)];
        let letters = Builder::new(tokens.into_iter()).finish();
        for (c, id) in tokens {
            assert_eq!(letters.of(c).id, id);
            assert_eq!(letters.get(swapped(c).into()), letters.of(c));
        }
        for c in [' ', 'b', '字', '\u{10FFFE}'] {
            assert_eq!(letters.of(c), Letter::NONE);
        }
        assert_eq!(letters.get(u32::MAX), Letter::NONE);
    }
}
