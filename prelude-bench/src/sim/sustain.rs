//! The load that a router sustains: the highest rate at which requests do not take much longer
//! than they would alone.

use std::fmt::Write as _;

use anyhow::{Result, bail};

use super::{Experiment, Progress, Source, Spread, routed::alone_ms};

/// A rate is sustained while the mean latency is at most so many times the mean that requests take
/// alone, on an engine with an empty cache.
pub const SUSTAINED: f64 = 3.0;

/// The factor between the first rates that are tried, and the one at which the search ends.
const COARSE: f64 = 1.25;
const FINE: f64 = 1.03;
/// Rates beyond this many factors from the first are not looked for.
const MAX_TRIES: usize = 32;

/// The highest rate that is sustained.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sustained {
    /// Requests per second.
    pub rate: f64,
    /// The mean that requests take alone, in milliseconds: the median over the seeds.
    pub alone_ms: f64,
}

/// Finds the highest rate that an experiment with a seeded workload sustains, to 3 %, from the
/// rate on that it has.
///
/// # Errors
/// If the workload is a trace, or cannot be made, or no rate is found.
pub fn sustained(experiment: &Experiment, progress: &mut dyn FnMut(Progress)) -> Result<Sustained> {
    let alone_ms = alone(experiment)?;
    let mut is_sustained = |rate: f64| -> Result<bool> {
        let report = at_rate(experiment, rate)?.run(&mut *progress)?;
        Ok(report.spread(|f| f.latency.mean_ms).median <= SUSTAINED * alone_ms)
    };
    let Source::Seeded { kind, setting, .. } = &experiment.source else {
        bail!("a trace has its own rate: only workloads can be made at others");
    };
    let start = setting.rate.unwrap_or_else(|| kind.rate(setting.engines));
    let rises = is_sustained(start)?;
    let factor = if rises { COARSE } else { 1.0 / COARSE };
    let mut last = start;
    for _ in 0..MAX_TRIES {
        let next = last * factor;
        if is_sustained(next)? != rises {
            let (mut low, mut high) = if rises { (last, next) } else { (next, last) };
            while high / low > FINE {
                let middle = (low * high).sqrt();
                if is_sustained(middle)? {
                    low = middle;
                } else {
                    high = middle;
                }
            }
            return Ok(Sustained {
                rate: low,
                alone_ms,
            });
        }
        last = next;
    }
    bail!("no rate between {start:.3} and {last:.3} requests/s is the highest that is sustained")
}

fn at_rate(experiment: &Experiment, rate: f64) -> Result<Experiment> {
    let mut experiment = experiment.clone();
    match &mut experiment.source {
        Source::Seeded { setting, .. } => setting.rate = Some(rate),
        Source::Trace(_) => bail!("a trace has its own rate: only workloads can be made at others"),
    }
    Ok(experiment)
}

/// Returns the mean that requests take alone: the median over the seeds.
fn alone(experiment: &Experiment) -> Result<f64> {
    let Source::Seeded {
        kind,
        setting,
        seeds,
    } = &experiment.source
    else {
        bail!("a trace has its own rate: only workloads can be made at others");
    };
    let model = &experiment.config.model;
    let mut means = Vec::new();
    for i in 0..*seeds {
        let mut setting = setting.clone();
        setting.seed = setting.seed.wrapping_add(i);
        let workload = kind.generate(&setting)?;
        let sum: f64 = workload.arrivals.iter().map(|a| alone_ms(model, a)).sum();
        means.push(sum / workload.arrivals.len().max(1) as f64);
    }
    Ok(Spread::of(means).median)
}

/// Returns a table of the highest rates that routers and policies sustain, with the first as the
/// measure.
#[must_use]
pub fn compare_sustained(found: &[(Experiment, Sustained)]) -> String {
    let Some((first, least)) = found.first() else {
        return String::new();
    };
    let mut out = String::new();
    if let Source::Seeded {
        kind,
        setting,
        seeds,
    } = &first.source
    {
        let _ = writeln!(
            out,
            "{}, {} engines; preset {}, order {}, {seeds} seed(s) from {} on",
            kind.name(),
            first.engines,
            first.config.model.name(),
            setting.order.name(),
            setting.seed,
        );
    }
    let _ = writeln!(
        out,
        "the highest rate at which the mean is at most {SUSTAINED} times {:.0} ms, which requests \
         take alone\n",
        least.alone_ms
    );
    let head = ["route", "policy", "requests/s", "of the first"];
    let _ = writeln!(
        out,
        "{:<18}{:<7}{:>12}{:>14}",
        head[0], head[1], head[2], head[3]
    );
    for (experiment, sustained) in found {
        let _ = writeln!(
            out,
            "{:<18}{:<7}{:>12.2}{:>14.2}",
            experiment.router.name(),
            experiment.policy,
            sustained.rate,
            sustained.rate / least.rate
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use prelude_sched::PolicyConfig;

    use super::*;
    use crate::sim::{EngineConfig, Kind, Preset, Router, Setting};

    #[test]
    fn the_highest_rate_is_found_from_below_and_from_above() {
        let experiment = |rate| Experiment {
            source: Source::Seeded {
                kind: Kind::Toolbench,
                setting: Setting {
                    requests: Some(300),
                    prefixes: Some(20),
                    rate: Some(rate),
                    ..Setting::default()
                },
                seeds: 1,
            },
            engines: 2,
            config: EngineConfig::new(Preset::Mistral7bA6000, PolicyConfig::Fcfs),
            router: Router::LeastOutstanding,
            policy: "fcfs",
            time_error: 0.0,
        };
        let of = |rate| sustained(&experiment(rate), &mut |_| ()).unwrap();
        let (below, above) = (of(1.0), of(40.0));
        let mean = |rate: f64| {
            let report = experiment(rate).run(|_| ()).unwrap();
            report.runs[0].latency.mean_ms / below.alone_ms
        };
        assert!(mean(below.rate) <= SUSTAINED && mean(below.rate * FINE) > SUSTAINED);
        let ratio = below.rate / above.rate;
        assert!((1.0 / FINE..=FINE).contains(&ratio), "{below:?} {above:?}");
    }
}
