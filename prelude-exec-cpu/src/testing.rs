//! Executors, batches and golden arrays for this crate's tests.

use std::sync::Arc;

use prelude_core::{
    BlockId, BlockSpan, DecodeBatch, DecodeRow, Executor, ForwardBatch, OneShotBatch, RowOutput,
    SampleHead, SeqId, StepId, StepOutput, TokenSource,
};
pub(crate) use prelude_models::conformance::batches::{prompt, root as root_segment};
use prelude_models::{
    Checkpoint,
    conformance::{
        batches::greedy,
        fp8::{self, Stored},
        golden::model_folder,
    },
};

use crate::{ComputePool, CpuConfig, CpuDtype, CpuExecutor, Isa, Quantization};

/// The models of [`prelude_models::conformance::fp8`]: one stored with scales of blocks, a mixture of experts
/// stored so, and a mixture in bf16.
pub(crate) const FP8_BLOCKS: &str = "fp8-blocks";
pub(crate) const FP8_MIXTURE: &str = "fp8-mixture";
pub(crate) const BF16_MIXTURE: &str = "bf16-mixture";

/// Returns the checkpoint of a golden model, or of one of those above.
pub(crate) fn checkpoint(name: &str) -> Checkpoint {
    match name {
        FP8_BLOCKS => fp8::checkpoint(),
        FP8_MIXTURE => fp8::mixture(Stored::Blocks),
        BF16_MIXTURE => fp8::mixture(Stored::Bf16),
        name => Checkpoint::open(&model_folder(name)).unwrap(),
    }
}

/// Returns a configuration that is small enough to make many executors, with blocks of 4 so that
/// prompts cross several.
pub(crate) fn small() -> CpuConfig {
    CpuConfig {
        block_size: 4,
        num_blocks: Some(256),
        max_step_tokens: 512,
        chunk_tokens: 64,
        max_context_len: Some(512),
        ..CpuConfig::default()
    }
}

/// Returns every way to compute that this machine has, with what to call it.
pub(crate) fn variants() -> Vec<(String, CpuConfig)> {
    let isas = Isa::ALL.into_iter().filter(|isa| isa.is_available());
    let int8 = isas.map(|isa| {
        let config = CpuConfig {
            path: Some(isa),
            dtype: Some(CpuDtype::Bf16),
            quantization: Some(Quantization::Int8),
            ..small()
        };
        (format!("{} int8", isa.as_str()), config)
    });
    let fp8 = CpuConfig {
        dtype: Some(CpuDtype::Bf16),
        quantization: Some(Quantization::Fp8),
        ..small()
    };
    let fp8 = ("fp8".to_owned(), fp8);
    unquantised().into_iter().chain(int8).chain([fp8]).collect()
}

/// Returns the [`variants`] in which the golden model `name` is not refused.
pub(crate) fn variants_of(name: &str) -> Vec<(String, CpuConfig)> {
    let checkpoint = checkpoint(name);
    let model = checkpoint.config();
    let is_refused = model.encoder.is_some();
    let mut variants = variants();
    variants.retain(|(_, config)| config.quantization != Some(Quantization::Fp8) || !is_refused);
    variants
}

/// Returns the [`variants`] whose weights are not rounded.
pub(crate) fn unquantised() -> Vec<(String, CpuConfig)> {
    let mut variants = Vec::new();
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        for dtype in [CpuDtype::F32, CpuDtype::Bf16] {
            let config = CpuConfig {
                path: Some(isa),
                dtype: Some(dtype),
                ..small()
            };
            variants.push((format!("{} {dtype:?}", isa.as_str()), config));
        }
    }
    variants
}

pub(crate) fn executor(name: &str, config: CpuConfig, threads: usize) -> CpuExecutor {
    CpuExecutor::new(
        &checkpoint(name),
        config,
        Arc::new(ComputePool::new(threads)),
    )
    .unwrap()
}

/// Runs one step and returns its output.
pub(crate) fn run(executor: &mut CpuExecutor, batch: ForwardBatch) -> StepOutput {
    executor.submit(StepId(0), batch).unwrap();
    executor.collect(StepId(0)).unwrap()
}

/// Returns the rows of a one-shot step.
pub(crate) fn run_oneshot(executor: &mut CpuExecutor, batch: OneShotBatch) -> Vec<RowOutput> {
    run(executor, ForwardBatch::OneShot(batch)).oneshot
}

pub(crate) fn sample_head() -> SampleHead {
    greedy(Some(2))
}

/// Returns a decode row at `context_len` over `blocks`.
pub(crate) fn decode(token: u32, context_len: u32, blocks: &[BlockId]) -> DecodeBatch {
    DecodeBatch {
        rows: vec![DecodeRow {
            seq: SeqId(1),
            token: TokenSource::Known(token),
            context_len,
            blocks: BlockSpan {
                start: 0,
                len: u32::try_from(blocks.len()).unwrap(),
            },
            sample: sample_head(),
        }],
        block_ids: blocks.to_vec(),
    }
}
