//! `PrefillOnly` (Du et al., SOSP 2025): long prompts with one output token.

use anyhow::Result;
use prelude_sched::PolicyConfig;

use super::{
    Bench, Make, Paper, Progress, Runs,
    page::{Section, Table},
    plot::{Axis, Curve, Plot},
    printed::{Claim, number},
};
use crate::sim::{EngineConfig, Experiment, Figures, Kind, Order, Preset, Router, Setting, Source};

pub(super) const SECTIONS: &[Make] = &[
    ("posts, a user's at once", |bench| {
        posts(bench, Order::Grouped)
    }),
    ("posts, users mixed", |bench| posts(bench, Order::Shuffled)),
    ("credit histories", credit),
    ("fairness", fairness),
];

/// Engines of the paper, each with one device.
const ENGINES: usize = 2;
/// Requests per second of requests that come all at once.
const AT_ONCE: f64 = 1e6;
/// Parts of the all-at-once rate, as in §7.2.
const RATES: [f64; 6] = [0.25, 0.5, 1.0, 2.0, 3.0, 4.0];
/// Tokens of a step that computes any prompt of the workloads whole.
const WHOLE: u32 = 65_536;

/// A way to serve: the paper's system or a baseline.
struct System {
    name: &'static str,
    step_tokens: u32,
    policy: PolicyConfig,
    /// The bound on waiting that overrules the policy.
    max_wait_ms: u32,
}

const SYSTEMS: [System; 4] = [
    System {
        name: "fcfs, chunks",
        step_tokens: 512,
        policy: PolicyConfig::Fcfs,
        max_wait_ms: 0,
    },
    System {
        name: "fcfs, whole prompts",
        step_tokens: WHOLE,
        policy: PolicyConfig::Fcfs,
        max_wait_ms: 0,
    },
    System {
        name: "srjf, whole prompts",
        step_tokens: WHOLE,
        policy: PolicyConfig::Srjf,
        max_wait_ms: 0,
    },
    System {
        name: "the same, 30 s of waiting at most",
        step_tokens: WHOLE,
        policy: PolicyConfig::Srjf,
        max_wait_ms: 30_000,
    },
];
/// The index of the paper's system, which has no bound on waiting but its score.
const PREFILL_ONLY: usize = 2;

/// Returns the memory of an engine: what chunked prefill holds of one prompt on the paper's
/// smallest device, which is the one nearest to the model of the time preset.
fn kv_tokens(bench: &Bench<'_>) -> Result<u64> {
    let what = "longest input of chunked prefill, L4, tokens";
    Ok(bench.printed.of(Paper::PrefillOnly, what)?.low as u64)
}

fn experiment(bench: &Bench<'_>, kind: Kind, order: Order, system: &System) -> Result<Experiment> {
    let mut config = EngineConfig::new(Preset::Mistral7bA6000, system.policy)
        .with_step_tokens(system.step_tokens);
    config.kv_tokens = kv_tokens(bench)?;
    config.scheduler.max_wait_ms = system.max_wait_ms;
    let users = if kind == Kind::Posts { 20 } else { 60 };
    Ok(Experiment {
        source: Source::Seeded {
            kind,
            setting: Setting {
                prefixes: Some(bench.count(users)),
                order,
                seed: 1,
                ..Setting::default()
            },
            seeds: 1,
        },
        engines: ENGINES,
        config,
        router: Router::UserSticky,
        policy: system.name,
        time_error: 0.0,
    })
}

fn at_rate(mut experiment: Experiment, rate: f64) -> Experiment {
    if let Source::Seeded { setting, .. } = &mut experiment.source {
        setting.rate = Some(rate);
    }
    experiment
}

/// Returns the all-at-once rate: answers per second when all requests come together.
fn all_at_once(bench: &Bench<'_>, kind: Kind, order: Order) -> Result<f64> {
    let experiment = experiment(bench, kind, order, &SYSTEMS[PREFILL_ONLY])?;
    let runs = bench.run(at_rate(experiment, AT_ONCE))?;
    Ok(runs.median(Figures::answers_per_s))
}

fn posts(bench: &Bench<'_>, order: Order) -> Result<Section> {
    let (name, arrivals) = match order {
        Order::Grouped => ("a user's at once", "users arrive as a Poisson process"),
        _ => ("users mixed", "requests arrive as a Poisson process"),
    };
    let title = format!("Figures 6, 7 and 9: post recommendation, {name}");
    sweep(bench, Kind::Posts, order, title, arrivals)
}

