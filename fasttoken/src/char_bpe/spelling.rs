//! The spelling in which texts are encoded: a space stands for `▁`, and `▁` for a space.
//!
//! So ordinary text is read as it is, and its words have two bytes less than with `▁`: more of them
//! are short, which are looked up faster.

use crate::pieces::META;

/// Returns a character in the other spelling.
#[inline]
pub(super) fn swapped(c: char) -> char {
    match c {
        ' ' => META,
        META => ' ',
        c => c,
    }
}

/// Appends a text of the usual spelling to one of the other.
pub(super) fn push_swapped(text: &str, out: &mut String) {
    push(text, META, out);
}

/// Appends a text in which both `▁` and spaces stand for `▁`.
pub(super) fn push_blanks(text: &str, out: &mut String) {
    push(text, ' ', out);
}

/// Appends a text with a space for each `▁`, and `blank` for each space.
fn push(text: &str, blank: char, out: &mut String) {
    let mut meta = [0; 4];
    let meta = META.encode_utf8(&mut meta).as_bytes();
    let mut from = 0;
    let found = memchr::memmem::find_iter(text.as_bytes(), meta);
    for at in found.chain([text.len()]) {
        let part = &text[from..at];
        if blank == ' ' {
            out.push_str(part);
        } else {
            let mut rest = part.split(' ');
            out.push_str(rest.next().unwrap_or_default());
            for part in rest {
                out.push(blank);
                out.push_str(part);
            }
        }
        if at < text.len() {
            out.push(' ');
        }
        from = (at + meta.len()).min(text.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_are_swapped_everywhere() {
        for n in 0..150 {
            for text in [" ", "▁", "a ▁", "▁▁ x", "é▂\u{2580}", ""] {
                let text = format!("{}{text}{}", "x".repeat(n), "y".repeat(n % 70));
                let (mut swapped_text, mut blanks) = (String::new(), String::new());
                push_swapped(&text, &mut swapped_text);
                push_blanks(&text, &mut blanks);
                let expected: String = text.chars().map(swapped).collect();
                assert_eq!(swapped_text, expected);
                assert_eq!(blanks, text.replace('▁', " "));
            }
        }
    }
}
