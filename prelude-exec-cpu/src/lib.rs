//! CPU executor, the embedded default.
//!
//! It runs models of `prelude-models` on the host, with packed weights and vector instructions found
//! at run time; the naive device of their conformance suite is the oracle of its arithmetic. It
//! knows nothing of queues, text or sockets: a scheduler hands it batches, it hands back rows.
//!
//! **A row's result never depends on the batch it ran in**, bit for bit: not on other rows, on
//! how prompts share prefixes, on chunking, on whether the prefix came from the cache, or on the
//! number of threads. See `kernels::panel` and `kernels::attention` for how.
//!
//! Read first: [`CpuExecutor`], [`CpuConfig`], [`ComputePool`].
//!
//! ```
//! use std::sync::Arc;
//!
//! use prelude_core::{
//!     BlockSpan, Executor, ForwardBatch, OneShotBatch, OutputHead, OutputRow, Residency,
//!     RowOutput, Segment, SegmentIdx, StepId,
//! };
//! use prelude_exec_cpu::{ComputePool, CpuConfig, CpuExecutor};
//! use prelude_models::Checkpoint;
//!
//! let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../prelude-server/demo/demo-classifier");
//! let checkpoint = Checkpoint::open(folder.as_ref())?;
//! let pool = Arc::new(ComputePool::for_machine());
//! let mut executor = CpuExecutor::new(&checkpoint, CpuConfig::default(), pool)?;
//!
//! // One prompt of five tokens, classified at its last position.
//! let batch = OneShotBatch {
//!     tokens: vec![40, 521, 1200, 77, 30],
//!     segments: vec![Segment {
//!         tokens: 0..5,
//!         parent: None,
//!         context_len: 0,
//!         cached: BlockSpan::EMPTY,
//!         residency: Residency::Transient,
//!     }],
//!     rows: vec![OutputRow {
//!         segment: SegmentIdx(0),
//!         positions: 4..5,
//!         head: OutputHead::Classify,
//!     }],
//!     block_ids: vec![],
//! };
//! executor.submit(StepId(0), ForwardBatch::OneShot(batch))?;
//! let output = executor.collect(StepId(0))?;
//! let RowOutput::Classes(logits) = &output.oneshot[0] else {
//!     panic!("a classifier answers with classes");
//! };
//! assert_eq!(logits.len(), 77);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

mod arena;
mod config;
#[cfg(test)]
mod conformance;
mod error;
mod executor;
mod experts;
#[cfg(test)]
mod golden;
mod heads;
mod heap;
#[cfg(test)]
mod invariance;
mod kernels;
pub mod measure;
mod memory;
mod ops;
mod packed;
mod pass;
mod pool;
mod scratch;
#[cfg(test)]
mod testing;
mod weights;

pub use config::{CpuConfig, Quantization};
pub use error::Error;
pub use executor::CpuExecutor;
pub use heap::give_back_freed;
pub use kernels::{CpuDtype, Isa};
pub use memory::{MemoryPlan, available_bytes};
pub use ops::CpuOps;
pub use packed::{PackedCheck, PackedDamage, PackedUse, PackedWriting};
pub use pool::{ComputePool, Turn};
pub use weights::{CpuLoader, Weight};

/// The examples of the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