fn credit(bench: &Bench<'_>) -> Result<Section> {
    let title = "Figures 6, 7 and 8: credit verification".to_owned();
    let arrivals = "requests arrive as a Poisson process";
    sweep(bench, Kind::Credit, Order::Shuffled, title, arrivals)
}

/// A quantity of a sweep: the caption of its table, and how it is computed.
struct Quantity {
    caption: &'static str,
    figure: fn(&Figures) -> f64,
}

const MEAN: Quantity = Quantity {
    caption: "mean latency, s",
    figure: |f| f.latency.mean_ms / 1e3,
};
const P99: Quantity = Quantity {
    caption: "P99 latency, s",
    figure: |f| f.latency.p99_ms / 1e3,
};
const ANSWERS: Quantity = Quantity {
    caption: "answers per second",
    figure: Figures::answers_per_s,
};
const HITS: Quantity = Quantity {
    caption: "token hit rate, %",
    figure: |f| 100.0 * f.hit_rate,
};

/// Runs all systems at all rates.
fn sweep(
    bench: &Bench<'_>,
    kind: Kind,
    order: Order,
    title: String,
    arrivals: &str,
) -> Result<Section> {
    let base = all_at_once(bench, kind, order)?;
    let mut runs: Vec<Vec<Runs>> = Vec::new();
    for rate in RATES {
        let of_rate = SYSTEMS.iter().map(|system| {
            let experiment = experiment(bench, kind, order, system)?;
            bench.run(at_rate(experiment, rate * base))
        });
        runs.push(of_rate.collect::<Result<_>>()?);
    }
    let table = |quantity: &Quantity| rate_table(quantity, &runs, base);
    let plot = |quantity: &Quantity, figure: &str, y: Axis| Plot {
        name: format!("prefill-only-{figure}-{}-{}", kind.name(), order.name()),
        title: format!("{}, {} ({})", quantity.caption, kind.name(), order.name()),
        x: Axis::Linear("requests per second"),
        y,
        curves: SYSTEMS
            .iter()
            .enumerate()
            .map(|(n, system)| Curve {
                name: system.name.to_owned(),
                points: { RATES.iter().zip(&runs) }
                    .map(|(rate, runs)| (rate * base, runs[n].median_if_all_fit(quantity.figure)))
                    .collect(),
            })
            .collect(),
    };
    let claims = match kind {
        Kind::Posts => vec![gain(bench, &runs)?],
        // The paper compares with parallelism here.
        _ => Vec::new(),
    };
    Ok(Section {
        title,
        setting: format!(
            "{ENGINES} engines of the preset mistral-7b-a6000, each with room for {} tokens \
             (the paper's Table 2, chunked prefill on an L4); each user has one engine; \
             {arrivals}.\n\
             1 x is what `srjf` answers when all requests come at once, {} per second; the server's \
             default has the bound of the last column, which the paper lacks.\n\
             Chunks hold the K/V of all layers of a prompt, a whole prompt none; requests of one \
             step share what they have in common, which is no hit.\n\
             Tensor and pipeline parallelism are not simulated: an engine is one device.",
            kv_tokens(bench)?,
            number(base)
        ),
        tables: [MEAN, P99, ANSWERS, HITS].iter().map(table).collect(),
        claims,
        plots: vec![
            plot(&MEAN, "figure-6", Axis::Log("mean latency, s")),
            plot(&P99, "figure-7", Axis::Log("P99 latency, s")),
            plot(
                &ANSWERS,
                if kind == Kind::Posts {
                    "figure-9"
                } else {
                    "figure-8"
                },
                Axis::Linear("answers per second"),
            ),
        ],
    })
}

/// Returns the table of a quantity: a row for each rate, a column for each system.
fn rate_table(quantity: &Quantity, runs: &[Vec<Runs>], base: f64) -> Table {
    Table {
        caption: format!("{}:", quantity.caption),
        head: std::iter::once("rate")
            .chain(SYSTEMS.iter().map(|system| system.name))
            .map(str::to_owned)
            .collect(),
        rows: RATES
            .iter()
            .zip(runs)
            .map(|(rate, runs)| {
                let cell = |runs: &Runs| match runs.median_if_all_fit(quantity.figure) {
                    fits if fits.is_finite() => number(fits),
                    _ => "does not fit".to_owned(),
                };
                let rate = format!("{rate} x, {}/s", number(rate * base));
                std::iter::once(rate).chain(runs.iter().map(cell)).collect()
            })
            .collect(),
    }
}

