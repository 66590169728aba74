//! Passes that are computed in slices: each has activations and a layer's keys and values of its own.
//!
//! ```text
//! step     arena of the largest step, keys and values of one layer      reset by each step
//! pass 1   hidden states, a chunk, outputs; keys and values of a layer  kept from slice to slice
//! pass 2   ...
//! ```
//!
//! A slice exchanges the buffers of the operations for those of its pass, advances the model, and
//! exchanges them back. Buffers are taken when a pass begins and freed when it ends; their sum is
//! part of the memory plan, because the scheduler keeps to [`prelude_core::Capacity::passes`].

use prelude_models::{
    ForwardState, Model, ModelConfig,
    step::{ArenaTensor, Pass, StepLayout, activation_room},
};

use crate::{Error, arena::Arena, kernels::kv::StepKv, ops::CpuOps};

/// The buffers of a pass that has begun, and how far it is.
pub(crate) struct PassBuffers {
    state: ForwardState<ArenaTensor>,
    arena: Arena,
    step_kv: StepKv,
}

impl PassBuffers {
    /// Takes the buffers of a pass that begins.
    ///
    /// # Errors
    /// [`Error::Allocation`].
    pub(crate) fn new(
        layout: &StepLayout,
        model: &ModelConfig,
        chunk_tokens: u32,
        ops: &CpuOps,
    ) -> Result<Self, Error> {
        let (tokens, outputs) = (layout.tokens.len(), layout.outputs.len());
        let len = activation_room(model, tokens, outputs, chunk_tokens, Arena::room);
        Ok(Self {
            arena: Arena::new(len),
            step_kv: ops.kv.step_of(tokens)?,
            state: ForwardState::default(),
        })
    }

    fn exchange(&mut self, ops: &mut CpuOps) {
        std::mem::swap(&mut self.arena, &mut ops.arena);
        ops.kv.swap_step(&mut self.step_kv);
    }
}

/// Computes a slice of a pass. Returns true if it was the last one, whose results are in `ops` then.
///
/// # Errors
/// The model's errors; the pass has ended then.
pub(crate) fn advance(
    pass: &mut Pass<PassBuffers>,
    layer_tokens: u32,
    model: &dyn Model<CpuOps>,
    ops: &mut CpuOps,
) -> Result<bool, Error> {
    let Pass { layout, held } = pass;
    held.exchange(ops);
    ops.forget_results(layout);
    let ended = model.advance(ops, layout, &mut held.state, layer_tokens as usize);
    ops.arena.end_slice();
    held.exchange(ops);
    ended
}

#[cfg(test)]
mod tests;
