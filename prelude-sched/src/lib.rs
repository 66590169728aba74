//! Sans-IO scheduler with execution classes for language-model decisions.
//!
//! A [`Scheduler`] decides which work runs in the next step and keeps every request from arrival
//! to finish. It reads no clock, starts no thread and knows no device: the caller submits
//! requests, hands the batches it is given to an executor, and brings back the outputs. The same
//! calls give the same batches and events, so everything here is tested in virtual time.
//!
//! - One-shot work (classification, scoring, embeddings, one-token answers) is planned as
//!   forests: what prompts of a step share, across requests, is computed once.
//! - Generations are sequences with KV blocks: chunked prefill, decode rows first, preemption of
//!   the youngest when blocks run out, and with `pipeline_depth` 2 rows whose token is still
//!   being sampled.
//! - Prefixes are cached by whole blocks; who would compute what another is computing waits.
//!
//! Read first: [`Scheduler`], [`Event`], [`SchedulerConfig`]; to change the order of admission,
//! [`SchedulerPolicy`].
//!
//! ```
//! use prelude_core::{
//!     Capacity, Head, PromptTree, Request, RequestId, RowOutput, RowSpec, StepOutput, Timestamp,
//! };
//! use prelude_sched::{Event, Scheduler, SchedulerConfig};
//!
//! let capacity = Capacity {
//!     block_size: 16,
//!     num_blocks: 64,
//!     max_step_tokens: 2048,
//!     full_step_tokens: 2048,
//!     max_context_len: 1024,
//!     vocab_size: 100,
//!     pipeline_depth: 1,
//!     passes: None,
//!     attention: prelude_core::Attention::Causal,
//!     host_blocks: 0,
//! };
//! let mut scheduler = Scheduler::new(SchedulerConfig::default(), capacity)?;
//! let now = Timestamp::ZERO;
//!
//! let tree = PromptTree::single(vec![12, 7, 99]);
//! let rows = vec![RowSpec { node: tree.last_node(), head: Head::Classify }];
//! scheduler.submit(now, Request::new(RequestId(1), tree, rows, now))?;
//!
//! let mut events = Vec::new();
//! let (step, batch) = scheduler.next_batch(now, &mut events).expect("a request waits");
//! assert_eq!(batch.num_tokens(), 3);
//! // An executor runs the batch; here, by hand:
//! let oneshot = vec![RowOutput::Classes(vec![0.1, 0.9])];
//! let output = StepOutput { step, oneshot, ..StepOutput::default() };
//! scheduler.complete(now, step, Ok(output), &mut events)?;
//! assert!(matches!(events[..], [Event::Output { .. }, Event::Finished { .. }]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod config;
mod event;
mod forest;
mod leader;
mod length;
mod pace;
mod pass;
mod policy;
mod prompts;
mod queue;
mod reject;
mod request;
mod row;
mod scheduler;
mod sequence;
mod shares;
#[cfg(test)]
mod sim;
mod slice;
mod stats;
mod step;
mod waiting;
mod watch;

pub use config::{ConfigError, PolicyConfig, SchedulerConfig};
pub use event::{Event, FinishReason, Outcome, Usage};
pub use policy::{
    Auto, Fcfs, Grant, Groups, Laps, LapsConfig, Plan, QueueView, RoundRobin, SchedulerPolicy,
    Srjf, StepBudget, StepTime, Unfinished,
};
pub use reject::Reject;
pub use scheduler::{Scheduler, UnknownStep};
pub use stats::SchedulerStats;
pub use waiting::{PromptSize, Turn, Waiting};
pub use watch::{Change, Cost};

/// The examples of the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
