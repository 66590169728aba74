//! The byte-level alphabet: how vocabularies spell raw bytes as printable characters.
//!
//! GPT-2 introduced it and every byte-level vocabulary uses it: printable Latin-1
//! characters stand for themselves, the 68 other bytes for U+0100 and up, in order.

use std::borrow::Cow;

/// Returns true if `byte` is spelled by the character of the same number.
const fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

const SPELLINGS: [char; 256] = {
    let mut table = ['\0'; 256];
    let mut next = 0x100u32;
    let mut byte = 0usize;
    while byte < 256 {
        table[byte] = if stands_for_itself(byte as u8) {
            byte as u8 as char
        } else {
            next += 1;
            match char::from_u32(next - 1) {
                Some(c) => c,
                None => panic!("U+0100 to U+0143 are characters"),
            }
        };
        byte += 1;
    }
    table
};

/// Returns the character that spells `byte`.
pub(crate) fn spelling(byte: u8) -> char {
    SPELLINGS[usize::from(byte)]
}

/// The byte that each character below U+0144 spells, or `NO_BYTE` outside of the alphabet.
const BYTES: [u16; 0x144] = {
    let mut table = [NO_BYTE; 0x144];
    let mut byte = 0;
    while byte < 256 {
        table[SPELLINGS[byte] as usize] = byte as u16;
        byte += 1;
    }
    table
};

const NO_BYTE: u16 = u16::MAX;

/// Returns the byte that `c` spells if it is a character of the alphabet.
pub(crate) fn byte(c: char) -> Option<u8> {
    let byte = BYTES.get(c as usize).copied().unwrap_or(NO_BYTE);
    u8::try_from(byte).ok()
}

/// Appends the bytes that `token` spells and returns true. Appends nothing and returns false if a
/// character is not in the alphabet.
pub(crate) fn append_bytes(token: &str, out: &mut Vec<u8>) -> bool {
    // Most tokens are a word, with or without a space before it.
    let word = token.as_bytes().strip_prefix("Ġ".as_bytes());
    let rest = word.unwrap_or(token.as_bytes());
    if rest.iter().all(u8::is_ascii_graphic) {
        out.extend(word.map(|_| b' '));
        out.extend_from_slice(rest);
        return true;
    }
    let before = out.len();
    for c in token.chars() {
        let Some(byte) = byte(c) else {
            out.truncate(before);
            return false;
        };
        out.push(byte);
    }
    true
}

/// Returns the alphabet's spelling of `bytes`, borrowed if they spell themselves.
pub(crate) fn spell(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes)
        && bytes.iter().all(u8::is_ascii_graphic)
    {
        return Cow::Borrowed(text);
    }
    Cow::Owned(bytes.iter().map(|&byte| spelling(byte)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alphabet_is_that_of_the_reference() {
        let ours: std::collections::BTreeSet<char> = (0..=255).map(spelling).collect();
        let reference = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
        assert_eq!(ours, reference.into_iter().collect());
    }

    #[test]
    fn every_byte_comes_back() {
        for b in 0..=255 {
            assert_eq!(byte(spelling(b)), Some(b));
        }
        assert_eq!(spelling(b' '), 'Ġ');
        assert_eq!(spelling(b'\n'), 'Ċ');
        assert_eq!(byte(' '), None);
        assert_eq!(byte('\u{AD}'), None);
        assert_eq!(byte('漢'), None);
        let mut out = b"x".to_vec();
        assert!(append_bytes("Ġaé", &mut out) && !append_bytes("a b", &mut out));
        assert_eq!(out, b"x a\xE9");
        assert!(matches!(spell(b"a<|b"), Cow::Borrowed("a<|b")));
        assert_eq!(spell(b" \xC3"), "ĠÃ");
    }
}
