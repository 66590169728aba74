//! A device with its operations laid open: for the conformance suite, and for one operation at a
//! time.

use half::bf16;
use prelude_core::{Attention, ForwardBatch, StepId, StepOutput};
use prelude_models::{
    ModelConfig, Ops as _,
    conformance::{Body, ConformanceDevice, Spec},
    step::ArenaTensor,
};

use super::Target;
use crate::{
    CudaConfig, CudaLoader, CudaOps, Error, PromptAttention, StepPlan, executor,
    memory::kv_pool::KvShape, ops::Sizes,
};

/// The sizes that a [`Device`] needs room for.
#[derive(Clone, Debug)]
pub struct Room {
    /// Sizes of a model.
    pub model: ModelConfig,
    /// KV blocks.
    pub blocks: usize,
    /// Tokens of a KV block: 16, 32 or 64.
    pub block_size: u32,
    /// Most tokens of a step.
    pub step_tokens: u32,
    /// Tokens that an operation works on at once.
    pub chunk_tokens: usize,
    /// Longest sequence.
    pub context_len: u32,
    /// Elements of all tensors of a step, at most 16.
    pub arena_elements: usize,
    /// Bytes of a step's metadata, and of its results.
    pub lists_bytes: u64,
    /// Rows of logits over the vocabulary held at once.
    pub logits_rows: u32,
    /// True if products run by the kernel for Hopper.
    pub hopper_products: bool,
    /// True if matrices of layers are rounded to fp8.
    pub fp8: bool,
    /// The kernel for attention of prompts.
    pub prompt_attention: PromptAttention,
}

impl From<&Spec> for Room {
    fn from(spec: &Spec) -> Self {
        let mut model = spec.model.clone();
        model.attention = spec.capacity.attention;
        Self {
            model,
            blocks: spec.capacity.num_blocks as usize,
            block_size: spec.capacity.block_size,
            step_tokens: spec.capacity.max_step_tokens,
            chunk_tokens: spec.chunk_tokens,
            context_len: spec.capacity.max_context_len,
            arena_elements: spec.arena_elements,
            lists_bytes: 1 << 20,
            logits_rows: 4,
            hopper_products: false,
            fp8: false,
            prompt_attention: PromptAttention::OfGpu,
        }
    }
}

/// Operations, their buffers, and the plan of one step.
#[derive(Debug)]
pub struct Device {
    ops: CudaOps,
    plan: StepPlan,
    /// The launcher that rounds matrices; `None` where they stay bf16.
    rounds_on: Option<Target>,
}

impl Device {
    /// Takes all memory for a step of `room`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::KernelImageMissing`], or the driver's.
    ///
    /// # Panics
    /// If a chunk has 2³² tokens.
    pub fn open(target: &Target, room: &Room, deterministic: bool) -> Result<Self, Error> {
        let config = CudaConfig {
            block_size: room.block_size,
            max_step_tokens: room.step_tokens,
            chunk_tokens: u32::try_from(room.chunk_tokens).expect("chunks are below 2^32 tokens"),
            max_context_len: Some(room.context_len),
            deterministic,
            logits_rows_max: room.logits_rows,
            metadata_bytes: room.lists_bytes,
            results_bytes: room.lists_bytes,
            hopper_products: room.hopper_products,
            fp8: room.fp8,
            prompt_attention: room.prompt_attention,
            ..target.config()
        };
        let mut sizes = Sizes::new(&room.model, &config, None);
        // Rows are padded to multiples of 8 elements, which the narrowest rows of the suite grow
        // by less than the half of; and tensors to lines.
        sizes.activation_bytes = 8 * room.arena_elements.min(1 << 24) * size_of::<bf16>()
            + room.arena_elements.saturating_sub(1 << 24) * size_of::<bf16>()
            + 16 * 128;
        let shape = room.model.attn_shape();
        let ops = CudaOps::new(
            target.space(),
            target.launcher()?,
            &room.model,
            &config,
            sizes,
            |space| match room.model.attention {
                Attention::Full => executor::kv_shape(space, &room.model, &config),
                Attention::Causal => Ok(KvShape {
                    layers: room.model.num_hidden_layers,
                    kv_heads: shape.kv_heads,
                    head_dim: shape.head_dim,
                    block_size: room.block_size as usize,
                    blocks: room.blocks,
                }),
            },
        )?;
        Ok(Self {
            ops,
            plan: StepPlan::default(),
            rounds_on: room.fp8.then(|| target.clone()),
        })
    }

