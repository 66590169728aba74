//! The cost of planning one request whose rows share most of their prompts.

use std::time::Duration;

use anyhow::{Context as _, Result};
use prelude_core::{Capacity, Head, PromptTree, Request, RequestId, RowSpec, Timestamp};
use prelude_sched::{Scheduler, SchedulerConfig};

use super::{
    clock, micros,
    world::{VOCAB_SIZE, answer, tokens},
};
use crate::random::Random;

/// Tokens of each row's own behind the shared ones.
pub(super) const OWN: usize = 16;
/// The shared tokens and the rows of the requests that are measured.
pub(super) const SHAPES: [(usize, u32); 4] = [(30_000, 1), (30_000, 256), (2_000, 1), (2_000, 50)];

/// Plans `rounds` requests of `rows` rows over `shared_tokens` tokens, each on a scheduler of its
/// own, and then one more over the same tokens. Returns the microseconds of `next_batch` of all
/// first requests, which find nothing cached, and of all second ones, which find the shared tokens.
pub(super) fn measure(shared_tokens: usize, rows: u32, rounds: usize) -> Result<[Vec<f64>; 2]> {
    let mut random = Random::far(u64::from(rows));
    let (mut first, mut again) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let mut scheduler = scheduler()?;
        let shared = tokens(&mut random, shared_tokens);
        for times in [&mut first, &mut again] {
            let id = RequestId(times.len() as u64);
            let mut tree = PromptTree::new();
            let root = tree.push(None, shared.clone())?;
            let specs = (0..rows).map(|_| {
                let node = tree.push(Some(root), tokens(&mut random, OWN))?;
                Ok(RowSpec {
                    node,
                    head: Head::Classify,
                })
            });
            let specs = specs.collect::<Result<Vec<_>>>()?;
            let now = Timestamp::ZERO;
            scheduler.submit(now, Request::new(id, tree, specs, now))?;
            times.push(micros(plan(&mut scheduler, rows)?));
        }
    }
    Ok([first, again])
}

/// Plans and completes the step that answers `rows` rows; returns the cost of planning.
fn plan(scheduler: &mut Scheduler, rows: u32) -> Result<Duration> {
    let (now, mut events) = (Timestamp::ZERO, Vec::new());
    let (cost, planned) = clock::time(|| scheduler.next_batch(now, &mut events));
    let (step, batch) = planned.context("a request waits")?;
    let all = batch.num_rows() == rows as usize;
    all.then_some(()).context("one step takes up all rows")?;
    scheduler.complete(now, step, Ok(answer(step, &batch)), &mut events)?;
    Ok(cost)
}

/// Returns a scheduler one step of which has room for any of the requests.
fn scheduler() -> Result<Scheduler> {
    let capacity = Capacity {
        block_size: 16,
        num_blocks: 8_192,
        max_step_tokens: 65_536,
        full_step_tokens: 2048,
        max_context_len: 32_768,
        vocab_size: VOCAB_SIZE,
        pipeline_depth: 1,
        passes: None,
        attention: prelude_core::Attention::Causal,
        host_blocks: 0,
    };
    let config = SchedulerConfig {
        max_batch_tokens: Some(capacity.max_step_tokens),
        ..SchedulerConfig::default()
    };
    Ok(Scheduler::new(config, capacity)?)
}
