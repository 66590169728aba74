//! Kev: the state, the question and its options between marks, each tokenised by itself.

use std::borrow::Cow;

use prelude_core::TokenId;

use super::{DecisionPrompt, Piece, Refusal, instructions, non_empty, sides};
use crate::decide::{Criteria, Question, TextOrJson};

/// The prompt of a Kev: the tokens `<|fim_prefix|>`, `<|fim_middle|>`, `<|box_start|>`, `<|box_end|>` and
/// `<|fim_suffix|>`.
#[derive(Clone, Copy, Debug)]
pub struct Kev(pub [TokenId; 5]);

impl Kev {
    /// The names of the tokens.
    pub const TOKENS: [&str; 5] = [
        "<|fim_prefix|>",
        "<|fim_middle|>",
        "<|box_start|>",
        "<|box_end|>",
        "<|fim_suffix|>",
    ];
}

fn unmarked(text: Cow<'_, str>) -> Piece<'_> {
    Piece::Text(match unmarked_text(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(changed) => Cow::Owned(changed),
    })
}

/// Returns a text with broken bars in what looks like a special token, `<|name|>`.
pub(super) fn unmarked_text(text: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("<|") {
        let (before, behind) = rest.split_at(at + 2);
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let end = behind.find(|c| !is_word(c)).unwrap_or(behind.len());
        match behind[end..].strip_prefix("|>") {
            Some(after) if end > 0 => {
                out.extend([&before[..at], "<¦", &behind[..end], "¦>"]);
                rest = after;
            }
            _ => {
                out.push_str(before);
                rest = behind;
            }
        }
    }
    if out.is_empty() {
        return Cow::Borrowed(text);
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// Returns the texts of the options.
fn options(criteria: &Criteria) -> Vec<Cow<'_, str>> {
    let described = |name: &str, text: &TextOrJson| format!("{name}: {}", text.outline()).into();
    match criteria {
        Criteria::Choice(options) => { options.iter() }
            .map(|option| match &option.description {
                None => Cow::Borrowed(&*option.name),
                Some(text) => described(&option.name, text),
            })
            .collect(),
        Criteria::Score(levels) => levels
            .iter()
            .map(|level| level.description.outline())
            .collect(),
        Criteria::Noul { .. } => {
            let sides = sides(criteria).into_iter().flatten().zip(["no", "yes"]);
            sides
                .map(|(text, name)| match non_empty(text) {
                    None => Cow::Borrowed(name),
                    Some(text) => described(name, text),
                })
                .collect()
        }
    }
}

impl DecisionPrompt for Kev {
    fn pieces<'a>(
        &'a self,
        state: &'a TextOrJson,
        question: &'a Question,
    ) -> Result<Vec<Piece<'a>>, Refusal> {
        let [prefix, middle, start, end, suffix] = self.0.map(Piece::Token);
        let mut pieces = vec![
            prefix,
            unmarked(state.outline()),
            middle,
            unmarked(instructions(question).outline()),
        ];
        for option in options(&question.criteria) {
            pieces.extend([start.clone(), unmarked(option), end.clone(), Piece::Read]);
        }
        pieces.extend([suffix, Piece::Read]);
        Ok(pieces)
    }
}
