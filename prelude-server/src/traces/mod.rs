//! Traces: a span for each request and for its parts, sent to an OpenTelemetry collector.
//!
//! ```text
//! POST /classify                        from its head to the last byte of its answer
//! ├─ prepare                            template, token ids, admission
//! ├─ queue                              from the engine's queue to the first step
//! ├─ steps                              from the first step to the last result
//! └─ answer                             results to bytes, bytes to the client
//! ```
//!
//! The spans of a request are made when it has ended, of times that were noted on its way, and put
//! into a bounded queue: a request never waits for a collector. Without the feature `otlp` the
//! types are empty and every call is nothing.

use std::time::Instant;

use prelude_core::ExecutionClass;
use prelude_engine::Usage;

#[cfg(not(feature = "otlp"))]
mod off;
#[cfg(feature = "otlp")]
mod on;
#[cfg(feature = "otlp")]
mod queue;

#[cfg(not(feature = "otlp"))]
use off as chosen;
#[cfg(feature = "otlp")]
use on as chosen;

pub(crate) use chosen::Trace;
pub use chosen::Traces;
#[cfg(feature = "otlp")]
pub(crate) use queue::Counts;

/// The facts of a request that has ended.
#[derive(Debug)]
#[cfg_attr(
    not(feature = "otlp"),
    expect(dead_code, reason = "read where there are traces")
)]
pub(crate) struct Ended<'a> {
    /// The time at which the request's head had arrived.
    pub(crate) arrival: Instant,
    /// The path of the request's endpoint, if there is one.
    pub(crate) route: Option<&'static str>,
    /// The status of the request's answer; 499 if the client left.
    pub(crate) status: u16,
    /// The request's id.
    pub(crate) id: &'a str,
    /// The served name of the request's model.
    pub(crate) model: Option<&'a str>,
    /// The request's class, once the request was built.
    pub(crate) class: Option<ExecutionClass>,
    /// Prompt tokens, each prompt once.
    pub(crate) prompt_tokens: u64,
    /// The time at which the engine got the request.
    pub(crate) submitted: Option<Instant>,
    /// The engine's counts, once it has finished.
    pub(crate) usage: Option<Usage>,
}
