//! One modelled engine: the real scheduler, a device that takes time and computes nothing.
//!
//! [`prelude_sched::Scheduler`] plans as it does in a server; only how long a step takes
//! and what its rows answer is made up. So a simulation shows the scheduler's own faults too.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use prelude_core::{
    Capacity, ForwardBatch, Generate, Head, OneShotBatch, OutputHead, OutputRow, PassId, PassSlice,
    PromptTree, Request, RequestId, RowOutput, RowSpec, SampledToken, SamplingParams, StepId,
    StepOutput, Timestamp, TokenId,
};
use prelude_sched::{
    ConfigError, Event, Outcome, PolicyConfig, Reject, Scheduler, SchedulerConfig, SchedulerStats,
};

use super::{
    Arrival, EngineModel,
    service::{pieces, pieces_of_pass},
};

/// The token that modelled engines generate; no prompt has it.
const GENERATED: TokenId = 0;

/// The configuration of a modelled engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The time model of its iterations.
    pub model: EngineModel,
    /// Tokens whose keys and values it holds; the model's by default.
    pub kv_tokens: u64,
    /// Tokens whose keys and values its host memory holds for the prefix cache; 0 by default.
    pub host_tokens: u64,
    /// Microseconds that a step takes longer for each token whose keys and values it copies to or
    /// from host memory.
    pub copy_us: f64,
    /// Tokens of a KV block.
    pub block_size: u32,
    /// Most tokens that a step computes; the model's chunk budget by default.
    pub step_tokens: u32,
    /// True (the default) if long one-shot prompts are computed in slices, as a server computes them;
    /// false for chunks that hold blocks.
    pub slices: bool,
    /// Milliseconds that the host takes to start a step or a slice; 0 by default, as with captured
    /// graphs.
    pub launch_ms: f64,
    /// The factor by which the first engine of a cluster takes longer for a step than the model
    /// says, and than routers are told; 1 by default.
    pub slow_first: f64,
    /// The knobs of the engine's scheduler.
    pub scheduler: SchedulerConfig,
}

impl EngineConfig {
    /// Returns an engine of this model, with the scheduler's defaults except for what the model
    /// says of iterations, and a queue that refuses no request: a refused request has no latency,
    /// and a report without the slowest would flatter.
    #[must_use]
    pub fn new(model: impl Into<EngineModel>, policy: PolicyConfig) -> Self {
        let model = model.into();
        Self {
            kv_tokens: model.kv_tokens(),
            host_tokens: 0,
            copy_us: 0.0,
            block_size: 16,
            step_tokens: model.chunk_tokens(),
            slices: true,
            launch_ms: 0.0,
            slow_first: 1.0,
            scheduler: SchedulerConfig {
                max_batch_tokens: Some(model.chunk_tokens()),
                prefill_chunk_tokens: model.chunk_tokens(),
                service: model.service(),
                max_queued_rows: u32::MAX,
                max_queued_tokens: u64::MAX / 2,
                policy,
                ..SchedulerConfig::default()
            },
            model,
        }
    }
}

impl EngineConfig {
    /// Limits steps, and chunks of prompts, to `tokens` tokens.
    #[must_use]
    pub fn with_step_tokens(mut self, tokens: u32) -> Self {
        self.step_tokens = tokens;
        self.scheduler.max_batch_tokens = Some(tokens);
        self.scheduler.prefill_chunk_tokens = tokens;
        self
    }

    /// Returns the limits within which a scheduler plans for the engine.
    fn capacity(&self) -> Capacity {
        let capacity = self.model.capacity(self.kv_tokens, self.block_size);
        Capacity {
            max_step_tokens: self.step_tokens,
            full_step_tokens: 2048,
            // A prompt that one step computes whole needs no blocks.
            max_context_len: capacity.max_context_len.max(self.step_tokens),
            host_blocks: u32::try_from(self.host_tokens / u64::from(self.block_size))
                .unwrap_or(u32::MAX),
            passes: capacity.passes.filter(|_| self.slices),
            ..capacity
        }
    }
}

