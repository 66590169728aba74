//! Heads of a step: run at once, or put off while what comes before them is captured.

use half::bf16;
use prelude_models::step::ArenaTensor;

use super::CudaOps;
use crate::{Error, StepPlan, heads::DenseProduct, memory::view::View};

/// A kind of heads, to be run on hidden states.
#[derive(Clone, Debug)]
pub(crate) struct HeadCall {
    kind: HeadKind,
    /// `[P, H]`.
    hidden: View<bf16>,
}

#[derive(Clone, Debug)]
pub(super) enum HeadKind {
    Vocabulary {
        /// `[V, H]`.
        head: View<bf16>,
        /// Bound of the logits, or 0.
        cap: f32,
    },
    Pooling {
        /// The products that a pooled vector goes through.
        dense: Vec<DenseProduct>,
    },
    Classes {
        /// `[labels, H]`.
        score: View<bf16>,
        /// `[1, labels]`.
        bias: Option<View<bf16>>,
    },
}

impl CudaOps {
    /// Defers heads from here on.
    pub(crate) fn defer_heads(&mut self) {
        self.deferred = Some(Vec::new());
    }

    /// Returns the heads that were deferred. From here on heads run at once.
    pub(crate) fn deferred_heads(&mut self) -> Vec<HeadCall> {
        self.deferred.take().unwrap_or_default()
    }

    /// Runs heads on the step's output positions, or puts them off.
    pub(super) fn head(
        &mut self,
        kind: HeadKind,
        inputs: &StepPlan,
        hidden: &ArenaTensor,
    ) -> Result<(), Error> {
        let outputs = inputs.layout.outputs.len();
        let hidden = self.arena.view(hidden).slice(0..outputs);
        let call = HeadCall { kind, hidden };
        if let Some(deferred) = &mut self.deferred {
            deferred.push(call);
            return Ok(());
        }
        self.run_head(call)
    }

    /// Runs heads of a kind, those of this step's rows that are of it.
    pub(crate) fn run_head(&mut self, call: HeadCall) -> Result<(), Error> {
        let HeadCall { kind, hidden } = call;
        let (launcher, metadata) = (&mut self.launcher, &self.metadata);
        let products = &mut self.products;
        match kind {
            HeadKind::Vocabulary { head, cap } => {
                self.heads
                    .vocabulary(launcher, products, metadata, hidden, (head, cap))
            }
            HeadKind::Pooling { dense } => self
                .heads
                .pooling(launcher, products, metadata, hidden, &dense),
            HeadKind::Classes { score, bias } => {
                self.heads
                    .classes(launcher, metadata, hidden, (score, bias))
            }
        }
    }
}
