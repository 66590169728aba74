//! [`Executor`] on the host.

use std::sync::Arc;

use prelude_core::{
    Capacity, Executor, ExecutorError, ForwardBatch, RowOutput, StepId, StepOutput,
};
use prelude_models::{Checkpoint, Model, load_model, step::StepLayout};

use crate::{
    CpuConfig, CpuDtype, Error, Isa, MemoryPlan, kernels::Backend, memory, ops::CpuOps,
    pool::ComputePool, weights::CpuLoader,
};

/// The failure of a row for which the model has no head.
const NO_HEAD: &str = "the model has no head for this row";

/// Runs a model on the host. Steps run one at a time, in [`Executor::collect`], on the caller's
/// thread and the pool's.
pub struct CpuExecutor {
    model: Box<dyn Model<CpuOps>>,
    ops: CpuOps,
    layout: StepLayout,
    outstanding: Option<StepId>,
    capacity: Capacity,
    memory: MemoryPlan,
    dtype: CpuDtype,
    hidden_size: usize,
}

impl std::fmt::Debug for CpuExecutor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuExecutor")
            .field("path", &self.path())
            .field("dtype", &self.dtype)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

impl CpuExecutor {
    /// Plans memory, then loads the checkpoint's weights into this executor's format. The
    /// checkpoint may be dropped afterwards.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Instructions`] or [`Error::Memory`] before anything is read;
    /// [`Error::Model`] and [`Error::Weight`] for what is wrong with the checkpoint.
    pub fn new(
        checkpoint: &Checkpoint,
        config: CpuConfig,
        pool: Arc<ComputePool>,
    ) -> Result<Self, Error> {
        let (memory, capacity) = MemoryPlan::new(checkpoint, &config, pool.threads())?;
        let model_config = checkpoint.config();
        let (dtype, backend) = config.choose(model_config)?;
        let mut loader = CpuLoader::new(Arc::clone(&pool), backend, dtype);
        let positions = capacity.max_context_len as usize;
        let model = load_model::<CpuOps, _>(checkpoint, positions, &mut loader)?;
        let ops = CpuOps::new(
            model_config,
            &config,
            (dtype, backend),
            capacity.num_blocks,
            memory::arena_len(model_config, &config),
            pool,
        )?;
        Ok(Self {
            model,
            ops,
            layout: StepLayout::default(),
            outstanding: None,
            capacity,
            memory,
            dtype,
            hidden_size: model_config.hidden_size,
        })
    }

    /// The memory it was planned to take.
    #[must_use]
    pub const fn memory(&self) -> MemoryPlan {
        self.memory
    }

    /// The arithmetic in use.
    #[must_use]
    pub const fn dtype(&self) -> CpuDtype {
        self.dtype
    }

    /// The instructions in use; `None` in reference mode.
    #[must_use]
    pub fn path(&self) -> Option<Isa> {
        match self.ops.backend {
            Backend::Reference => None,
            Backend::Fast { isa, .. } => Some(isa.isa()),
        }
    }
}

impl Executor for CpuExecutor {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn submit(&mut self, step: StepId, batch: ForwardBatch) -> Result<(), ExecutorError> {
        if let Some(outstanding) = self.outstanding {
            return Err(ExecutorError::Step(format!(
                "step {step} was submitted before step {outstanding} was collected"
            )));
        }
        batch
            .validate(&self.capacity)
            .map_err(|e| ExecutorError::Step(e.to_string()))?;
        // Steps run one at a time: none is outstanding that samples a token.
        let capacity = &self.capacity;
        self.layout
            .rebuild(batch, capacity.block_size, |_, _| None)?;
        self.layout
            .refuse_invalid_rows(capacity.vocab_size, self.hidden_size);
        self.outstanding = Some(step);
        Ok(())
    }

    fn collect(&mut self, step: StepId) -> Result<StepOutput, ExecutorError> {
        if self.outstanding != Some(step) {
            return Err(ExecutorError::Step(format!(
                "step {step} is not outstanding"
            )));
        }
        self.outstanding = None;
        let pool = Arc::clone(&self.ops.pool);
        {
            let _turn = pool.take_turn();
            self.ops.begin(&self.layout);
            self.model
                .forward(&mut self.ops, &self.layout)
                .map_err(|e| ExecutorError::Step(e.to_string()))?;
        }
        Ok(output(step, &mut self.ops, &self.layout))
    }

    fn computes_at_once(&self) -> bool {
        !self.ops.pool.is_taken()
    }
}

/// The results that heads computed, by part of the batch.
pub(crate) fn output(step: StepId, ops: &mut CpuOps, layout: &StepLayout) -> StepOutput {
    let results = ops.results.drain(..);
    layout.step_output(
        step,
        results.map(|row| row.unwrap_or(RowOutput::Failed(NO_HEAD))),
    )
}
