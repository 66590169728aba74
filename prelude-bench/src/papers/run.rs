//! A simulation of a paper's figure: its keys, its workload, and what comes of it.

use std::ops::Range;

use anyhow::{Context as _, Result, ensure};
use prelude_core::Timestamp;
use prelude_measure::{random::Random, stats};
use prelude_sched::PolicyConfig;
use serde::Deserialize;

use super::{Bench, Progress};
use crate::sim::{
    Arrival, Baseline, Batching, EngineConfig, Experiment, Figures, Kind, Order, Preset, Prompt,
    Router, Run, Served, Setting, Source, Workload, run_baseline,
};

/// The keys of a simulation in a paper's file, after those of all axes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Keys {
    preset: Preset,
    engines: u16,
    /// `fcfs` by default, as the papers' engines.
    policy: Option<PolicyConfig>,
    /// Round robin by default.
    router: Option<Router>,
    step_tokens: Option<u32>,
    chunk_tokens: Option<u32>,
    kv_tokens: Option<u64>,
    /// False for an engine without a prefix cache.
    caching: Option<bool>,
    /// Milliseconds for which the policy `laps` lets short requests wait for others.
    window_ms: Option<u32>,
    max_wait_ms: Option<u32>,
    /// True for long one-shot prompts in slices, in place of chunks that hold blocks.
    slices: Option<bool>,
    slice_ms: Option<u32>,
    launch_ms: Option<f64>,
    /// Tokens by which a request's score falls with each second that it waits (`PrefillOnly`'s λ).
    score_tokens_per_s: Option<u32>,
    slow_first: Option<f64>,
    /// An engine without a scheduler ([`Baseline`]) in place of a real one.
    batching: Option<Batching>,
    #[serde(default)]
    keeps_kv: bool,
    #[serde(default)]
    reserved_tokens: u32,

    kind: Option<Kind>,
    order: Option<Order>,
    rate: Option<f64>,
    clients: Option<usize>,
    /// Requests of the whole figure; a share of them is run.
    requests: Option<u32>,
    /// The number of prefixes, of which a share is run.
    users: Option<u32>,
    prefixes: Option<u32>,
    /// Only first turns of conversations with at most so many tokens, which share nothing.
    first_turns: Option<u32>,
    /// Tokens of prompts that are all there from the beginning, in place of a kind of workload.
    prompts: Option<Vec<u32>>,
    example: Option<Example>,
    /// The number of seeds, in place of the command's.
    pub(super) seeds: Option<u64>,
    /// The request whose times are the figures `waits_ms` and `ends_ms`.
    request: Option<usize>,
}

/// Prompts of equal length that share their beginning, and how many tokens each generates.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Example {
    prompt: u32,
    shared: u32,
    outputs: [u32; 2],
}

/// A simulation with one seed.
pub(super) struct Outcome {
    figures: Figures,
    served: Served,
    request: Option<usize>,
}

type Figure = fn(&Outcome) -> f64;

/// Figures by their name in the papers' files.
const FIGURES: &[(&str, Figure)] = &[
    ("answers_per_s", |run| run.figures.answers_per_s()),
    ("mean_ms", |run| run.figures.latency.mean_ms),
    ("mean_s", |run| run.figures.latency.mean_ms / 1e3),
    ("p50_s", |run| run.figures.latency.p50_ms / 1e3),
    ("p99_s", |run| run.figures.latency.p99_ms / 1e3),
    ("first_mean_ms", |run| run.figures.first_token.mean_ms),
    ("first_p90_ms", |run| run.figures.first_token.p90_ms),
    ("first_p99_ms", |run| run.figures.first_token.p99_ms),
    ("short_ms", |run| run.figures.short_ms),
    ("long_ms", |run| run.figures.long_ms),
    ("missed_percent", |run| 100.0 * run.figures.missed),
    ("hits_percent", |run| 100.0 * run.figures.hit_rate),
    ("imbalance", |run| run.figures.imbalance),
    ("per_step", |run| {
        run.figures.requests as f64 / run.figures.steps as f64
    }),
    // By Little's law, the rate times the time from the first step to the end.
    ("at_once", |run| {
        let on_engine = run.figures.latency.mean_ms - run.figures.queue.mean_ms;
        run.figures.answers_per_s() * on_engine / 1e3
    }),
    ("waits_ms", |run| run.of_request(|r| r.queue)),
    ("ends_ms", |run| run.of_request(|r| r.latency)),
];

