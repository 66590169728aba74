//! Figures of simulations: what every report of one has to say.

use std::{fmt::Write as _, time::Duration};

use serde::Serialize;

use super::{Served, Workload, hit_ceiling};

/// Of the requests of one run, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Times {
    /// Mean.
    pub mean_ms: f64,
    /// As long or less took half of them.
    pub p50_ms: f64,
    /// As long or less took 99 %.
    pub p99_ms: f64,
}

impl Times {
    fn of(times: impl Iterator<Item = Duration>) -> Self {
        let mut ms: Vec<f64> = times.map(|time| time.as_secs_f64() * 1e3).collect();
        ms.sort_by(f64::total_cmp);
        Self {
            mean_ms: ms.iter().sum::<f64>() / ms.len().max(1) as f64,
            p50_ms: percentile(&ms, 50),
            p99_ms: percentile(&ms, 99),
        }
    }
}

/// The smallest of sorted numbers that `percent` of them do not exceed; 0 of none.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0.0)
}

/// Figures of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// What the workload was made with; a trace has none.
    pub seed: Option<u64>,
    /// Requests that came.
    pub requests: usize,
    /// Of them, those that fit no engine. They are in no other figure.
    pub refused: usize,
    /// Requests per second that came.
    pub rate: f64,
    /// From arrival to the last token.
    pub latency: Times,
    /// From arrival to the first token.
    pub first_token: Times,
    /// From arrival to the first step.
    pub queue: Times,
    /// Share of the answered requests' prompt tokens that engines had in their caches.
    pub hit_rate: f64,
    /// What one cache without bounds would have had of all.
    pub hit_ceiling: f64,
    /// Busy time of the busiest engine over the engines' mean.
    pub imbalance: f64,
    /// Share of the time, until the last answer, that engines were busy.
    pub busy: f64,
    /// Seconds until the last answer.
    pub seconds: f64,
    /// Steps of all engines.
    pub steps: u64,
    /// How often a generation lost its blocks to an older one.
    pub preemptions: u64,
}

impl Figures {
    /// Of a run on engines with blocks of this size.
    ///
    /// # Panics
    /// If engines had more in their caches than an infinite one: a defect of the simulation.
    #[must_use]
    pub fn new(seed: Option<u64>, workload: &Workload, run: &Served, block_size: u32) -> Self {
        let sum = |of: fn(&super::Record) -> u64| run.records.iter().map(of).sum::<u64>();
        let (cached, prompts) = (sum(|r| r.cached_tokens), sum(|r| r.prompt_tokens));
        let hit_ceiling = hit_ceiling(workload, block_size as usize);
        let most = hit_ceiling * workload.prompt_tokens() as f64;
        assert!(
            cached as f64 <= most + 0.5,
            "{cached} cached tokens, of which an infinite cache has {most}"
        );
        let busy: Vec<f64> = run.busy.iter().map(Duration::as_secs_f64).collect();
        let mean = busy.iter().sum::<f64>() / busy.len().max(1) as f64;
        let most = busy.iter().copied().fold(0.0, f64::max);
        let seconds = run.end.as_nanos() as f64 / 1e9;
        Self {
            seed,
            requests: workload.arrivals.len(),
            refused: run.refused,
            rate: workload.rate(),
            latency: Times::of(run.records.iter().map(|r| r.latency)),
            first_token: Times::of(run.records.iter().map(|r| r.first_token)),
            queue: Times::of(run.records.iter().map(|r| r.queue)),
            hit_rate: ratio(cached as f64, prompts as f64),
            hit_ceiling,
            imbalance: ratio(most, mean),
            busy: ratio(mean, seconds),
            seconds,
            steps: run.steps,
            preemptions: run.preemptions,
        }
    }
}

/// 0 where there is nothing to compare with.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// A figure over the runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |i: usize| values.get(i).copied().unwrap_or(0.0);
        let n = values.len();
        Self {
            median: (at(n.saturating_sub(1) / 2) + at(n / 2)) / 2.0,
            min: at(0),
            max: at(n.saturating_sub(1)),
        }
    }
}

/// Runs of the same thing with different seeds.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The workload's name, or the trace's.
    pub workload: String,
    /// In which order key portions came; a trace has its own.
    pub order: Option<&'static str>,
    /// The service-time model.
    pub preset: &'static str,
    /// Who sent requests to engines.
    pub route: &'static str,
    /// How an engine orders its requests.
    pub policy: &'static str,
    /// How many there are.
    pub engines: usize,
    /// Tokens whose keys and values each holds.
    pub kv_tokens: u64,
    /// Tokens of a KV block.
    pub block_size: u32,
    /// Each run.
    pub runs: Vec<Figures>,
}

