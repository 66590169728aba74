//! Length-aware prefill against first come, first served on one simulated device: the LAPS
//! workload of `LMSYS`-like chats, mean time to first token, and missed targets.
//!
//! ```sh
//! cargo run --release -p prelude-sched --features sim --example laps [TOKENS OF A STEP] [HISTORIES]
//! ```
//!
//! The device is Preble's published fit of Mistral-7B on an A6000 ([`Device`]), the scheduler is
//! the one that serves, with its defaults but for the policy, and requests come as a Poisson
//! process. Later turns continue one of so many histories that the prefix cache has: 32 of 1,500
//! tokens leave room for what passes through it; 64 do not always, and then what is computed again
//! is part of the result. A figure is the median of five seeds; changes are taken seed by seed,
//! with the least and the most.
#![expect(clippy::print_stdout, reason = "an example")]

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    time::Duration,
};

use prelude_core::{
    Capacity, Executor, ForwardBatch, Head, PromptTree, Request, RequestId, RowSpec, Segment,
    StepId, Timestamp, TokenId,
};
use prelude_sched::{
    Event, PolicyConfig, Scheduler, SchedulerConfig,
    sim::{Random, SimExecutor},
};

const SEEDS: std::ops::Range<u64> = 1..6;
/// Requests a second. The device is saturated at about 17.
const RATES: [f64; 9] = [2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0, 20.0];
const REQUESTS: usize = 3_000;
/// Of these, the first do not count.
const WARM_UP: usize = 300;
const TARGET: Duration = Duration::from_millis(400);
/// Tokens of the longest short turn.
const SHORT: u32 = 256;

/// What can be asked for.
#[derive(Clone, Copy, Debug)]
struct Options {
    step_tokens: u32,
    histories: u32,
}

/// The KV cache of the fit: 198,516 tokens.
const CAPACITY: Capacity = Capacity {
    block_size: 16,
    num_blocks: 198_516 / 16,
    max_step_tokens: 2_048,
    max_context_len: 32_768,
    vocab_size: 32_000,
    pipeline_depth: 1,
};

/// What a step takes: Preble's fit of Mistral-7B on an A6000, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Device {
    /// As printed, but never below the 22 ms of a step of few tokens: the parabola that joins both
    /// lines falls below that from 315 tokens on, and below zero from 361.
    Printed,
    /// Without the parabola: no step is shorter than one of fewer tokens.
    Monotone,
}

impl Device {
    fn step(self, batch: &ForwardBatch) -> Duration {
        let (oneshot, prefill, decode) = batch.parts();
        let segments = || oneshot.segments.iter().chain(&prefill.segments);
        let tokens = batch.num_tokens() as f64;
        let linear = 0.1084_f64.mul_add(tokens, 4.21);
        let products = match self {
            Self::Printed if tokens < 192.0 => 22.0,
            Self::Printed if tokens < 384.0 => {
                (-0.002_56_f64 * tokens).mul_add(tokens, 1.25_f64.mul_add(tokens, -118.0))
            }
            _ => linear,
        };
        let context: f64 = segments().map(|s| f64::from(s.end())).sum::<f64>()
            + decode
                .rows
                .iter()
                .map(|r| f64::from(r.context_len))
                .sum::<f64>();
        let attention = 1.86e-4_f64.mul_add(context, 0.159).max(0.32);
        let pairs = |s: &Segment| f64::from(s.len()) * f64::from(s.end());
        let large = f64::from(1 << 20);
        let pairs: f64 = segments().map(pairs).filter(|&pairs| pairs > large).sum();
        let ms = (products.max(22.0) + attention + 2.19e-6 * pairs) / 0.9;
        Duration::from_secs_f64(ms / 1e3)
    }
}

/// One request of the workload.
struct Turn {
    after: Duration,
    history: Option<usize>,
    tokens: u32,
}

/// First turns and later ones alike: 63 % of the first have fewer than 256 tokens, 81 % of the
/// later ones, which continue a history.
fn turn(random: &mut Random, interval: Duration, histories: u32) -> Turn {
    let is_first = random.one_in(2);
    let short_percent = if is_first { 63 } else { 81 };
    let tokens = if random.in_range(0, 99) < short_percent {
        log_normal(random, 60.0, 0.9).clamp(1.0, f64::from(SHORT))
    } else {
        (f64::from(SHORT) + log_normal(random, 700.0, 1.0)).min(8_192.0)
    };
    let history = random.in_range(0, histories - 1) as usize;
    Turn {
        after: Duration::from_secs_f64(random.exponential(interval.as_secs_f64())),
        history: (!is_first).then_some(history),
        tokens: tokens as u32,
    }
}