impl Outcome {
    /// Returns the figure of this name over all seeds, or `None` if no figure has it: its median,
    /// NaN if a request fits no engine, whose time is in no figure.
    pub(super) fn over_seeds(runs: &[Self], name: &str) -> Option<f64> {
        let (_, figure) = FIGURES.iter().find(|(known, _)| *known == name)?;
        let all_fit = runs.iter().all(|run| run.figures.refused == 0);
        let values: Vec<f64> = runs.iter().map(figure).collect();
        Some(if all_fit {
            stats::median(&values)
        } else {
            f64::NAN
        })
    }

    /// Returns the latencies of all requests in seconds, each with the share of requests that are
    /// answered within it.
    pub(super) fn shares(&self) -> Vec<(f64, f64)> {
        let mut seconds: Vec<f64> = { self.served.records.iter() }
            .map(|record| record.latency.as_secs_f64())
            .collect();
        seconds.sort_by(f64::total_cmp);
        let share = |n: usize| (n + 1) as f64 / seconds.len() as f64;
        { seconds.iter().enumerate() }
            .map(|(n, s)| (*s, share(n)))
            .collect()
    }

    fn of_request(&self, time: fn(&crate::sim::Record) -> std::time::Duration) -> f64 {
        let mut records = self.served.records.iter();
        let record = records.find(|record| Some(record.request) == self.request);
        record.map_or(f64::NAN, |record| 1e3 * time(record).as_secs_f64())
    }
}

impl Keys {
    /// Runs the simulation with each seed.
    pub(super) fn run(&self, bench: &Bench<'_>) -> Result<Vec<Outcome>> {
        let Range { start, end } = bench.seeds;
        let seeds = start..self.seeds.map_or(end, |seeds| start + seeds);
        seeds.map(|seed| self.once(bench, seed)).collect()
    }

    fn once(&self, bench: &Bench<'_>, seed: u64) -> Result<Outcome> {
        let (seed, workload) = self.workload(bench, seed)?;
        let config = self.config();
        let block_size = config.block_size;
        let served = if let Some(batching) = self.batching {
            (bench.progress)(Progress::Run(workload.arrivals.len()));
            let baseline = Baseline {
                preset: self.preset,
                keeps_kv: self.keeps_kv,
                batching,
                kv_tokens: config.kv_tokens,
                reserved_tokens: self.reserved_tokens,
            };
            run_baseline(&workload, baseline, || {
                (bench.progress)(Progress::Request);
            })?
        } else {
            let experiment = Experiment {
                source: Source::Trace(workload.clone()),
                engines: self.engines.into(),
                config,
                router: self.router.unwrap_or(Router::RoundRobin),
                policy: "",
                time_error: 0.0,
            };
            experiment.serve(seed, &workload, |step| (bench.progress)(Progress::of(step)))?
        };
        Ok(Outcome {
            figures: Figures::new(seed, &workload, &served, block_size),
            served,
            request: self.request,
        })
    }

