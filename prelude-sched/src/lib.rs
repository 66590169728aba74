//! Sans-IO scheduler with execution classes for language-model decisions, and its simulator.
#![forbid(unsafe_code)]

mod config;
mod event;
mod forest;
mod leader;
mod policy;
mod queue;
mod reject;
mod request;
mod row;
mod scheduler;
mod sequence;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
mod stats;
mod step;

pub use config::{ConfigError, PolicyConfig, SchedulerConfig};
pub use event::{Event, FinishReason, Outcome, Usage};
pub use policy::{Fcfs, Grant, Plan, QueueView, SchedulerPolicy, StepBudget, Waiting};
pub use reject::Reject;
pub use scheduler::{Scheduler, UnknownStep};
pub use stats::SchedulerStats;
