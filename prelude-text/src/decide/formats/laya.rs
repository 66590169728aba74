//! Laya: `CLS question SEP (MASK option)… SEP state SEP`, read at the masks. Package `laya` 0.4.15.

use std::borrow::Cow;

use prelude_core::TokenId;

use super::{Cut, DecisionPrompt, Piece, Refusal, instructions, non_empty};
use crate::decide::{Criteria, Question, TextOrJson};

/// Most tokens of an option.
const OPTION_TOKENS: usize = 48;
/// Tokens of the question that options leave room for, and that it keeps in any case.
const QUESTION_TOKENS: [usize; 2] = [16, 8];
/// Tokens that an option keeps in any case, its mask included.
const OPTION_TOKENS_MIN: usize = 4;

/// The prompt of a Laya.
#[derive(Clone, Debug)]
pub struct Laya {
    /// The tokens that begin a row, end its parts, and stand before an option.
    pub special: [TokenId; 3],
    /// The text of the last of them, which no text may spell.
    pub mask: String,
    /// Most tokens of a row.
    pub max_tokens: usize,
    /// Most tokens of the question and its options.
    pub head_tokens: usize,
}

impl Laya {
    /// Returns a text of the row: the mask's text in it becomes a blank.
    fn text<'a>(&self, text: impl Into<Cow<'a, str>>) -> Piece<'a> {
        let text = text.into();
        Piece::Text(match text.contains(&self.mask) {
            true => Cow::Owned(text.replace(&self.mask, " ")),
            false => text,
        })
    }
}

/// Returns the texts of the options.
fn options(criteria: &Criteria) -> Vec<String> {
    match criteria {
        Criteria::Choice(options) => { options.iter() }
            .map(|option| match non_empty(option.description.as_ref()) {
                None => option.name.clone(),
                Some(description) => format!("{}: {}", option.name, description.spaced()),
            })
            .collect(),
        Criteria::Score(levels) => { levels.iter().enumerate() }
            .map(|(i, level)| format!("level {i}: {}", level.description.spaced()))
            .collect(),
        Criteria::Noul { yes, no } => {
            let side = |name: &str, text: &Option<TextOrJson>, default: &str| {
                let text = non_empty(text.as_ref()).map(TextOrJson::spaced);
                format!("{name}: {}", text.as_deref().unwrap_or(default))
            };
            vec![
                side("false", no, "no, the statement does not hold"),
                side("true", yes, "yes, the statement holds"),
            ]
        }
    }
}

impl DecisionPrompt for Laya {
    fn pieces<'a>(
        &'a self,
        state: &'a TextOrJson,
        question: &'a Question,
    ) -> Result<Vec<Piece<'a>>, Refusal> {
        let [first, separator, mask] = self.special;
        let kind = question.criteria.type_name();
        let asked = format!("{kind} question: {}", instructions(question).spaced());
        let mut pieces = vec![
            Piece::Token(first),
            self.text(asked),
            Piece::Token(separator),
        ];
        for option in options(&question.criteria) {
            let option = self.text(format!(" {option}"));
            pieces.extend([Piece::Token(mask), Piece::Read, option]);
        }
        pieces.extend([
            Piece::Token(separator),
            self.text(state.spaced()),
            Piece::Token(separator),
        ]);
        Ok(pieces)
    }

    fn fit(&self, state: &TextOrJson, texts: &mut [Vec<TokenId>]) -> Option<Cut> {
        let [asked, options @ .., of_state] = texts else {
            return None;
        };
        options
            .iter_mut()
            .for_each(|option| option.truncate(OPTION_TOKENS));
        let left = |options: &[Vec<TokenId>]| {
            let taken: usize = options.iter().map(|option| 1 + option.len()).sum();
            self.head_tokens.saturating_sub(taken)
        };
        let [room, least] = QUESTION_TOKENS;
        if left(options) < room {
            let each = self.head_tokens.saturating_sub(room) / options.len().max(1);
            let each = each.max(OPTION_TOKENS_MIN);
            options
                .iter_mut()
                .for_each(|option| option.truncate(each - 1));
        }
        asked.truncate(left(options).max(least));
        // Beside the texts a row has the first token, three separators and the masks.
        let taken = 4 + asked.len() + options.iter().map(|option| 1 + option.len()).sum::<usize>();
        let used = self.max_tokens.saturating_sub(taken).min(of_state.len());
        let state_tokens = of_state.len();
        // Of a conversation the end counts.
        match state.is_list() {
            true => drop(of_state.drain(..state_tokens - used)),
            false => of_state.truncate(used),
        }
        (used < state_tokens).then_some(Cut { state_tokens, used })
    }

    fn row_tokens(&self) -> Option<usize> {
        Some(self.max_tokens)
    }
}
