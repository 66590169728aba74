//! A scheduling policy of one's own under the real engine: the smallest request first, however
//! late it came.
//!
//! ```sh
//! cargo run -p prelude-engine --example own_policy -- prelude-server/demo/demo-lm
//! ```
#![expect(clippy::print_stdout, reason = "an example")]

use std::{path::PathBuf, sync::Arc};

use prelude_core::{Generate, Head, PromptTree, RequestId, RowSpec, SamplingParams};
use prelude_engine::{EngineConfig, RequestSpec, ScheduledEngine};
use prelude_exec_cpu::{ComputePool, CpuConfig, CpuExecutor};
use prelude_models::Checkpoint;
use prelude_sched::{Grant, Plan, QueueView, SchedulerPolicy, StepBudget, Turn, Waiting};

/// Fewest prompt tokens to compute first. It proposes an order and nothing else: whether work
/// fits a step, and where its blocks are, stays the scheduler's. Long prompts may wait for ever;
/// a policy for strangers would bound that.
struct SmallestFirst;

impl SchedulerPolicy for SmallestFirst {
    fn plan(&mut self, view: &QueueView<'_>, budget: StepBudget) -> Plan {
        let grants = |waiting: Vec<&Waiting>, most: u32| {
            let mut sized: Vec<_> = waiting
                .into_iter()
                .filter_map(|w| {
                    let prompt = view.next_prompt(w.request)?;
                    Some((w.turn, w.priority, prompt.tokens - prompt.cached, w.request))
                })
                .collect();
            // Requests that have waited too long, then by priority, then by size. Request ids grow,
            // so equal sizes keep the order of their arrival.
            sized.sort_unstable();
            let grant = |(.., request): (Turn, i64, u32, RequestId)| Grant {
                request,
                tokens: budget.tokens,
            };
            sized.into_iter().take(most as usize).map(grant).collect()
        };
        Plan {
            oneshot: grants(view.oneshot().collect(), budget.rows),
            decode: grants(view.decode().collect(), budget.seqs),
            ..Plan::default()
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1);
    let folder = PathBuf::from(folder.ok_or("usage: own_policy MODEL_FOLDER")?);
    let checkpoint = Checkpoint::open(&folder)?;
    let pool = Arc::new(ComputePool::for_machine());
    let executor = CpuExecutor::new(&checkpoint, CpuConfig::default(), pool)?;

    // Steps of 64 tokens, so that requests of 60 tokens cannot share one.
    let mut config = EngineConfig::default();
    config.scheduler.max_batch_tokens = Some(64);
    config.scheduler.enable_prefix_caching = false;
    let engine = ScheduledEngine::spawn_with_policy(
        "own-policy",
        config,
        Box::new(SmallestFirst),
        Box::new(executor),
    )?;

    // Submitted largest first.
    let sizes = [4_000_u32, 60, 50, 40];
    let mut answers = Vec::new();
    for (number, size) in (1_u32..).zip(sizes) {
        let tree = PromptTree::single((0..size).map(|i| (i * 7 + number) % 4_000).collect());
        let row = RowSpec {
            node: tree.last_node(),
            head: Head::Generate(Generate {
                max_tokens: 1,
                n: 1,
                sampling: Arc::new(SamplingParams::default()),
                top_logprobs: None,
                constraint: None,
            }),
        };
        answers.push(engine.handle().submit(RequestSpec::new(tree, vec![row]))?);
    }
    let mut waits = Vec::new();
    for (size, answer) in sizes.into_iter().zip(answers) {
        let usage = answer.blocking_collect()?.usage;
        println!("{size:>5} tokens waited {:?}", usage.queue_time);
        waits.push(usage.queue_time);
    }
    // The smallest of the requests that waited together went first.
    assert!(waits[3] < waits[2] && waits[2] < waits[1], "{waits:?}");
    Ok(())
}
