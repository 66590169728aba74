//! The gain of each technique of a serving engine (§16.7.4).

use anyhow::Result;
use prelude_sched::PolicyConfig;

use super::{
    super::{
        Bench, Paper, Progress, Runs,
        page::{Section, Table},
        printed::{Claim, number},
    },
    PRESET, WHOLE, experiment, request,
};
use crate::{
    random::Random,
    sim::{Baseline, Batching, EngineConfig, Figures, Prompt, Run, Source, Workload, run_baseline},
};

/// The example of §16.7.4, and one of ten times its lengths whose outputs differ: prompt tokens,
/// shared ones of them, and the range of generated tokens.
struct Example {
    name: &'static str,
    prompt: u32,
    shared: u32,
    outputs: std::ops::RangeInclusive<u32>,
}

const EXAMPLES: [Example; 2] = [
    Example {
        name: "the book's",
        prompt: 100,
        shared: 60,
        outputs: 20..=20,
    },
    Example {
        name: "ten times as long, outputs of 2 to 398 tokens",
        prompt: 1_000,
        shared: 600,
        outputs: 2..=398,
    },
];
/// Clients of the closed loop, and requests of a run.
const CONCURRENT: usize = 32;
const REQUESTS: u32 = 640;
/// The memory, and the tokens that are reserved for each request without paging: the longest context
/// of the engine.
const KV_TOKENS: u64 = 16_384;
const RESERVED_TOKENS: u32 = 4_096;

impl Example {
    fn workload(&self, seed: u64, requests: u32) -> Workload {
        let mut random = Random::far(seed);
        let (least, most) = (*self.outputs.start(), *self.outputs.end());
        let arrivals = (0..requests).map(|n| {
            let outputs = least + random.below((most - least + 1) as usize) as u32;
            let own = self.prompt - self.shared;
            let mut arrival = request(u64::from(n) + 1, own, outputs);
            let mut runs = vec![Run {
                stream: 0,
                start: 0,
                len: self.shared,
            }];
            runs.extend_from_slice(arrival.prompt.runs());
            arrival.prompt = Prompt::new(runs);
            arrival
        });
        Workload::new(self.name, arrivals.collect()).in_closed_loop(CONCURRENT)
    }
}

/// A row of the ablation: each adds one technique to the one before.
enum Way {
    Without(Baseline),
    Real(Box<EngineConfig>),
}

fn ways() -> Vec<(&'static str, Way)> {
    let none = Baseline {
        preset: PRESET,
        keeps_kv: false,
        batching: Batching::One,
        kv_tokens: KV_TOKENS,
        reserved_tokens: RESERVED_TOKENS,
    };
    let kv = Baseline {
        keeps_kv: true,
        ..none
    };
    let with = |batching| Baseline { batching, ..kv };
    let real = |step_tokens, caching| {
        let mut config =
            EngineConfig::new(PRESET, PolicyConfig::Fcfs).with_step_tokens(step_tokens);
        config.kv_tokens = KV_TOKENS;
        config.scheduler.enable_prefix_caching = caching;
        Way::Real(Box::new(config))
    };
    vec![
        ("nothing: one request at a time", Way::Without(none)),
        ("+ KV cache", Way::Without(kv)),
        ("+ batches, static", Way::Without(with(Batching::Static))),
        (
            "+ continuous batching",
            Way::Without(with(Batching::Continuous)),
        ),
        ("+ paged memory", real(WHOLE, false)),
        ("+ prefix cache", real(WHOLE, true)),
        ("+ chunks of 512", real(512, true)),
    ]
}

impl Way {
    fn run(&self, bench: &Bench<'_>, example: &Example) -> Result<Runs> {
        let mut runs = Vec::new();
        for seed in 1..=bench.seeds {
            let workload = example.workload(seed, bench.count(REQUESTS));
            match self {
                Self::Real(config) => {
                    let source = Source::Trace(workload);
                    runs.extend(bench.run(experiment(source, config.as_ref().clone()))?.0);
                }
                Self::Without(baseline) => {
                    (bench.progress)(Progress::Run(workload.arrivals.len()));
                    let done = || (bench.progress)(Progress::Request);
                    let served = run_baseline(&workload, *baseline, done)?;
                    runs.push(Figures::new(Some(seed), &workload, &served, 16));
                }
            }
        }
        Ok(Runs(runs))
    }
}

