//! One forward pass of the demo classifier, without scheduler or HTTP.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use prelude_core::{ForwardBatch, OutputHead};
use prelude_exec_cpu::{ComputePool, CpuConfig, CpuDtype, Isa, measure::peak_flops_per_second};
use prelude_measure::{
    clock::{Rounds, in_turns},
    record::Row,
};
use prelude_models::Checkpoint;
use prelude_server::demo;

use super::{against, micros};
use crate::batches::{Stepper, forest};

/// Tokens of the prompts measured.
const SHORT: u32 = 16;
const LONG: u32 = 512;
/// Suffixes of the forest, and their length.
const SUFFIXES: u32 = 64;
const SUFFIX: u32 = 8;

pub(super) fn measure(rounds: Rounds) -> Result<Vec<Row>> {
    let checkpoint = Checkpoint::from_bytes(demo::CLASSIFIER.config, demo::CLASSIFIER.weights)
        .context("the demo classifier")?;
    let pool = Arc::new(ComputePool::for_machine());
    let open = |config| Stepper::new(&checkpoint, config, &pool).context("the CPU executor");
    let portable = CpuConfig {
        path: Some(Isa::Scalar),
        dtype: Some(CpuDtype::F32),
        ..CpuConfig::default()
    };
    let (mut fast, mut reference) = (open(CpuConfig::default())?, open(portable)?);
    let isa = fast.executor.path();
    let peak = peak_flops_per_second(&pool, isa, CpuDtype::Bf16);
    let flops_per_token = products(&checkpoint);
    let limited = |row: Row, tokens: u32| match peak {
        Some(peak) => row.bound(1e6 * f64::from(tokens) * flops_per_token / peak),
        None => row,
    };
    let mut failure = None;
    let mut step = |stepper: &mut Stepper, batch: &ForwardBatch| {
        if let Err(error) = stepper.run(batch.clone()) {
            failure.get_or_insert(error);
        }
    };

    let short = batch(0, &[SHORT]);
    let seconds = in_turns(rounds, &mut [&mut || step(&mut fast, &short)]);
    let name = format!("forward pass, {SHORT} tokens");
    let mut rows = vec![limited(micros(name, &seconds[0]), SHORT)];
    rows[0].note = "limit: the weights' products at the units' peak".to_owned();

    // One executor at a time has the pool; both are called in turns.
    let long = batch(0, &[LONG]);
    let steps = std::cell::RefCell::new(&mut step);
    let seconds = {
        let mut quick = || steps.borrow_mut()(&mut fast, &long);
        let mut slow = || steps.borrow_mut()(&mut reference, &long);
        in_turns(rounds, &mut [&mut quick, &mut slow])
    };
    let quick = micros(format!("forward pass, {LONG} tokens"), &seconds[0]);
    let name = format!("the same, portable code in f32, {LONG} tokens");
    let slow = micros(name, &seconds[1]);
    rows.push(against(limited(quick, LONG), &slow, "our portable code"));
    rows.push(slow);

    let together = batch(LONG, &[SUFFIX; SUFFIXES as usize]);
    let apart = batch(0, &[LONG + SUFFIX]);
    let seconds = in_turns(rounds, &mut [&mut || step(&mut fast, &together)]);
    let name = format!("{SUFFIXES} answers over one {LONG}-token prompt, one step");
    let forest = micros(name, &seconds[0]);
    let mut one_by_one = || (0..SUFFIXES).for_each(|_| step(&mut fast, &apart));
    let seconds = in_turns(rounds, &mut [&mut one_by_one]);
    let name = format!("the same as {SUFFIXES} separate steps");
    let apart = micros(name, &seconds[0]);
    let forest = limited(forest, LONG + SUFFIXES * SUFFIX);
    rows.push(against(forest, &apart, "separate steps"));
    rows.push(limited(apart, SUFFIXES * (LONG + SUFFIX)));
    match failure {
        Some(error) => Err(error.context("a step")),
        None => Ok(rows),
    }
}

/// Returns the multiplications and additions of a token with the weights of all layers.
#[expect(clippy::cast_precision_loss, reason = "a number of weights")]
fn products(checkpoint: &Checkpoint) -> f64 {
    let weights = |name: &str| match checkpoint.form(name) {
        Some((_, [outputs, inputs])) if name.contains("layers.") => outputs * inputs,
        _ => 0,
    };
    2.0 * checkpoint.names().map(weights).sum::<usize>() as f64
}

fn batch(shared: u32, branches: &[u32]) -> ForwardBatch {
    let mut next = 11;
    let token = || {
        next = (next + 37) % 4000;
        next
    };
    forest(shared, branches, token, &OutputHead::Classify)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layer_has_products() {
        let files = &demo::CLASSIFIER;
        let checkpoint = Checkpoint::from_bytes(files.config, files.weights).unwrap();
        let flops = products(&checkpoint);
        assert!((1e5..1e8).contains(&flops), "{flops}");
    }
}