/// A figure of the summary: its key for programs, its name for people, its unit, how many digits
/// of it people get.
struct Line(&'static str, &'static str, &'static str, usize, Figure);

type Figure = fn(&Figures) -> f64;

const LINES: &[Line] = &[
    Line("latency_mean_ms", "latency, mean", "ms", 1, |f| {
        f.latency.mean_ms
    }),
    Line("latency_p50_ms", "latency, P50", "ms", 1, |f| {
        f.latency.p50_ms
    }),
    Line("latency_p99_ms", "latency, P99", "ms", 1, |f| {
        f.latency.p99_ms
    }),
    Line("first_token_mean_ms", "first token, mean", "ms", 1, |f| {
        f.first_token.mean_ms
    }),
    Line("first_token_p50_ms", "first token, P50", "ms", 1, |f| {
        f.first_token.p50_ms
    }),
    Line("first_token_p99_ms", "first token, P99", "ms", 1, |f| {
        f.first_token.p99_ms
    }),
    Line("queue_mean_ms", "queue, mean", "ms", 1, |f| f.queue.mean_ms),
    Line("hit_rate_percent", "token hit rate", "%", 1, |f| {
        100.0 * f.hit_rate
    }),
    Line("hit_ceiling_percent", "its ceiling", "%", 1, |f| {
        100.0 * f.hit_ceiling
    }),
    Line("imbalance", "load imbalance, max/mean", "", 3, |f| {
        f.imbalance
    }),
    Line("busy_percent", "engines busy", "%", 1, |f| 100.0 * f.busy),
    Line("rate_per_s", "requests", "/s", 2, |f| f.rate),
    Line(
        "until_last_answer_s",
        "until the last answer",
        "s",
        0,
        |f| f.seconds,
    ),
    Line("preemptions", "preemptions", "", 0, |f| {
        f.preemptions as f64
    }),
];

impl Report {
    /// A figure over the runs.
    #[must_use]
    pub fn spread(&self, figure: fn(&Figures) -> f64) -> Spread {
        Spread::of(self.runs.iter().map(figure).collect())
    }

    /// For people: medians over the runs, with minimum and maximum.
    #[must_use]
    pub fn render(&self) -> String {
        let mut out = format!("{}, {} engines\n", self.workload, self.engines);
        let seeds: Vec<String> = self
            .runs
            .iter()
            .filter_map(|r| r.seed)
            .map(|s| s.to_string())
            .collect();
        let seeds = if seeds.is_empty() {
            "none".to_owned()
        } else {
            seeds.join(" ")
        };
        let about = [
            ("preset", self.preset.to_owned()),
            ("route", self.route.to_owned()),
            ("policy", self.policy.to_owned()),
            ("order", self.order.unwrap_or("the trace's").to_owned()),
            ("seed", seeds),
            (
                "KV tokens",
                format!("{} in blocks of {}", self.kv_tokens, self.block_size),
            ),
            ("requests", self.requests()),
        ];
        for (what, value) in about {
            let _ = writeln!(out, "  {what:<10} {value}");
        }
        let head = ["median", "min", "max"];
        let _ = writeln!(
            out,
            "\n  {:<26}{:>12}{:>12}{:>12}",
            "", head[0], head[1], head[2]
        );
        for &Line(_, what, unit, digits, figure) in LINES {
            let Spread { median, min, max } = self.spread(figure);
            let line = format!(
                "  {what:<26}{median:>12.digits$}{min:>12.digits$}{max:>12.digits$}  {unit}"
            );
            let _ = writeln!(out, "{}", line.trim_end());
        }
        out
    }

    fn requests(&self) -> String {
        let count = |f: fn(&Figures) -> usize| -> usize { self.runs.iter().map(f).sum() };
        let (all, refused) = (count(|f| f.requests), count(|f| f.refused));
        match refused {
            0 => format!("{all} in {} run(s)", self.runs.len()),
            _ => format!(
                "{all} in {} run(s), {refused} of them fit no engine",
                self.runs.len()
            ),
        }
    }

    /// For programs: the report, and medians with minimum and maximum.
    ///
    /// # Errors
    /// Of the serializer; a report always has a form.
    pub fn json(&self) -> serde_json::Result<String> {
        let mut value = serde_json::to_value(self)?;
        for &Line(key, .., figure) in LINES {
            value["summary"][key] = serde_json::to_value(self.spread(figure))?;
        }
        serde_json::to_string_pretty(&value)
    }
}

#[cfg(test)]
mod tests {
    use prelude_core::Timestamp;

    use super::*;
    use crate::sim::{Arrival, Prompt, Record, Run};

    /// Ten requests of equal prompts of 100 tokens; the i-th takes i seconds. The second engine
    /// is busy three times as long as the first.
    fn served(cached_tokens: u64) -> (Workload, Served) {
        let arrival = |i: u64| Arrival {
            at: Timestamp::from_nanos(i * 500_000_000),
            prompt: Prompt::new([Run {
                stream: 1,
                start: 0,
                len: 100,
            }]),
            output_tokens: 1,
            key: 0,
            user: 0,
            root: 0,
        };
        let record = |i: u64| Record {
            request: i as usize,
            queue: Duration::ZERO,
            first_token: Duration::from_millis(i * 100),
            latency: Duration::from_secs(i),
            prompt_tokens: 100,
            cached_tokens,
            output_tokens: 1,
        };
        let served = Served {
            records: (1..=10).map(record).collect(),
            busy: vec![Duration::from_secs(2), Duration::from_secs(6)],
            end: Timestamp::from_nanos(16_000_000_000),
            ..Served::default()
        };
        let workload = Workload::new("test", (1..=10).map(arrival).collect());
        (workload, served)
    }

    fn figures(seed: u64) -> Figures {
        let (workload, served) = served(80);
        Figures::new(Some(seed), &workload, &served, 10)
    }

    #[test]
    fn figures_are_as_computed_by_hand() {
        let figures = figures(1);
        let times = |t: Times| [t.mean_ms, t.p50_ms, t.p99_ms];
        assert_eq!(times(figures.latency), [5500.0, 5000.0, 10_000.0]);
        assert_eq!(times(figures.first_token), [550.0, 500.0, 1000.0]);
        let near = |got: f64, expected: f64| assert!((got - expected).abs() < 1e-9, "{got}");
        near(figures.hit_rate, 0.8);
        // Nine of ten prompts are whole blocks that came before.
        near(figures.hit_ceiling, 0.9);
        near(figures.imbalance, 1.5);
        near(figures.busy, 0.25);
        near(figures.rate, 2.0);
    }

    #[test]
    #[should_panic(expected = "of which an infinite cache has 900")]
    fn more_hits_than_an_infinite_cache_has_are_a_defect() {
        let (workload, served) = served(91);
        let _ = Figures::new(None, &workload, &served, 10);
    }

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        let check = |sorted: &[f64], percent, expected: f64| {
            assert!((percentile(sorted, percent) - expected).abs() < 1e-12);
        };
        check(&hundred, 99, 99.0);
        check(&hundred, 50, 50.0);
        check(&hundred[..3], 50, 2.0);
        check(&hundred[..1], 99, 1.0);
        check(&[], 99, 0.0);
    }

    #[test]
    fn spreads_have_a_middle() {
        let of = |values: &[f64]| {
            let Spread { median, min, max } = Spread::of(values.to_vec());
            (median, min, max)
        };
        assert_eq!(of(&[3.0, 1.0, 2.0]), (2.0, 1.0, 3.0));
        assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]), (2.5, 1.0, 4.0));
    }

    fn report() -> Report {
        let mut slow = figures(2);
        slow.latency.mean_ms = 7500.0;
        Report {
            workload: "test".to_owned(),
            order: Some("windowed"),
            preset: "mistral-7b-a6000",
            route: "round-robin",
            policy: "fcfs",
            engines: 2,
            kv_tokens: 198_516,
            block_size: 10,
            runs: vec![figures(1), slow],
        }
    }

    #[test]
    fn a_report_says_what_was_run_and_what_came_of_it() {
        let text = report().render();
        let has = |words: &[&str]| {
            let line = |line: &&str| line.split_whitespace().eq(words.iter().copied());
            assert!(text.lines().any(|l| line(&l)), "{words:?} in\n{text}");
        };
        has(&["test,", "2", "engines"]);
        has(&["preset", "mistral-7b-a6000"]);
        has(&["route", "round-robin"]);
        has(&["policy", "fcfs"]);
        has(&["order", "windowed"]);
        has(&["seed", "1", "2"]);
        has(&["latency,", "mean", "6500.0", "5500.0", "7500.0", "ms"]);
        has(&["token", "hit", "rate", "80.0", "80.0", "80.0", "%"]);
        has(&["load", "imbalance,", "max/mean", "1.500", "1.500", "1.500"]);
    }

    #[test]
    fn programs_get_each_run_and_the_medians() {
        let value: serde_json::Value = serde_json::from_str(&report().json().unwrap()).unwrap();
        assert_eq!(value["runs"][1]["seed"], 2);
        assert_eq!(value["runs"][0]["latency"]["p99_ms"], 10_000.0);
        assert_eq!(value["summary"]["latency_mean_ms"]["median"], 6500.0);
        assert_eq!(value["order"], "windowed");
    }
}
