//! Character classes as the reference sees them, asked from the reference itself.

use tokenizers::pre_tokenizers::whitespace::Whitespace;
use tokenizers::utils::SysRegex;
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};
use unicode_normalization_alignments::char::canonical_combining_class;
use unicode_normalization_alignments::{IsNormalized, is_nfc_quick};

/// General categories in the order of `src/unicode.rs`.
pub(crate) const CATEGORIES: [&str; 29] = [
    "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi",
    "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cn",
];
pub(crate) const SPACE: u8 = 0x20;
pub(crate) const WORD: u8 = 0x40;
pub(crate) const INERT: u8 = 0x80;

/// The first code point of each run of equal class bytes, and the class byte.
pub(crate) fn class_runs() -> Vec<(u32, u8)> {
    let mut runs: Vec<(u32, u8)> = Vec::new();
    for (code, class) in (0..).zip(class_bytes()) {
        if runs.last().is_none_or(|run| run.1 != class) {
            runs.push((code, class));
        }
    }
    runs
}

/// Class byte of every code point; surrogates hold the class of unassigned ones.
fn class_bytes() -> Vec<u8> {
    let all: String = ('\0'..=char::MAX).collect();
    let code_at: Vec<u32> = {
        let mut codes = vec![0; all.len() + 1];
        for (at, c) in all.char_indices() {
            codes[at] = c as u32;
        }
        codes
    };
    let unassigned = 28;
    let mut classes = vec![u8::MAX; 0x11_0000];
    classes[0xD800..0xE000].fill(unassigned);
    for (number, name) in CATEGORIES.iter().enumerate() {
        for_each_match(&format!(r"\p{{{name}}}"), &all, |at| {
            let class = &mut classes[code_at[at] as usize];
            assert_eq!(*class, u8::MAX, "two categories for U+{:04X}", code_at[at]);
            *class = number as u8;
        });
    }
    for_each_match(r"\s", &all, |at| classes[code_at[at] as usize] |= SPACE);
    for code in 0..0x11_0000u32 {
        assert_ne!(
            classes[code as usize],
            u8::MAX,
            "no category for U+{code:04X}"
        );
    }
    add_word_flags(&mut classes);
    for c in all.chars() {
        // Normalization has tables of its own, of another version.
        let yes = is_nfc_quick(std::iter::once(c)) == IsNormalized::Yes;
        if yes && canonical_combining_class(c) == 0 {
            classes[c as usize] |= INERT;
        }
    }
    classes
}

fn for_each_match(pattern: &str, text: &str, mut found: impl FnMut(usize)) {
    let regex = SysRegex::new(pattern).expect("a class is a valid pattern");
    for (start, _) in regex.find_iter(text) {
        found(start);
    }
}

/// The reference's `Whitespace` splits by `\w+|[^\w\s]+` of the `regex` crate:
/// `a` and a character stay together exactly when the latter is a word character.
fn add_word_flags(classes: &mut [u8]) {
    let codes: Vec<char> = ('\0'..=char::MAX).collect();
    for chunk in codes.chunks(4096) {
        let mut text = String::new();
        let mut starts = Vec::new();
        for c in chunk {
            starts.push(text.len());
            text.push('a');
            text.push(*c);
            text.push(' ');
        }
        let mut pieces = PreTokenizedString::from(text.as_str());
        Whitespace
            .pre_tokenize(&mut pieces)
            .expect("splitting cannot fail");
        let mut together = vec![false; text.len()];
        for (piece, (start, _), _) in
            pieces.get_splits(OffsetReferential::Original, OffsetType::Byte)
        {
            together[start] = piece.starts_with('a') && piece.chars().count() == 2;
        }
        for (c, start) in chunk.iter().zip(starts) {
            if together[start] {
                classes[*c as usize] |= WORD;
            }
        }
    }
}
