//! The tokens by which questions are answered, checked once when a model is loaded.

use prelude_core::TokenId;
use thiserror::Error;

use crate::label_trie::LabelTrie;

/// The kind of labels that a question has, and their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelKind {
    /// The labels `yes` and `no`.
    YesNo,
    /// The first n of `A` to `Z`.
    Letters(usize),
    /// The first n of `0` to `9`.
    Digits(usize),
    /// The numbers 0 to n - 1 in decimal at fixed width, a token for each digit.
    Codes(usize),
}

/// The form in which the model names an option of a choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChoiceLabels {
    /// The code that the prompt puts before each option: a letter, which takes one position, or
    /// digits, which take one position each.
    #[default]
    Code,
    /// The option's own name, however many tokens it has.
    Text,
}

impl LabelKind {
    /// Returns the number of labels.
    #[must_use]
    pub const fn count(self) -> usize {
        match self {
            Self::YesNo => 2,
            Self::Letters(n) | Self::Digits(n) | Self::Codes(n) => n,
        }
    }

    /// Returns the text of label `i`.
    #[must_use]
    pub fn text(self, i: usize) -> String {
        match self {
            Self::YesNo => ["yes", "no"][i].to_owned(),
            Self::Letters(_) => {
                let i = u8::try_from(i).expect("there are 26 letters");
                char::from(b'A' + i).to_string()
            }
            Self::Digits(_) => i.to_string(),
            Self::Codes(n) => format!("{i:0width$}", width = code_width(n)),
        }
    }
}

/// Returns the number of digits of each of the codes of `n` labels.
fn code_width(n: usize) -> usize {
    (n - 1).to_string().len()
}

/// The error of a tokenizer that has no distinct single tokens for the labels behind the model's
/// generation prompt.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{label:?} is not a single token of its own behind the generation prompt")]
pub struct Unfit {
    /// The first label that fails.
    pub label: String,
}

/// The label tokens of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecideLabels {
    yes_no: Vec<TokenId>,
    letters: Vec<TokenId>,
    digits: Vec<TokenId>,
}

impl DecideLabels {
    /// Finds and checks the labels' tokens. `encode` gives the ids of a whole text, and
    /// `generation_prompt` is a rendered prompt up to where an answer would begin.
    ///
    /// # Errors
    /// [`Unfit`] with the first label that is not one token there, or the same token as another,
    /// or does not stay itself with another digit behind it.
    pub fn resolve(
        generation_prompt: &str,
        encode: impl Fn(&str) -> Vec<TokenId>,
    ) -> Result<Self, Unfit> {
        let prompt = encode(generation_prompt);
        let in_place = |label: &str| -> Option<Vec<TokenId>> {
            let whole = encode(&format!("{generation_prompt}{label}"));
            whole.strip_prefix(prompt.as_slice()).map(<[_]>::to_vec)
        };
        let single = |kind: LabelKind| {
            let mut tokens = Vec::with_capacity(kind.count());
            for i in 0..kind.count() {
                let label = kind.text(i);
                match in_place(&label).as_deref() {
                    Some(&[token]) if !tokens.contains(&token) => tokens.push(token),
                    _ => return Err(Unfit { label }),
                }
            }
            Ok(tokens)
        };
        let labels = Self {
            yes_no: single(LabelKind::YesNo)?,
            letters: single(LabelKind::Letters(26))?,
            digits: single(LabelKind::Digits(10))?,
        };
        // Three digits hold every pair; a tokenizer that joins digits joins these.
        for code in 0..1000 {
            let label = format!("{code:03}");
            let tokens: Vec<TokenId> = label.bytes().map(|d| labels.digit(d - b'0')).collect();
            if in_place(&label) != Some(tokens) {
                return Err(Unfit { label });
            }
        }
        Ok(labels)
    }

    fn digit(&self, digit: u8) -> TokenId {
        self.digits[usize::from(digit)]
    }

    /// Returns the labels as a trie to hang under a prompt.
    #[must_use]
    pub fn trie(&self, kind: LabelKind) -> LabelTrie {
        let single = |tokens: &[TokenId], n: usize| {
            let labels: Vec<[TokenId; 1]> = tokens[..n].iter().map(|&t| [t]).collect();
            LabelTrie::new(&labels)
        };
        let trie = match kind {
            LabelKind::YesNo => single(&self.yes_no, 2),
            LabelKind::Letters(n) => single(&self.letters, n),
            LabelKind::Digits(n) => single(&self.digits, n),
            LabelKind::Codes(n) => {
                let code = |i| {
                    let digits = kind.text(i).into_bytes();
                    digits.into_iter().map(|d| self.digit(d - b'0')).collect()
                };
                let codes: Vec<Vec<TokenId>> = (0..n).map(code).collect();
                LabelTrie::new(&codes)
            }
        };
        trie.expect("codes have three digits at most")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes each byte as one token, but "yes" and "no" as tokens of their own.
    fn encode(text: &str) -> Vec<TokenId> {
        let mut out = Vec::new();
        let mut rest = text;
        while let Some(byte) = rest.bytes().next() {
            let (token, len) = match rest {
                r if r.starts_with("yes") => (300, 3),
                r if r.starts_with("no") => (301, 2),
                _ => (u32::from(byte), 1),
            };
            out.push(token);
            rest = &rest[len..];
        }
        out
    }

    #[test]
    fn resolves_and_builds_tries() {
        let labels = DecideLabels::resolve("answer:\n", encode).unwrap();
        assert_eq!(labels.yes_no, [300, 301]);
        assert_eq!(labels.trie(LabelKind::Letters(3)).num_rows(), 1);
        let check = |n, rows| assert_eq!(labels.trie(LabelKind::Codes(n)).num_rows(), rows, "{n}");
        check(27, 1 + 3);
        check(100, 1 + 10);
        check(101, 1 + 2 + 11);
        // 29 tokens beside the prompt: the most that 255 options can cost.
        check(255, 1 + 3 + 26);
    }

    #[test]
    fn says_which_label_fails() {
        let check = |encode: &dyn Fn(&str) -> Vec<TokenId>, label: &str| {
            let expected = Unfit {
                label: label.into(),
            };
            assert_eq!(DecideLabels::resolve("p", encode), Err(expected));
        };
        // "yes" in pieces.
        check(&|t| t.bytes().map(u32::from).collect(), "yes");
        // Letters without case.
        check(&|t| encode(&t.to_lowercase().replace('b', "a")), "B");
        // Digits that are joined: "00" is one token.
        check(&|t| encode(&t.replace("00", "\u{1}")), "000");
        // The label melts into the prompt.
        check(&|t| encode(&t.replace("pyes", "Q")), "yes");
    }
}
