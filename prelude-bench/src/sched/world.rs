//! A scheduler with waiting requests and running generations, stepped without an executor.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use prelude_core::{
    Capacity, ForwardBatch, Generate, Head, PromptTree, Request, RequestId, RowOutput, RowSpec,
    SampledToken, SamplingParams, StepId, StepOutput, Timestamp, TokenId,
};
use prelude_sched::{Event, PolicyConfig, Scheduler, SchedulerConfig};

use super::clock;
use crate::random::Random;

pub(super) const VOCAB_SIZE: u32 = 150_000;
/// Generations that run beside the waiting requests.
pub(super) const RUNNING: usize = 256;
/// Tokens of a waiting request's prompt, if it shares nothing.
pub(super) const PROMPT: usize = 200;
/// Tokens that all waiting prompts share, and tokens that follow them, where prompts share.
pub(super) const SHARED: (usize, usize) = (1_000, 24);

/// The cost of one step.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepCost {
    pub(super) next_batch: Duration,
    pub(super) complete: Duration,
    /// Allocations of both calls.
    pub(super) allocations: u64,
}

/// The scheduler and the traffic that keeps its queue as long as it is.
pub(super) struct World<'a> {
    scheduler: Scheduler,
    random: Random,
    now: Timestamp,
    next_id: u64,
    /// The tokens that all waiting prompts begin with, if they share any.
    prefix: Option<Arc<[TokenId]>>,
    generations: BTreeSet<RequestId>,
    sampling: Arc<SamplingParams>,
    events: Vec<Event>,
    allocations: &'a dyn Fn() -> u64,
}

impl<'a> World<'a> {
    /// Returns a scheduler whose generations run and in whose queue nothing waits.
    pub(super) fn new(
        policy: PolicyConfig,
        shared: bool,
        seed: u64,
        allocations: &'a dyn Fn() -> u64,
    ) -> Result<Self> {
        let capacity = Capacity {
            block_size: 16,
            num_blocks: 32_768,
            max_step_tokens: 8_192,
            full_step_tokens: 2048,
            max_context_len: 32_768,
            vocab_size: VOCAB_SIZE,
            pipeline_depth: 1,
            passes: None,
            attention: prelude_core::Attention::Causal,
            host_blocks: 0,
        };
        let config = SchedulerConfig {
            policy,
            max_queued_rows: u32::MAX,
            max_queued_tokens: u64::MAX,
            ..SchedulerConfig::default()
        };
        let mut random = Random::far(seed);
        let prefix = shared.then(|| tokens(&mut random, SHARED.0).into());
        let mut world = Self {
            scheduler: Scheduler::new(config, capacity)?,
            random,
            now: Timestamp::ZERO,
            next_id: 0,
            prefix,
            generations: BTreeSet::new(),
            sampling: Arc::new(SamplingParams::default()),
            events: Vec::new(),
            allocations,
        };
        for _ in 0..RUNNING {
            world.generate()?;
        }
        while world.scheduler.stats().running_decode_seqs < RUNNING as u64
            || world.scheduler.stats().waiting_decode_seqs > 0
        {
            world.step()?;
        }
        // Until the last of them decodes.
        for _ in 0..16 {
            world.step()?;
        }
        Ok(world)
    }

    /// Adds `waiting` one-shot requests to the queue.
    pub(super) fn fill(&mut self, waiting: usize) -> Result<()> {
        (0..waiting).try_for_each(|_| self.classify())
    }

    /// Plans and completes one step, and then brings as many requests as have ended.
    pub(super) fn step(&mut self) -> Result<StepCost> {
        let allocations = (self.allocations)();
        let (next_batch, planned) = clock::time(|| {
            let events = &mut self.events;
            self.scheduler.next_batch(self.now, events)
        });
        let planning = (self.allocations)() - allocations;
        let (id, batch) = planned.context("generations run, so there is a step")?;
        let output = answer(id, &batch);
        self.now = self.now.saturating_add(Duration::from_millis(10));
        let allocations = (self.allocations)();
        let (complete, known) = clock::time(|| {
            let events = &mut self.events;
            self.scheduler.complete(self.now, id, Ok(output), events)
        });
        let completing = (self.allocations)() - allocations;
        known?;
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            if let Event::Finished { request, .. } = event {
                match self.generations.remove(&request) {
                    true => self.generate()?,
                    false => self.classify()?,
                }
            }
        }
        self.events = events;
        Ok(StepCost {
            next_batch,
            complete,
            allocations: planning + completing,
        })
    }

    /// Submits a request of one row that waits.
    fn classify(&mut self) -> Result<()> {
        let prompt = match &self.prefix {
            None => tokens(&mut self.random, PROMPT),
            Some(prefix) => {
                let mut prompt = prefix.to_vec();
                prompt.extend(tokens(&mut self.random, SHARED.1));
                prompt
            }
        };
        self.submit(prompt, Head::Classify).map(|_| ())
    }

    /// Submits a generation of 64 prompt tokens and 256 to 511 more.
    fn generate(&mut self) -> Result<()> {
        let prompt = tokens(&mut self.random, 64);
        let budget = 256 + self.random.below(256);
        let head = Head::Generate(Generate {
            max_tokens: u32::try_from(budget)?,
            n: 1,
            sampling: self.sampling.clone(),
            top_logprobs: None,
            constraint: None,
        });
        let id = self.submit(prompt, head)?;
        self.generations.insert(id);
        Ok(())
    }

    fn submit(&mut self, prompt: Vec<TokenId>, head: Head) -> Result<RequestId> {
        let tree = PromptTree::single(prompt);
        let node = tree.last_node();
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let request = Request::new(id, tree, vec![RowSpec { node, head }], self.now);
        self.scheduler.submit(self.now, request)?;
        Ok(id)
    }
}

pub(super) fn tokens(random: &mut Random, count: usize) -> Vec<TokenId> {
    #[expect(clippy::cast_possible_truncation, reason = "below the vocabulary")]
    let token = |_| random.below(VOCAB_SIZE as usize) as TokenId;
    (0..count).map(token).collect()
}

/// Returns made-up answers: a class for each one-shot row, a token for each other row.
pub(super) fn answer(step: StepId, batch: &ForwardBatch) -> StepOutput {
    let (oneshot, prefill, decode) = batch.parts();
    let token = || {
        RowOutput::Sampled(vec![SampledToken {
            token: 7,
            logprob: None,
            top: Vec::new(),
        }])
    };
    StepOutput {
        step,
        oneshot: oneshot
            .rows
            .iter()
            .map(|_| RowOutput::Classes(vec![0.5]))
            .collect(),
        prefill: prefill.rows.iter().map(|_| token()).collect(),
        decode: decode.rows.iter().map(|_| token()).collect(),
    }
}