/// Returns the mean number of requests that are on the engine at once: by Little's law, the rate
/// times the time from the first step to the end.
fn at_once(f: &Figures) -> f64 {
    f.answers_per_s() * (f.latency.mean_ms - f.queue.mean_ms) / 1e3
}

/// Compares the gains of the techniques with the book's, by answers per second and by requests that
/// are on the engine at once, each by example and way.
fn technique_claims(
    bench: &Bench<'_>,
    rates: &[Vec<f64>],
    together: &[Vec<f64>],
) -> Result<Vec<Claim>> {
    let over = |n: usize| rates.iter().map(move |of| of[n] / of[n - 1]);
    let weights = "a step reads all weights, however few tokens it computes, so at these lengths \
                   a technique that saves tokens saves little time";
    let claim = |what: &str, ours: Vec<f64>, why| -> Result<Claim> {
        Ok(Claim::new(
            bench.printed.of(Paper::Textbook, what)?,
            ours,
            why,
        ))
    };
    Ok(vec![
        claim("KV cache", over(1).collect(), weights)?,
        claim(
            "continuous batching",
            over(3).collect(),
            "outputs of equal length end together, and the slots are few: most of the gain \
                 comes with the memory that paging frees",
        )?,
        claim(
            "paged memory, sequences at once",
            together.iter().map(|of| of[4] / of[3]).collect(),
            "there are no more clients",
        )?,
        claim("radix cache", over(5).collect(), weights)?,
        claim(
            "all together",
            rates.iter().map(|of| of[5] / of[0]).collect(),
            "the factors of the techniques do not multiply where they save the same time",
        )?,
    ])
}

/// Simulates §16.7.4: what each technique brings.
pub(super) fn techniques(bench: &Bench<'_>) -> Result<Section> {
    let mut tables = Vec::new();
    // Rates and requests at once, by example and way.
    let mut rates: Vec<Vec<f64>> = Vec::new();
    let mut together: Vec<Vec<f64>> = Vec::new();
    for example in &EXAMPLES {
        let mut rows: Vec<Vec<String>> = Vec::new();
        let (mut of_example, mut sequences) = (Vec::new(), Vec::new());
        for (name, way) in ways() {
            let runs = way.run(bench, example)?;
            let rate = runs.median(Figures::answers_per_s);
            let before = of_example.last().copied().unwrap_or(rate);
            of_example.push(rate);
            sequences.push(runs.median(at_once));
            let figures = [
                rate,
                rate / before,
                rate / of_example[0],
                runs.median(at_once),
                runs.median(|f| f.latency.mean_ms / 1e3),
                runs.median(|f| f.latency.p99_ms / 1e3),
            ];
            let cells = figures.map(number);
            rows.push(std::iter::once(name.to_owned()).chain(cells).collect());
        }
        let heads = [
            "",
            "answers per second",
            "of the row before",
            "of the first",
            "at once",
            "mean, s",
            "P99, s",
        ];
        tables.push(Table {
            caption: format!(
                "{}: {} tokens, {} of them shared:",
                example.name, example.prompt, example.shared
            ),
            head: heads.map(str::to_owned).to_vec(),
            rows,
        });
        rates.push(of_example);
        together.push(sequences);
    }
    Ok(Section {
        title: "§16.7.4: what each technique brings".to_owned(),
        setting: format!(
            "One engine of the preset {}, closed loop of {CONCURRENT} clients, memory for \
             {KV_TOKENS} tokens; without paging {RESERVED_TOKENS} are reserved for each request.\n\
             The first four rows are a model of an engine that exists for this table alone; from \
             paged memory on it is the server's scheduler.",
            PRESET.name()
        ),
        tables,
        claims: technique_claims(bench, &rates, &together)?,
        plots: Vec::new(),
    })
}
