//! [`Executor`] on a GPU.

mod clock;
mod prepare;
mod slice;

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use prelude_core::{
    Attention, Capacity, DeviceTime, Executor, ExecutorError, ForwardBatch, GraphSteps, KvCopies,
    PassCapacity, SeqId, StepId, StepOutput,
};
use prelude_models::{
    Checkpoint, EncoderConfig, Model, ModelConfig, load_model,
    step::{Passes, StepSegment, VectorSizes},
};

#[cfg(feature = "emu")]
use crate::Recording;
use crate::{
    CudaConfig, CudaLoader, CudaOps, Error, GraphStats, MemoryPlan, ProductEngine, StepPlan,
    config::{check_fp8_device, check_hopper_device, check_shared_memory},
    graph::{Graphs, StepMode},
    kernels::{cuda::CudaLauncher, image::Images, launch::Launcher},
    memory::{context::Context, kv_pool::KvShape, space::Space},
    ops::{HostBuffers, PassBuffers, Sizes},
    wait::{self, Queued, Size, Waits},
};
use clock::{DeviceClock, Ends};

/// KV blocks where memory has no limit and nothing is said about them.
const KV_BYTES_UNLIMITED: u64 = 64 << 20;

/// Tokens of a full step. In steps of 8,192 tokens an H200 answers 17 % more decisions of 300 tokens
/// by Qwen3-0.6B than in steps of 2,048, and 5 % more prompts of 512 tokens by Qwen3-4B
/// (`bench/gpu/2026-11-28-0913`).
const FULL_STEP_TOKENS: u32 = 8192;

/// A step that was submitted and not collected.
#[derive(Debug)]
struct Outstanding {
    step: StepId,
    /// False for a slice that is not the last of its pass.
    has_rows: bool,
    /// The places on the device of the tokens that the step draws for sequences that it continues;
    /// sorted.
    drawn: Vec<(SeqId, usize)>,
    ends: Ends,
    queued: Queued,
    /// The step's plan and host buffers; none while they are those of the latest step.
    host: Option<(StepPlan, HostBuffers)>,
}

/// Runs a model on one GPU. A step's kernels are queued by [`Executor::submit`]; its results are
/// waited for by [`Executor::collect`]. With [`CudaConfig::pipeline_depth`] 2 a step may be
/// submitted while the one before it runs; tokens that it continues from never leave the GPU.
pub struct CudaExecutor {
    /// Captured graphs, dropped before the buffers and kernels that they use.
    graphs: Graphs,
    model: Box<dyn Model<CudaOps>>,
    ops: CudaOps,
    /// The latest step's.
    plan: StepPlan,
    outstanding: VecDeque<Outstanding>,
    spare: Vec<(StepPlan, HostBuffers)>,
    clock: DeviceClock,
    waits: Waits,
    /// The limit of a step, as in [`CudaConfig`].
    step_limit_ms: u32,
    passes: Passes<PassBuffers>,
    memory: MemoryPlan,
    capacity: Capacity,
    model_config: ModelConfig,
    /// The reason why the GPU can do nothing more.
    lost: Option<String>,
}

impl std::fmt::Debug for CudaExecutor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaExecutor")
            .field("capacity", &self.capacity)
            .field("lost", &self.lost)
            .finish_non_exhaustive()
    }
}

impl CudaExecutor {
    /// Takes a GPU, loads its kernels and the checkpoint's weights, and takes all memory that
    /// steps will need. The checkpoint may be dropped afterwards.
    ///
    /// # Errors
    /// [`Error::Config`] or [`Error::Model`] before the driver is asked; [`Error::NoDriver`] and
    /// its like where there is no usable GPU; [`Error::KernelImageMissing`];
    /// [`Error::OutOfMemory`].
    pub fn new(checkpoint: &Checkpoint, config: CudaConfig) -> Result<Self, Error> {
        config.check()?;
        config.check_model(checkpoint.config())?;
        let context = Arc::new(Context::open(config.device)?);
        check_shared_memory(checkpoint.config(), context.shared_bytes)?;
        check_fp8_device(&config, context.compute_capability)?;
        check_hopper_device(&config, context.compute_capability)?;
        let images = Images::new(&config);
        let launcher = Launcher::Cuda(Box::new(CudaLauncher::new(Arc::clone(&context), images)?));
        Self::on(Space::Cuda(context), launcher, checkpoint, &config)
    }

