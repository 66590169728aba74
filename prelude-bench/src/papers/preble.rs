//! Preble (Srivatsa et al., ICLR 2025): requests with shared prefixes on several engines.

use anyhow::Result;
use prelude_sched::PolicyConfig;

use super::{
    Bench, Make, Paper, Runs,
    page::{Section, Table},
    plot::{Axis, Curve, Plot},
    printed::{Claim, number},
};
use crate::sim::{EngineConfig, Experiment, Figures, Kind, Preset, Router, Setting, Source};

pub(super) const SECTIONS: &[Make] = &[
    ("rates", rates),
    ("numbers of engines", sizes),
    ("ablation of E2", ablation),
    ("uneven load on eight engines", uneven),
];

const ENGINES: u16 = 4;

/// A workload, its requests per second, and its number of requests.
type Load = (Kind, f64, u32);

/// The workloads, with requests per second of the sweep's middle: about what round robin sustains
/// (`prelude-bench sim --route round-robin --sustain`), and the number of requests for four engines.
const WORKLOADS: [Load; 5] = [
    (Kind::Toolbench, 23.0, 3_600),
    (Kind::Agent, 12.7, 3_600),
    (Kind::Programming, 18.0, 1_200),
    (Kind::Video, 2.85, 1_720),
    (Kind::Loogle, 1.16, 864),
];
/// Rates of the sweep, in parts of the middle one.
const RATES: [f64; 4] = [0.5, 0.8, 1.1, 1.4];
const ROUTERS: [Router; 2] = [Router::RoundRobin, Router::E2];

