//! Normalizers that look at each character alone: `Lowercase`, `StripAccents`, `Nmt`, and `Strip`.

use super::aligned::Aligned;
use super::form::is_whole;
use unicode_normalization_alignments::char::is_combining_mark;

/// A normalizer that looks at characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Letters {
    Lowercase,
    StripAccents,
    /// The rules of SentencePiece for machine translation.
    Nmt,
    /// Blanks at the beginning and the end go.
    Strip {
        left: bool,
        right: bool,
    },
}

impl Letters {
    /// Returns the normalized text, unless it is `text`.
    pub(super) fn apply(self, text: &str) -> Option<String> {
        let changed = match self {
            Self::Lowercase => {
                let mut lower = String::with_capacity(text.len());
                for c in text.chars() {
                    push_lower(c, &mut lower);
                }
                lower
            }
            Self::StripAccents if text.is_ascii() => return None,
            Self::StripAccents => text.chars().filter(|c| !is_mark(*c)).collect(),
            Self::Nmt => text.chars().filter_map(nmt).collect(),
            Self::Strip { left, right } => {
                let mut rest = text;
                if left {
                    rest = rest.trim_start();
                }
                if right {
                    rest = rest.trim_end();
                }
                return (rest.len() < text.len()).then(|| rest.to_owned());
            }
        };
        (changed != text).then_some(changed)
    }

    /// Does to a text and its ranges what [`Letters::apply`] does to the text.
    pub(super) fn align(self, text: &mut Aligned) {
        match self {
            Self::Lowercase => text.lowercase(),
            Self::StripAccents => text.filter(|c| !is_mark(c)),
            Self::Nmt => {
                text.filter(|c| nmt(c).is_some());
                text.map(|c| nmt(c).unwrap_or(c));
            }
            Self::Strip { left, right } => {
                let (mut kept, mut skipped) = (text.text.as_str(), 0);
                if left {
                    kept = kept.trim_start();
                    let gone = text.text.len() - kept.len();
                    skipped = text.text[..gone].chars().count();
                }
                if right {
                    kept = kept.trim_end();
                }
                let edits: Vec<_> = kept.chars().map(|c| (c, 0)).collect();
                text.transform(edits, skipped);
            }
        }
    }
}

#[inline]
fn is_mark(c: char) -> bool {
    // The first one is U+0300, and Greek and Cyrillic letters have none among them.
    !matches!(c, '\0'..='\u{2FF}' | '\u{370}'..='\u{482}') && !is_whole(c) && is_combining_mark(c)
}

/// Appends the lower case of a character.
#[inline]
pub(super) fn push_lower(c: char, out: &mut String) {
    if c.is_ascii() {
        out.push(c.to_ascii_lowercase());
    } else if is_caseless(c) {
        out.push(c);
    } else if let 'А'..='Я' = c {
        // Cyrillic has its small letters 32 places after the capital ones.
        out.push(char::from_u32(u32::from(c) + 32).unwrap_or(c));
    } else {
        out.extend(c.to_lowercase());
    }
}

/// Returns true for some characters of scripts without case and small letters; looking up others takes ten times as long.
fn is_caseless(c: char) -> bool {
    matches!(
        c,
        'а'..='џ' | '\u{590}'..='\u{109F}' | '\u{2E80}'..='\u{A63F}' | '\u{AC00}'..='\u{D7FF}'
    )
}

fn nmt(c: char) -> Option<char> {
    match u32::from(c) {
        0x1..=0x8 | 0xB | 0xE..=0x1F | 0x7F | 0x8F | 0x9F => None,
        0x9
        | 0xA
        | 0xC
        | 0xD
        | 0x1680
        | 0x200B..=0x200F
        | 0x2028
        | 0x2029
        | 0x2581
        | 0xFEFF
        | 0xFFFD => Some(' '),
        _ => Some(c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_has_the_case_of_the_standard_library() {
        for c in '\0'..=char::MAX {
            let mut lower = String::new();
            push_lower(c, &mut lower);
            assert!(lower.chars().eq(c.to_lowercase()), "{c:?}");
            assert_eq!(is_mark(c), is_combining_mark(c), "{c:?}");
        }
    }

    #[test]
    fn scripts_without_case_have_none() {
        let caseless = ('\0'..=char::MAX).filter(|c| is_caseless(*c));
        let mut count = 0;
        for c in caseless {
            assert!(c.to_lowercase().eq(std::iter::once(c)), "{c:?}");
            count += 1;
        }
        assert!(count > 40_000, "{count}");
    }
}
