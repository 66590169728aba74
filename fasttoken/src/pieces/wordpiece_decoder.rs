//! Decoding that writes a space before each token but the first, unless the token goes on with a
//! word.

use crate::error::Error;
use crate::json::Component;
use std::borrow::Cow;

/// The decoder `WordPiece`, or the one of a file without a decoder, which only writes spaces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Words {
    /// The string that begins a token that goes on with a word.
    prefix: Option<String>,
    /// True if the spaces before punctuation and contractions are taken out.
    cleanup: bool,
}

/// The replacements of `cleanup`, which are made in this order, in each token alone.
const CLEANUP: [(&str, &str); 11] = [
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
];

impl Words {
    /// Loads a decoder `WordPiece`.
    pub(super) fn load(component: &Component, path: &str) -> Result<Self, Error> {
        Ok(Self {
            prefix: Some(component.string("prefix", path)?.to_owned()),
            cleanup: component.bool("cleanup", path)?,
        })
    }

    /// Returns the text of a token that is the first one.
    pub(super) fn first<'t>(&self, token: &'t str) -> Cow<'t, str> {
        self.clean(Cow::Borrowed(token))
    }

    /// Returns the text of any other token.
    pub(super) fn other<'t>(&self, token: &'t str) -> Cow<'t, str> {
        let prefix = self.prefix.as_deref();
        let rest = prefix.and_then(|prefix| token.strip_prefix(prefix));
        self.clean(rest.map_or_else(|| format!(" {token}").into(), Cow::Borrowed))
    }

    fn clean<'t>(&self, mut text: Cow<'t, str>) -> Cow<'t, str> {
        // Each replaced text begins with a space before one of a few characters.
        let pair = |pair: &[u8]| pair[0] == b' ' && b".?!,'nd".contains(&pair[1]);
        if self.cleanup && text.as_bytes().windows(2).any(pair) {
            for (from, to) in CLEANUP {
                if text.contains(from) {
                    text = text.replace(from, to).into();
                }
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tokenizers::Decoder as _;
    use tokenizers::decoders::wordpiece::WordPiece;

    fn check(prefix: &str, cleanup: bool, tokens: &[&str]) {
        let json = json!({"type": "WordPiece", "prefix": prefix, "cleanup": cleanup});
        let component = serde_json::from_value(json).unwrap();
        let ours = Words::load(&component, "$.decoder").unwrap();
        let text = |(n, token): (usize, &&str)| match n {
            0 => ours.first(token).into_owned(),
            _ => ours.other(token).into_owned(),
        };
        let text: String = tokens.iter().enumerate().map(text).collect();
        let reference = WordPiece::new(prefix.to_owned(), cleanup);
        let tokens = tokens.iter().map(|token| (*token).to_owned()).collect();
        assert_eq!(text, reference.decode(tokens).unwrap());
    }

    #[test]
    fn tokens_are_joined_as_in_the_reference() {
        let tokens = [
            "##uelo", "Ara", "##új", "", "##", "####x", ".", "x .", " ' ", "n't", "'m", "do",
            "not", "a do not", "'s", "'ve", "'re", "?", "! ,", " ,", "'", "##  .",
        ];
        for cleanup in [false, true] {
            for prefix in ["##", "", "▁", "#"] {
                for start in 0..tokens.len() {
                    check(prefix, cleanup, &tokens[start..]);
                }
            }
        }
        check("##", true, &[]);
    }
}
