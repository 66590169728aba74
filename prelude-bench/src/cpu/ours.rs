//! Our executor, called step by step.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use prelude_core::{
    BlockId, BlockSpan, DecodeBatch, DecodeRow, ForwardBatch, OutputHead, Residency, SampleHead,
    SamplingParams, SeqId, TokenSource,
};
use prelude_exec_cpu::{
    ComputePool, CpuConfig, CpuDtype, PackedUse, Quantization,
    measure::{Product, bytes_read_per_second, peak_flops_per_second},
};
use prelude_measure::{random::Random, stats::median};
use prelude_models::Checkpoint;

use super::{CONTEXT_MAX, ROWS_MAX, Work, shape};
use crate::batches::{Stepper, forest};

/// Steps of a measurement of decoding.
const DECODE_STEPS: u32 = 16;
/// Runs of a product; the fastest counts.
const PRODUCT_RUNS: usize = 3;
/// Tokens of a KV block.
const BLOCK: u32 = 16;
/// Blocks of the longest generation.
const BLOCKS: u32 = (CONTEXT_MAX + DECODE_STEPS).div_ceil(BLOCK);

/// The loaded model.
pub(super) struct Ours {
    stepper: Stepper,
    pool: Arc<ComputePool>,
    random: Random,
    /// The time from opening the files to an executor that is ready.
    pub(super) loaded: Duration,
}

impl Ours {
    /// Loads the model by packed weights in `folder`, which are made if they are not there.
    pub(super) fn load_packed(model: &Path, folder: &Path) -> Result<Self> {
        let config = CpuConfig {
            packed_dir: Some(folder.to_owned()),
            ..CpuConfig::default()
        };
        let mut first = Self::load_with(model, config.clone())?;
        if let PackedUse::Writing(writing) = first.stepper.executor.take_packed_use() {
            writing.wait()?;
        }
        drop(first);
        let mut ours = Self::load_with(model, config)?;
        let used = ours.stepper.executor.take_packed_use();
        anyhow::ensure!(
            matches!(used, PackedUse::Found(_)),
            "the packed weights were not found: {used:?}"
        );
        Ok(ours)
    }

    /// Loads the model with room for the longest generations.
    pub(super) fn load(model: &Path) -> Result<Self> {
        let config = CpuConfig {
            num_blocks: Some(ROWS_MAX * BLOCKS),
            ..CpuConfig::default()
        };
        Self::load_with(model, config)
    }

    /// Loads the model and rounds its weights to int8.
    pub(super) fn load_int8(model: &Path) -> Result<Self> {
        let config = CpuConfig {
            quantization: Some(Quantization::Int8),
            ..CpuConfig::default()
        };
        Self::load_with(model, config)
    }

    fn load_with(model: &Path, config: CpuConfig) -> Result<Self> {
        let pool = Arc::new(ComputePool::for_machine());
        let start = Instant::now();
        let checkpoint = Checkpoint::open(model)?;
        let stepper = Stepper::new(&checkpoint, config, &pool)?;
        Ok(Self {
            stepper,
            pool,
            random: Random::far(1),
            loaded: start.elapsed(),
        })
    }

    /// Returns what the units do with operands in registers, in gigaflops a second; `None` where the
    /// path has no vector instructions.
    pub(super) fn peak(&self) -> Option<f64> {
        let peak = peak_flops_per_second(&self.pool, self.stepper.executor.path(), CpuDtype::Bf16)?;
        Some(peak / 1e9)
    }

    /// Returns the gigabytes a second at which all threads together read memory.
    pub(super) fn read_rate(&self) -> f64 {
        bytes_read_per_second(&self.pool) / 1e9
    }

    /// Computes `rows` generations of `tokens` tokens: of memory that was never written, the system
    /// would show decode steps one page over and over.
    pub(super) fn generate(&mut self, rows: u32, tokens: u32) -> Result<()> {
        for row in 0..rows {
            let ForwardBatch::OneShot(mut batch) = self.prompts(0, 1, tokens) else {
                unreachable!("prompts are computed at once");
            };
            batch.block_ids = (row * BLOCKS..(row + 1) * BLOCKS).map(BlockId).collect();
            batch.segments[0].residency = Residency::Keep(BlockSpan {
                start: 0,
                len: tokens.div_ceil(BLOCK),
            });
            self.stepper.run(ForwardBatch::OneShot(batch))?;
        }
        Ok(())
    }

    /// Returns the seconds that the work takes; of decoding, those of the median step.
    pub(super) fn measure(&mut self, work: Work) -> Result<f64> {
        match work {
            Work::Prompts { shared, count, own } => {
                let batch = self.prompts(shared, count, own);
                self.seconds(batch)
            }
            Work::Decode { rows, context } => {
                let steps = 0..DECODE_STEPS;
                let seconds = steps.map(|step| self.seconds(decode(rows, context + step)));
                Ok(median(&seconds.collect::<Result<Vec<_>>>()?))
            }
        }
    }

    fn seconds(&mut self, batch: ForwardBatch) -> Result<f64> {
        let start = Instant::now();
        self.stepper.run(batch)?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Returns the seconds of the layers' products alone, with weights that the cache may hold.
    pub(super) fn products_seconds(&self, work: Work) -> Result<f64> {
        let isa = self.stepper.executor.path();
        let rows = work.tokens() as usize;
        let mut sum = 0.0;
        for (outputs, inputs) in shape::PRODUCTS {
            let size = (outputs as usize, inputs as usize);
            let mut product = Product::new(&self.pool, isa, CpuDtype::Bf16, rows, size)?;
            let mut run = || {
                let start = Instant::now();
                product.run(&self.pool);
                start.elapsed().as_secs_f64()
            };
            let fastest = (0..PRODUCT_RUNS)
                .map(|_| run())
                .fold(f64::INFINITY, f64::min);
            sum += f64::from(shape::LAYERS) * fastest;
        }
        Ok(sum)
    }

    /// Returns a forest of `count` prompts that begin with `shared` tokens and have `own` each, all of
    /// them new, answered by one token.
    fn prompts(&mut self, shared: u32, count: u32, own: u32) -> ForwardBatch {
        let below = shape::VOCABULARY as usize;
        let token = || u32::try_from(self.random.below(below)).unwrap_or(0);
        let branches = vec![own; count as usize];
        forest(shared, &branches, token, &OutputHead::Sample(greedy()))
    }
}

/// Returns rows that each continue `context` tokens of the blocks that [`Ours::generate`] filled.
fn decode(rows: u32, context: u32) -> ForwardBatch {
    let row = |row: u32| DecodeRow {
        seq: SeqId(u64::from(row)),
        token: TokenSource::Known(row),
        context_len: context,
        blocks: BlockSpan {
            start: row * BLOCKS,
            len: context / BLOCK + 1,
        },
        sample: greedy(),
    };
    ForwardBatch::Decode(DecodeBatch {
        rows: (0..rows).map(row).collect(),
        block_ids: (0..rows * BLOCKS).map(BlockId).collect(),
    })
}

fn greedy() -> SampleHead {
    SampleHead {
        sampling: Arc::new(SamplingParams::default()),
        choice: 0,
        draws: 1,
        output_position: 0,
        top_logprobs: None,
        history: None,
        mask: None,
    }
}
