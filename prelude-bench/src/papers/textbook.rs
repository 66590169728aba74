//! The textbook's chapter 16: prompts in chunks, and what each technique brings.

mod techniques;

use anyhow::Result;
use prelude_core::Timestamp;
use prelude_sched::PolicyConfig;

use super::{
    Bench, Make, Paper, Progress, Runs,
    page::{Section, Table},
    plot::{Axis, Curve, Plot},
    printed::{Claim, number},
};
use crate::sim::{
    Arrival, EngineConfig, Experiment, Figures, Kind, Preset, Prompt, Router, Run, Setting, Source,
    Workload,
};

pub(super) const SECTIONS: &[Make] = &[
    ("timeline of chunks", timeline),
    ("sizes of chunks", chunks),
    ("what each technique brings", techniques::techniques),
];

const PRESET: Preset = Preset::Mistral7bA6000;

fn experiment(source: Source, config: EngineConfig) -> Experiment {
    Experiment {
        source,
        engines: 1,
        config,
        router: Router::RoundRobin,
        policy: "",
        time_error: 0.0,
    }
}

/// Returns an engine with steps of so many tokens, and prompts in chunks of so many.
fn engine(policy: PolicyConfig, step_tokens: u32, chunk_tokens: u32) -> EngineConfig {
    let mut config = EngineConfig::new(PRESET, policy).with_step_tokens(step_tokens);
    config.scheduler.prefill_chunk_tokens = chunk_tokens;
    config
}

/// Returns a request without shared tokens, there from the beginning.
fn request(stream: u64, prompt: u32, output_tokens: u32) -> Arrival {
    let run = |stream, len| Run {
        stream,
        start: 0,
        len,
    };
    Arrival {
        at: Timestamp::ZERO,
        prompt: Prompt::new([run(stream, prompt)]),
        output_tokens,
        key: 0,
        user: 0,
        root: 0,
    }
}

/// Tokens of the prompts of §16.5.4, the long one first, and of a chunk there.
const PROMPTS: [u32; 3] = [2_000, 50, 70];
const CHUNK: u32 = 256;

/// Returns how long each prompt waits and how long it takes to its end, in ms: computed whole, and in
/// turns.
fn timeline_waits(bench: &Bench<'_>) -> Result<Vec<Vec<[f64; 2]>>> {
    let whole = engine(PolicyConfig::Fcfs, PROMPTS[0], PROMPTS[0]);
    let turns = engine(PolicyConfig::RoundRobin, CHUNK, CHUNK);
    let prompts = (0..).zip(PROMPTS);
    let arrivals = prompts
        .map(|(stream, len)| request(stream, len, 1))
        .collect();
    let workload = Workload::new("timeline", arrivals);
    let mut waits = Vec::new();
    for config in [whole, turns] {
        let experiment = experiment(Source::Trace(workload.clone()), config);
        let progress = |step| (bench.progress)(Progress::of(step));
        let mut served = experiment.serve(None, &workload, progress)?;
        served.records.sort_by_key(|record| record.request);
        let ms = |record: &crate::sim::Record| {
            [record.queue, record.latency].map(|time| 1e3 * time.as_secs_f64())
        };
        waits.push(served.records.iter().map(ms).collect::<Vec<_>>());
    }
    Ok(waits)
}

/// Simulates §16.5.4: a long prompt before two short ones.
fn timeline(bench: &Bench<'_>) -> Result<Section> {
    let waits = timeline_waits(bench)?;
    let rows = PROMPTS.iter().enumerate().map(|(n, len)| {
        let times = [waits[0][n], waits[1][n]].concat();
        std::iter::once(len.to_string())
            .chain(times.into_iter().map(number))
            .collect()
    });
    let shorter = (1..PROMPTS.len()).map(|n| waits[0][n][0] / waits[1][n][0]);
    let heads = [
        "prompt",
        "whole: waits, ms",
        "ends, ms",
        "in turns: waits, ms",
        "ends, ms",
    ];
    let printed = bench
        .printed
        .of(Paper::Textbook, "wait of short requests, FCFS over chunks")?;
    Ok(Section {
        title: "§16.5.4: a long prompt before two short ones".to_owned(),
        setting: format!(
            "One engine of the preset {}; whole prompts first come, first served, and chunks of \
             {CHUNK} tokens in turns (`round-robin`), one chunk a step.",
            PRESET.name()
        ),
        tables: vec![Table {
            caption: "From arrival, by prompt:".to_owned(),
            head: heads.map(str::to_owned).to_vec(),
            rows: rows.collect(),
        }],
        claims: vec![Claim::new(
            printed,
            shorter,
            "the book's times follow tokens alone; on a device a small step takes nearly as long \
             as one of a chunk, since it reads all weights",
        )],
        plots: Vec::new(),
    })
}

