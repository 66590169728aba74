//! Character classes as the reference's regular expressions see them.
//!
//! The reference matches with Oniguruma, whose Unicode version is not the one of
//! the Rust standard library, and no crate's that may have a newer one tomorrow. The generated
//! [`TABLE`] records, for every code point, its general category and whether `\s` matches it there,
//! and whether `\w` of the `regex` crate matches it (used for `single_word` added tokens), and
//! whether NFC leaves it alone: it neither changes nor changes place, in any text.
//! `scripts/unicode_table.rs` writes it; `tests/suite/category_table_gate.rs` compares it
//! with the reference over all code points.

mod han;
mod old;

pub(crate) use han::{HAN, is_han};
pub(crate) use old::{is_old_mark, is_old_other, is_old_punctuation};

use std::collections::HashMap;
use std::sync::LazyLock;

/// General categories in the order of their numbers in the table.
///
/// Surrogates (`Cs`) cannot occur in a `&str` and are counted as `Cn`.
pub(crate) const CATEGORIES: [&str; 29] = [
    "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi",
    "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cn",
];

/// The runs of code points of equal classes: four bytes for each run, the class and above it the first
/// code point, little-endian. A class has the category number in bits 0 to 4, `\s` in bit 5, `\w` in bit
/// 6, left by NFC in bit 7.
static TABLE: &[u8] = include_bytes!("unicode/category_table.bin");

/// Returns the first code point and the class of each run of [`TABLE`].
fn runs() -> impl Iterator<Item = (u32, u8)> {
    let (runs, _) = TABLE.as_chunks::<4>();
    let runs = runs.iter().map(|run| u32::from_le_bytes(*run));
    runs.map(|run| (run >> 8, run as u8))
}

const CATEGORY_BITS: u8 = 0x1F;
const SPACE: u8 = 0x20;
const WORD: u8 = 0x40;
const INERT: u8 = 0x80;

/// The class of one character: category number, `\s` flag and `\w` flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class(u8);

impl Class {
    /// Number of different values of [`Class::index`].
    pub(crate) const COUNT: u8 = 128;

    pub(crate) fn from_index(index: u8) -> Self {
        Self(index)
    }

    /// Returns the class as a small number, for tables keyed by class.
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Returns the position of the general category in [`CATEGORIES`].
    pub(crate) fn category(self) -> usize {
        usize::from(self.0 & CATEGORY_BITS)
    }

    pub(crate) fn is_space(self) -> bool {
        self.0 & SPACE != 0
    }

    pub(crate) fn is_word(self) -> bool {
        self.0 & WORD != 0
    }
}

/// The character kinds that the split patterns of byte-level models distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `\p{L}`
    Letter,
    /// `\p{N}`
    Number,
    /// `\s`, of which `\r` and `\n` are told apart by the caller
    Space,
    /// everything else
    Other,
}

/// Two-level table: 256 code points per block, equal blocks stored once.
pub(crate) struct Classes {
    index: Vec<u16>,
    blocks: Vec<u8>,
    kinds: [Kind; Class::COUNT as usize],
    ascii_kinds: [Kind; 128],
}

static CLASSES: LazyLock<Classes> = LazyLock::new(|| Classes::build(false));
static WITH_MARKS: LazyLock<Classes> = LazyLock::new(|| Classes::build(true));

/// Returns the shared table. Keep the reference: each call checks that it was built.
pub(crate) fn classes() -> &'static Classes {
    &CLASSES
}

/// Returns the table in which marks are letters too, as in `[\p{L}\p{M}]`.
pub(crate) fn classes_with_marks() -> &'static Classes {
    &WITH_MARKS
}

impl Classes {
    /// Builds the table; with `marks`, the kind of marks is [`Kind::Letter`].
    fn build(marks: bool) -> Self {
        let (index, blocks) = blocks();
        let mut kinds = [Kind::Other; Class::COUNT as usize];
        for (n, kind) in kinds.iter_mut().enumerate() {
            let class = Class(n as u8);
            *kind = match CATEGORIES
                .get(class.category())
                .map(|name| name.as_bytes()[0])
            {
                Some(b'L') => Kind::Letter,
                Some(b'M') if marks => Kind::Letter,
                Some(b'N') => Kind::Number,
                _ if class.is_space() => Kind::Space,
                _ => Kind::Other,
            };
        }
        let mut this = Self {
            index,
            blocks,
            kinds,
            ascii_kinds: [Kind::Other; 128],
        };
        for c in 0..128u8 {
            this.ascii_kinds[usize::from(c)] = this.kind(char::from(c));
        }
        this
    }

