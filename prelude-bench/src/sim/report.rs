//! Reports of simulations: what was run, and what came of it over the seeds.

use std::fmt::Write as _;

use serde::Serialize;

use super::{Figures, Moments, Requests};

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
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
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
    /// The order of prefixes; a trace has its own.
    pub order: Option<&'static str>,
    /// The service-time model.
    pub preset: String,
    /// The name of the router.
    pub route: &'static str,
    /// The name of the scheduling policy.
    pub policy: &'static str,
    /// The part by which the service times were off that the router believed.
    pub time_error: f64,
    /// The number of engines.
    pub engines: usize,
    /// Tokens whose keys and values each holds.
    pub kv_tokens: u64,
    /// Tokens whose keys and values the host memory of each holds; absent if none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_tokens: Option<u64>,
    /// Tokens of a KV block.
    pub block_size: u32,
    /// The figures of each run.
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
    Line(
        "short_first_token_mean_ms",
        "first token, short, mean",
        "ms",
        1,
        |f| f.short_ms,
    ),
    Line(
        "long_first_token_mean_ms",
        "first token, long, mean",
        "ms",
        1,
        |f| f.long_ms,
    ),
    Line("missed_percent", "first token after 400 ms", "%", 1, |f| {
        100.0 * f.missed
    }),
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
    /// Returns a figure over the runs.
    #[must_use]
    pub fn spread(&self, figure: fn(&Figures) -> f64) -> Spread {
        Spread::of(self.runs.iter().map(figure).collect())
    }

    /// Returns a text table of medians over the runs, with minimum and maximum.
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
            ("preset", self.preset.clone()),
            ("route", self.route.to_owned()),
            ("policy", self.policy.to_owned()),
            ("order", self.order.unwrap_or("the trace's").to_owned()),
            ("seed", seeds),
            (
                "KV tokens",
                format!("{} in blocks of {}", self.kv_tokens, self.block_size),
            ),
            ("requests", self.requests()),
            ("prompts", self.moments(|r| r.prompt_tokens, 1.0, "tokens")),
            ("outputs", self.moments(|r| r.output_tokens, 1.0, "tokens")),
            ("shared", self.moments(|r| r.shared, 100.0, "% of a prompt")),
        ];
        for (what, value) in about {
            let _ = writeln!(out, "  {what:<10} {value}");
        }
        let [median, min, max] = ["median", "min", "max"];
        let _ = writeln!(out, "\n  {:<26}{median:>12}{min:>12}{max:>12}", "");
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
        let mut text = format!("{all} in {} run(s)", self.runs.len());
        if refused > 0 {
            let _ = write!(text, ", {refused} of them fit no engine");
        }
        let warm_up = count(|f| f.warm_up);
        if warm_up > 0 {
            let _ = write!(text, ", {warm_up} of them warm up and are not timed");
        }
        text
    }

    /// Writes the mean and the deviation over requests: medians over the runs.
    fn moments(&self, of: fn(&Requests) -> Moments, scale: f64, unit: &str) -> String {
        let median = |part: fn(Moments) -> f64| {
            let parts = self
                .runs
                .iter()
                .map(|run| scale * part(of(&run.of_requests)));
            Spread::of(parts.collect()).median
        };
        let (mean, sd) = (median(|m| m.mean), median(|m| m.sd));
        format!("{mean:.1} ± {sd:.1} {unit}")
    }

    /// Returns JSON of the report, with medians, minimum and maximum.
    ///
    /// # Errors
    /// If the report cannot be serialized, which no report is known to be.
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
    use super::{super::figures::tests::figures, *};

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
            preset: "mistral-7b-a6000".to_owned(),
            route: "round-robin",
            policy: "fcfs",
            time_error: 0.0,
            engines: 2,
            kv_tokens: 198_516,
            host_tokens: None,
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
        has(&["prompts", "100.0", "±", "0.0", "tokens"]);
        has(&["shared", "100.0", "±", "0.0", "%", "of", "a", "prompt"]);
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
