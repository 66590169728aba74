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
//! part of the memory plan, because the scheduler keeps to [`Capacity::passes`].

use std::collections::BTreeMap;

use prelude_core::{Capacity, ExecutorError, ForwardBatch, PassId, PassSlice};
use prelude_models::{
    ForwardState, Model, ModelConfig,
    step::{ArenaTensor, StepLayout, step_room},
};

use crate::{Error, arena::Arena, kernels::kv::StepKv, ops::CpuOps};

/// A pass that has begun.
struct Pass {
    layout: StepLayout,
    state: ForwardState<ArenaTensor>,
    arena: Arena,
    step_kv: StepKv,
}

/// The passes that have begun and not ended.
#[derive(Default)]
pub(crate) struct Passes {
    live: BTreeMap<PassId, Pass>,
}

/// The shape of the model that sizes a pass's buffers.
pub(crate) struct PassShape<'a> {
    pub(crate) model: &'a ModelConfig,
    pub(crate) chunk_tokens: u32,
    pub(crate) hidden_size: usize,
}

impl Passes {
    /// Frees the passes that are given up, and begins the slice's pass if this is its first slice.
    ///
    /// # Errors
    /// [`ExecutorError::Step`] for a pass that the executor has no room for, or does not know.
    pub(crate) fn prepare(
        &mut self,
        slice: &mut PassSlice,
        capacity: &Capacity,
        shape: &PassShape<'_>,
        ops: &CpuOps,
    ) -> Result<(), ExecutorError> {
        for pass in &slice.abandoned {
            self.live.remove(pass);
        }
        if let Some(batch) = slice.begin.take() {
            let room = capacity.passes.map_or(0, |room| room.tokens) as usize;
            let held: usize = self
                .live
                .values()
                .map(|pass| pass.layout.tokens.len())
                .sum();
            if held + batch.tokens.len() > room {
                let what = format!("pass {} has no room beside {held} tokens", slice.pass);
                return Err(ExecutorError::Step(what));
            }
            let mut layout = StepLayout::default();
            layout.rebuild(ForwardBatch::OneShot(batch), capacity.block_size, |_, _| {
                None
            })?;
            layout.refuse_invalid_rows(capacity.vocab_size, shape.hidden_size);
            let pass = Pass::new(layout, shape, ops);
            let pass = pass.map_err(|e| ExecutorError::Step(e.to_string()))?;
            self.live.insert(slice.pass, pass);
        }
        match self.live.get_mut(&slice.pass) {
            None => {
                let what = format!("pass {} has not begun or is over", slice.pass);
                Err(ExecutorError::Step(what))
            }
            Some(pass) => {
                if !slice.keeps {
                    pass.layout.keep_nothing();
                }
                Ok(())
            }
        }
    }

    /// Computes a slice. Returns the layout of the pass if this was the last slice, whose results
    /// are in `ops` then.
    ///
    /// # Errors
    /// Those of the model; the pass is over then.
    pub(crate) fn advance(
        &mut self,
        slice: &PassSlice,
        model: &dyn Model<CpuOps>,
        ops: &mut CpuOps,
    ) -> Result<Option<StepLayout>, Error> {
        let mut pass = self
            .live
            .remove(&slice.pass)
            .expect("a slice is prepared before it is computed");
        let exchange = |pass: &mut Pass, ops: &mut CpuOps| {
            std::mem::swap(&mut pass.arena, &mut ops.arena);
            ops.kv.swap_step(&mut pass.step_kv);
        };
        exchange(&mut pass, ops);
        ops.forget_results(&pass.layout);
        let work = slice.layer_tokens as usize;
        let advanced = model.advance(ops, &pass.layout, &mut pass.state, work);
        exchange(&mut pass, ops);
        if advanced? {
            return Ok(Some(pass.layout));
        }
        self.live.insert(slice.pass, pass);
        Ok(None)
    }
}

impl Pass {
    fn new(layout: StepLayout, shape: &PassShape<'_>, ops: &CpuOps) -> Result<Self, Error> {
        let (tokens, outputs) = (layout.tokens.len(), layout.outputs.len());
        let len = step_room(
            shape.model,
            tokens,
            outputs,
            shape.chunk_tokens,
            &Arena::room,
        );
        Ok(Self {
            arena: Arena::new(len),
            step_kv: ops.kv.step_of(tokens)?,
            state: ForwardState::default(),
            layout,
        })
    }
}

#[cfg(test)]
mod tests;
