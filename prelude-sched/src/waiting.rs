//! A waiting request, as queues and policies see it.

use prelude_core::{RequestId, Timestamp};

/// A request that has rows or sequences which no step has taken up yet, as policies order it. Times
/// are the caller's [`Timestamp`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The request.
    pub request: RequestId,
    /// The request's turn, which goes before its priority.
    pub turn: Turn,
    /// The request's priority: lower runs first.
    pub priority: i64,
    /// The time of the request's arrival.
    pub arrival: Timestamp,
    /// The deadline of the request's answer.
    pub deadline: Option<Timestamp>,
    /// Rows (or sequences) still to start.
    pub rows: u32,
}

/// The turn of a request: its usual place, or the next one whatever its place is.
///
/// In each queue, of one-shot rows and of generations, the request that has waited longest becomes
/// overdue when it has waited for
/// [`SchedulerConfig::max_wait_ms`](crate::SchedulerConfig::max_wait_ms), and stays so until all of
/// it has started; then the next may. While it lacks blocks, no younger request takes any. A policy
/// that puts it first starves no request, whatever else it orders by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Turn {
    /// The request goes before all others.
    Overdue,
    /// The request goes by priority and by the order of the policy.
    Usual,
}

/// The length of a prompt, and how much of it need not be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptSize {
    /// Tokens.
    pub tokens: u32,
    /// The number of the prompt's tokens that are in the prefix cache now.
    pub cached: u32,
}
