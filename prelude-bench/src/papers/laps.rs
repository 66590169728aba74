//! LAPS: short prompts apart from long ones, on one engine (temporal mode) and in two pools of
//! engines (spatial mode).

use anyhow::Result;
use prelude_sched::PolicyConfig;

use super::{
    Bench, Make, Paper, Runs,
    page::{Section, Table},
    plot::{Axis, Curve, Plot},
    printed::{Claim, number},
};
use crate::sim::{
    EngineConfig, Experiment, Figures, Kind, Preset, Router, SHORT_TOKENS, Setting, Source,
};

pub(super) const SECTIONS: &[Make] = &[
    ("waiting windows", windows),
    ("concurrency", concurrency),
    ("missed targets", missed),
    ("missed targets of eight engines", missed_of_eight),
    ("eight engines in a closed loop", closed_loop_of_eight),
];

/// Requests of a run.
const REQUESTS: u32 = 3_000;
/// Tokens of a step: all short requests of a closed loop fit.
const STEP_TOKENS: u32 = 2_048;
const POLICIES: [(&str, PolicyConfig); 2] =
    [("fcfs", PolicyConfig::Fcfs), ("laps", PolicyConfig::Laps)];

fn experiment(
    bench: &Bench<'_>,
    preset: Preset,
    policy: (&'static str, PolicyConfig),
) -> Experiment {
    Experiment {
        source: Source::Seeded {
            kind: Kind::Conversation,
            setting: Setting {
                engines: 1,
                requests: Some(bench.count(REQUESTS)),
                seed: 1,
                ..Setting::default()
            },
            seeds: 1,
        },
        engines: 1,
        config: EngineConfig::new(preset, policy.1).with_step_tokens(STEP_TOKENS),
        router: Router::RoundRobin,
        policy: policy.0,
        time_error: 0.0,
    }
}

fn with(mut experiment: Experiment, change: impl FnOnce(&mut Setting)) -> Experiment {
    if let Source::Seeded { setting, .. } = &mut experiment.source {
        change(setting);
    }
    experiment
}

/// Milliseconds for which short requests wait for others, at most.
const WINDOWS_MS: [u32; 6] = [0, 1, 2, 5, 10, 20];
/// Clients of the closed loop, up to the paper's 64.
const CLIENTS: [usize; 3] = [4, 16, 64];

/// Simulates figure 5: short prompts of a closed loop, by the waiting window.
fn windows(bench: &Bench<'_>) -> Result<Section> {
    let preset = Preset::Llama70bH100x2;
    let (mut rows, mut latency, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    for clients in CLIENTS {
        let mut points = Vec::new();
        for window_ms in WINDOWS_MS {
            let mut experiment = experiment(bench, preset, POLICIES[1]);
            let scheduler = &mut experiment.config.scheduler;
            scheduler.laps.max_window_us = window_ms * 1_000;
            scheduler.laps.batch_tokens = STEP_TOKENS;
            let runs = first_turns(bench, &experiment, clients, SHORT_TOKENS)?;
            let rate = runs.median(Figures::answers_per_s);
            let mean = runs.median(|f| f.latency.mean_ms);
            let per_step = runs.median(|f| f.requests as f64 / f.steps as f64);
            points.push((f64::from(window_ms), rate, mean));
            let cells = [clients as f64, f64::from(window_ms), rate, mean, per_step];
            rows.push(cells.map(number).to_vec());
        }
        let curve = |y: fn(&(f64, f64, f64)) -> f64| Curve {
            name: format!("{clients} clients"),
            points: points.iter().map(|point| (point.0, y(point))).collect(),
        };
        rates.push(curve(|point| point.1));
        latency.push(curve(|point| point.2));
    }
    let heads = [
        "clients",
        "window, ms",
        "answers per second",
        "mean, ms",
        "requests per step",
    ];
    let plot = |name: &str, y: &'static str, curves| Plot {
        name: format!("laps-figure-5-{name}"),
        title: format!("{y}, by the waiting window"),
        x: Axis::Linear("window, ms"),
        y: Axis::Linear(y),
        curves,
    };
    Ok(Section {
        title: "Figure 5: the waiting window, closed loop of short prompts".to_owned(),
        setting: format!(
            "One engine of the preset {}, policy `laps`; prompts of at most {SHORT_TOKENS} tokens, \
             which share nothing; each client sends its next prompt when the last is answered.\n\
             The paper has 64 clients, and says that a window lets more short requests share a \
             step.\n\
             Here requests that come while a step runs share the next one without any window, and \
             no request is on its way while the engine is idle: a window has nothing to wait for, \
             and only costs where clients are few.",
            preset.name()
        ),
        tables: vec![Table {
            caption: "By clients and window:".to_owned(),
            head: heads.map(str::to_owned).to_vec(),
            rows,
        }],
        claims: Vec::new(),
        plots: vec![
            plot("throughput", "answers per second", rates),
            plot("latency", "mean latency, ms", latency),
        ],
    })
}

/// Runs the first turns of conversations that have at most so many tokens, in a closed loop. They
/// share nothing.
fn first_turns(
    bench: &Bench<'_>,
    experiment: &Experiment,
    clients: usize,
    longest: u32,
) -> Result<Runs> {
    let Source::Seeded { setting, .. } = &experiment.source else {
        unreachable!("it is made here");
    };
    let mut runs = Vec::new();
    for seed in 1..=bench.seeds {
        let setting = Setting {
            seed,
            ..setting.clone()
        };
        let mut workload = Kind::Conversation.generate(&setting)?;
        workload
            .arrivals
            .retain(|a| a.prompt.runs().len() == 1 && a.prompt.len() <= longest);
        workload.warm_up = 0;
        let source = Source::Trace(workload.in_closed_loop(clients));
        let Runs(of_seed) = bench.run(Experiment {
            source,
            ..experiment.clone()
        })?;
        runs.extend(of_seed);
    }
    Ok(Runs(runs))
}

/// Clients of Figure 6.
const CONCURRENCY: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Simulates figure 6: conversations in a closed loop, by the number of clients.
fn concurrency(bench: &Bench<'_>) -> Result<Section> {
    let (mut rows, mut rates, mut means) = (Vec::new(), Vec::new(), Vec::new());
    let mut curves = POLICIES.map(|(name, _)| Curve {
        name: name.to_owned(),
        points: Vec::new(),
    });
    for clients in CONCURRENCY {
        let mut cells = vec![clients.to_string()];
        let mut of_policies = Vec::new();
        for (policy, curve) in POLICIES.into_iter().zip(&mut curves) {
            let experiment = experiment(bench, Preset::Mistral7bA6000, policy);
            let runs = bench.run(with(experiment, |s| s.clients = Some(clients)))?;
            let rate = runs.median(Figures::answers_per_s);
            let mean = runs.median(|f| f.first_token.mean_ms);
            let p90 = runs.median(|f| f.first_token.p90_ms);
            let short = runs.median(|f| f.short_ms);
            cells.extend([rate, mean, p90, short].map(number));
            curve.points.push((clients as f64, p90));
            of_policies.push((rate, mean));
        }
        rates.push(of_policies[1].0 / of_policies[0].0);
        means.push(of_policies[1].1 / of_policies[0].1);
        rows.push(cells);
    }
    let heads = POLICIES.iter().flat_map(|(name, _)| {
        ["answers per second", "mean, ms", "P90, ms", "short, ms"]
            .map(|head| format!("{name}: {head}"))
    });
    let claim = |what: &str, ours: Vec<f64>, why| -> Result<Claim> {
        Ok(Claim::new(bench.printed.of(Paper::Laps, what)?, ours, why))
    };
    Ok(Section {
        title: "Figure 6: conversations, by concurrency, one engine".to_owned(),
        setting:
            "Preset mistral-7b-a6000, closed loop, time to the first token; `fcfs` stands for \
                  the baseline, `laps` for disaggregation without captured graphs, which take no \
                  time in the model."
                .to_owned(),
        tables: vec![Table {
            caption: "By clients:".to_owned(),
            head: std::iter::once("clients".to_owned()).chain(heads).collect(),
            rows,
        }],
        claims: vec![
            claim(
                "requests per second over the baseline's, at most",
                rates,
                "the paper's gain is that of captured graphs and larger batches of short prompts; \
                 in the model a step's time follows its tokens and not its shapes",
            )?,
            claim(
                "mean latency of the baseline's, in parts of 1, at most 20 % less",
                means,
                "a closed loop keeps the engine saturated, where the mean is the number of clients \
                 over the rate, whatever the order; what short requests gain, long ones lose",
            )?,
        ],
        plots: vec![Plot {
            name: "laps-figure-6".to_owned(),
            title: "P90 of the time to the first token, ms".to_owned(),
            x: Axis::Log("clients"),
            y: Axis::Log("ms"),
            curves: curves.into(),
        }],
    })
}

/// Requests per second, from a lightly loaded engine to a nearly saturated one.
const RATES: [f64; 5] = [3.0, 6.0, 10.0, 14.0, 16.0];

/// Simulates figure 7: first tokens after 400 ms, by the rate.
fn missed(bench: &Bench<'_>) -> Result<Section> {
    let (mut rows, mut fewer) = (Vec::new(), Vec::new());
    let mut curves = POLICIES.map(|(name, _)| Curve {
        name: name.to_owned(),
        points: Vec::new(),
    });
    for rate in RATES {
        let mut of_policies = Vec::new();
        for (policy, curve) in POLICIES.into_iter().zip(&mut curves) {
            let experiment = experiment(bench, Preset::Mistral7bA6000, policy);
            let runs = bench.run(with(experiment, |s| s.rate = Some(rate)))?;
            let missed = runs.median(|f| 100.0 * f.missed);
            curve.points.push((rate, missed));
            of_policies.push(missed);
        }
        fewer.push(of_policies[0] - of_policies[1]);
        let cells = std::iter::once(rate).chain(of_policies).map(number);
        rows.push(cells.collect());
    }
    let printed = bench
        .printed
        .of(Paper::Laps, "percentage points fewer missed targets")?;
    let claim = Claim::new(
        printed,
        fewer,
        "the rates are ours: the paper's are not printed",
    );
    let heads = ["requests per second", "fcfs: missed, %", "laps: missed, %"];
    Ok(Section {
        title: "Figure 7: first tokens that come after 400 ms, one engine".to_owned(),
        setting: "Preset mistral-7b-a6000, conversations with Poisson arrivals; the paper varies \
                  the clients of a Poisson process and prints no rate."
            .to_owned(),
        tables: vec![Table {
            caption: "By rate:".to_owned(),
            head: heads.map(str::to_owned).to_vec(),
            rows,
        }],
        claims: vec![claim],
        plots: vec![missed_plot("laps-figure-7", curves.into())],
    })
}

/// Engines of the spatial mode.
const ENGINES: u16 = 8;
/// Requests of a run before eight engines.
const REQUESTS_OF_EIGHT: u32 = 12_000;
/// Requests per second of each engine, from a light load to nearly the most that all routers here
/// sustain.
const RATES_OF_EIGHT: [f64; 4] = [6.0, 10.0, 12.0, 14.0];
/// Routers with the policy of the engines behind them.
const ROUTES: [(&str, Router, (&str, PolicyConfig)); 5] = [
    ("round robin", Router::RoundRobin, POLICIES[0]),
    ("min-cost", Router::MinCost, POLICIES[0]),
    ("e2", Router::E2, POLICIES[0]),
    ("laps", Router::Laps, POLICIES[0]),
    ("laps, engines too", Router::Laps, POLICIES[1]),
];

/// Simulates figure 7, spatial: first tokens after 400 ms before eight engines, by router and rate.
fn missed_of_eight(bench: &Bench<'_>) -> Result<Section> {
    let mut rows = Vec::new();
    let mut curves = ROUTES.map(|(name, ..)| Curve {
        name: name.to_owned(),
        points: Vec::new(),
    });
    let mut missed: [Vec<f64>; ROUTES.len()] = Default::default();
    for each in RATES_OF_EIGHT {
        let rate = each * f64::from(ENGINES);
        let routes = ROUTES.into_iter().zip(&mut curves).zip(&mut missed);
        for (((name, router, policy), curve), missed) in routes {
            let mut experiment = experiment(bench, Preset::Mistral7bA6000, policy);
            experiment.engines = ENGINES.into();
            experiment.router = router;
            let runs = bench.run(with(experiment, |setting| {
                setting.engines = ENGINES.into();
                setting.requests = Some(bench.count(REQUESTS_OF_EIGHT));
                setting.rate = Some(rate);
            }))?;
            let late = runs.median(|f| 100.0 * f.missed);
            missed.push(late);
            curve.points.push((rate, late));
            rows.push(cells_of_eight(name, rate, &runs));
        }
    }
    let [_, min_cost, _, laps, _] = missed;
    Ok(Section {
        title: "Figure 7: first tokens that come after 400 ms, eight engines".to_owned(),
        setting: "Preset mistral-7b-a6000, conversations with Poisson arrivals, time to the first \
                  token; the router `laps` has a pool of engines for short prompts and one for \
                  long ones, and moves engines between them; the last rows have the policy \
                  `laps` on each engine as well."
            .to_owned(),
        tables: vec![Table {
            caption: "By rate and router:".to_owned(),
            head: heads_of_eight("requests per second"),
            rows,
        }],
        claims: claims_of_eight(
            bench,
            laps,
            "beyond a light load a turn with few new tokens is late in the pool that caches the \
             long history before it, so histories are computed and kept in both pools, and fewer \
             of their tokens are found cached: here `e2` is ahead",
            min_cost,
            "ours is `min-cost`, at rates that are ours: the paper's are not printed",
        )?,
        plots: vec![missed_plot("laps-figure-7-eight", curves.into())],
    })
}

/// Compares the missed targets of LAPS and of SGLang's router with the paper's, and says why they
/// differ.
fn claims_of_eight(
    bench: &Bench<'_>,
    laps: Vec<f64>,
    why_laps: &'static str,
    router: Vec<f64>,
    why_router: &'static str,
) -> Result<Vec<Claim>> {
    let of = |what: &str| bench.printed.of(Paper::Laps, what);
    Ok(vec![
        Claim::new(
            of("missed targets of LAPS, eight instances, %")?,
            laps,
            why_laps,
        ),
        Claim::new(
            of("missed targets of SGLang's router, eight instances, %")?,
            router,
            why_router,
        ),
    ])
}

/// Returns the heads of [`cells_of_eight`]; the load is a rate or a number of clients.
fn heads_of_eight(load: &str) -> Vec<String> {
    let heads = ["router", load, "missed, %", "mean, ms", "P99, ms"];
    let rest = ["short, ms", "long, ms", "hits, %"];
    heads.into_iter().chain(rest).map(str::to_owned).collect()
}

/// Returns the row of a router at a load: times to the first token.
fn cells_of_eight(name: &str, load: f64, runs: &Runs) -> Vec<String> {
    let figures: [fn(&Figures) -> f64; 6] = [
        |f| 100.0 * f.missed,
        |f| f.first_token.mean_ms,
        |f| f.first_token.p99_ms,
        |f| f.short_ms,
        |f| f.long_ms,
        |f| 100.0 * f.hit_rate,
    ];
    let figures = figures.map(|figure| number(runs.median(figure)));
    [name.to_owned(), number(load)]
        .into_iter()
        .chain(figures)
        .collect()
}

/// Clients of eight engines: one for each engine, and up to sixteen.
const CLIENTS_OF_EIGHT: [usize; 5] = [8, 16, 32, 64, 128];
/// Routers of the closed loop, before engines that are `fcfs`.
const CLOSED_ROUTES: [(&str, Router); 5] = [
    ("round robin", Router::RoundRobin),
    ("cache-aware", Router::CacheAware),
    ("min-cost", Router::MinCost),
    ("e2", Router::E2),
    ("laps", Router::Laps),
];

/// Runs prompts that share nothing before eight engines, in a closed loop.
fn closed_loop(bench: &Bench<'_>, router: Router, clients: usize) -> Result<Runs> {
    let mut experiment = experiment(bench, Preset::Mistral7bA6000, POLICIES[0]);
    experiment.engines = ENGINES.into();
    experiment.router = router;
    let experiment = with(experiment, |setting| {
        setting.engines = ENGINES.into();
        setting.requests = Some(bench.count(REQUESTS_OF_EIGHT));
    });
    first_turns(bench, &experiment, clients, u32::MAX)
}

/// Simulates figure 7, spatial: prompts that share nothing before eight engines, by the number of
/// clients.
fn closed_loop_of_eight(bench: &Bench<'_>) -> Result<Section> {
    let mut rows = Vec::new();
    let mut missed: [Vec<f64>; CLOSED_ROUTES.len()] = Default::default();
    for clients in CLIENTS_OF_EIGHT {
        for ((name, router), missed) in CLOSED_ROUTES.into_iter().zip(&mut missed) {
            let runs = closed_loop(bench, router, clients)?;
            missed.push(runs.median(|f| 100.0 * f.missed));
            rows.push(cells_of_eight(name, clients as f64, &runs));
        }
    }
    let curve = |((name, _), missed): ((&str, Router), &Vec<f64>)| Curve {
        name: name.to_owned(),
        points: { CLIENTS_OF_EIGHT.iter().zip(missed) }
            .map(|(&clients, &missed)| (clients as f64, missed))
            .collect(),
    };
    let curves = CLOSED_ROUTES.into_iter().zip(&missed).map(curve).collect();
    let [_, router, _, _, laps] = missed;
    Ok(Section {
        title: "Figure 7: first tokens that come after 400 ms, eight engines in a closed loop"
            .to_owned(),
        setting:
            "Preset mistral-7b-a6000; first turns of conversations, 63 % of them short, which \
                  share nothing; each client sends its next prompt when the last is answered. The \
                  paper has up to 64 clients on faster devices."
                .to_owned(),
        tables: vec![Table {
            caption: "By clients and router:".to_owned(),
            head: heads_of_eight("clients"),
            rows,
        }],
        claims: claims_of_eight(
            bench,
            laps,
            "the engines are slower than the paper's: a long prompt alone takes more than the \
             target; with 64 clients, the paper's most, the pools miss fewest",
            router,
            "ours is `cache-aware`",
        )?,
        plots: vec![Plot {
            x: Axis::Log("clients"),
            ..missed_plot("laps-figure-7-closed", curves)
        }],
    })
}

/// Returns the plot of missed targets by rate.
fn missed_plot(name: &str, curves: Vec<Curve>) -> Plot {
    Plot {
        name: name.to_owned(),
        title: "first tokens after 400 ms, %".to_owned(),
        x: Axis::Linear("requests per second"),
        y: Axis::Linear("%"),
        curves,
    }
}