    /// Runs kernels in the emulation: for tests, thousands of times slower than a GPU.
    ///
    /// # Errors
    /// The errors of [`CudaExecutor::new`], without those of a GPU.
    #[cfg(feature = "emu")]
    pub fn emulated(
        checkpoint: &Checkpoint,
        config: &CudaConfig,
        device: Arc<prelude_kernels::emu::Device>,
    ) -> Result<Self, Error> {
        let launcher = Launcher::Emu(Arc::clone(&device), None);
        Self::on(Space::Emu(device), launcher, checkpoint, config)
    }

    /// Launches nothing and writes down what it would have launched. Its results are arbitrary.
    ///
    /// # Errors
    /// The errors of [`CudaExecutor::new`], without those of a GPU.
    #[cfg(feature = "emu")]
    pub fn recording(
        checkpoint: &Checkpoint,
        config: &CudaConfig,
    ) -> Result<(Self, Arc<Recording>), Error> {
        let recording = Arc::new(Recording::default());
        let launcher = Launcher::Record(Arc::clone(&recording), None);
        let space = Space::Virtual(Arc::clone(&recording));
        let this = Self::on(space, launcher, checkpoint, config)?;
        drop(recording.take());
        Ok((this, recording))
    }

    /// Returns the memory that the executor took on the GPU.
    #[must_use]
    pub const fn memory(&self) -> MemoryPlan {
        self.memory
    }

    /// Returns the name of the GPU.
    #[must_use]
    pub fn device_name(&self) -> &str {
        self.ops.space.name()
    }

    /// Returns the code that runs matrix products: worth a line in a log, since without NVIDIA's
    /// library they are slower.
    #[must_use]
    pub const fn products(&self) -> &ProductEngine {
        self.ops.products.engine()
    }

    /// Makes the GPU hang: what is submitted from here on never ends. Nothing happens without a GPU.
    ///
    /// # Errors
    /// The driver's.
    #[cfg(feature = "measure")]
    pub fn hang(&mut self) -> Result<(), Error> {
        match &mut self.ops.launcher {
            Launcher::Cuda(launcher) => launcher.hang(),
            Launcher::Emu(..) | Launcher::Record(..) => Ok(()),
        }
    }

    #[cfg(test)]
    pub(crate) fn set_products(&mut self, products: crate::kernels::gemm::Products) {
        self.ops.products = products;
    }

    #[cfg(test)]
    pub(crate) const fn ops(&self) -> &CudaOps {
        &self.ops
    }

    /// Returns the plan of the latest step.
    #[cfg(test)]
    pub(crate) const fn plan(&self) -> &StepPlan {
        &self.plan
    }

