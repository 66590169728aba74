//! The characters of the script Han, as the reference's regular expressions see them.

/// Ranges of the characters that `\p{Han}` matches, rising.
pub(crate) const HAN: [(char, char); 22] = [
    ('\u{2E80}', '\u{2E99}'),
    ('\u{2E9B}', '\u{2EF3}'),
    ('\u{2F00}', '\u{2FD5}'),
    ('\u{3005}', '\u{3005}'),
    ('\u{3007}', '\u{3007}'),
    ('\u{3021}', '\u{3029}'),
    ('\u{3038}', '\u{303B}'),
    ('\u{3400}', '\u{4DBF}'),
    ('\u{4E00}', '\u{9FFF}'),
    ('\u{F900}', '\u{FA6D}'),
    ('\u{FA70}', '\u{FAD9}'),
    ('\u{16FE2}', '\u{16FE3}'),
    ('\u{16FF0}', '\u{16FF1}'),
    ('\u{20000}', '\u{2A6DF}'),
    ('\u{2A700}', '\u{2B739}'),
    ('\u{2B740}', '\u{2B81D}'),
    ('\u{2B820}', '\u{2CEA1}'),
    ('\u{2CEB0}', '\u{2EBE0}'),
    ('\u{2EBF0}', '\u{2EE5D}'),
    ('\u{2F800}', '\u{2FA1D}'),
    ('\u{30000}', '\u{3134A}'),
    ('\u{31350}', '\u{323AF}'),
];

/// Returns true if `\p{Han}` matches `c`.
#[inline]
pub(crate) fn is_han(c: char) -> bool {
    match c {
        '\0'..='\u{2E7F}' => false,
        '\u{4E00}'..='\u{9FFF}' => true,
        _ => HAN.iter().any(|&(low, high)| low <= c && c <= high),
    }
}

#[cfg(test)]
mod tests {
    use super::is_han;
    use tokenizers::utils::SysRegex;

    #[test]
    fn han_is_what_the_reference_says_for_every_character() {
        let all: String = ('\0'..=char::MAX).collect();
        let regex = SysRegex::new(r"\p{Han}").expect("a pattern of the reference");
        let mut expected = regex.find_iter(&all).map(|(start, _)| start).peekable();
        for (at, c) in all.char_indices() {
            let han = expected.next_if_eq(&at).is_some();
            assert_eq!(is_han(c), han, "U+{:04X}", c as u32);
        }
    }
}
