//! [`Executor`] on the host.

use std::sync::Arc;

use prelude_core::{
    Capacity, Executor, ExecutorError, ForwardBatch, PassSlice, RowOutput, StepId, StepOutput,
};
use prelude_models::{
    Checkpoint, EncoderConfig, Model, ModelConfig, load_model,
    step::{Pass, Passes, StepLayout, VectorSizes},
};

use crate::{
    CpuConfig, CpuDtype, Error, Isa, MemoryPlan, memory,
    ops::CpuOps,
    packed::{self, PackedUse},
    pass::{PassBuffers, advance},
    pool::ComputePool,
    weights::CpuLoader,
};

/// The failure of a row for which the model has no head.
const NO_HEAD: &str = "the model has no head for this row";

/// Runs a model on the host. Steps run one at a time, in [`Executor::collect`], on the caller's
/// thread and the pool's.
pub struct CpuExecutor {
    model: Box<dyn Model<CpuOps>>,
    ops: CpuOps,
    layout: StepLayout,
    outstanding: Option<(StepId, Work)>,
    passes: Passes<PassBuffers>,
    chunk_tokens: u32,
    capacity: Capacity,
    memory: MemoryPlan,
    dtype: CpuDtype,
    packed: PackedUse,
    config: ModelConfig,
}

/// Loads a model: from packed weights if the folder that `config` names has them, else from the
/// checkpoint. `form` describes the storage forms of the weights that `loader` makes.
fn load(
    checkpoint: &Checkpoint,
    positions: usize,
    (config, form): (&CpuConfig, &str),
    loader: impl Fn() -> CpuLoader,
) -> Result<(Box<dyn Model<CpuOps>>, PackedUse), Error> {
    let load = |loader: &mut CpuLoader| load_model::<CpuOps, _>(checkpoint, positions, loader);
    let Some(folder) = &config.packed_dir else {
        return Ok((load(&mut loader())?, PackedUse::Off));
    };
    let Some(key) = packed::Key::of(checkpoint, form) else {
        return Ok((load(&mut loader())?, PackedUse::InMemory));
    };
    // A file that turns out to be of another model is packed anew.
    if let Some((file, check)) = packed::open(folder, &key)
        && let Ok(model) = load(&mut loader().reading(file))
    {
        return Ok((model, PackedUse::Found(check)));
    }
    let mut loader = loader().collecting();
    let model = load(&mut loader)?;
    let used = packed::write(folder.clone(), key, loader.collected());
    Ok((model, used))
}

/// The work of a submitted step.
enum Work {
    /// The step that is laid out.
    Layout,
    /// A slice of a pass, which is not among the executor's passes meanwhile.
    Slice(PassSlice, Box<Pass<PassBuffers>>),
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
        let config = config.for_model(model_config);
        let (dtype, backend) = config.choose(model_config)?;
        let positions = capacity.max_context_len as usize;
        let loader = || CpuLoader::new(Arc::clone(&pool), (dtype, backend), config.quantization);
        let form = format!("{dtype:?} {backend:?} {:?}", config.quantization);
        let (model, packed) = load(checkpoint, positions, (&config, &form), loader)?;
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
            passes: Passes::default(),
            chunk_tokens: config.chunk_tokens,
            capacity,
            memory,
            dtype,
            packed,
            config: model_config.clone(),
        })
    }

    /// Returns whether the weights came from [`CpuConfig::packed_dir`], and leaves
    /// [`PackedUse::Off`] in its place.
    pub fn take_packed_use(&mut self) -> PackedUse {
        std::mem::replace(&mut self.packed, PackedUse::Off)
    }

    /// Returns the memory that the executor was planned to take.
    #[must_use]
    pub const fn memory(&self) -> MemoryPlan {
        self.memory
    }

    /// Returns the arithmetic in use.
    #[must_use]
    pub const fn dtype(&self) -> CpuDtype {
        self.dtype
    }

    /// Returns the instructions in use.
    #[must_use]
    pub fn path(&self) -> Isa {
        self.ops.backend.isa.isa()
    }
}

impl Executor for CpuExecutor {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn submit(&mut self, step: StepId, batch: ForwardBatch) -> Result<(), ExecutorError> {
        if let Some((outstanding, _)) = self.outstanding {
            return Err(ExecutorError::Step(format!(
                "step {step} was submitted before step {outstanding} was collected"
            )));
        }
        let capacity = &self.capacity;
        batch
            .validate(capacity)
            .map_err(|e| ExecutorError::Step(e.to_string()))?;
        let sizes = VectorSizes::of(&self.config);
        let work = match batch {
            ForwardBatch::Slice(mut slice) => {
                if let Some(layout) = self.passes.lay_out(&mut slice, capacity, sizes)? {
                    let held =
                        PassBuffers::new(&layout, &self.config, self.chunk_tokens, &self.ops);
                    let held = held.map_err(|e| ExecutorError::Step(e.to_string()))?;
                    self.passes.put(slice.pass, Pass { layout, held });
                }
                let pass = self.passes.take(&slice)?;
                Work::Slice(slice, Box::new(pass))
            }
            batch => {
                // Steps run one at a time: none is outstanding that samples a token.
                self.layout
                    .rebuild(batch, capacity.block_size, |_, _| None)?;
                self.layout.refuse_invalid_rows(capacity.vocab_size, sizes);
                let encoder = self.config.encoder.as_ref();
                if encoder.is_some_and(EncoderConfig::has_mean_classes) {
                    self.layout.refuse_token_classes();
                }
                Work::Layout
            }
        };
        self.outstanding = Some((step, work));
        Ok(())
    }

    fn collect(&mut self, step: StepId) -> Result<StepOutput, ExecutorError> {
        let Some((_, work)) = self.outstanding.take_if(|(id, _)| *id == step) else {
            return Err(ExecutorError::Step(format!(
                "step {step} is not outstanding"
            )));
        };
        let pool = Arc::clone(&self.ops.pool);
        let _turn = pool.take_turn();
        let failed = |e: Error| ExecutorError::Step(e.to_string());
        match work {
            Work::Layout => {
                self.ops.begin(&self.layout);
                self.model
                    .forward(&mut self.ops, &self.layout)
                    .map_err(failed)?;
                Ok(output(step, &mut self.ops, &self.layout))
            }
            Work::Slice(slice, mut pass) => {
                let (model, ops) = (&*self.model, &mut self.ops);
                if advance(&mut pass, slice.layer_tokens, model, ops).map_err(failed)? {
                    return Ok(output(step, ops, &pass.layout));
                }
                self.passes.put(slice.pass, *pass);
                Ok(StepOutput {
                    step,
                    ..StepOutput::default()
                })
            }
        }
    }

    fn computes_at_once(&self) -> bool {
        !self.ops.pool.is_taken()
    }
}

/// Returns the results that heads computed, by part of the batch.
pub(crate) fn output(step: StepId, ops: &mut CpuOps, layout: &StepLayout) -> StepOutput {
    let results = ops.results.drain(..);
    layout.step_output(
        step,
        results.map(|row| row.unwrap_or(RowOutput::Failed(NO_HEAD))),
    )
}