    fn on(
        space: Space,
        launcher: Launcher,
        checkpoint: &Checkpoint,
        config: &CudaConfig,
    ) -> Result<Self, Error> {
        config.check()?;
        let model_config = checkpoint.config();
        let max_context_len = config.check_model(model_config)?;
        let config = &config.for_model(model_config);
        // Kernels take ids as i32, negative ones as indices of sampled tokens.
        let ids = |count: usize| match i32::try_from(count) {
            Ok(count) => Ok(count.cast_unsigned()),
            Err(_) => Err(Error::Model("a vocabulary beyond 2^31".to_owned())),
        };
        let (vocab_size, num_ids) = (ids(model_config.vocab_size)?, ids(model_config.num_ids())?);
        // Weights first: what is left of a GPU's memory is for KV blocks.
        // The loader has the launcher while weights are rounded.
        let mut launcher = Some(launcher);
        let rounding = launcher.take_if(|_| config.fp8);
        let mut loader = CudaLoader::new(space.clone(), rounding);
        let model = load_model::<CudaOps, _>(checkpoint, max_context_len as usize, &mut loader)?;
        let launcher = launcher.or_else(|| loader.end_rounding());
        let launcher = launcher.expect("the launcher is here or with the loader");
        let passes = config.passes(model_config, max_context_len);
        let sizes = Sizes::new(model_config, config, passes.as_ref());
        let mut ops = CudaOps::new(space, launcher, model_config, config, sizes, |space| {
            kv_shape(space, model_config, config)
        })?;
        ops.space.settle()?;
        let memory = ops.memory(loader.bytes());
        ops.products.prepare(
            loader.matrices(),
            vocab_size,
            product_rows(config, passes),
            config.logits_rows_max,
        )?;
        ops.tune_products(
            loader.matrices(),
            Duration::from_millis(config.tune_budget_ms.into()),
        )?;
        let capacity = Capacity {
            block_size: config.block_size,
            num_blocks: u32::try_from(ops.num_blocks()).expect("configuration bounds blocks"),
            max_step_tokens: config.max_step_tokens,
            full_step_tokens: FULL_STEP_TOKENS,
            max_context_len,
            vocab_size: num_ids,
            pipeline_depth: config.pipeline_depth,
            passes,
            attention: model_config.attention,
            host_blocks: ops.host_blocks(),
        };
        let spare = (1..config.pipeline_depth).map(|_| Ok((StepPlan::default(), ops.spare()?)));
        let spare = spare.collect::<Result<Vec<_>, Error>>()?;
        let clock = DeviceClock::new(&ops.space, config.pipeline_depth)?;
        let foreseen = prepare::foreseen(ops.plan_config, &capacity, config);
        let mut this = Self {
            graphs: Graphs::new(config.graph_bytes, foreseen),
            model,
            ops,
            plan: StepPlan::default(),
            outstanding: VecDeque::new(),
            spare,
            clock,
            waits: Waits::default(),
            step_limit_ms: config.step_limit_ms,
            passes: Passes::default(),
            memory,
            capacity,
            model_config: model_config.clone(),
            lost: None,
        };
        this.prepare_start(Duration::from_millis(config.graph_start_ms.into()))?;
        Ok(this)
    }

    /// Queues a step. Returns true if it has rows to answer, which all slices but the last have
    /// not.
    fn run(&mut self, batch: ForwardBatch) -> Result<bool, ExecutorError> {
        batch
            .validate(&self.capacity)
            .map_err(|e| ExecutorError::Step(e.to_string()))?;
        if let ForwardBatch::Slice(slice) = batch {
            return self.run_slice(slice);
        }
        let outstanding = &self.outstanding;
        self.plan
            .rebuild(batch, self.ops.plan_config, |step, seq| {
                let earlier = outstanding.iter().find(|o| o.step == step)?;
                let at = earlier.drawn.binary_search_by_key(&seq, |&(of, _)| of);
                Some(earlier.drawn[at.ok()?].1)
            })?;
        let layout = &mut self.plan.layout;
        layout.refuse_invalid_rows(
            self.capacity.vocab_size,
            VectorSizes::of(&self.model_config),
        );
        let encoder = self.model_config.encoder.as_ref();
        if encoder.is_some_and(EncoderConfig::has_mean_classes) {
            layout.refuse_token_classes();
        }
        let tokens = layout.tokens.len();
        let tokens_max = self.capacity.max_step_tokens as usize;
        let own = self.plan.own_shape(self.ops.plan_config, tokens_max);
        let mode = self.graphs.mode(own, tokens);
        if let Some(shape) = mode.shape() {
            self.plan.pad(shape);
        }
        self.ops.begin(&mut self.plan)?;
        self.forward(mode)?;
        self.ops.heads.send()?;
        Ok(true)
    }

    /// Queues the model's launches: one by one, or as a graph.
    fn forward(&mut self, mode: StepMode) -> Result<(), Error> {
        let StepMode::Replay(shape) = mode else {
            return self.model.forward(&mut self.ops, &self.plan);
        };
        for call in self.graphs.replay(shape, &mut self.ops.launcher)? {
            self.ops.run_head(call)?;
        }
        Ok(())
    }

