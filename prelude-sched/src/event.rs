//! The only thing that leaves a scheduler.

use std::time::Duration;

use prelude_core::{RequestId, RowOutput, SampledToken, TokenId};

/// Something that happened to a request.
///
/// Events about one request come in this order: any number of `Token`, `Output`, `RowFinished`
/// and `Preempted`, then exactly one `Finished`, after which its id is never mentioned again
/// (unless the caller submits it anew).
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A generated token, of a one-shot and of a `Decode` generation alike. A stop token is
    /// reported too, followed by `RowFinished`.
    Token {
        /// The request.
        request: RequestId,
        /// Index in [`prelude_core::Request::rows`].
        row: u32,
        /// The index of the row's continuation.
        choice: u32,
        /// The token.
        token: SampledToken,
    },
    /// The answer of a row that does not generate. Log-probabilities may come in several pieces,
    /// in order of position. [`RowOutput::Failed`] ends the row, or one choice of a generation.
    Output {
        /// The request.
        request: RequestId,
        /// Index in [`prelude_core::Request::rows`].
        row: u32,
        /// The answer, or a piece of it.
        output: RowOutput,
    },
    /// A continuation ended.
    RowFinished {
        /// The request.
        request: RequestId,
        /// Index in [`prelude_core::Request::rows`].
        row: u32,
        /// The index of the row's continuation.
        choice: u32,
        /// The reason why the continuation ended.
        reason: FinishReason,
    },
    /// A sequence of the request lost its KV blocks to an older one and will be recomputed.
    /// Nothing is lost or sent twice; it only takes longer.
    Preempted {
        /// The request.
        request: RequestId,
    },
    /// The request is over: the last event about it.
    Finished {
        /// The request.
        request: RequestId,
        /// The outcome.
        outcome: Outcome,
        /// The resources that the request used.
        usage: Usage,
    },
}

impl Event {
    /// Returns the request that the event is about.
    #[must_use]
    pub const fn request(&self) -> RequestId {
        match self {
            Self::Token { request, .. }
            | Self::Output { request, .. }
            | Self::RowFinished { request, .. }
            | Self::Preempted { request }
            | Self::Finished { request, .. } => *request,
        }
    }
}

/// The reason why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The continuation produced one of its stop ids.
    Stop {
        /// The token.
        token: TokenId,
    },
    /// The continuation reached `max_tokens`.
    Length,
    /// The generation's constraint is satisfied and lets nothing follow.
    Complete,
    /// No token was allowed to come next.
    NoToken,
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every row has its answer, or said that it failed.
    Done,
    /// The caller gave the request up.
    Aborted,
    /// A step with its work failed; the text says how.
    Failed(String),
    /// The request's deadline passed before any of it was scheduled.
    DeadlineExpired,
}

/// The resources that a request used, whatever its outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The tokens of each row's whole prompt, once per row (not per choice).
    pub prompt_tokens: u64,
    /// Prompt tokens whose K/V were read from the prefix cache, counted like `prompt_tokens`.
    pub cached_tokens: u64,
    /// Prompt tokens that were really run for this request: not those read from the cache, nor
    /// those that another row of the step computed already. Recomputation after a preemption,
    /// and what further choices compute, come on top.
    pub computed_tokens: u64,
    /// Tokens whose K/V the request put into the prefix cache for later ones: whole blocks that
    /// were not there before. Of a prefix that several requests of a step share, those of the
    /// first.
    pub cache_write_tokens: u64,
    /// Generated tokens, stop tokens included.
    pub output_tokens: u64,
    /// The time from arrival until some of the request was first scheduled (or until the end, if
    /// never).
    pub queue_time: Duration,
    /// The time from then until the end.
    pub exec_time: Duration,
}