/// By Box and Muller.
fn log_normal(random: &mut Random, median: f64, sigma: f64) -> f64 {
    let radius = (2.0 * random.exponential(1.0)).sqrt();
    let angle = f64::from(random.in_range(0, u32::MAX)) / f64::from(u32::MAX);
    median * (sigma * radius * (std::f64::consts::TAU * angle).cos()).exp()
}

fn text(random: &mut Random, tokens: u32) -> Vec<TokenId> {
    (0..tokens)
        .map(|_| random.in_range(0, CAPACITY.vocab_size - 1))
        .collect()
}

/// A scheduler, a device, and the time.
struct World {
    scheduler: Scheduler,
    executor: SimExecutor,
    device: Device,
    now: Timestamp,
    running: VecDeque<(StepId, Timestamp)>,
    events: Vec<Event>,
    answered: BTreeMap<RequestId, Timestamp>,
    busy: Duration,
}

impl World {
    fn new(config: SchedulerConfig, device: Device) -> Self {
        Self {
            scheduler: Scheduler::new(config, CAPACITY).expect("the config is in range"),
            executor: SimExecutor::new(CAPACITY),
            device,
            now: Timestamp::ZERO,
            running: VecDeque::new(),
            events: Vec::new(),
            answered: BTreeMap::new(),
            busy: Duration::ZERO,
        }
    }

    fn submit(&mut self, id: u64, prompt: Vec<TokenId>) {
        let tree = PromptTree::single(prompt);
        let rows = vec![RowSpec {
            node: tree.last_node(),
            head: Head::Classify,
        }];
        let request = Request::new(RequestId(id), tree, rows, self.now);
        let accepted = self.scheduler.submit(self.now, request);
        accepted.expect("the queue is large enough");
    }

    /// Runs until `end`, or if there is none, until nothing is left.
    fn run(&mut self, end: Option<Timestamp>) {
        loop {
            while let Some((step, batch)) = self.scheduler.next_batch(self.now, &mut self.events) {
                let took = self.device.step(&batch);
                self.executor.submit(step, batch).expect("it takes steps");
                self.running
                    .push_back((step, self.now.saturating_add(took)));
                self.busy += took;
            }
            let ends = self.running.front().map(|&(_, at)| at);
            let wakes = self.scheduler.next_deadline();
            let next = [ends, wakes, end].into_iter().flatten().min();
            let Some(next) = next else { return };
            self.now = self.now.max(next);
            if ends.is_some_and(|at| at <= self.now) {
                self.collect();
            } else if end.is_some_and(|end| end <= self.now) {
                return;
            }
        }
    }

    fn collect(&mut self) {
        let (step, _) = self.running.pop_front().expect("a step has ended");
        let output = self.executor.collect(step);
        let known = self
            .scheduler
            .complete(self.now, step, output, &mut self.events);
        known.expect("it is in flight");
        for event in self.events.drain(..) {
            if let Event::Finished { request, .. } = event {
                self.answered.insert(request, self.now);
            }
        }
    }
}

/// What a run showed.
#[derive(Clone, Copy, Debug)]
struct Run {
    mean_ms: f64,
    short_ms: f64,
    long_ms: f64,
    p99_ms: f64,
    missed_percent: f64,
    busy_percent: f64,
}

fn run(options: Options, policy: PolicyConfig, device: Device, rate: f64, seed: u64) -> Run {
    let config = SchedulerConfig {
        policy,
        max_batch_tokens: options.step_tokens,
        max_queued_rows: u32::MAX,
        max_queued_tokens: u64::MAX,
        ..SchedulerConfig::default()
    };
    let mut world = World::new(config, device);
    let mut random = Random::new(seed);
    let histories: Vec<Vec<TokenId>> = (0..options.histories)
        .map(|_| {
            let tokens = random.exponential(1_500.0).clamp(16.0, 16_384.0);
            text(&mut random, tokens as u32)
        })
        .collect();
    for (id, history) in (0..).zip(&histories) {
        // Twice: what returns is worth its place.
        for again in 0..2 {
            let mut prompt = history.clone();
            prompt.push(again);
            world.submit(1_000_000 + 2 * id + u64::from(again), prompt);
        }
    }
    world.run(None);
    let (idle_until, busy_before) = (world.now, world.busy);
    let interval = Duration::from_secs_f64(1.0 / rate);
    let mut at = idle_until;
    let mut arrivals = Vec::new();
    for id in 0..REQUESTS {
        let turn = turn(&mut random, interval, options.histories);
        let own = text(&mut random, turn.tokens);
        let mut prompt = turn.history.map_or_else(Vec::new, |h| histories[h].clone());
        prompt.extend(own);
        at = at.saturating_add(turn.after);
        world.run(Some(at));
        world.submit(id as u64, prompt);
        arrivals.push((at, turn.tokens <= SHORT));
    }
    let length = at.saturating_since(idle_until);
    let busy = world.busy - busy_before;
    world.run(None);
    summarise(&world, &arrivals, busy.as_secs_f64() / length.as_secs_f64())
}