    /// Returns what waiting for the latest step needs to know of that step.
    fn queued(&self) -> Queued {
        let layout = &self.plan.layout;
        let (tokens, segments) = (layout.tokens.len(), &layout.segments);
        let pairs = |s: &StepSegment| s.len as f64 * (f64::from(s.context_len) + s.len as f64);
        let pairs: f64 = segments.iter().map(pairs).sum();
        let model = &self.model_config;
        let width = model.num_attention_heads * model.head_dim * model.num_hidden_layers;
        let bytes = self.memory.weights_bytes as f64;
        // Two operations for each number of a weight, which has two bytes.
        let operations = tokens as f64 * bytes + 4.0 * pairs * width as f64;
        Queued {
            at: Instant::now(),
            size: Size::new(tokens, segments.len()),
            limit: wait::limit(self.step_limit_ms, operations, bytes),
        }
    }

    /// Returns counts of captured graphs and their uses so far.
    #[must_use]
    pub const fn graphs(&self) -> GraphStats {
        self.graphs.stats()
    }

    /// Makes room for another step's plan, metadata and results.
    fn free_host_buffers(&mut self) {
        let Some(latest) = self.outstanding.back_mut() else {
            return;
        };
        // Its buffers are its own already if a step after it failed.
        if latest.host.is_none() {
            let mut host = self
                .spare
                .pop()
                .expect("there are spare buffers for each step but the latest");
            self.exchange(&mut host);
            self.outstanding
                .back_mut()
                .expect("the latest step is outstanding")
                .host = Some(host);
        }
    }

    /// Swaps the plans and host buffers of two steps.
    fn exchange(&mut self, (plan, host): &mut (StepPlan, HostBuffers)) {
        std::mem::swap(&mut self.plan, plan);
        self.ops.exchange(host);
    }

    /// Queues the copies of a step, before anything of it can fail: later steps rely on them. So a
    /// copy that fails ends all work.
    fn copy_kv(&mut self, copies: &KvCopies) -> Result<(), ExecutorError> {
        copies
            .validate(&self.capacity)
            .map_err(|what| ExecutorError::Step(format!("copies: {what}")))?;
        let copied = self.ops.copy_kv(copies);
        self.note(copied.map_err(|e| {
            ExecutorError::Lost(format!("copying KV blocks from or to host memory: {e}"))
        }))
    }

    /// Remembers that the GPU is lost, if it is.
    fn note<T>(&mut self, result: Result<T, ExecutorError>) -> Result<T, ExecutorError> {
        if let Err(ExecutorError::Lost(why)) = &result {
            self.lost = Some(why.clone());
        }
        result
    }

    fn refuse_if_lost(&self) -> Result<(), ExecutorError> {
        match &self.lost {
            Some(why) => Err(ExecutorError::Lost(why.clone())),
            None => Ok(()),
        }
    }
}

impl Drop for CudaExecutor {
    /// Waits for kernels of a step that was not collected: they may still use the memory that is
    /// freed.
    fn drop(&mut self) {
        let _ = self.ops.space.synchronize("the last step");
    }
}

/// Returns the most rows of a product: those of a chunk, and of the last layer of a step that reads out
/// up to half of its tokens, whose products of those are not cut.
fn product_rows(config: &CudaConfig, passes: Option<PassCapacity>) -> u32 {
    let pass_tokens = passes.map_or(0, |passes| passes.tokens);
    let tokens = config.max_step_tokens.max(pass_tokens);
    let tokens = tokens.min(config.chunk_tokens);
    tokens.max(config.max_step_tokens / 2)
}

/// Returns the shape of a KV pool with as many blocks as were asked for, or as memory holds. Where
/// attention sees whole prompts nothing is kept: blocks have no layers then.
pub(crate) fn kv_shape(
    space: &Space,
    model: &ModelConfig,
    config: &CudaConfig,
) -> Result<KvShape, Error> {
    let shape = model.attn_shape();
    let mut kv = KvShape {
        layers: model.num_hidden_layers,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
        block_size: config.block_size as usize,
        blocks: 0,
    };
    if model.attention == Attention::Full {
        (kv.layers, kv.blocks) = (0, 1);
        return Ok(kv);
    }
    let block = kv.block_bytes();
    let blocks = match (config.num_blocks, config.kv_bytes) {
        (Some(blocks), _) => u64::from(blocks),
        (None, Some(bytes)) => bytes / block,
        (None, None) => {
            let free = space.free_bytes()?;
            let room = free.map_or(KV_BYTES_UNLIMITED, |f| {
                f.saturating_sub(config.reserve_bytes)
            });
            // One more block is the trash page.
            (room / block).saturating_sub(1)
        }
    };
    if blocks == 0 {
        return Err(Error::OutOfMemory {
            stage: format!("one KV block of {block} bytes beside the trash page"),
            asked: 2 * block,
            free: space.free_bytes()?.unwrap_or(0),
        });
    }
    // Slots are numbered in 31 bits.
    let most = i32::MAX as u32 / config.block_size - 1;
    kv.blocks = u32::try_from(blocks).unwrap_or(most).min(most) as usize;
    Ok(kv)
}

