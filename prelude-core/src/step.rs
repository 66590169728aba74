//! The outputs of one step.

use crate::{StepId, TokenId};

/// Outputs of one step, aligned with the rows of its batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutput {
    /// The outputs of one-shot rows, one for each.
    pub oneshot: Vec<RowOutput>,
    /// The outputs of prefill rows, one for each.
    pub prefill: Vec<RowOutput>,
    /// The outputs of decode rows, one for each.
    pub decode: Vec<RowOutput>,
    /// The step.
    pub step: StepId,
}

/// The output of one row.
#[derive(Clone, Debug, PartialEq)]
pub enum RowOutput {
    /// The sampled tokens, one for each draw.
    Sampled(Vec<SampledToken>),
    /// Logits of labels.
    LabelScores(LabelScores),
    /// Scores of prompt tokens. A prompt computed in chunks yields several of these, in order.
    Logprobs {
        /// Position of the first scored token: one after the first hidden state used.
        first_position: u32,
        /// The scores, one for each scored token.
        entries: Vec<PositionLogprobs>,
    },
    /// A vector, f32.
    Embedding(Vec<f32>),
    /// Logits of the classification head, f32, one per class.
    Classes(Vec<f32>),
    /// A vector, or the logits of the classification head, for each token that the row reads, f32. A
    /// prompt computed in chunks yields several of these, in order.
    Tokens {
        /// Position of the first token.
        first_position: u32,
        /// The vectors or logits, one row for each token.
        rows: Vec<Vec<f32>>,
    },
    /// A row that samples has no token to choose: what is allowed, by lists and constraint
    /// together, is nothing.
    NoToken,
    /// The step had no room for the row's lists or its results. A step with fewer rows may have
    /// it, so the scheduler computes a one-shot row once more, alone, before it fails.
    NoRoom(&'static str),
    /// The row has no result: its numbers were not finite. Others of the step are unaffected.
    Failed(&'static str),
}

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct SampledToken {
    /// The token.
    pub token: TokenId,
    /// The token's log-probability under the raw logits, if asked for.
    pub logprob: Option<f32>,
    /// The likeliest tokens, best first, ties by smaller id.
    pub top: Vec<TokenLogprob>,
}

/// A token and its log-probability under the raw logits over the whole vocabulary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: TokenId,
    /// Natural logarithm of the token's probability.
    pub logprob: f32,
}

/// Logits of labels at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct LabelScores {
    /// The logits, one for each label, in the order asked.
    pub logits: Vec<f32>,
    /// Log-sum-exp of all logits, if normalisation over the vocabulary was asked for.
    pub log_sum_exp: Option<f32>,
}

/// The score of one prompt token.
#[derive(Clone, Debug, PartialEq)]
pub struct PositionLogprobs {
    /// The token.
    pub token: TokenId,
    /// The token's log-probability given the tokens before it.
    pub logprob: f32,
    /// 1 + the number of tokens with a larger logit.
    pub rank: u32,
    /// The likeliest tokens, best first, ties by smaller id.
    pub top: Vec<TokenLogprob>,
}