    /// Makes weights for the device's operations.
    ///
    /// # Errors
    /// If kernels that round matrices cannot be loaded.
    pub fn loader(&self) -> Result<CudaLoader, Error> {
        let launcher = self.rounds_on.as_ref().map(Target::launcher).transpose()?;
        Ok(CudaLoader::new(self.ops.space.clone(), launcher))
    }

    /// Lays a batch out and runs `body` in place of a model.
    ///
    /// # Errors
    /// Those of the plan, of `body`, or the driver's.
    pub fn step<T>(
        &mut self,
        batch: ForwardBatch,
        body: impl FnOnce(&mut CudaOps, &StepPlan) -> Result<T, Error>,
    ) -> Result<(T, StepOutput), Error> {
        self.ops.space.settle()?;
        let planned = self.plan.rebuild(batch, self.ops.plan_config, |_, _| None);
        planned.map_err(|e| Error::Step(e.to_string()))?;
        self.ops.begin(&mut self.plan)?;
        let made = body(&mut self.ops, &self.plan)?;
        self.ops.heads.send()?;
        self.ops.space.synchronize("a step's results")?;
        let output = executor::output(StepId(0), &mut self.ops, &self.plan);
        Ok((made, output))
    }
}

/// Fills a tensor with rows, row-major.
///
/// # Errors
/// The driver's.
pub(crate) fn write(ops: &mut CudaOps, tensor: &ArenaTensor, values: &[bf16]) -> Result<(), Error> {
    ops.space.synchronize("what used the tensor before")?;
    ops.arena.write(tensor, values)?;
    ops.space.settle()
}

/// Returns all rows of a tensor, row-major.
///
/// # Errors
/// The driver's.
pub(crate) fn read(ops: &CudaOps, tensor: &ArenaTensor) -> Result<Vec<bf16>, Error> {
    ops.space.synchronize("what fills the tensor")?;
    ops.arena.read(tensor)
}

impl CudaOps {
    /// Fills a tensor of the step with rows, row-major, after everything queued so far.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If there are not as many values as the tensor has elements.
    pub fn write(&mut self, tensor: &mut ArenaTensor, values: &[bf16]) -> Result<(), Error> {
        write(self, tensor, values)
    }

    /// Takes a tensor from the step's arena and fills it.
    ///
    /// # Errors
    /// The errors of [`CudaOps::write`], or that the arena is full.
    pub fn filled(
        &mut self,
        rows: usize,
        width: usize,
        values: &[bf16],
    ) -> Result<ArenaTensor, Error> {
        let mut tensor = self.alloc(rows, width)?;
        self.write(&mut tensor, values)?;
        Ok(tensor)
    }

    /// Returns all rows of a tensor of the step, row-major, after everything queued so far.
    ///
    /// # Errors
    /// The driver's.
    pub fn read(&self, tensor: &ArenaTensor) -> Result<Vec<bf16>, Error> {
        read(self, tensor)
    }
}

impl ConformanceDevice for Device {
    type Ops = CudaOps;
    type Loader = CudaLoader;

    fn loader(&mut self) -> CudaLoader {
        Self::loader(self).expect("the kernels that opened the device load once more")
    }

    fn step(&mut self, batch: ForwardBatch, body: &mut Body<'_, CudaOps>) -> StepOutput {
        let run = |ops: &mut CudaOps, plan: &StepPlan| {
            body(ops, plan);
            Ok(())
        };
        match Self::step(self, batch, run) {
            Ok(((), output)) => output,
            Err(error) => panic!("{error}"),
        }
    }

    fn write(ops: &mut CudaOps, tensor: &mut ArenaTensor, values: &[f32]) {
        let values: Vec<bf16> = values.iter().map(|&x| bf16::from_f32(x)).collect();
        ops.write(tensor, &values).expect("the device takes values");
    }

    fn read(ops: &mut CudaOps, tensor: &ArenaTensor) -> Vec<f32> {
        let values = CudaOps::read(ops, tensor).expect("the device gives values");
        values.into_iter().map(bf16::to_f32).collect()
    }
}