/// The outcome of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The request's index in the workload.
    pub request: usize,
    /// The time of its arrival.
    pub arrival: Timestamp,
    /// The time from arrival until the first step with a part of it.
    pub queue: Duration,
    /// The time from arrival to the first token.
    pub first_token: Duration,
    /// The time from arrival to the last token.
    pub latency: Duration,
    /// Tokens of the request's prompt.
    pub prompt_tokens: u64,
    /// The number of prompt tokens that the engine had in its cache.
    pub cached_tokens: u64,
    /// Tokens that the request generated.
    pub output_tokens: u64,
}

/// A step that runs.
struct Step {
    id: StepId,
    output: StepOutput,
    ends: Timestamp,
}

/// A pass that has begun. Each of its layer tokens takes an equal part of its time.
struct Pass {
    takes: Duration,
    layer_tokens: u64,
    left: u64,
    forest: OneShotBatch,
}

/// A modelled engine.
pub struct Engine {
    model: EngineModel,
    scheduler: Scheduler,
    step: Option<Step>,
    passes: BTreeMap<PassId, Pass>,
    /// Layers of the model, which passes are computed by.
    layers: u32,
    launch: Duration,
    /// The arrival times of requests without a token, and the times of the first token of others.
    arrived: BTreeMap<RequestId, Timestamp>,
    first_token: BTreeMap<RequestId, Timestamp>,
    sampling: Arc<SamplingParams>,
    busy: Duration,
    /// The time that copying a block to or from host memory takes.
    copy_time: Duration,
    /// The factor by which steps take longer than the model says.
    slowdown: f64,
    events: Vec<Event>,
    /// The requests that got a token when the last step ended, once for each token.
    sampled: Vec<usize>,
}

impl Engine {
    /// Returns an engine with an empty cache.
    ///
    /// # Errors
    /// [`ConfigError`] if the scheduler cannot be built like this.
    pub fn new(config: &EngineConfig) -> Result<Self, ConfigError> {
        let capacity = config.capacity();
        let layers = capacity.passes.map_or(1, |passes| passes.layers);
        let scheduler = Scheduler::new(config.scheduler.clone(), capacity)?;
        let copy_us = f64::from(config.block_size) * config.copy_us;
        Ok(Self {
            layers,
            launch: Duration::from_secs_f64(config.launch_ms / 1e3),
            copy_time: Duration::from_secs_f64(copy_us / 1e6),
            ..Self::of(config.model.clone(), scheduler)
        })
    }

    /// Returns the same engine, whose steps take so many times as long as its model says.
    pub(super) const fn slowed(mut self, by: f64) -> Self {
        self.slowdown = by;
        self
    }

    fn of(model: EngineModel, scheduler: Scheduler) -> Self {
        Self {
            model,
            scheduler,
            step: None,
            passes: BTreeMap::new(),
            layers: 1,
            launch: Duration::ZERO,
            arrived: BTreeMap::new(),
            first_token: BTreeMap::new(),
            sampling: Arc::new(SamplingParams::default()),
            busy: Duration::ZERO,
            copy_time: Duration::ZERO,
            slowdown: 1.0,
            events: Vec::new(),
            sampled: Vec::new(),
        }
    }

    /// Takes a request in that arrives now, spelled as `tokens`.
    ///
    /// # Errors
    /// [`Reject`] if it never fits.
    pub fn submit(
        &mut self,
        now: Timestamp,
        request: usize,
        arrival: &Arrival,
        tokens: Vec<TokenId>,
    ) -> Result<(), Reject> {
        let id = RequestId(request as u64);
        let tree = PromptTree::single(tokens);
        let rows = match tree.is_empty() {
            true => Vec::new(),
            false => vec![RowSpec {
                node: tree.last_node(),
                head: Head::Generate(Generate {
                    max_tokens: arrival.output_tokens,
                    n: 1,
                    sampling: Arc::clone(&self.sampling),
                    top_logprobs: None,
                    constraint: None,
                }),
            }],
        };
        let request = Request::new(id, tree, rows, now);
        self.scheduler.submit(now, request)?;
        self.arrived.insert(id, now);
        Ok(())
    }

