//! Batches for executors that are called without a scheduler.

use std::sync::Arc;

use anyhow::{Result, ensure};
use prelude_core::{
    BlockSpan, Executor as _, ForwardBatch, OneShotBatch, OutputHead, OutputRow, Residency,
    Segment, SegmentIdx, StepId, TokenId,
};
use prelude_exec_cpu::{ComputePool, CpuConfig, CpuExecutor};
use prelude_models::Checkpoint;

/// Returns a shared prompt of `shared` tokens (none if 0) and branches of the given lengths, each
/// answered at its end.
pub(crate) fn forest(
    shared: u32,
    branches: &[u32],
    mut token: impl FnMut() -> TokenId,
    head: &OutputHead,
) -> ForwardBatch {
    let mut batch = OneShotBatch::default();
    let mut push = |parent, context_len, len: u32| {
        let start = u32::try_from(batch.tokens.len()).unwrap_or(u32::MAX);
        let tokens = std::iter::repeat_with(&mut token);
        batch.tokens.extend(tokens.take(len as usize));
        batch.segments.push(Segment {
            tokens: start..start + len,
            parent,
            context_len,
            cached: BlockSpan::EMPTY,
            residency: Residency::Transient,
        });
        SegmentIdx(u32::try_from(batch.segments.len() - 1).unwrap_or(u32::MAX))
    };
    let root = (shared > 0).then(|| push(None, 0, shared));
    let ends = branches
        .iter()
        .map(|&len| (push(root, shared, len), shared + len));
    let ends: Vec<_> = ends.collect();
    let row = |(segment, end): (SegmentIdx, u32)| OutputRow {
        segment,
        positions: end - 1..end,
        head: head.clone(),
    };
    batch.rows = ends.into_iter().map(row).collect();
    ForwardBatch::OneShot(batch)
}

/// Runs steps of an executor one after another.
pub(crate) struct Stepper {
    pub(crate) executor: CpuExecutor,
    next: u64,
}

impl Stepper {
    /// Loads a model.
    pub(crate) fn new(
        checkpoint: &Checkpoint,
        config: CpuConfig,
        pool: &Arc<ComputePool>,
    ) -> Result<Self> {
        let executor = CpuExecutor::new(checkpoint, config, Arc::clone(pool))?;
        Ok(Self { executor, next: 0 })
    }

    /// Runs a step, which must have results.
    pub(crate) fn run(&mut self, batch: ForwardBatch) -> Result<()> {
        let step = StepId(self.next);
        self.next += 1;
        self.executor.submit(step, batch)?;
        let output = self.executor.collect(step)?;
        let results = output.oneshot.len() + output.decode.len();
        ensure!(results > 0, "a step without results");
        Ok(())
    }
}
