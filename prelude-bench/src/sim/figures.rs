//! Figures of one run: what every report has to say.

use std::time::Duration;

use prelude_measure::stats::quantile;
use serde::Serialize;

use super::{Moments, Record, Served, Workload, hit_ceiling, known_tokens, shared_tokens};

/// A request is short if it has at most so many tokens that no earlier request's prompt began
/// with: LAPS's boundary, and about what a device computes in hardly more time than one token.
pub const SHORT_TOKENS: u32 = 256;

/// A request whose first token takes longer misses LAPS's target.
pub const TARGET: Duration = Duration::from_millis(400);

/// Times of the requests of one run, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Times {
    /// Mean.
    pub mean_ms: f64,
    /// The median.
    pub p50_ms: f64,
    /// The 90th percentile.
    pub p90_ms: f64,
    /// The 99th percentile.
    pub p99_ms: f64,
}

impl Times {
    fn of(times: impl Iterator<Item = Duration>) -> Self {
        let mut ms: Vec<f64> = times.map(|time| time.as_secs_f64() * 1e3).collect();
        ms.sort_by(f64::total_cmp);
        let rank = |fraction| match ms.is_empty() {
            true => 0.0,
            false => quantile(&ms, fraction),
        };
        Self {
            // From 0 on: an empty sum of its own would be -0.
            mean_ms: ms.iter().fold(0.0, |sum, ms| sum + ms) / ms.len().max(1) as f64,
            p50_ms: rank(0.5),
            p90_ms: rank(0.9),
            p99_ms: rank(0.99),
        }
    }
}

/// The sizes of the requests, answered or not.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Requests {
    /// Tokens of a prompt.
    pub prompt_tokens: Moments,
    /// Tokens that are generated.
    pub output_tokens: Moments,
    /// Share of a prompt that some other request's prompt begins with too.
    pub shared: Moments,
}

impl Requests {
    fn of(workload: &Workload) -> Self {
        let arrivals = &workload.arrivals;
        let prompts: Vec<f64> = arrivals.iter().map(|a| f64::from(a.prompt.len())).collect();
        let outputs: Vec<f64> = arrivals
            .iter()
            .map(|a| f64::from(a.output_tokens))
            .collect();
        let shared = shared_tokens(workload).into_iter().zip(&prompts);
        let shared: Vec<f64> = shared.map(|(n, len)| ratio(f64::from(n), *len)).collect();
        Self {
            prompt_tokens: Moments::of(&prompts),
            output_tokens: Moments::of(&outputs),
            shared: Moments::of(&shared),
        }
    }
}

/// Figures of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// The seed of the workload; a trace has none.
    pub seed: Option<u64>,
    /// Requests that came.
    pub requests: usize,
    /// The sizes of the requests.
    pub of_requests: Requests,
    /// The number of requests that fit no engine and are in no other figure.
    pub refused: usize,
    /// Requests per second that came; in a closed loop, that were answered.
    pub rate: f64,
    /// Times from arrival to the last token.
    pub latency: Times,
    /// Times from arrival to the first token.
    pub first_token: Times,
    /// Times from arrival to the first step.
    pub queue: Times,
    /// Mean time to the first token of short requests ([`SHORT_TOKENS`]), in milliseconds.
    pub short_ms: f64,
    /// Mean time to the first token of all other requests, in milliseconds.
    pub long_ms: f64,
    /// Share of requests whose first token took longer than [`TARGET`].
    pub missed: f64,
    /// Requests at the beginning that only warm caches up: their times are in none of the above.
    pub warm_up: usize,
    /// Share of the answered requests' prompt tokens that engines had in their caches.
    pub hit_rate: f64,
    /// The share of prompt tokens that one unbounded cache would have had.
    pub hit_ceiling: f64,
    /// Busy time of the busiest engine over the engines' mean.
    pub imbalance: f64,
    /// Share of the time, until the last answer, that engines were busy.
    pub busy: f64,
    /// Seconds until the last answer.
    pub seconds: f64,
    /// Steps of all engines.
    pub steps: u64,
    /// The number of times that a generation lost its blocks to an older one.
    pub preemptions: u64,
}

impl Figures {
    /// Computes the figures of a run on engines with blocks of `block_size` tokens.
    ///
    /// # Panics
    /// If engines had more in their caches than an infinite one: a defect of the simulation.
    #[must_use]
    pub fn new(seed: Option<u64>, workload: &Workload, run: &Served, block_size: u32) -> Self {
        let sum = |of: fn(&Record) -> u64| run.records.iter().map(of).sum::<u64>();
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
        let known = known_tokens(workload, block_size as usize);
        let new = |r: &Record| workload.arrivals[r.request].prompt.len() - known[r.request];
        let is_short = |r: &Record| new(r) <= SHORT_TOKENS;
        let timed = || run.records.iter().filter(|r| r.request >= workload.warm_up);
        let first_tokens = |short| {
            let some = timed().filter(move |r| is_short(r) == short);
            Times::of(some.map(|r| r.first_token)).mean_ms
        };
        let missed = timed().filter(|r| r.first_token > TARGET).count();
        Self {
            seed,
            requests: workload.arrivals.len(),
            of_requests: Requests::of(workload),
            refused: run.refused,
            rate: match workload.clients {
                None => workload.rate(),
                Some(_) => ratio(run.records.len() as f64, seconds),
            },
            latency: Times::of(timed().map(|r| r.latency)),
            first_token: Times::of(timed().map(|r| r.first_token)),
            queue: Times::of(timed().map(|r| r.queue)),
            short_ms: first_tokens(true),
            long_ms: first_tokens(false),
            missed: ratio(missed as f64, timed().count() as f64),
            warm_up: workload.warm_up,
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

impl Figures {
    /// Returns the requests that were answered per second until the last answer.
    #[must_use]
    pub fn answers_per_s(&self) -> f64 {
        ratio((self.requests - self.refused) as f64, self.seconds)
    }
}

/// Returns the ratio; 0 where there is nothing to compare with.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
pub(super) mod tests {
    use prelude_core::Timestamp;

    use super::*;
    use crate::sim::{Arrival, Prompt, Run};

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
            request: i as usize - 1,
            arrival: Timestamp::from_nanos(i * 500_000_000),
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

    pub(in crate::sim) fn figures(seed: u64) -> Figures {
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
        near(figures.answers_per_s(), 10.0 / 16.0);
        // The first prompt is new, all others are known; six first tokens take 500 ms or more.
        near(figures.short_ms, 550.0);
        near(figures.long_ms, 0.0);
        near(figures.missed, 0.6);
    }

    #[test]
    fn warm_up_is_in_no_time() {
        let (mut workload, served) = served(80);
        workload.warm_up = 5;
        let figures = Figures::new(None, &workload, &served, 10);
        let near = |got: f64, expected: f64| assert!((got - expected).abs() < 1e-9, "{got}");
        near(figures.latency.mean_ms, 8000.0);
        near(figures.missed, 1.0);
        near(figures.hit_rate, 0.8);
    }

    #[test]
    #[should_panic(expected = "of which an infinite cache has 900")]
    fn more_hits_than_an_infinite_cache_has_are_a_defect() {
        let (workload, served) = served(91);
        let _ = Figures::new(None, &workload, &served, 10);
    }
}