    /// Starts a step, unless one runs or there is nothing to do yet. Returns when the engine must
    /// be [finished](Self::finish) and started again: when the step that was started ends, or when
    /// the scheduler wants to be asked again, whose policy waits for more requests.
    ///
    /// # Panics
    /// If the scheduler has requests, plans nothing for them and waits for no time to come: a
    /// defect of it.
    pub fn start(&mut self, now: Timestamp) -> Option<Timestamp> {
        if self.step.is_some() {
            return None;
        }
        let Some((id, batch)) = self.scheduler.next_batch(now, &mut self.events) else {
            let waiting = self.scheduler.stats().requests;
            let again = self.scheduler.next_deadline();
            assert!(
                waiting == 0 || again.is_some_and(|at| at > now),
                "{waiting} requests wait for ever: asked again at {again:?}, now {now:?}"
            );
            return again;
        };
        // Copies come before the step's own work, on the same stream.
        let copying = match &batch {
            ForwardBatch::AfterCopies { copies, .. } => {
                let blocks = copies.stores.len() + copies.loads.len();
                self.copy_time
                    .saturating_mul(u32::try_from(blocks).unwrap_or(u32::MAX))
            }
            _ => Duration::ZERO,
        };
        let (takes, output) = self.compute(id, batch);
        let takes = takes + copying + self.launch;
        // Exactly the model's time but for an engine that is slow.
        let takes = match self.slowdown > 1.0 {
            true => takes.mul_f64(self.slowdown),
            false => takes,
        };
        self.busy += takes;
        let ends = now.saturating_add(takes);
        self.step = Some(Step { id, output, ends });
        Some(ends)
    }

    /// Returns the time of a step and what it answers.
    fn compute(&mut self, step: StepId, batch: ForwardBatch) -> (Duration, StepOutput) {
        match batch {
            ForwardBatch::AfterCopies { then, .. } => self.compute(step, *then),
            ForwardBatch::Slice(slice) => self.compute_slice(step, slice),
            batch => (self.model.iteration(pieces(&batch)), answer(step, &batch)),
        }
    }

    fn compute_slice(&mut self, step: StepId, slice: PassSlice) -> (Duration, StepOutput) {
        for pass in &slice.abandoned {
            self.passes.remove(pass);
        }
        if let Some(forest) = slice.begin {
            let takes = self.model.iteration(pieces_of_pass(&forest));
            let layer_tokens = forest.tokens.len() as u64 * u64::from(self.layers);
            let left = layer_tokens;
            let pass = Pass {
                takes,
                layer_tokens,
                left,
                forest,
            };
            self.passes.insert(slice.pass, pass);
        }
        let pass = { self.passes.get_mut(&slice.pass) }.expect("a slice is of a pass that began");
        pass.left -= u64::from(slice.layer_tokens);
        let part = f64::from(slice.layer_tokens) / pass.layer_tokens as f64;
        let (takes, is_last) = (pass.takes.mul_f64(part), pass.left == 0);
        let forest = match is_last {
            true => self.passes.remove(&slice.pass).map(|pass| pass.forest),
            false => None,
        };
        let forest = forest.unwrap_or(OneShotBatch::EMPTY);
        (takes, answer(step, &ForwardBatch::OneShot(forest)))
    }

