//! [`Executor`] on the host.

use std::sync::Arc;

use prelude_core::{
    Capacity, Executor, ExecutorError, ForwardBatch, Normalise, OutputHead, RowOutput, StepId,
    StepOutput,
};
use prelude_models::{Checkpoint, Model, load_model};

use crate::{
    CpuConfig, CpuDtype, Error, Isa, MemoryPlan, config::Backend, memory, ops::CpuOps,
    plan::StepPlan, pool::ComputePool, weights::CpuLoader,
};

/// What a row gets that no head of the model answered.
const NO_HEAD: &str = "the model has no head for this row";

/// Runs a model on the host. Steps run one at a time, in [`Executor::collect`], on the caller's
/// thread and the pool's.
pub struct CpuExecutor {
    model: Box<dyn Model<CpuOps>>,
    ops: CpuOps,
    plan: StepPlan,
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
            plan: StepPlan::default(),
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

    /// Ids and sizes in heads, which [`ForwardBatch::validate`] does not know.
    fn check_heads(&self, batch: &ForwardBatch) -> Result<(), String> {
        let vocab = self.capacity.vocab_size;
        let (oneshot, prefill, decode) = batch.parts();
        let forests = oneshot.rows.iter().chain(&prefill.rows);
        for row in forests {
            match &row.head {
                OutputHead::Sample(sample) => check_sample(sample, vocab)?,
                OutputHead::LabelScores { labels, normalise } => {
                    let (Normalise::OverLabels | Normalise::OverVocab) = normalise;
                    check_ids("a label", labels, vocab)?;
                }
                OutputHead::Logprobs { targets, .. } => check_ids("a target", targets, vocab)?,
                OutputHead::Embed { dimensions, .. } => {
                    let hidden = self.hidden_size;
                    if let Some(d) = *dimensions
                        && (d == 0 || d as usize > hidden)
                    {
                        return Err(format!("{d} dimensions of a hidden state of {hidden}"));
                    }
                }
                OutputHead::Classify => {}
            }
        }
        for row in &decode.rows {
            check_sample(&row.sample, vocab)?;
        }
        Ok(())
    }
}

fn check_ids(what: &str, ids: &[u32], vocab: u32) -> Result<(), String> {
    match ids.iter().find(|&&id| id >= vocab) {
        Some(id) => Err(format!(
            "{what}, {id}, is outside the vocabulary of {vocab}"
        )),
        None => Ok(()),
    }
}

fn check_sample(sample: &prelude_core::SampleHead, vocab: u32) -> Result<(), String> {
    if let Some((field, must_be)) = sample.sampling.first_invalid(vocab) {
        return Err(format!("{field} must be {must_be}"));
    }
    if let Some(history) = &sample.history {
        check_ids("a past token", &history.prompt, vocab)?;
        check_ids("a past token", &history.output, vocab)?;
    }
    Ok(())
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
        self.check_heads(&batch).map_err(ExecutorError::Step)?;
        self.plan.rebuild(batch, self.capacity.block_size)?;
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
            self.ops.begin(&self.plan);
            self.model
                .forward(&mut self.ops, &self.plan)
                .map_err(|e| ExecutorError::Step(e.to_string()))?;
        }
        Ok(output(step, &mut self.ops, &self.plan))
    }
}

/// What the heads left, by part of the batch.
pub(crate) fn output(step: StepId, ops: &mut CpuOps, plan: &StepPlan) -> StepOutput {
    let mut results = ops
        .results
        .drain(..)
        .map(|row| row.unwrap_or(RowOutput::Failed(NO_HEAD)));
    let [oneshot, prefill, decode] = plan
        .row_counts
        .map(|count| results.by_ref().take(count).collect());
    StepOutput {
        step,
        oneshot,
        prefill,
        decode,
    }
}
