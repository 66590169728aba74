//! Reports of the same requests with different routers and policies, side by side.

use std::fmt::Write as _;

use super::{Figures, Report, Spread};

/// A column: its head, its unit, how many digits, and the figure.
struct Column(&'static str, usize, fn(&Figures) -> f64);

const COLUMNS: &[Column] = &[
    Column("mean, s", 3, |f| f.latency.mean_ms / 1e3),
    Column("P50, s", 3, |f| f.latency.p50_ms / 1e3),
    Column("P99, s", 2, |f| f.latency.p99_ms / 1e3),
    Column("first, s", 3, |f| f.first_token.mean_ms / 1e3),
    Column("short, s", 3, |f| f.short_ms / 1e3),
    Column("long, s", 3, |f| f.long_ms / 1e3),
    Column("missed, %", 1, |f| 100.0 * f.missed),
    Column("hits, %", 1, |f| 100.0 * f.hit_rate),
    Column("max/mean", 2, |f| f.imbalance),
    Column("busy, %", 0, |f| 100.0 * f.busy),
];

/// Returns a table of reports of the same workload, seeds and engines: medians over the runs, and
/// how many times as long the first one's requests take as each other's, in the mean and at P99,
/// within a seed: median, least and most. Short requests have at most [`super::SHORT_TOKENS`] new
/// tokens, and a request is missed if its first token takes longer than [`super::TARGET`].
///
/// # Panics
/// If they have different numbers of runs.
#[must_use]
pub fn compare(reports: &[Report]) -> String {
    let Some(first) = reports.first() else {
        return String::new();
    };
    let mut out = format!("{}, {} engines", first.workload, first.engines);
    let seeds: Vec<String> = first
        .runs
        .iter()
        .filter_map(|r| r.seed)
        .map(|s| s.to_string())
        .collect();
    let _ = writeln!(
        out,
        "; preset {}, order {}, seeds {}",
        first.preset,
        first.order.unwrap_or("the trace's"),
        if seeds.is_empty() {
            "none".to_owned()
        } else {
            seeds.join(" ")
        },
    );
    let rate = first.spread(|f| f.rate).median;
    let ceiling = first.spread(|f| 100.0 * f.hit_ceiling).median;
    let _ = writeln!(
        out,
        "{rate:.2} requests/s, at most {ceiling:.1} % of tokens could hit{}\n",
        match first.time_error {
            0.0 => String::new(),
            error => format!("; routers' times are off by {:.0} %", 100.0 * error),
        }
    );

    let _ = write!(out, "{:<18}{:<7}", "route", "policy");
    for Column(head, ..) in COLUMNS {
        let _ = write!(out, "{head:>11}");
    }
    let beside = if reports.iter().all(|r| r.route == first.route) {
        format!("{}/this", first.policy)
    } else {
        format!("{}/this", first.route)
    };
    let with_host = reports.iter().any(|r| r.host_tokens.is_some());
    let host = |text: &str| match with_host {
        true => format!("{text:>13}"),
        false => String::new(),
    };
    let _ = writeln!(
        out,
        "{:>26}{:>26}{}",
        format!("mean, {beside}"),
        format!("P99, {beside}"),
        host("host tokens")
    );
    for report in reports {
        let _ = write!(out, "{:<18}{:<7}", report.route, report.policy);
        for &Column(_, digits, figure) in COLUMNS {
            let _ = write!(out, "{:>11.digits$}", report.spread(figure).median);
        }
        let ratio = |figure: fn(&Figures) -> f64| {
            assert_eq!(
                first.runs.len(),
                report.runs.len(),
                "runs of the same seeds"
            );
            let pairs = first.runs.iter().zip(&report.runs);
            let Spread { median, min, max } =
                Spread::of(pairs.map(|(a, b)| figure(a) / figure(b)).collect());
            format!("{median:.2} [{min:.2} .. {max:.2}]")
        };
        let _ = writeln!(
            out,
            "{:>26}{:>26}{}",
            ratio(|f| f.latency.mean_ms),
            ratio(|f| f.latency.p99_ms),
            host(&report.host_tokens.unwrap_or(0).to_string())
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{EngineConfig, Experiment, Kind, Preset, Router, Setting, Source};

    #[test]
    fn routers_are_compared_seed_by_seed() {
        let report = |router| {
            let setting = Setting {
                requests: Some(150),
                prefixes: Some(10),
                seed: 7,
                ..Setting::default()
            };
            let experiment = Experiment {
                source: Source::Seeded {
                    kind: Kind::Toolbench,
                    setting,
                    seeds: 2,
                },
                engines: 2,
                config: EngineConfig::new(
                    Preset::Mistral7bA6000,
                    prelude_sched::PolicyConfig::Fcfs,
                ),
                router,
                policy: "fcfs",
                time_error: 0.0,
            };
            experiment.run(|_| ()).expect("a good experiment")
        };
        let reports = [report(Router::RoundRobin), report(Router::E2)];
        let table = compare(&reports);
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[0].ends_with("order shuffled, seeds 7 8"), "{table}");
        assert!(lines[3].contains("mean, round-robin/this"), "{table}");
        assert!(lines[4].contains("1.00 [1.00 .. 1.00]"), "{table}");
        assert!(lines[5].starts_with("e2 "), "{table}");
        // What is shared is computed once for both engines, not once for each.
        let hits = |report: &Report| report.spread(|f| f.hit_rate).median;
        assert!(hits(&reports[1]) > hits(&reports[0]));
        assert_eq!(compare(&[]), "");
    }
}
