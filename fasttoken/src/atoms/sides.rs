//! What tokens begin and end with, and so what can stand beside a character.

use super::decode;

/// What a token ends with that ends where a character does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    /// A whole character, so text has this one there.
    Char(u32, u8),
    /// The last bytes of one that begins before the token: any with this last byte.
    Byte(u8),
}

impl End {
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

/// What a token begins with that begins where a character does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Begin {
    /// A whole character, so text has this one there.
    Char(u32),
    /// The first bytes of one that ends after the token: any with this first byte.
    Lead(u8),
}

impl Begin {
    /// `None` for a token that begins inside of a character.
    pub(super) fn of(piece: &[u8]) -> Option<Self> {
        let lead = *piece.first()?;
        if lead & 0xC0 == 0x80 {
            return None;
        }
        let whole = decode(piece, 0).map(|(code, _)| Self::Char(code));
        Some(whole.unwrap_or(Self::Lead(lead)))
    }
}

/// Whether a token can stand where a character ends: not, if it ends before the last
/// byte of one that it begins.
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
