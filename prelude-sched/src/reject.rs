//! The reasons why a request is not admitted.

use prelude_core::{InvalidRequest, RequestId, Timestamp};
use thiserror::Error;

/// The reason why a request is not admitted. Nothing of it remains in the scheduler.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Reject {
    /// The request is malformed: the caller's fault.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// A live request has this id.
    #[error("request id {0} is in use")]
    DuplicateId(RequestId),
    /// Too many rows wait; try again later.
    #[error("queue full: {rows} rows beside {queued} queued exceed the limit of {limit}")]
    QueueFullRows {
        /// Rows of the request, choices counted.
        rows: u64,
        /// Rows waiting.
        queued: u64,
        /// `max_queued_rows`.
        limit: u64,
    },
    /// Too many prompt tokens wait; try again later.
    #[error(
        "queue full: {tokens} prompt tokens beside {queued} queued exceed the limit of {limit}"
    )]
    QueueFullTokens {
        /// Distinct prompt tokens of the request.
        tokens: u64,
        /// Tokens waiting.
        queued: u64,
        /// `max_queued_tokens`.
        limit: u64,
    },
    /// The request alone exceeds a bound of the queue: it can never be admitted.
    #[error("the request's {amount} {what} exceed the queue's limit of {limit}")]
    LargerThanQueue {
        /// `"rows"` or `"prompt tokens"`.
        what: &'static str,
        /// The amount that the request has.
        amount: u64,
        /// The bound.
        limit: u64,
    },
    /// A row needs more KV blocks at once than there are: prompt and output budget of a
    /// generation, or a prompt too long for one step.
    #[error("row {row} needs {needed} KV blocks, but there are {available}")]
    NeverFits {
        /// Index of the row.
        row: usize,
        /// Blocks needed.
        needed: u64,
        /// Blocks in the pool.
        available: u64,
    },
    /// A row generates text, which a model whose attention sees whole prompts cannot.
    #[error("row {row} generates text, but the model's attention sees whole prompts")]
    GeneratesNothing {
        /// Index of the row.
        row: usize,
    },
    /// A prompt whose vectors are pooled, or that attention sees whole, cannot be split over steps,
    /// and this one is longer than a step.
    #[error("row {row} reads {prompt} tokens at once, but a step computes at most {limit}")]
    TooLongToPool {
        /// Index of the row.
        row: usize,
        /// Prompt tokens.
        prompt: u32,
        /// `Capacity::max_step_tokens`.
        limit: u32,
    },
    /// The deadline has passed already.
    #[error("the deadline passed {late_ns} ns before the request was submitted", late_ns = now.saturating_since(*deadline).as_nanos())]
    DeadlineUnmeetable {
        /// The deadline.
        deadline: Timestamp,
        /// The time of submission, not earlier.
        now: Timestamp,
    },
}
