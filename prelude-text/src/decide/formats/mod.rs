//! Prompts of published decision models, one file for each format.
//!
//! A format says of which pieces a prompt is made, in which order, and where the model's head reads. It
//! knows no tokenizer and no backbone: the pieces are encoded by the caller, each by itself, and joined by
//! [`Row::of`].

mod codes;
mod decision2;
mod kev;
mod laya;

use std::{borrow::Cow, fmt};

use prelude_core::TokenId;

pub use codes::{Codes, Wording};
pub use decision2::Decision2;
pub use kev::Kev;
pub use laya::Laya;

use super::{Criteria, Question, TextOrJson};

/// A part of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// A token of the format's own.
    Token(TokenId),
    /// A text that is encoded by itself, without special tokens.
    Text(Cow<'a, str>),
    /// The turns of a chat up to where the answer begins, by the model's template, without thinking.
    Chat {
        /// The system's turn.
        system: &'static str,
        /// The user's turn.
        user: String,
    },
    /// No token: the head reads the state of the token before.
    Read,
}

/// A question that a format cannot ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The part of the question that is at fault.
    pub part: Part,
    /// The rule that the part breaks, as it stands behind the word "must".
    pub must: String,
}

/// A part of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The text of the question.
    Instructions,
    /// Its options.
    Criteria,
}

/// A prompt of a decision model.
pub trait DecisionPrompt: fmt::Debug + Send + Sync {
    /// Returns the pieces of the prompt for one question, in order. The options' `Read`s come in their
    /// order, that of the question last.
    ///
    /// # Errors
    /// [`Refusal`] of a question that the format cannot ask.
    fn pieces<'a>(
        &'a self,
        state: &'a TextOrJson,
        question: &'a Question,
    ) -> Result<Vec<Piece<'a>>, Refusal>;

    /// Cuts encoded texts, the state among them, where cutting is part of the format.
    fn fit(&self, _: &TextOrJson, _: &mut [Vec<TokenId>]) -> Option<Cut> {
        None
    }

    /// Returns the length that whole rows are cut to, where that is part of the format.
    fn row_tokens(&self) -> Option<usize> {
        None
    }
}

/// The part of a state that a prompt has no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Tokens of the state.
    pub state_tokens: usize,
    /// Tokens of it that the model reads.
    pub used: usize,
}

/// A prompt as a model reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The tokens.
    pub tokens: Vec<TokenId>,
    /// The positions whose states the head reads, in ascending order.
    pub reads: Vec<u32>,
    /// The number of tokens of the state that are left out, if some are.
    pub cut: Option<Cut>,
}

impl Row {
    /// Joins pieces, whose texts and chats are `texts` in order, encoded.
    ///
    /// # Errors
    /// [`Refusal`] if options are left out where the format cuts.
    pub fn of(
        prompt: &dyn DecisionPrompt,
        state: &TextOrJson,
        pieces: &[Piece<'_>],
        mut texts: Vec<Vec<TokenId>>,
    ) -> Result<Self, Refusal> {
        let cut = prompt.fit(state, &mut texts);
        let mut texts = texts.into_iter();
        let mut tokens: Vec<TokenId> = Vec::new();
        let mut reads = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Token(token) => tokens.push(*token),
                Piece::Text(_) | Piece::Chat { .. } => {
                    tokens.extend(texts.next().unwrap_or_default());
                }
                Piece::Read => {
                    reads.push(u32::try_from(tokens.len().saturating_sub(1)).unwrap_or(u32::MAX))
                }
            }
        }
        if let Some(most) = prompt.row_tokens() {
            tokens.truncate(most);
            let fit = reads.partition_point(|at| (*at as usize) < tokens.len());
            if fit < reads.len() {
                return Err(Refusal {
                    part: Part::Criteria,
                    must: format!(
                        "have at most {fit} options of this length: the model reads {most} tokens"
                    ),
                });
            }
        }
        Ok(Self { tokens, reads, cut })
    }
}

/// Returns a text that is there and not empty.
fn non_empty(text: Option<&TextOrJson>) -> Option<&TextOrJson> {
    text.filter(|text| !text.is_empty())
}

/// Returns the question's text, or none.
fn instructions(question: &Question) -> &TextOrJson {
    const NONE: &TextOrJson = &TextOrJson::EMPTY;
    question.instructions.as_ref().unwrap_or(NONE)
}

/// Returns yes and no of a question, no first, with what they mean.
fn sides(criteria: &Criteria) -> Option<[Option<&TextOrJson>; 2]> {
    match criteria {
        Criteria::Noul { yes, no } => Some([no.as_ref(), yes.as_ref()]),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
