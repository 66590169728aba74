//! Model definitions over a small vocabulary of fused operations, and checkpoint loading.
//!
//! A model is written once against [`Ops`], the device boundary, and runs on every executor; an
//! executor implements [`Ops`] and [`WeightLoader`] and never sees a model's name. This crate owns
//! everything that can be known about a model without a device: what `config.json` means, which
//! tensors a checkpoint must hold and whether it does, and in which order operations run.
//!
//! It does not know batching policy, tokenizers or devices, and it opens no network connection.
//!
//! Read first: [`Checkpoint`] (what is on disk), [`Ops`] (what a device can do), [`load_model`]
//! (the one joined to the other).
//!
//! ```
//! use prelude_models::{Checkpoint, ModelKind};
//!
//! let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../prelude-server/demo/demo-classifier");
//! let checkpoint = Checkpoint::open(folder.as_ref())?;
//! assert_eq!(checkpoint.config().head_dim, 32);
//! let ModelKind::SequenceClassification { labels } = checkpoint.kind() else {
//!     panic!("not a classifier");
//! };
//! assert_eq!(labels.len(), 77);
//! # Ok::<(), prelude_models::Error>(())
//! ```
#![deny(unsafe_code)]

mod activation;
mod checkpoint;
mod config;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod decision;
mod decoder;
mod encoder;
mod error;
mod families;
mod field;
pub mod fields;
pub mod file;
mod fp8;
mod generation;
mod json;
mod kind;
mod logit_score;
mod model;
mod modules;
#[cfg(any(test, feature = "conformance"))]
mod naive;
mod ops;
mod registry;
mod rope;
mod source;
pub mod step;
mod tensor;
mod tensors;
#[cfg(test)]
mod testing;
mod weight_source;
mod weights;

pub use activation::ClassActivation;
pub use checkpoint::{Checkpoint, CheckpointFiles, DenseFiles, FileIdentity};
pub use config::{EncoderConfig, ExpertsConfig, Fp8Scales, LocalLayers, ModelConfig, Scales};
pub use decision::{
    CodeWording, Decision, DecisionFormat, DecisionHead, LayerNorm, Linear, QuestionType,
    refused_files,
};
pub use decoder::Decoder;
pub use encoder::Encoder;
pub use error::{Error, TensorDefects};
pub use families::Biases;
pub use fp8::{Fp8Matrix, stacked_blocks};
pub use generation::GenerationConfig;
pub use kind::ModelKind;
pub use logit_score::LogitScore;
pub use model::{ForwardState, Model, SliceWork};
pub use modules::DenseConfig;
pub use ops::{
    Activation, AttnShape, DenseModule, Distances, EmbedTables, Expert, ExpertRoom, MlpRoom, Norm,
    Ops, QkNorm, Routing,
};
pub use registry::load_model;
pub use rope::{Llama3, RopeConfig, RopeScaling, Yarn, rotation};
pub use tensor::{DType, Tensor, TensorView};
pub use weights::{WeightLoader, stacked_shape};

/// The examples of the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
