//! Results that are computed from hidden states.
//!
//! | file | |
//! | --- | --- |
//! | `vocabulary` | which rows need which logits, in chunks of bounded memory |
//! | `logprobs` | log-probabilities, ranks and likeliest tokens of one row of logits |
//! | `sample` | one row of logits to tokens: the normative definition |
//! | `philox` | the generator behind draws |
//! | `pooling` | embeddings and class logits |

mod logprobs;
mod philox;
mod pooling;
mod sample;
mod vocabulary;

use prelude_core::RowOutput;
use prelude_models::step::StepLayout;

use crate::{
    kernels::{Supported, gemm::Multiplier},
    pool::ComputePool,
};

pub(crate) use pooling::mean;
pub(crate) use vocabulary::{VocabularyHeads, logits_rows, worker_bytes};

/// The failure of a row whose numbers are infinite or not numbers.
pub(crate) const NOT_FINITE: &str = "the model's numbers for this row are not finite";

/// The hidden states of a step, what computes with them, and the results of its rows.
pub(crate) struct HeadPass<'a> {
    pub(crate) layout: &'a StepLayout,
    /// `[P, H]`, row-major.
    pub(crate) hidden: &'a [f32],
    /// `H`.
    pub(crate) width: usize,
    pub(crate) pool: &'a ComputePool,
    pub(crate) multiplier: &'a mut Multiplier,
    /// The instructions.
    pub(crate) isa: Supported,
    /// The results, one for each row of the step.
    pub(crate) results: &'a mut [Option<RowOutput>],
}

impl<'a> HeadPass<'a> {
    /// Returns the hidden state of an output position.
    fn state(&self, output: u32) -> &'a [f32] {
        &self.hidden[output as usize * self.width..][..self.width]
    }
}
