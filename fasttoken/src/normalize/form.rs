//! Unicode normalization forms, with the tables of the reference.

use super::nfc::{Doubtful, nfc};
use unicode_normalization_alignments::{
    IsNormalized, UnicodeNormalization, is_nfd_quick, is_nfkc_quick, is_nfkd_quick,
};

/// A normalization form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
}

impl Form {
    pub(super) fn quick_check(self, text: &str) -> bool {
        if text.is_ascii() {
            return true;
        }
        // Without the starters that stay, marks can only seem to be out of order.
        let chars = text.chars().filter(|c| !is_whole(*c));
        let result = match self {
            Self::Nfc => return Doubtful::new(text).next().is_none(),
            Self::Nfd => is_nfd_quick(chars),
            Self::Nfkc => is_nfkc_quick(chars),
            Self::Nfkd => is_nfkd_quick(chars),
        };
        result == IsNormalized::Yes
    }

    /// Calls `each` with every character of the normalized text and its change: 1
    /// for a character that was inserted, -n for a character that stands for n more.
    pub(super) fn transform(self, text: &str, each: impl FnMut((char, isize))) {
        match self {
            Self::Nfc => text.nfc().for_each(each),
            Self::Nfd => text.nfd().for_each(each),
            Self::Nfkc => text.nfkc().for_each(each),
            Self::Nfkd => text.nfkd().for_each(each),
        }
    }

    pub(super) fn apply(self, text: &str) -> Option<String> {
        if self == Self::Nfc {
            return nfc(text);
        }
        if self.quick_check(text) {
            return None;
        }
        let mut normalized = String::with_capacity(text.len() + 8);
        self.transform(text, |(c, _)| normalized.push(c));
        Some(normalized)
    }
}

/// Returns true for ideographs that every form leaves alone, of which Chinese is full.
#[inline]
pub(super) fn is_whole(c: char) -> bool {
    matches!(c, '\u{3400}'..='\u{4DBF}' | '\u{4E00}'..='\u{9FFF}')
}