fn experiment(
    bench: &Bench<'_>,
    (kind, rate, requests): Load,
    router: Router,
    (policy, config): (&'static str, PolicyConfig),
) -> Experiment {
    Experiment {
        source: Source::Seeded {
            kind,
            setting: Setting {
                engines: ENGINES.into(),
                rate: Some(rate),
                requests: Some(bench.count(requests)),
                seed: 1,
                ..Setting::default()
            },
            seeds: 1,
        },
        engines: ENGINES.into(),
        config: EngineConfig::new(Preset::Mistral7bA6000, config),
        router,
        policy,
        time_error: 0.0,
    }
}

const FCFS: (&str, PolicyConfig) = ("fcfs", PolicyConfig::Fcfs);
const MEAN: fn(&Figures) -> f64 = |f| f.latency.mean_ms / 1e3;
const P99: fn(&Figures) -> f64 = |f| f.latency.p99_ms / 1e3;

/// Simulates figure 3: mean and P99 latency by the rate, for each workload.
fn rates(bench: &Bench<'_>) -> Result<Section> {
    let (mut rows, mut plots) = (Vec::new(), Vec::new());
    // Mean and P99 of the programming workload, and of all others.
    let mut ratios: [[Vec<f64>; 2]; 2] = Default::default();
    for (kind, middle, requests) in WORKLOADS {
        let mut curves = ROUTERS.map(|router| Curve {
            name: router.name().to_owned(),
            points: Vec::new(),
        });
        for part in RATES {
            let rate = part * middle;
            let mut both: Vec<Runs> = Vec::new();
            for (router, curve) in ROUTERS.into_iter().zip(&mut curves) {
                let runs = bench.run(experiment(bench, (kind, rate, requests), router, FCFS))?;
                curve.points.push((rate, runs.median(MEAN)));
                both.push(runs);
            }
            let of = |figure| {
                both.iter()
                    .map(|runs| runs.median(figure))
                    .collect::<Vec<_>>()
            };
            let (mean, p99) = (of(MEAN), of(P99));
            let gains = [mean[0] / mean[1], p99[0] / p99[1]];
            let programming = usize::from(kind != Kind::Programming);
            for (gain, all) in gains.into_iter().zip(&mut ratios[programming]) {
                all.push(gain);
            }
            let numbers = [rate].into_iter().chain(mean).chain(p99).chain(gains);
            let name = std::iter::once(kind.name().to_owned());
            rows.push(name.chain(numbers.map(number)).collect());
        }
        plots.push(Plot {
            name: format!("preble-figure-3-{}", kind.name()),
            title: format!("mean latency, {}", kind.name()),
            x: Axis::Linear("requests per second"),
            y: Axis::Log("s"),
            curves: curves.into(),
        });
    }
    let heads = [
        "workload",
        "requests/s",
        "round robin: mean, s",
        "e2: mean, s",
        "round robin: P99, s",
        "e2: P99, s",
        "mean, of e2's",
        "P99, of e2's",
    ];
    Ok(Section {
        title: "Figure 3: latency by rate, four engines".to_owned(),
        setting: "Preset mistral-7b-a6000 (the authors' own fit), policy `fcfs`, order shuffled; \
                  round robin against `e2`, from half to 1.4 times about what round robin sustains."
            .to_owned(),
        tables: vec![Table {
            caption: "By workload and rate:".to_owned(),
            head: heads.map(str::to_owned).to_vec(),
            rows,
        }],
        claims: rate_claims(bench, ratios)?,
        plots,
    })
}

/// Numbers of engines: the paper's two and four, and more.
const SIZES: [u16; 4] = [2, 4, 8, 16];
/// Workloads that are run before each number of engines.
const SIZED: [Load; 3] = [WORKLOADS[0], WORKLOADS[3], WORKLOADS[4]];
/// The rate, in parts of the middle one.
const SIZED_RATE: f64 = 1.1;

/// Simulates latency by the number of engines: prefixes, requests and their rate grow with it.
fn sizes(bench: &Bench<'_>) -> Result<Section> {
    let (mut rows, mut curves) = (Vec::new(), Vec::new());
    for (kind, middle, requests) in SIZED {
        let mut points = Vec::new();
        for engines in SIZES {
            let times = f64::from(engines) / f64::from(ENGINES);
            let rate = SIZED_RATE * middle * times;
            let requests = requests / u32::from(ENGINES) * u32::from(engines);
            let mut of: [Vec<f64>; 4] = Default::default();
            for router in ROUTERS {
                let mut experiment = experiment(bench, (kind, rate, requests), router, FCFS);
                experiment.engines = engines.into();
                if let Source::Seeded { setting, .. } = &mut experiment.source {
                    setting.engines = engines.into();
                }
                let runs = bench.run(experiment)?;
                let figures = [MEAN, P99, |f| 100.0 * f.hit_rate, |f| f.imbalance];
                for (all, figure) in of.iter_mut().zip(figures) {
                    all.push(runs.median(figure));
                }
            }
            let [mean, p99, ..] = &of;
            let gains = [mean[0] / mean[1], p99[0] / p99[1]];
            points.push((f64::from(engines), gains[0]));
            let numbers = [f64::from(engines), rate];
            let numbers = numbers.into_iter().chain(of.into_iter().flatten());
            let cells = numbers.chain(gains).map(number);
            rows.push(
                std::iter::once(kind.name().to_owned())
                    .chain(cells)
                    .collect(),
            );
        }
        curves.push(Curve {
            name: kind.name().to_owned(),
            points,
        });
    }
    let figures = ["mean, s", "P99, s", "hits, %", "busiest over the mean"];
    let of_routers = figures
        .iter()
        .flat_map(|figure| ["round robin", "e2"].map(|router| format!("{router}: {figure}")));
    let head = ["workload", "engines", "requests/s"].map(str::to_owned);
    let gains = ["mean, of e2's", "P99, of e2's"].map(str::to_owned);
    Ok(Section {
        title: "Latency by the number of engines".to_owned(),
        setting: "Preset mistral-7b-a6000, policy `fcfs`, order shuffled, at 1.1 times about what \
                  round robin sustains. The paper has two and four engines of this kind."
            .to_owned(),
        tables: vec![Table {
            caption: "By workload and number of engines:".to_owned(),
            head: head.into_iter().chain(of_routers).chain(gains).collect(),
            rows,
        }],
        claims: Vec::new(),
        plots: vec![Plot {
            name: "preble-engines".to_owned(),
            title: "mean latency, round robin over e2".to_owned(),
            x: Axis::Log("engines"),
            y: Axis::Log("ratio"),
            curves,
        }],
    })
}

/// Compares round robin's latencies with E2's: mean and P99, of the programming workload and of all
/// others.
fn rate_claims(bench: &Bench<'_>, ratios: [[Vec<f64>; 2]; 2]) -> Result<Vec<Claim>> {
    let decoding = "decoding takes most of the time of this workload, and its queue grows as long \
                    as requests come at rates that round robin does not sustain";
    let light = "where nothing queues there is little to gain, and beyond saturation the gain \
                 follows from how long the run is";
    let [[mean_programming, p99_programming], [mean, p99]] = ratios;
    let claim = |what: &str, ours: Vec<f64>, why| -> Result<Claim> {
        Ok(Claim::new(
            bench.printed.of(Paper::Preble, what)?,
            ours,
            why,
        ))
    };
    Ok(vec![
        claim("mean latency, round robin over E2", mean, light)?,
        claim("P99 latency, round robin over E2", p99, light)?,
        claim(
            "mean latency, round robin over E2, programming",
            mean_programming,
            decoding,
        )?,
        claim(
            "P99 latency, round robin over E2, programming",
            p99_programming,
            decoding,
        )?,
    ])
}

/// The steps of the ablation that routes and policies allow.
const STEPS: [(&str, Router, (&str, PolicyConfig)); 5] = [
    ("round robin", Router::RoundRobin, FCFS),
    ("+ E2 by the load of three minutes", Router::E2Still, FCFS),
    ("+ by the work under way", Router::E2Stay, FCFS),
    ("+ leaving a busy engine", Router::E2, FCFS),
    (
        "+ priority groups",
        Router::E2,
        ("groups", PolicyConfig::Groups),
    ),
];
/// Workloads of the ablation, with rates that round robin does not sustain: the paper's, and one
/// whose hot document makes one engine too busy, and one whose documents change their ranks.
const ABLATION: [(&str, Load, Option<u32>); 3] = [
    (
        "tools by Zipf's law, 30/s",
        (Kind::Zipf, 30.0, 10_800),
        None,
    ),
    (
        "hot spot of 16 documents, 9/s",
        (Kind::HotSpot, 9.0, 2_700),
        Some(16),
    ),
    (
        "documents whose popularity drifts, 9/s",
        (Kind::Drift, 9.0, 5_400),
        None,
    ),
];

/// Simulates figure 5: what each part of Preble brings.
fn ablation(bench: &Bench<'_>) -> Result<Section> {
    let heads = ["", "mean, s", "P99, s", "busiest engine over the mean"];
    let mut tables = Vec::new();
    for (caption, workload, prefixes) in ABLATION {
        let mut rows = Vec::new();
        for (name, router, policy) in STEPS {
            let mut experiment = experiment(bench, workload, router, policy);
            if let Source::Seeded { setting, .. } = &mut experiment.source {
                setting.prefixes = prefixes;
            }
            let runs = bench.run(experiment)?;
            let cells = [MEAN, P99, |f| f.imbalance].map(|figure| number(runs.median(figure)));
            rows.push(std::iter::once(name.to_owned()).chain(cells).collect());
        }
        tables.push(Table {
            caption: format!("{caption}:"),
            head: heads.map(str::to_owned).to_vec(),
            rows,
        });
    }
    Ok(Section {
        title: "Figure 5: ablation of Preble, four engines".to_owned(),
        setting:
            "Preset mistral-7b-a6000; the paper has the first workload and prints no numbers: \
                  E2 gains most of mean and P99, moving prefixes some more at P99, groups at P99 \
                  alone.\n\
                  Its step \"prefill/decode-aware\" is part of E2 here and has no switch.\n\
                  In place of its moving and copying of prefixes, E2 here weighs the work under \
                  way, and prompts leave an engine that has far more to do than another."
                .to_owned(),
        tables,
        claims: Vec::new(),
        plots: Vec::new(),
    })
}

/// Engines under uneven load.
const UNEVEN_ENGINES: u16 = 8;
/// An uneven load: its name, the workload, its number of prefixes, and the factor by which the first
/// engine takes longer than routers are told.
type Uneven = (&'static str, Load, Option<u32>, f64);
const UNEVEN: [Uneven; 3] = [
    (
        "hot spot of 32 documents",
        (Kind::HotSpot, 18.0, 5_400),
        Some(32),
        1.0,
    ),
    (
        "documents whose popularity drifts",
        (Kind::Drift, 18.0, 5_400),
        None,
        1.0,
    ),
    (
        "tools, the first engine takes twice as long",
        (Kind::Toolbench, 48.0, 7_200),
        None,
        2.0,
    ),
];
/// Routers under uneven load. The first two are E2 without what it adds to the paper's load.
const UNEVEN_ROUTERS: [Router; 5] = [
    Router::E2Still,
    Router::E2Stay,
    Router::E2,
    Router::MinCost,
    Router::CacheAware,
];

/// Runs the routers under an uneven load, and returns their rows.
fn uneven_rows(bench: &Bench<'_>, uneven: Uneven) -> Result<Vec<Vec<String>>> {
    let (name, load, prefixes, slow_first) = uneven;
    let mut of_routers = Vec::new();
    for router in UNEVEN_ROUTERS {
        let mut experiment = experiment(bench, load, router, FCFS);
        experiment.engines = UNEVEN_ENGINES.into();
        experiment.config.slow_first = slow_first;
        if let Source::Seeded { setting, .. } = &mut experiment.source {
            setting.engines = UNEVEN_ENGINES.into();
            setting.prefixes = prefixes;
        }
        let runs = bench.run(experiment)?;
        let figures = [MEAN, P99, |f| 100.0 * f.hit_rate, |f| f.imbalance];
        of_routers.push((router, figures.map(|figure| runs.median(figure))));
    }
    let e2 = of_routers.iter().find(|(router, _)| *router == Router::E2);
    let p99_of_e2 = e2.map_or(f64::NAN, |(_, figures)| figures[1]);
    let row = |(router, figures): (Router, [f64; 4])| {
        let numbers = figures.into_iter().chain([figures[1] / p99_of_e2]);
        let names = [name, router.name()].map(str::to_owned);
        names.into_iter().chain(numbers.map(number)).collect()
    };
    Ok(of_routers.into_iter().map(row).collect())
}

/// Simulates latency where one prefix or one engine has more to do than the others.
fn uneven(bench: &Bench<'_>) -> Result<Section> {
    let mut rows = Vec::new();
    for uneven in UNEVEN {
        rows.extend(uneven_rows(bench, uneven)?);
    }
    let heads = [
        "workload",
        "router",
        "mean, s",
        "P99, s",
        "hits, %",
        "busiest engine over the mean",
        "P99, of e2's",
    ];
    Ok(Section {
        title: "Uneven load on eight engines".to_owned(),
        setting: "Preset mistral-7b-a6000, policy `fcfs`; 18 questions about documents or 48 tool \
                  requests a second. `e2-still` is E2 by the load of three minutes, as in the \
                  paper; `e2-stay` weighs the work under way; with `e2` prompts leave a busy \
                  engine, too."
            .to_owned(),
        tables: vec![Table {
            caption: "By workload and router:".to_owned(),
            head: heads.map(str::to_owned).to_vec(),
            rows,
        }],
        claims: Vec::new(),
        plots: Vec::new(),
    })
}