    /// Ends the step that runs, if it ends now, and appends what became of requests that it
    /// finished.
    ///
    /// # Errors
    /// If a request did not end with its answer.
    pub fn finish(&mut self, now: Timestamp, records: &mut Vec<Record>) -> Result<()> {
        let Some(step) = self.step.take_if(|step| step.ends <= now) else {
            return Ok(());
        };
        assert_eq!(step.ends, now, "a step is finished when it ends, not later");
        let mut events = std::mem::take(&mut self.events);
        self.sampled.clear();
        self.scheduler
            .complete(now, step.id, Ok(step.output), &mut events)?;
        for event in events.drain(..) {
            match event {
                Event::Token { request, .. } => {
                    self.first_token.entry(request).or_insert(now);
                    self.sampled.push(request.0 as usize);
                }
                Event::Finished {
                    request,
                    outcome,
                    usage,
                } => {
                    ensure!(outcome == Outcome::Done, "request {request}: {outcome:?}");
                    let arrived = self.arrived.remove(&request).unwrap_or(now);
                    let first_token = self.first_token.remove(&request).unwrap_or(now);
                    records.push(Record {
                        request: request.0 as usize,
                        arrival: arrived,
                        queue: usage.queue_time,
                        first_token: first_token.saturating_since(arrived),
                        latency: now.saturating_since(arrived),
                        prompt_tokens: usage.prompt_tokens,
                        cached_tokens: usage.cached_tokens,
                        output_tokens: usage.output_tokens,
                    });
                }
                Event::Output { .. } | Event::RowFinished { .. } | Event::Preempted { .. } => {}
            }
        }
        self.events = events;
        Ok(())
    }

    /// Returns the requests that got a token when the last step ended, once for each token.
    #[must_use]
    pub fn sampled(&self) -> &[usize] {
        &self.sampled
    }

    /// Returns the busy time, including the current step.
    #[must_use]
    pub const fn busy(&self) -> Duration {
        self.busy
    }

    /// Returns the counters of its scheduler.
    #[must_use]
    pub fn stats(&self) -> SchedulerStats {
        self.scheduler.stats()
    }
}