impl Executor for CudaExecutor {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn prepare(&mut self, is_idle: bool) -> bool {
        self.prepare_one(is_idle)
    }

    fn graph_steps(&self) -> GraphSteps {
        let stats = self.graphs.stats();
        GraphSteps {
            replayed: stats.replays,
            eager: stats.eager,
            captures: stats.captures,
            kept: stats.kept,
        }
    }

    fn device_time(&self) -> DeviceTime {
        self.clock.time()
    }

    fn submit(&mut self, step: StepId, batch: ForwardBatch) -> Result<(), ExecutorError> {
        self.refuse_if_lost()?;
        if self.outstanding.len() >= self.capacity.pipeline_depth as usize {
            let first = self.outstanding[0].step;
            return Err(ExecutorError::Step(format!(
                "step {step} was submitted before step {first} was collected"
            )));
        }
        let begun = self.clock.begin();
        let ends = self.note(begun.map_err(ExecutorError::from))?;
        let (copies, batch) = batch.split_copies();
        if let Err(error) = self.copy_kv(&copies) {
            self.clock.spare.push(ends);
            return Err(error);
        }
        self.free_host_buffers();
        let seqs: Vec<SeqId> = batch.parts().2.rows.iter().map(|row| row.seq).collect();
        let result = self.run(batch).and_then(|has_rows| {
            ends.end.record()?;
            Ok(has_rows)
        });
        let has_rows = match result {
            Ok(has_rows) => has_rows,
            Err(error) => {
                // Waits, since queued copies read the host's buffers, which the next step writes.
                let waited = self.waits.wait_for_all(&self.queued(), &ends.end);
                self.note(waited.map_err(ExecutorError::from))?;
                self.clock.spare.push(ends);
                return self.note(Err(error));
            }
        };
        // A row that draws nothing has no place to read from: the sequence's next row fails by
        // itself.
        let nowhere = self.ops.heads.drawn().width();
        let first = self.plan.layout.rows.len() - seqs.len();
        let at = |i| self.ops.heads.drawn_at(first + i).unwrap_or(nowhere);
        let drawn = seqs.iter().enumerate().map(|(i, &seq)| (seq, at(i)));
        let mut drawn: Vec<_> = drawn.collect();
        drawn.sort_unstable();
        let queued = self.queued();
        self.outstanding.push_back(Outstanding {
            step,
            has_rows,
            drawn,
            ends,
            queued,
            host: None,
        });
        Ok(())
    }

    fn collect(&mut self, step: StepId) -> Result<StepOutput, ExecutorError> {
        self.refuse_if_lost()?;
        if self.outstanding.front().is_none_or(|o| o.step != step) {
            return Err(ExecutorError::Step(format!(
                "step {step} is not the oldest outstanding one"
            )));
        }
        let first = self
            .outstanding
            .pop_front()
            .expect("the oldest step is outstanding");
        let waited = self.waits.wait(&first.queued, &first.ends.end);
        self.note(waited.map_err(ExecutorError::from))?;
        self.clock.add(first.ends);
        let mut host = first.host;
        if let Some(host) = &mut host {
            self.exchange(host);
        }
        let output = match first.has_rows {
            true => output(step, &mut self.ops, &self.plan),
            false => StepOutput {
                step,
                ..StepOutput::default()
            },
        };
        if let Some(mut host) = host {
            self.exchange(&mut host);
            self.spare.push(host);
        }
        Ok(output)
    }
}

