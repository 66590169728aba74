//! The byte-level alphabet: how vocabularies spell raw bytes as printable characters.
//!
//! GPT-2 introduced it and every byte-level vocabulary uses it: printable Latin-1
//! characters stand for themselves, the 68 other bytes for U+0100 and up, in order.

/// Whether `byte` is spelled by the character of the same number.
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

/// The character that spells `byte`.
pub(crate) fn spelling(byte: u8) -> char {
    SPELLINGS[usize::from(byte)]
}

/// The byte that `c` spells, if it is a character of the alphabet.
pub(crate) fn byte(c: char) -> Option<u8> {
    match u8::try_from(c) {
        Ok(byte) => stands_for_itself(byte).then_some(byte),
        Err(_) => SPELLINGS.iter().position(|&s| s == c).map(|at| at as u8),
    }
}

/// The bytes that `token` spells, if all of it is in the alphabet.
pub(crate) fn bytes(token: &str) -> Option<Vec<u8>> {
    token.chars().map(byte).collect()
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
        assert_eq!(bytes("Ġaé").as_deref(), Some(&b" a\xE9"[..]));
        assert_eq!(bytes("a b"), None);
    }
}