/// Returns a token for each row that samples one.
fn answer(step: StepId, batch: &ForwardBatch) -> StepOutput {
    let token = || SampledToken {
        token: GENERATED,
        logprob: None,
        top: Vec::new(),
    };
    let sampled = |draws: u32| RowOutput::Sampled((0..draws).map(|_| token()).collect());
    let row = |row: &OutputRow| match &row.head {
        OutputHead::Sample(head) => sampled(head.draws),
        // Only one output is requested; the scheduler's own check reports anything else.
        _ => RowOutput::Failed("a modelled engine only samples"),
    };
    let (oneshot, prefill, decode) = batch.parts();
    StepOutput {
        step,
        oneshot: oneshot.rows.iter().map(row).collect(),
        prefill: prefill.rows.iter().map(row).collect(),
        decode: decode
            .rows
            .iter()
            .map(|row| sampled(row.sample.draws))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use prelude_sched::{Fcfs, Plan, QueueView, SchedulerPolicy, StepBudget};

    use super::*;
    use crate::sim::{Piece, Preset, Prompt, Run};

    fn engine() -> Engine {
        let config = EngineConfig::new(Preset::Mistral7bA6000, PolicyConfig::Fcfs);
        Engine::new(&config).unwrap()
    }

    fn arrival(at_ms: u64, prompt: u32, output_tokens: u32) -> Arrival {
        let run = Run {
            stream: 1,
            start: 0,
            len: prompt,
        };
        Arrival {
            at: Timestamp::from_nanos(at_ms * 1_000_000),
            prompt: Prompt::new([run]),
            output_tokens,
            key: 0,
            user: 0,
            root: 0,
        }
    }

    fn submit(engine: &mut Engine, request: usize, arrival: &Arrival) -> Result<(), Reject> {
        let mut tokens = Vec::new();
        arrival.prompt.tokens(&mut tokens);
        engine.submit(arrival.at, request, arrival, tokens)
    }

    /// Runs until there is nothing to do.
    fn run(engine: &mut Engine, from: Timestamp) -> Vec<Record> {
        let (mut now, mut records) = (from, Vec::new());
        while let Some(ends) = engine.start(now) {
            now = ends;
            engine.finish(now, &mut records).unwrap();
        }
        records
    }

    /// Returns the milliseconds of iterations of these pieces, one after another.
    fn ms(iterations: &[&[(u32, u32)]]) -> Duration {
        let iteration = |pieces: &&[(u32, u32)]| {
            let pieces = pieces.iter();
            Preset::Mistral7bA6000
                .iteration(pieces.map(|&(new, context)| Piece::prompt(new, context)))
        };
        iterations.iter().map(iteration).sum()
    }

    #[test]
    fn a_generation_takes_its_chunks_and_a_step_for_each_further_token() {
        let mut engine = engine();
        let arrival = arrival(0, 1000, 3);
        submit(&mut engine, 7, &arrival).unwrap();
        let records = run(&mut engine, arrival.at);
        let prefill = ms(&[&[(512, 512)], &[(488, 1000)]]);
        let all = prefill + ms(&[&[(1, 1001)], &[(1, 1002)]]);
        let expected = Record {
            request: 7,
            arrival: Timestamp::ZERO,
            queue: Duration::ZERO,
            first_token: prefill,
            latency: all,
            prompt_tokens: 1000,
            cached_tokens: 0,
            output_tokens: 3,
        };
        assert_eq!(records, [expected]);
        assert_eq!(engine.busy(), all);
    }

    #[test]
    fn one_token_is_one_shot_and_waiting_counts() {
        let mut engine = engine();
        submit(&mut engine, 0, &arrival(0, 400, 1)).unwrap();
        let first = engine.start(Timestamp::ZERO).unwrap();
        // It comes while the first runs, and finds what that one computed: 24 blocks of 16, the
        // 25th being the one whose last token has to be computed.
        submit(&mut engine, 1, &arrival(10, 400, 1)).unwrap();
        assert_eq!(engine.start(first), None, "a step runs");
        let mut records = Vec::new();
        engine.finish(first, &mut records).unwrap();
        records.extend(run(&mut engine, first));
        let [first, second] = records[..] else {
            panic!("{records:?}")
        };
        assert_eq!(first.latency, ms(&[&[(400, 400)]]));
        assert_eq!((first.cached_tokens, second.cached_tokens), (0, 384));
        let waited = first.latency - Duration::from_millis(10);
        assert_eq!(second.queue, waited);
        assert_eq!(second.latency, waited + ms(&[&[(16, 400)]]));
        assert_eq!(second.latency, second.first_token);
        assert_eq!(engine.stats().requests, 0);
    }

    /// A policy that puts each step off by 5 ms.
    struct Waits(Option<Timestamp>);

    impl SchedulerPolicy for Waits {
        fn plan(&mut self, view: &QueueView<'_>, budget: StepBudget) -> Plan {
            let later = || view.now().saturating_add(Duration::from_millis(5));
            let until = *self.0.get_or_insert_with(later);
            let plan = Fcfs.plan(view, budget);
            if view.now() < until {
                return Plan {
                    wait_until: Some(until),
                    ..Plan::default()
                };
            }
            self.0 = None;
            plan
        }
    }

    #[test]
    fn a_policy_that_waits_is_asked_again() {
        let config = EngineConfig::new(Preset::Mistral7bA6000, PolicyConfig::Fcfs);
        let policy = Box::new(Waits(None));
        let scheduler =
            Scheduler::with_policy(config.scheduler.clone(), config.capacity(), policy).unwrap();
        let mut engine = Engine::of(config.model.clone(), scheduler);
        submit(&mut engine, 0, &arrival(0, 400, 1)).unwrap();
        let wait = Duration::from_millis(5);
        let asked_again = engine.start(Timestamp::ZERO);
        assert_eq!(asked_again, Some(Timestamp::ZERO.saturating_add(wait)));
        let records = run(&mut engine, Timestamp::ZERO);
        let latency = wait + ms(&[&[(400, 400)]]);
        assert_eq!(
            records.iter().map(|r| r.latency).collect::<Vec<_>>(),
            [latency]
        );
    }

    #[test]
    fn a_request_that_never_fits_is_refused() {
        let mut engine = engine();
        let error = submit(&mut engine, 0, &arrival(0, 198_600, 1));
        assert!(error.is_err());
        assert_eq!(engine.start(Timestamp::ZERO), None);
        submit(&mut engine, 1, &arrival(0, 0, 1)).unwrap_err();
    }
}
