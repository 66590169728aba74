//! A GPU that hangs: how long it takes until an executor says so, and whether the process ends then.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use prelude_core::{
    BlockSpan, Executor, ExecutorError, ForwardBatch, OneShotBatch, OutputHead, OutputRow,
    Residency, SampleHead, Segment, SegmentIdx, StepId,
};
use prelude_exec_cuda::{CudaConfig, CudaExecutor};
use prelude_models::Checkpoint;

use crate::{Common, session};

/// The limit of a step here, to which the work of the step adds next to nothing.
const LIMIT: Duration = Duration::from_secs(2);

/// Runs a step, makes the GPU hang, and submits another. The caller sees whether the process ends.
pub(crate) fn run(common: &Common) -> Result<bool> {
    let home = session::home(common.home.as_deref())?;
    let config = CudaConfig {
        step_limit_ms: u32::try_from(LIMIT.as_millis())?,
        ..session::configure(common, &home)
    };
    let model = home.join("golden/demo-lm/model");
    let checkpoint = Checkpoint::open(&model);
    let checkpoint = checkpoint.with_context(|| format!("cannot open {}", model.display()))?;
    let mut executor = CudaExecutor::new(&checkpoint, config)?;
    executor.submit(StepId(0), step())?;
    let _ = executor.collect(StepId(0))?;
    executor.hang()?;
    let start = Instant::now();
    executor.submit(StepId(1), step())?;
    let why = match executor.collect(StepId(1)) {
        Err(ExecutorError::Lost(why)) => why,
        other => bail!("a step behind a kernel that never ends: {other:?}"),
    };
    let lost = start.elapsed();
    drop(executor);
    let dropped = start.elapsed() - lost;
    println!(
        "lost after {:.2} s of a limit of {:.2} s: {why}; dropped in {:.3} s",
        lost.as_secs_f64(),
        LIMIT.as_secs_f64(),
        dropped.as_secs_f64()
    );
    ensure!(lost < 2 * LIMIT && dropped < LIMIT, "that took too long");
    Ok(true)
}

/// Returns one prompt of a few tokens that asks for the token that follows it.
fn step() -> ForwardBatch {
    let tokens: Vec<u32> = (5..21).collect();
    let len = 16;
    ForwardBatch::OneShot(OneShotBatch {
        tokens,
        segments: vec![Segment {
            tokens: 0..len,
            parent: None,
            context_len: 0,
            cached: BlockSpan::EMPTY,
            residency: Residency::Transient,
        }],
        rows: vec![OutputRow {
            segment: SegmentIdx(0),
            positions: len - 1..len,
            head: OutputHead::Sample(SampleHead {
                sampling: std::sync::Arc::default(),
                choice: 0,
                draws: 1,
                output_position: 0,
                top_logprobs: None,
                history: None,
                mask: None,
            }),
        }],
        block_ids: vec![],
    })
}
