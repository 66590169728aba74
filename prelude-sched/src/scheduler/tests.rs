//! Behaviour one rule at a time. The simulator covers their combinations.

mod ahead;
mod answers;
mod auto;
mod bounds;
mod chunks;
mod laps;
mod masks;
mod passes;
mod plans;
mod policy;
mod profile;
mod running;
mod shares;
mod sharing;
mod shortage;
mod waits;
mod whole;

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use prelude_core::{
    Constraint, Executor, ExecutorError, Generate, Head, MatchState, Matcher, Normalise,
    OutputHead, Pooling, PromptTree, Request, RowOutput, RowSpec, SamplingParams, StepOutput,
    TokenHead, TokenId, TokenMask, TokenSet, TokenSource,
};

use super::*;
use crate::{Plan, QueueView, Reject, StepBudget, Waiting, sim::SimExecutor};

const CAPACITY: Capacity = Capacity {
    block_size: 4,
    num_blocks: 64,
    max_step_tokens: 128,
    full_step_tokens: 2048,
    max_context_len: 128,
    vocab_size: 1000,
    pipeline_depth: 1,
    passes: None,
    attention: Attention::Causal,
    host_blocks: 0,
};

/// A scheduler, the checking executor, and what came of it.
struct Rig {
    scheduler: Scheduler,
    executor: SimExecutor,
    running: VecDeque<StepId>,
    events: Vec<Event>,
    now: Timestamp,
}

impl Rig {
    fn new(config: SchedulerConfig, capacity: Capacity) -> Self {
        Self {
            scheduler: Scheduler::new(config, capacity).unwrap(),
            executor: SimExecutor::new(capacity),
            running: VecDeque::new(),
            events: Vec::new(),
            now: Timestamp::ZERO,
        }
    }

    /// Makes a rig with at most `tokens` tokens in a step.
    fn small(tokens: u32) -> Self {
        Self::new(
            SchedulerConfig {
                max_batch_tokens: Some(tokens),
                ..SchedulerConfig::default()
            },
            CAPACITY,
        )
    }

    fn submit(&mut self, request: Request) {
        self.scheduler.submit(self.now, request).unwrap();
        self.scheduler.check_invariants();
    }

    /// Plans and starts a step.
    fn start(&mut self) -> Option<ForwardBatch> {
        let (step, batch) = self.scheduler.next_batch(self.now, &mut self.events)?;
        self.executor.submit(step, batch.clone()).unwrap();
        self.running.push_back(step);
        self.scheduler.check_invariants();
        Some(batch)
    }

    fn finish_step(&mut self) {
        let step = self.running.pop_front().expect("a step runs");
        let output = self.executor.collect(step);
        self.complete(step, output);
    }

    fn complete(&mut self, step: StepId, output: Result<StepOutput, ExecutorError>) {
        self.scheduler
            .complete(self.now, step, output, &mut self.events)
            .unwrap();
        self.scheduler.check_invariants();
    }

    /// One whole step.
    fn step(&mut self) -> ForwardBatch {
        let batch = self.start().expect("something waits");
        self.finish_step();
        batch
    }

    /// Whole steps until nothing is left.
    fn drain(&mut self) -> Vec<ForwardBatch> {
        let mut batches = Vec::new();
        while let Some(batch) = self.start() {
            batches.push(batch);
            self.finish_step();
        }
        assert_eq!(self.scheduler.stats().requests, 0);
        assert_eq!(self.scheduler.stats().used_blocks, 0);
        batches
    }

    fn outcome(&self, id: u64) -> Option<&Outcome> {
        self.events.iter().find_map(|event| match event {
            Event::Finished {
                request, outcome, ..
            } if request.0 == id => Some(outcome),
            _ => None,
        })
    }

    fn usage(&self, id: u64) -> crate::Usage {
        let found = self.events.iter().find_map(|event| match event {
            Event::Finished { request, usage, .. } if request.0 == id => Some(*usage),
            _ => None,
        });
        found.expect("the request has finished")
    }

    /// Returns the tokens of a choice.
    fn tokens(&self, id: u64, of: u32) -> Vec<u32> {
        let token = |event: &Event| match event {
            Event::Token {
                request,
                choice,
                token,
                ..
            } if request.0 == id && *choice == of => Some(token.token),
            _ => None,
        };
        self.events.iter().filter_map(token).collect()
    }

    /// Returns the ids in order of finishing.
    fn order(&self) -> Vec<u64> {
        let finished = |event: &Event| match event {
            Event::Finished { request, .. } => Some(request.0),
            _ => None,
        };
        self.events.iter().filter_map(finished).collect()
    }
}

fn request(id: u64, prompt: Vec<u32>, head: Head) -> Request {
    let tree = PromptTree::single(prompt);
    let rows = vec![RowSpec {
        node: tree.last_node(),
        head,
    }];
    Request::new(RequestId(id), tree, rows, Timestamp::from_nanos(id))
}

fn classify(id: u64, prompt: Vec<u32>) -> Request {
    request(id, prompt, Head::Classify)
}

fn mean(id: u64, prompt: Vec<u32>) -> Request {
    request(
        id,
        prompt,
        Head::Embed {
            pooling: Pooling::Mean,
            normalise: false,
            dimensions: None,
        },
    )
}

fn generate(id: u64, prompt: Vec<u32>, max_tokens: u32, n: u32) -> Request {
    let sampling = Arc::new(SamplingParams {
        seed: id,
        ..SamplingParams::default()
    });
    request(
        id,
        prompt,
        Head::Generate(Generate {
            max_tokens,
            n,
            sampling,
            top_logprobs: None,
            constraint: None,
        }),
    )
}

/// A prompt of its own for each `id`.
fn prompt(id: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| (id * 131 + i * 7) % 1000).collect()
}

fn suffixed(shared: &[u32], id: u32) -> Vec<u32> {
    [shared, &[id]].concat()
}
