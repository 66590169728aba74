//! One forward pass of the demo classifier, without scheduler or HTTP.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use prelude_core::{
    BlockSpan, Executor as _, ForwardBatch, OneShotBatch, OutputHead, OutputRow, Residency,
    Segment, SegmentIdx, StepId,
};
use prelude_exec_cpu::{ComputePool, CpuConfig, CpuExecutor, Mode};
use prelude_models::Checkpoint;
use prelude_server::demo;

use super::{Row, TableConfig, in_turns, row};

/// Tokens of the prompts measured.
const SHORT: u32 = 16;
const LONG: u32 = 512;
/// Suffixes of the forest, and their length.
const SUFFIXES: u32 = 64;
const SUFFIX: u32 = 8;

pub(super) fn measure(config: TableConfig) -> Result<Vec<Row>> {
    let checkpoint = Checkpoint::from_bytes(demo::CLASSIFIER.config, demo::CLASSIFIER.weights)
        .context("the demo classifier")?;
    let pool = Arc::new(ComputePool::for_machine());
    let open = |mode| {
        let config = CpuConfig {
            mode,
            ..CpuConfig::default()
        };
        CpuExecutor::new(&checkpoint, config, Arc::clone(&pool)).context("the CPU executor")
    };
    let mut fast = Stepper::new(open(Mode::Fast)?);
    let mut reference = Stepper::new(open(Mode::Reference)?);
    let mut rows = Vec::new();

    let short = batch(0, &[SHORT]);
    let seconds = in_turns(config, &mut [&mut || fast.run(&short)]).remove(0);
    rows.push(row(
        format!("forward pass, {SHORT} tokens"),
        "µs",
        micros(&seconds),
    ));

    let long = batch(0, &[LONG]);
    let mut seconds = {
        // One executor at a time has the pool; both are called in turns.
        let (mut a, mut b) = (|| fast.run(&long), || reference.run(&long));
        in_turns(config, &mut [&mut a, &mut b])
    };
    let slow = seconds.pop().unwrap_or_default();
    let quick = row(
        format!("forward pass, {LONG} tokens"),
        "µs",
        micros(&seconds.remove(0)),
    );
    let slow = row(
        format!("the same, reference path in f32, {LONG} tokens"),
        "µs",
        micros(&slow),
    );
    let ratio = slow.value / quick.value;
    rows.extend([quick.against("our scalar reference", ratio), slow]);

    let forest = batch(LONG, &[SUFFIX; SUFFIXES as usize]);
    let apart: Vec<_> = (0..SUFFIXES).map(|_| batch(0, &[LONG + SUFFIX])).collect();
    let mut together = || fast.run(&forest);
    let forest_seconds = in_turns(config, &mut [&mut together]).remove(0);
    let mut one_by_one = || apart.iter().for_each(|b| fast.run(b));
    let apart_seconds = in_turns(config, &mut [&mut one_by_one]).remove(0);
    let name = format!("{SUFFIXES} answers over one {LONG}-token prompt, one step");
    let forest = row(name, "µs", micros(&forest_seconds));
    let apart = row(
        format!("the same as {SUFFIXES} separate steps"),
        "µs",
        micros(&apart_seconds),
    );
    let ratio = apart.value / forest.value;
    rows.extend([forest.against("separate steps", ratio), apart]);
    if let Some(error) = fast.error.or(reference.error) {
        anyhow::bail!("a step failed: {error}");
    }
    Ok(rows)
}

fn micros(seconds: &[f64]) -> Vec<f64> {
    seconds.iter().map(|s| s * 1e6).collect()
}

/// Runs steps one after another and remembers the first failure.
struct Stepper {
    executor: CpuExecutor,
    next: u64,
    error: Option<String>,
}

impl Stepper {
    const fn new(executor: CpuExecutor) -> Self {
        Self {
            executor,
            next: 0,
            error: None,
        }
    }

    fn run(&mut self, batch: &ForwardBatch) {
        let step = StepId(self.next);
        self.next += 1;
        let result = self.executor.submit(step, batch.clone());
        if let Err(error) = result.and_then(|()| self.executor.collect(step)) {
            self.error.get_or_insert_with(|| error.to_string());
        }
    }
}

/// Returns a shared prompt of `shared` tokens (none if 0) and branches of the given lengths, each
/// classified at its end.
fn batch(shared: u32, branches: &[u32]) -> ForwardBatch {
    let mut batch = OneShotBatch::default();
    let mut push = |parent, context_len, len: u32| {
        let start = u32::try_from(batch.tokens.len()).unwrap_or(u32::MAX);
        batch
            .tokens
            .extend((start..start + len).map(|i| (i * 37 + 11) % 4000));
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
    let ends: Vec<_> = branches
        .iter()
        .map(|&len| (push(root, shared, len), shared + len))
        .collect();
    batch.rows = ends
        .into_iter()
        .map(|(segment, end)| OutputRow {
            segment,
            positions: end - 1..end,
            head: OutputHead::Classify,
        })
        .collect();
    ForwardBatch::OneShot(batch)
}