/// Returns the results that heads computed, by part of the batch.
pub(crate) fn output(step: StepId, ops: &mut CudaOps, plan: &StepPlan) -> StepOutput {
    plan.layout.step_output(step, ops.heads.take(&plan.layout))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::event::Point;
    use crate::testing::{checkpoint, small};

    /// On a machine without a driver this must be an error and not a panic; where there is one,
    /// a GPU takes the model, or something that it needs is missing and said by name.
    #[test]
    fn opening_without_a_driver_is_an_error() {
        match CudaExecutor::new(&checkpoint("demo-lm"), small()) {
            Err(Error::NoDriver { why }) => assert!(!why.is_empty()),
            Ok(_)
            | Err(
                Error::DriverTooOld { .. }
                | Error::NoDevice { .. }
                | Error::Unsupported { .. }
                | Error::KernelImageMissing { .. }
                | Error::OutOfMemory { .. },
            ) => assert!(driver_is_installed()),
            Err(other) => panic!("{other}"),
        }
    }

    fn driver_is_installed() -> bool {
        let places = [
            "/usr/lib/x86_64-linux-gnu",
            "/usr/lib64",
            "/usr/local/cuda/compat",
        ];
        places
            .iter()
            .any(|p| std::path::Path::new(p).join("libcuda.so.1").exists())
            || std::path::Path::new("/proc/driver/nvidia/version").exists()
    }

    #[test]
    fn steps_are_collected_in_order() {
        let (mut executor, _) = CudaExecutor::recording(&checkpoint("demo-lm"), &small()).unwrap();
        let empty = || ForwardBatch::Decode(prelude_core::DecodeBatch::EMPTY);
        assert!(executor.collect(StepId(0)).is_err());
        executor.submit(StepId(0), empty()).unwrap();
        let twice = executor.submit(StepId(1), empty()).unwrap_err();
        assert!(
            twice.to_string().contains("before step 0 was collected"),
            "{twice}"
        );
        assert!(executor.collect(StepId(1)).is_err());
        executor.collect(StepId(0)).unwrap();
        assert!(executor.collect(StepId(0)).is_err());
    }

    #[test]
    fn a_lost_device_refuses_everything() {
        let (mut executor, _) = CudaExecutor::recording(&checkpoint("demo-lm"), &small()).unwrap();
        let lost: ExecutorError = Error::DeviceLost {
            code: "CUDA_ERROR_LAUNCH_FAILED".to_owned(),
            kernel: "k",
        }
        .into();
        executor.note::<()>(Err(lost.clone())).unwrap_err();
        let empty = ForwardBatch::Decode(prelude_core::DecodeBatch::EMPTY);
        assert!(matches!(
            executor.submit(StepId(0), empty),
            Err(ExecutorError::Lost(_))
        ));
        assert!(matches!(
            executor.collect(StepId(0)),
            Err(ExecutorError::Lost(_))
        ));
    }

    /// A step that never ends loses the GPU, and the executor can be dropped after that.
    #[test]
    fn a_gpu_that_hangs_is_lost() {
        let config = CudaConfig {
            step_limit_ms: 20,
            ..small()
        };
        let model = checkpoint("demo-lm");
        let (mut executor, _) = CudaExecutor::recording(&model, &config).unwrap();
        for ends in &mut executor.clock.spare {
            ends.end = Point::Never;
        }
        let empty = || ForwardBatch::Decode(prelude_core::DecodeBatch::EMPTY);
        executor.submit(StepId(0), empty()).unwrap();
        let lost = executor.collect(StepId(0)).unwrap_err();
        let ExecutorError::Lost(why) = &lost else {
            panic!("{lost}")
        };
        assert_eq!(
            why,
            "the GPU is lost after a step's results: it hangs: no end after 0.0 s"
        );
        assert_eq!(executor.submit(StepId(1), empty()), Err(lost.clone()));
        assert_eq!(executor.collect(StepId(0)), Err(lost));
    }

    #[test]
    fn models_without_kernels_are_refused_by_name() {
        let model = checkpoint("demo-lm");
        let mut config = model.config().clone();
        config.head_dim = 264;
        let error = small().check_model(&config).unwrap_err().to_string();
        assert!(error.contains("head_dim 264"), "{error}");
    }
}
