//! The table of cases that every implementation of [`Ops`] passes.
//!
//! An executor's tests implement [`ConformanceDevice`] and call the suites, once per kernel
//! path and precision. Each case computes something with the device and again with naive twins in
//! f64, and panics with the case's name, the place and both values if they differ by more than a
//! bound derived from the arithmetic; see [`Precision`].
//!
//! ```text
//! elementwise   rms_norm, silu_mul, embed, gather_rows
//! products      linear (fused parts, biases), linear_add, norm_linear, mlp_add
//! attention     qk_norm_rope_store and attention over trees, cached blocks, chunks, decode rows
//! experts       experts_add, and in fp8
//! heads         sampling, label scores, log-probabilities, pooling, classes
//! ```
//!
//! [`batches`] makes batches by hand, [`fp8`] checkpoints in fp8. [`golden`] compares whole models with recorded outputs of the
//! reference implementation.
//!
//! Values are drawn by a fixed generator, so that a failure repeats. In [`Precision::Bf16`] they
//! are all exact in bf16: what a case measures is the operation, not the conversion of its inputs.

mod attention;
pub mod batches;
mod elementwise;
mod encoder;
mod experts;
mod experts_fp8;
pub mod fp8;
mod gemma;
pub mod golden;
mod heads;
mod products;
mod values;

use prelude_core::{Attention, Capacity, ForwardBatch, OneShotBatch, StepOutput};

pub use self::{
    attention::{attention, attention_of_heads},
    elementwise::elementwise,
    encoder::encoders,
    experts::experts,
    experts_fp8::experts_in_fp8,
    gemma::gemma,
    heads::heads,
    products::products,
};
use crate::{AttnShape, ModelConfig, Ops, RopeConfig, RopeScaling, WeightLoader};

/// Type of a step on a device: what runs between planning and collecting.
pub type Body<'b, O> = dyn for<'a> FnMut(&mut O, &<O as Ops>::Inputs<'a>) + 'b;

/// An executor's device, whose operations can be tested one by one. One value is one
/// device with room for one [`Spec`].
pub trait ConformanceDevice {
    /// The operations under test.
    type Ops: Ops;
    /// Makes weights for the operations.
    type Loader: WeightLoader<Weight = <Self::Ops as Ops>::Weight>;

    /// Returns a loader, as at start.
    fn loader(&mut self) -> Self::Loader;

    /// Runs one step as the executor does: lays out `batch`, calls `body` in place of a model,
    /// and returns what the heads left. Tokens are in the order one-shot, prefill, decode. K/V
    /// written to blocks stay for later steps.
    ///
    /// # Panics
    /// If the device fails.
    fn step(&mut self, batch: ForwardBatch, body: &mut Body<'_, Self::Ops>) -> StepOutput;

    /// Fills a tensor with `rows · width` values, row-major.
    fn write(ops: &mut Self::Ops, tensor: &mut <Self::Ops as Ops>::Tensor, values: &[f32]);

    /// Returns all `rows · width` values of a tensor, row-major.
    fn read(ops: &mut Self::Ops, tensor: &<Self::Ops as Ops>::Tensor) -> Vec<f32>;
}

/// The sizes that a case needs room for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Spec {
    /// Sizes of a model: hidden, MLP, heads, layers, vocabulary, labels.
    pub model: ModelConfig,
    /// Sizes of a pool and of a step.
    pub capacity: Capacity,
    /// The value that [`Ops::chunk_tokens`] must return.
    pub chunk_tokens: usize,
    /// Elements of all tensors that a case allocates in one step, at most 16 tensors.
    pub arena_elements: usize,
}

/// Arithmetic of the device under test, which decides how close it must come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// f32 weights and activations.
    F32,
    /// bf16 weights, and activations rounded to bf16 or better; sums in f32.
    Bf16,
}

/// The demands on a device.
#[derive(Clone, Copy, Debug)]
pub struct Demands {
    /// The precision that results must have.
    pub precision: Precision,
    /// True if the same tokens must give the same bits in every batch (invariant 8: so on the
    /// CPU; on a GPU in deterministic mode).
    pub batch_invariant: bool,
}