    fn config(&self) -> EngineConfig {
        fn set<T>(to: &mut T, key: Option<T>) {
            if let Some(value) = key {
                *to = value;
            }
        }
        let mut config = EngineConfig::new(self.preset, self.policy.unwrap_or(PolicyConfig::Fcfs));
        if let Some(tokens) = self.step_tokens {
            config = config.with_step_tokens(tokens);
        }
        if let Some(window_ms) = self.window_ms {
            config.scheduler.laps.max_window_us = window_ms * 1_000;
            config.scheduler.laps.batch_tokens = config.step_tokens;
        }
        let scheduler = &mut config.scheduler;
        set(&mut scheduler.prefill_chunk_tokens, self.chunk_tokens);
        set(&mut scheduler.max_wait_ms, self.max_wait_ms);
        let score = &mut scheduler.srjf_tokens_per_second;
        set(score, self.score_tokens_per_s);
        set(&mut scheduler.enable_prefix_caching, self.caching);
        set(&mut config.kv_tokens, self.kv_tokens);
        set(&mut config.slow_first, self.slow_first);
        config.scheduler.slice_ms = self.slice_ms;
        set(&mut config.slices, self.slices);
        set(&mut config.launch_ms, self.launch_ms);
        config
    }

    /// Makes the workload, with the seed that its router gets.
    fn workload(&self, bench: &Bench<'_>, seed: u64) -> Result<(Option<u64>, Workload)> {
        if let Some(prompts) = &self.prompts {
            let arrivals = (0..).zip(prompts);
            let arrivals = arrivals.map(|(stream, &len)| request([own(stream, len)], 1));
            return Ok((None, Workload::new("prompts", arrivals.collect())));
        }
        let requests = self.requests.map(|all| bench.count(all));
        if let Some(example) = &self.example {
            let requests = requests.context("an example needs the key `requests`")?;
            let clients = self.clients.context("an example needs the key `clients`")?;
            let workload = Workload::new("example", example.arrivals(seed, requests));
            return Ok((None, workload.in_closed_loop(clients)));
        }
        let kind = self.kind.context("a workload needs the key `kind`")?;
        let is_whole = self.first_turns.is_none();
        let setting = Setting {
            engines: self.engines.into(),
            rate: self.rate,
            requests,
            prefixes: self.users.map(|all| bench.count(all)).or(self.prefixes),
            order: self.order.unwrap_or(Order::Shuffled),
            clients: self.clients.filter(|_| is_whole),
            seed,
            ..Setting::default()
        };
        let mut workload = kind.generate(&setting)?;
        let Some(longest) = self.first_turns else {
            return Ok((Some(seed), workload));
        };
        workload
            .arrivals
            .retain(|a| a.prompt.runs().len() == 1 && a.prompt.len() <= longest);
        workload.warm_up = 0;
        let clients = self.clients.context("first turns need the key `clients`")?;
        Ok((None, workload.in_closed_loop(clients)))
    }

    /// Checks what the types of the keys do not say.
    pub(super) fn check(&self) -> Result<()> {
        ensure!(
            self.kind.is_some() || self.prompts.is_some() || self.example.is_some(),
            "a simulation needs one of the keys `kind`, `prompts` and `example`"
        );
        Ok(())
    }
}

impl Example {
    fn arrivals(&self, seed: u64, requests: u32) -> Vec<Arrival> {
        let mut random = Random::far(seed);
        let [least, most] = self.outputs;
        let arrivals = (1..=requests).map(|stream| {
            let outputs = least + random.below((most - least + 1) as usize) as u32;
            let own = own(stream.into(), self.prompt - self.shared);
            let shared = Run {
                stream: 0,
                start: 0,
                len: self.shared,
            };
            request([shared, own], outputs)
        });
        arrivals.collect()
    }
}

const fn own(stream: u64, len: u32) -> Run {
    Run {
        stream,
        start: 0,
        len,
    }
}

/// Returns a request that is there from the beginning.
fn request(runs: impl IntoIterator<Item = Run>, output_tokens: u32) -> Arrival {
    Arrival {
        at: Timestamp::ZERO,
        prompt: Prompt::new(runs),
        output_tokens,
        key: 0,
        user: 0,
        root: 0,
    }
}