const CHUNKS: [u32; 4] = [128, 256, 512, 2_048];
/// Tokens of a step, in chunks: as in §16.5.3.
const CHUNKS_PER_STEP: u32 = 2;
/// Tokens of a step that computes any of the prompts whole.
const WHOLE: u32 = 65_536;
/// Requests per second, for waits, and clients of a closed loop, for throughput.
const RATE: f64 = 10.0;
const CLIENTS: usize = 16;

/// Returns the ways to compute prompts that are compared, whole prompts first, then each policy with
/// each size of chunks.
fn chunk_ways() -> Vec<(String, EngineConfig)> {
    let mut ways = vec![(
        "whole prompts, fcfs".to_owned(),
        engine(PolicyConfig::Fcfs, WHOLE, WHOLE),
    )];
    for (name, policy) in [
        ("fcfs", PolicyConfig::Fcfs),
        ("round-robin", PolicyConfig::RoundRobin),
    ] {
        for chunk in CHUNKS {
            let config = engine(policy, CHUNKS_PER_STEP * chunk, chunk);
            ways.push((format!("chunks of {chunk}, {name}"), config));
        }
    }
    ways
}

/// Simulates §16.5.2: chunk sizes, first come, first served against turns.
fn chunks(bench: &Bench<'_>) -> Result<Section> {
    let run = |config: &EngineConfig, clients: Option<usize>| -> Result<Runs> {
        let setting = Setting {
            engines: 1,
            rate: Some(RATE),
            clients,
            requests: Some(bench.count(3_000)),
            seed: 1,
            ..Setting::default()
        };
        let source = Source::Seeded {
            kind: Kind::Conversation,
            setting,
            seeds: 1,
        };
        bench.run(experiment(source, config.clone()))
    };
    let ways = chunk_ways();
    let (mut rows, mut rates) = (Vec::new(), Vec::new());
    let mut curves = ["fcfs", "round-robin"].map(|name| Curve {
        name: name.to_owned(),
        points: Vec::new(),
    });
    for (n, (name, config)) in ways.iter().enumerate() {
        let open = run(config, None)?;
        let rate = run(config, Some(CLIENTS))?.median(Figures::answers_per_s);
        let short = open.median(|f| f.short_ms);
        let figures = [
            short,
            open.median(|f| f.long_ms),
            open.median(|f| f.first_token.p99_ms),
            rate,
        ];
        rates.push(rate);
        if let Some(n) = n.checked_sub(1) {
            let chunk = f64::from(CHUNKS[n % CHUNKS.len()]);
            curves[n / CHUNKS.len()].points.push((chunk, short));
        }
        let cells = figures.map(number);
        rows.push(std::iter::once(name.clone()).chain(cells).collect());
    }
    let slower = rates[1..].iter().map(|rate| rate / rates[0]);
    let printed = bench
        .printed
        .of(Paper::Textbook, "throughput in chunks, of whole prompts")?;
    let heads = [
        "",
        "short: mean, ms",
        "long: mean, ms",
        "P99, ms",
        "answers per second",
    ];
    Ok(Section {
        title: "§16.5.2: sizes of chunks, first come, first served and in turns".to_owned(),
        setting: format!(
            "One engine of the preset {}, conversations; {CHUNKS_PER_STEP} chunks a step.\n\
             Times to the first token at {RATE} requests per second; answers per second of a \
             closed loop of {CLIENTS} clients.",
            PRESET.name()
        ),
        tables: vec![Table {
            caption: "By size and policy:".to_owned(),
            head: heads.map(str::to_owned).to_vec(),
            rows,
        }],
        claims: vec![Claim::new(
            printed,
            slower,
            "steps of few tokens read the weights as often as steps of many, which the book's \
             10 % do not count",
        )],
        plots: vec![Plot {
            name: "textbook-chunks".to_owned(),
            title: "time to the first token of short requests, by the size of chunks".to_owned(),
            x: Axis::Log("tokens of a chunk"),
            y: Axis::Log("ms"),
            curves: curves.into(),
        }],
    })
}
