//! The upper bound of text that one token stands for.

use crate::family::Family;
use crate::tokenizer::Tokenizer;

/// Upper bound of the bytes that a normalization form takes for each byte that it leaves.
///
/// Each character of up to four bytes gives at least one character of the decomposed text. A
/// character of two bytes stands for up to three of those, one of three bytes for up to four.
const FORM_SHRINKS: usize = 6;

impl Tokenizer {
    /// Returns the largest number of bytes of text that one id of [`Tokenizer::encode`] stands for.
    /// Returns `None` if there is no such number or it is unknown: with models that are not
    /// byte-level, with added tokens that take the blanks beside them, and with patterns that drop text.
    ///
    /// A text of more bytes than this number times a limit has more ids than the limit, which is
    /// thus known before the text is encoded. Takes time linear in the vocabulary.
    ///
    /// ```
    /// # let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer.json");
    /// let tokenizer = fasttoken::Tokenizer::from_file(file)?;
    /// let text = "Where is my card?";
    /// let bytes = tokenizer.max_bytes_per_token().unwrap();
    /// assert!(tokenizer.count(text, false) * bytes >= text.len());
    /// # Ok::<(), fasttoken::Error>(())
    /// ```
    pub fn max_bytes_per_token(&self) -> Option<usize> {
        let takes_blanks = |(_, token): (u32, &crate::AddedToken)| token.lstrip || token.rstrip;
        let Family::ByteLevel(model) = &self.family else {
            return None;
        };
        if !model.pre_tokenizer.keeps_text() || self.added_tokens().any(takes_blanks) {
            return None;
        }
        let vocab = &model.vocab;
        let pieces = (0..vocab.end()).map(|id| vocab.piece(id).len());
        let added = self.added_tokens().map(|(_, token)| token.content.len());
        let forms = self.added.normalized_forms.values().map(String::len);
        let longest = pieces.chain(added).chain(forms).max().unwrap_or(0).max(1);
        Some(match self.normalizer.is_identity() {
            true => longest,
            false => longest * FORM_SHRINKS,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tokenizer() -> Tokenizer {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer.json");
        Tokenizer::from_file(file).unwrap()
    }

    /// Characters that a normalization form makes shorter than they are.
    #[test]
    fn text_that_shrinks_is_within_the_bound() {
        let tokenizer = tokenizer();
        let bytes = tokenizer.max_bytes_per_token().unwrap();
        for part in [
            "\u{212a}",
            "a\u{0323}\u{0301}",
            "\u{1100}\u{1161}\u{11a8}",
            "\u{200d}",
            " ",
        ] {
            let text = part.repeat(1_000);
            assert!(
                tokenizer.count(&text, false) * bytes >= text.len(),
                "{part:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_token_stands_for_more(text in any::<String>()) {
            let tokenizer = tokenizer();
            let bytes = tokenizer.max_bytes_per_token().unwrap();
            prop_assert!(tokenizer.count(&text, false) * bytes >= text.len());
        }
    }
}
