//! The first and last characters of tokens, which tell the possible neighbours of a character.

use super::decode;

/// The end of a token that ends where a character does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TokenEnd {
    /// A whole character and its last byte.
    Char(u32, u8),
    /// The last byte of a character that begins before the token.
    Byte(u8),
}

impl TokenEnd {
    pub(super) fn of(piece: &[u8]) -> Option<Self> {
        let last = *piece.last()?;
        let tail = piece.iter().rev().take_while(|byte| *byte & 0xC0 == 0x80);
        let whole = piece
            .len()
            .checked_sub(tail.count() + 1)
            .and_then(|at| Some((at, decode(piece, at)?)))
            .filter(|(at, (_, len))| at + len == piece.len());
        Some(match whole {
            Some((_, (code, _))) => Self::Char(code, last),
            None => Self::Byte(last),
        })
    }
}

/// The start of a token that begins where a character does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TokenStart {
    /// A whole character.
    Char(u32),
    /// The first byte of a character that ends after the token.
    Lead(u8),
}

impl TokenStart {
    /// Returns the start of a token, or `None` if the token begins inside of a character.
    pub(super) fn of(piece: &[u8]) -> Option<Self> {
        let lead = *piece.first()?;
        if lead & 0xC0 == 0x80 {
            return None;
        }
        let whole = decode(piece, 0).map(|(code, _)| Self::Char(code));
        Some(whole.unwrap_or(Self::Lead(lead)))
    }
}

/// Returns true if a token can end where a character ends. A token cannot if it stops inside of a
/// character that it begins.
pub(super) fn ends_character(piece: &[u8]) -> bool {
    let tail = piece.iter().rev().take_while(|byte| *byte & 0xC0 == 0x80);
    let tail = tail.count();
    match piece.len().checked_sub(tail + 1).map(|at| piece[at]) {
        Some(lead) => {
            let needed = match lead {
                ..0xC0 => 0,
                0xC0..0xE0 => 1,
                0xE0..0xF0 => 2,
                0xF0.. => 3,
            };
            tail >= needed
        }
        None => true,
    }
}