/// Compares answers per second with the best baseline's, at rates that saturate the engines.
fn gain(bench: &Bench<'_>, runs: &[Vec<Runs>]) -> Result<Claim> {
    let what = "queries per second sustained, over a baseline's, at most";
    let printed = bench.printed.of(Paper::PrefillOnly, what)?;
    let gains = runs.iter().zip(RATES).filter(|(_, rate)| *rate >= 1.0);
    let gains = gains.map(|(runs, _)| {
        let of = |system: usize| runs[system].median(Figures::answers_per_s);
        of(PREFILL_ONLY) / of(0).max(of(1))
    });
    Ok(Claim::new(
        printed,
        gains,
        "the paper's baselines also lose memory, or time between devices; here they differ by the \
         order of requests alone, and share within a step",
    ))
}

/// Tokens by which a request's score falls with each second that it waits (the paper's λ).
const FAIRNESS: [u32; 5] = [1, 100, 500, 2_000, 10_000];

/// Simulates figure 11: latencies under different λ, at the all-at-once rate.
fn fairness(bench: &Bench<'_>) -> Result<Section> {
    let (kind, order) = (Kind::Posts, Order::Shuffled);
    let rate = all_at_once(bench, kind, order)?;
    let (mut rows, mut curves, mut tails) = (Vec::new(), Vec::new(), Vec::new());
    for lambda in FAIRNESS {
        let mut experiment = at_rate(
            experiment(bench, kind, order, &SYSTEMS[PREFILL_ONLY])?,
            rate,
        );
        experiment.config.scheduler.srjf_tokens_per_second = lambda;
        let Source::Seeded { setting, .. } = &experiment.source else {
            unreachable!("it is made here");
        };
        let workload = kind.generate(setting)?;
        let seed = Some(setting.seed);
        let served =
            experiment.serve(seed, &workload, |step| (bench.progress)(Progress::of(step)))?;
        let mut seconds: Vec<f64> = { served.records.iter() }
            .map(|record| record.latency.as_secs_f64())
            .collect();
        seconds.sort_by(f64::total_cmp);
        let share = |n: usize| (n + 1) as f64 / seconds.len() as f64;
        curves.push(Curve {
            name: format!("λ = {lambda}"),
            points: { seconds.iter().enumerate() }
                .map(|(n, s)| (*s, share(n)))
                .collect(),
        });
        let runs = Runs(vec![Figures::new(
            seed,
            &workload,
            &served,
            experiment.config.block_size,
        )]);
        let (mean, p99) = (runs.median(MEAN.figure), runs.median(P99.figure));
        tails.push(p99);
        let p50 = runs.median(|f| f.latency.p50_ms / 1e3);
        let hits = runs.median(HITS.figure);
        let cells = [mean, p50, p99, hits].map(number);
        rows.push(std::iter::once(lambda.to_string()).chain(cells).collect());
    }
    let heads = [
        "λ, tokens per second",
        "mean, s",
        "P50, s",
        "P99, s",
        "hits, %",
    ];
    Ok(Section {
        title: "Figure 11: the fairness parameter λ".to_owned(),
        setting: format!(
            "Posts with users mixed, at 1 x the all-at-once rate ({}/s), seed 1; the paper's \
             default, 500, is ours (`srjf_tokens_per_second`).\n\
             The paper says that a higher λ shortens P99 and lengthens the mean.\n\
             Here a high λ lengthens P99 too: requests that go for their age push cached profiles \
             out, as far as more users wait than the caches have room for.",
            number(rate)
        ),
        tables: vec![Table {
            caption: "Latency by λ:".to_owned(),
            head: heads.map(str::to_owned).to_vec(),
            rows,
        }],
        claims: Vec::new(),
        plots: vec![Plot {
            name: "prefill-only-figure-11".to_owned(),
            title: "share of requests answered within a time".to_owned(),
            x: Axis::Log("s"),
            y: Axis::Linear("share"),
            curves,
        }],
    })
}
