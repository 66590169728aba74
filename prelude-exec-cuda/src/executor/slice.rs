//! Slices of long passes.
//!
//! ```text
//! step        the arena's part for steps    reset by each step and each slice
//! pass 1      hidden states, what its output positions attended to, one layer's keys and values: a
//!             region of the arena, kept from slice to slice
//! pass 2      ...
//! ```
//!
//! A slice exchanges its pass's region for what steps use and advances the model; intermediates of its
//! chunks lie where those of steps do. All of it is queued behind the step before, so a slice may be
//! submitted while that one runs.

use prelude_core::{ExecutorError, PassSlice};
use prelude_models::step::{Pass, VectorSizes};

use super::CudaExecutor;

impl CudaExecutor {
    /// Queues a slice. Returns true if it is the last one of its pass, whose rows it answers.
    ///
    /// # Errors
    /// [`ExecutorError::Step`] for a pass that there is no room for, that has not begun or that is
    /// over; else those of the model. The pass is over then.
    pub(super) fn run_slice(&mut self, mut slice: PassSlice) -> Result<bool, ExecutorError> {
        let laid_out = self.passes.lay_out(
            &mut slice,
            &self.capacity,
            VectorSizes::of(&self.model_config),
        )?;
        if let Some(layout) = laid_out {
            let others = self.passes.held_mut();
            let held = self.ops.begin_pass(&self.model_config, &layout, others)?;
            self.passes.put(slice.pass, Pass { layout, held });
        }
        let Pass { layout, mut held } = self.passes.take(&slice)?;
        let size = (layout.tokens.len(), self.model_config.num_hidden_layers);
        let config = self.ops.plan_config;
        let layer_tokens = slice.layer_tokens as usize;
        let work = held
            .state
            .next_slice(size, config.chunk_tokens, layer_tokens);
        self.plan.rebuild_slice(layout, config, &work);
        self.ops.begin(&mut self.plan)?;
        self.graphs.count_eager();
        self.ops.exchange_pass(&mut held);
        let advanced = self
            .model
            .advance(&mut self.ops, &self.plan, &mut held.state, layer_tokens);
        self.ops.exchange_pass(&mut held);
        let is_last = advanced?;
        if is_last {
            self.ops.heads.send()?;
        } else {
            let layout = std::mem::take(&mut self.plan.layout);
            self.passes.put(slice.pass, Pass { layout, held });
        }
        Ok(is_last)
    }
}
