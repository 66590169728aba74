//! The nouns that every layer of Prelude shares: ids, time, requests, batches,
//! step outputs and the [`Executor`] trait.
//!
//! The scheduler *decides* and an executor *computes*; this crate is the sheet of paper
//! they exchange. It has no behaviour beyond validation and the arithmetic of a [`Profile`]: no
//! clock, no threads, no files, no allocation policy, no device.
//!
//! Read first: [`Request`] (what a caller asks), [`ForwardBatch`] (what a step runs),
//! [`StepOutput`] (what came out).
//!
//! ```
//! use prelude_core::{ExecutionClass, Head, PromptTree, Request, RequestId, RowSpec, Timestamp};
//!
//! // One prompt, classified: one forward pass, no KV lifetime.
//! let tree = PromptTree::single(vec![12, 7, 99]);
//! let rows = vec![RowSpec { node: tree.last_node(), head: Head::Classify }];
//! let request = Request::new(RequestId(1), tree, rows, Timestamp::ZERO);
//! request.validate(4096, 4096).expect("a well-formed request");
//! assert_eq!(request.class(), ExecutionClass::OneShot);
//! ```
#![forbid(unsafe_code)]

mod batch;
mod capacity;
mod constraint;
mod executor;
mod ids;
mod kv_copies;
mod kv_event;
mod profile;
mod prompt;
mod request;
mod sampling;
mod step;
mod time;

pub use batch::{
    BatchError, BlockSpan, DecodeBatch, DecodeRow, ForwardBatch, OneShotBatch, OutputHead,
    OutputRow, PassSlice, PenaltyHistory, Residency, SampleHead, Segment, SegmentIdx, TokenSource,
};
pub use capacity::{Attention, Capacity, PassCapacity};
pub use constraint::{Constraint, MatchState, Matcher, TokenMask, TokenSet};
pub use executor::{DeviceTime, Executor, ExecutorError, GraphSteps, Padded};
pub use ids::{BlockId, HostBlockId, PassId, RequestId, SeqId, StepId, TokenId};
pub use kv_copies::{KvCopies, KvLoad, KvStore};
pub use kv_event::{KvEvent, StoredBlocks};
pub use profile::{
    BadServiceTime, FitError, Fitted, Profile, ProfileError, Regression, Sample, ServiceTime,
    StepWork,
};
pub use prompt::{NodeIdx, PromptNode, PromptTree, TreeError};
pub use request::{
    ExecutionClass, Generate, Head, InvalidRequest, Normalise, OnDeadline, Pooling, Request,
    RowSpec, TokenHead,
};
pub use sampling::SamplingParams;
pub use step::{LabelScores, PositionLogprobs, RowOutput, SampledToken, StepOutput, TokenLogprob};
pub use time::Timestamp;

/// The examples of the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