/// Unit roundoff of f32: half the distance from 1 to the next number.
const U32: f64 = 1.0 / (1u64 << 24) as f64;
/// Unit roundoff of bf16.
const U16: f64 = 1.0 / (1u64 << 8) as f64;
/// Roundings that an f32 sum or a polynomial may pile up, relative to the sum of magnitudes. A
/// sum over n terms in lanes and blocks piles up about `sqrt(n / lanes) + log2(lanes)` in practice:
/// under 16 for everything here. Summing in one running f32 would already miss it at times.
const SUM: f64 = 16.0 * U32;

impl Precision {
    /// Bounds the error of storing `roundings` intermediates or results in the activation type,
    /// relative to their magnitude.
    fn stored(self, roundings: f64) -> f64 {
        match self {
            Self::F32 => roundings * U32,
            // A hundredth on top, since each rounding also applies to the error before it.
            Self::Bf16 => roundings * U16 * 1.01,
        }
    }
}

/// Rows per case: one, fewer than a tile, one more than a tile, several tiles and one.
const ROWS: [usize; 4] = [1, 3, 17, 65];
/// Widths that no vector width divides, and one that all do.
const WIDTHS: [usize; 8] = [56, 72, 80, 96, 152, 184, 192, 200];

/// Returns a spec with room to spare for `tokens` tokens in one step and tensors of `arena_elements`.
fn spec(hidden: usize, shape: AttnShape, tokens: usize, arena_elements: usize) -> Spec {
    let count = |n: usize| u32::try_from(n).expect("cases are small");
    Spec {
        model: ModelConfig {
            architecture: "Qwen3ForCausalLM".to_owned(),
            family: &crate::families::QWEN3,
            hidden_size: hidden,
            num_hidden_layers: 2,
            num_attention_heads: shape.heads,
            num_key_value_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            intermediate_size: 2 * hidden,
            vocab_size: VOCAB,
            max_position_embeddings: MAX_POSITIONS,
            attention: shape.attention,
            norm_eps: EPS,
            biases: crate::Biases::default(),
            scales: crate::Scales::default(),
            gate: None,
            local: None,
            tie_word_embeddings: false,
            dtype: None,
            rope: RopeConfig {
                theta: 1e4,
                scaling: RopeScaling::None,
            },
            labels: (0..LABELS).map(|i| i.to_string()).collect(),
            eos_token_ids: Vec::new(),
            encoder: None,
            fp8: None,
            experts: None,
            dense: Vec::new(),
            class_activation: crate::ClassActivation::Softmax,
            pair_activation: None,
            warnings: Vec::new(),
        },
        capacity: Capacity {
            block_size: BLOCK_SIZE,
            num_blocks: NUM_BLOCKS,
            max_step_tokens: count(tokens),
            full_step_tokens: 2048,
            max_context_len: count(MAX_POSITIONS),
            vocab_size: count(VOCAB),
            pipeline_depth: 1,
            passes: None,
            attention: Attention::Causal,
            host_blocks: 0,
        },
        chunk_tokens: tokens,
        arena_elements,
    }
}

const VOCAB: usize = 331;
const LABELS: usize = 5;
const MAX_POSITIONS: usize = 1024;
const EPS: f32 = 1e-6;
const BLOCK_SIZE: u32 = 16;
const NUM_BLOCKS: u32 = 64;

/// Any shape, for cases without attention.
const SMALL_SHAPE: AttnShape = AttnShape {
    attention: Attention::Causal,
    heads: 2,
    kv_heads: 1,
    head_dim: 16,
    scale: 0.25,
    soft_cap: None,
};

/// Returns a batch of one transient segment of `ids`, read nowhere.
fn one_segment(ids: &[u32]) -> OneShotBatch {
    batches::prompt(ids, vec![])
}

/// Returns a step of one token: cases without tokens of their own run in it.
fn idle() -> ForwardBatch {
    ForwardBatch::OneShot(one_segment(&[0]))
}

#[cfg(test)]
mod tests;
