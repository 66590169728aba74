//! An engine: one thread that joins a [`Scheduler`] and an [`Executor`], and the handle through
//! which everything else talks to that thread.
//!
//! Commands go in through a bounded inbox, events come out through one channel per request. The
//! engine knows neither text nor JSON, nor which executor it was given; it is the only place below
//! the server that owns a thread and reads the clock.
//!
//! Read first: [`ScheduledEngine::spawn`], [`EngineHandle::submit`], [`Answer`].
//!
//! A complete program that classifies a prompt without HTTP is in `examples/classify.rs`.
//!
//! [`Scheduler`]: prelude_sched::Scheduler
//! [`Executor`]: prelude_core::Executor
#![forbid(unsafe_code)]

mod answer;
mod config;
mod engine;
mod engine_core;
mod error;
mod event;
mod handle;
mod histogram;
mod inbox;
mod inline_step;
mod kv_events;
mod kv_stream;
mod report;
mod shared;
mod step_times;

pub use answer::{Answer, Collected, CollectedRow, Generation};
pub use config::EngineConfig;
pub use engine::ScheduledEngine;
pub use error::{AnswerError, EngineError, SubmitError};
pub use event::AnswerEvent;
pub use handle::{EngineHandle, RequestSpec};
pub use histogram::Histogram;
pub use kv_stream::KvEventStream;
pub use report::{ClassTotals, EngineSnapshot, FinishedRequests, StepKind, StepReport, StepTotals};

pub use prelude_sched::{
    Event, FinishReason, Outcome, Reject, SchedulerConfig, SchedulerStats, Usage,
};