fn summarise(world: &World, arrivals: &[(Timestamp, bool)], busy: f64) -> Run {
    let waits = || {
        let counted = (0..).zip(arrivals).skip(WARM_UP);
        counted.map(|(id, &(arrival, is_short))| {
            let answered = world.answered[&RequestId(id)];
            (answered.saturating_since(arrival), is_short)
        })
    };
    let mean = |of: &dyn Fn(bool) -> bool| {
        let times = waits().filter(|&(_, is_short)| of(is_short));
        let times: Vec<f64> = times.map(|(wait, _)| wait.as_secs_f64() * 1e3).collect();
        times.iter().sum::<f64>() / times.len() as f64
    };
    let mut sorted: Vec<Duration> = waits().map(|(wait, _)| wait).collect();
    sorted.sort_unstable();
    let missed = sorted.iter().filter(|&&wait| wait > TARGET).count();
    Run {
        mean_ms: mean(&|_| true),
        short_ms: mean(&|is_short| is_short),
        long_ms: mean(&|is_short| !is_short),
        p99_ms: sorted[sorted.len() * 99 / 100].as_secs_f64() * 1e3,
        missed_percent: 100.0 * missed as f64 / sorted.len() as f64,
        busy_percent: 100.0 * busy,
    }
}

/// Five runs of each policy at one load.
struct Runs {
    rate: f64,
    fcfs: Vec<Run>,
    laps: Vec<Run>,
}

impl Runs {
    fn new(options: Options, device: Device, rate: f64) -> Self {
        let of = |policy| SEEDS.map(move |seed| run(options, policy, device, rate, seed));
        Self {
            rate,
            fcfs: of(PolicyConfig::Fcfs).collect(),
            laps: of(PolicyConfig::Laps).collect(),
        }
    }

    fn both(&self, of: fn(&Run) -> f64) -> String {
        let [fcfs, laps] = [&self.fcfs, &self.laps].map(|runs| Spread::of(runs.iter().map(of)));
        format!("{:.0} / {:.0}", fcfs.median, laps.median)
    }

    /// How much more there is under LAPS, in percent of what there is first come, first served:
    /// seed by seed.
    fn change(&self, of: fn(&Run) -> f64) -> Spread {
        let pairs = self.laps.iter().zip(&self.fcfs);
        Spread::of(pairs.map(|(laps, fcfs)| 100.0 * (of(laps) / of(fcfs) - 1.0)))
    }
}

/// Median, least and most.
#[derive(Clone, Copy, Debug)]
struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        Self {
            median: values[values.len() / 2],
            least: values[0],
            most: values[values.len() - 1],
        }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            median,
            least,
            most,
        } = self;
        write!(f, "{median:+.0} ({least:+.0} .. {most:+.0})")
    }
}

fn table(options: Options, device: Device) {
    let Options {
        step_tokens,
        histories,
    } = options;
    let (first, last) = (SEEDS.start, SEEDS.end - 1);
    println!(
        "\n{device:?} times, steps of {step_tokens} tokens, {histories} histories, {REQUESTS} \
         requests, seeds {first} to {last}, fcfs / laps\n"
    );
    println!(
        "| req/s | busy % | mean ms | short ms | long ms | p99 ms | missed % | mean, change in % | missed, change in % | long mean, change in % |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for rate in RATES {
        let runs = Runs::new(options, device, rate);
        println!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            runs.rate,
            runs.both(|run| run.busy_percent),
            runs.both(|run| run.mean_ms),
            runs.both(|run| run.short_ms),
            runs.both(|run| run.long_ms),
            runs.both(|run| run.p99_ms),
            runs.both(|run| run.missed_percent),
            runs.change(|run| run.mean_ms),
            runs.change(|run| run.missed_percent),
            runs.change(|run| run.long_ms),
        );
    }
}

fn main() {
    let numbers = std::env::args().skip(1).map(|n| n.parse());
    let numbers: Result<Vec<u32>, _> = numbers.collect();
    let numbers = numbers.expect("laps [TOKENS OF A STEP] [HISTORIES]");
    let options = Options {
        step_tokens: numbers.first().copied().unwrap_or(2_048),
        histories: numbers.get(1).copied().unwrap_or(32),
    };
    for device in [Device::Printed, Device::Monotone] {
        table(options, device);
    }
}