    #[inline]
    pub(crate) fn class(&self, c: char) -> Class {
        let c = c as usize;
        let block = usize::from(self.index[c >> 8]);
        Class(self.blocks[block << 8 | c & 0xFF] & !INERT)
    }

    /// Returns true if NFC neither changes `c` nor moves another character across it.
    #[inline]
    pub(crate) fn is_inert(&self, c: char) -> bool {
        let c = c as usize;
        let block = usize::from(self.index[c >> 8]);
        self.blocks[block << 8 | c & 0xFF] & INERT != 0
    }

    #[inline]
    pub(crate) fn kind(&self, c: char) -> Kind {
        self.kinds[self.class(c).index()]
    }

    /// Returns the kind and the length in bytes of the character at `at`, which must be a character
    /// boundary of `text`; `None` at the end.
    #[inline]
    pub(crate) fn kind_at(&self, text: &str, at: usize) -> Option<(Kind, usize)> {
        let first = *text.as_bytes().get(at)?;
        if first < 0x80 {
            return Some((self.ascii_kinds[usize::from(first)], 1));
        }
        let c = char_at(text, at)?;
        Some((self.kind(c), c.len_utf8()))
    }
}

/// Returns the classes of all characters in blocks of 256, equal blocks once, and the number of the block
/// of each 256 characters.
fn blocks() -> (Vec<u16>, Vec<u8>) {
    let mut index = Vec::with_capacity(0x1100);
    let mut blocks: Vec<u8> = Vec::new();
    let mut seen = HashMap::new();
    let mut runs = runs().peekable();
    // The value where the block begins, and the block before, which most are equal to.
    let mut value = 0;
    let mut last = None;
    for begin in (0..0x11_0000).step_by(256) {
        let mut block = [value; 256];
        while let Some((start, next)) = runs.next_if(|(start, _)| *start < begin + 256) {
            block[(start - begin) as usize..].fill(next);
            value = next;
        }
        let at = match last {
            Some((before, at)) if before == block => at,
            _ => *seen.entry(block).or_insert_with(|| {
                blocks.extend_from_slice(&block);
                blocks.len() / 256 - 1
            }),
        };
        last = Some((block, at));
        index.push(u16::try_from(at).expect("there are 0x1100 blocks"));
    }
    (index, blocks)
}

/// Returns the character at byte `at`, which must be a character boundary.
#[inline]
pub(crate) fn char_at(text: &str, at: usize) -> Option<char> {
    let bytes = text.as_bytes().get(at..)?;
    let first = u32::from(*bytes.first()?);
    if first < 0x80 {
        return char::from_u32(first);
    }
    let tail = |n: usize| bytes.get(n).map_or(0, |b| u32::from(b & 0x3F));
    let code = if first < 0xE0 {
        (first & 0x1F) << 6 | tail(1)
    } else if first < 0xF0 {
        (first & 0x0F) << 12 | tail(1) << 6 | tail(2)
    } else {
        (first & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3)
    };
    char::from_u32(code)
}

/// Returns true if `\w` of the `regex` crate matches `c`.
pub(crate) fn is_word(c: char) -> bool {
    classes().class(c).is_word()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn char_at_decodes_every_character() {
        for c in '\0'..=char::MAX {
            let mut buffer = [0; 4];
            let text = c.encode_utf8(&mut buffer);
            assert_eq!(char_at(text, 0), Some(c));
        }
        assert_eq!(char_at("", 0), None);
    }

    #[test]
    fn every_character_has_the_class_of_its_run() {
        let mut runs = runs().peekable();
        let mut class = 0;
        for c in '\0'..=char::MAX {
            while let Some((_, next)) = runs.next_if(|(start, _)| *start <= c as u32) {
                class = next;
            }
            assert_eq!(classes().class(c), Class(class & !INERT), "{c:?}");
            assert_eq!(classes().is_inert(c), class & INERT != 0, "{c:?}");
        }
    }

    /// Spec trap: what Oniguruma calls blank is not what one might guess.
    #[test]
    fn blanks_are_those_of_oniguruma() {
        for c in ['\u{85}', '\u{A0}', '\u{2028}', '\u{3000}', '\t', '\u{B}'] {
            assert_eq!(classes().kind(c), Kind::Space, "{c:?}");
        }
        for c in ['\u{200B}', '\u{FEFF}', '\u{180E}', '\u{1C}'] {
            assert_eq!(classes().kind(c), Kind::Other, "{c:?}");
        }
    }

    /// Spec trap: `\p{N}` is Nd, Nl and No.
    #[test]
    fn numbers_include_letter_numbers_and_fractions() {
        for c in ['7', '٣', 'Ⅷ', '½', '²', '㉈'] {
            assert_eq!(classes().kind(c), Kind::Number, "{c:?}");
        }
    }
}
