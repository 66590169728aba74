//! Figures of a replay.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::{Context as _, Result};
use hdrhistogram::Histogram;
use prelude_measure::table::Table;
use serde::Serialize;

use super::{Answer, Config, Fate, Request, html, send::Replayed};

/// Longest time that the histograms tell from longer ones, in microseconds: an hour.
const MAX_US: u64 = 3_600_000_000;

/// The times by which an answer counts as good; none asks for an answer alone.
#[derive(Clone, Copy, Debug, Default, Serialize, clap::Args)]
pub struct Deadlines {
    /// Deadline of the first token, in milliseconds from the arrival, for goodput.
    #[arg(long)]
    pub first_ms: Option<u64>,
    /// Deadline of the whole answer, in milliseconds from the arrival, for goodput.
    #[arg(long)]
    pub end_ms: Option<u64>,
}

impl Deadlines {
    fn are_met(self, answer: &Answer) -> bool {
        let within = |time: Option<Duration>, ms: Option<u64>| match (time, ms) {
            (_, None) => true,
            (Some(time), Some(ms)) => time <= Duration::from_millis(ms),
            (None, Some(_)) => false,
        };
        answer.fate == Fate::Answered
            && within(answer.first, self.first_ms)
            && within(Some(answer.end), self.end_ms)
    }
}

/// Quantiles of times in milliseconds; all 0 if there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Times {
    /// The number of times.
    pub count: u64,
    /// The mean.
    pub mean: f64,
    /// Half of the times are at most this.
    pub p50: f64,
    /// The time that nine of ten do not exceed.
    pub p90: f64,
    /// The time that 99 of a hundred do not exceed.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

impl Times {
    fn new(times: impl IntoIterator<Item = Duration>) -> Self {
        let mut all = Histogram::<u64>::new_with_max(MAX_US, 3).expect("bounds in range");
        for time in times {
            all.saturating_record(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        }
        if all.is_empty() {
            return Self::default();
        }
        #[expect(clippy::cast_precision_loss, reason = "a time")]
        let ms = |us: u64| us as f64 / 1_000.0;
        let at = |fraction| ms(all.value_at_quantile(fraction));
        Self {
            count: all.len(),
            mean: all.mean() / 1_000.0,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: ms(all.max()),
        }
    }
}

/// The results of a replay. Times count from a request's arrival, in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The trace's name.
    pub trace: String,
    /// The server.
    pub url: String,
    /// The factor by which the requests arrived faster than recorded.
    pub speed: f64,
    /// Lengths as a share of those recorded.
    pub lengths: f64,
    /// The deadlines that goodput counts.
    pub deadlines: Deadlines,
    /// True if the replay was ended early.
    pub is_cut: bool,
    /// Requests of the replay, and of those sent by its end.
    pub requests: usize,
    /// Requests with a whole answer.
    pub answered: u64,
    /// Requests with another status than 200, by status.
    pub refused: BTreeMap<u16, u64>,
    /// Requests that failed, by cause.
    pub failed: BTreeMap<String, u64>,
    /// Seconds from the start to the last answer.
    pub seconds: f64,
    /// Requests that arrived in a second, in the mean.
    pub offered_per_second: f64,
    /// Requests that were answered in a second.
    pub answered_per_second: f64,
    /// Requests that were answered in a second within their deadlines.
    pub good_per_second: f64,
    /// Answers within their deadlines, as a share of all requests that ended.
    pub good_share: f64,
    /// Prompt tokens of answered requests in a second.
    pub prompt_tokens_per_second: f64,
    /// Generated tokens in a second.
    pub output_tokens_per_second: f64,
    /// Prompt tokens that the server had in its cache, as a share; none if it does not say.
    pub cached_share: Option<f64>,
    /// The time to the first generated text.
    pub first_ms: Times,
    /// The time to the end of the answer.
    pub end_ms: Times,
    /// The time between two generated tokens, in the mean of an answer.
    pub per_token_ms: Times,
    /// The generator's own delay: if it is not far below the others, more connections are needed,
    /// or a faster machine for the generator.
    pub sent_ms: Times,
    #[serde(skip)]
    pub(super) answers: Vec<(Duration, Answer)>,
}

impl Report {
    pub(super) fn new(
        trace: String,
        config: &Config,
        requests: &[Request],
        replayed: Replayed,
    ) -> Self {
        let Replayed {
            answers,
            is_cut,
            elapsed,
        } = replayed;
        let seconds = elapsed.as_secs_f64().max(1e-9);
        let (mut refused, mut failed) = (BTreeMap::new(), BTreeMap::new());
        for answer in &answers {
            match &answer.fate {
                Fate::Answered => {}
                Fate::Refused(status, _) => *refused.entry(*status).or_default() += 1,
                Fate::Failed(why) => *failed.entry(why.clone()).or_default() += 1,
            }
        }
        let done = || answers.iter().filter(|a| a.fate == Fate::Answered);
        let good = answers
            .iter()
            .filter(|a| config.deadlines.are_met(a))
            .count();
        let prompt = |a: &Answer| u64::from(requests[a.request].prompt_tokens);
        let prompts: u64 = done().map(prompt).sum();
        let cached: Option<u64> = done().map(|a| a.cached_tokens.map(u64::from)).sum();
        let outputs: u64 = done().map(|a| u64::from(a.tokens)).sum();
        let per_token = |a: &Answer| {
            let between = a.tokens.checked_sub(1).filter(|&n| n > 0)?;
            Some((a.end - a.first?) / between)
        };
        #[expect(clippy::cast_precision_loss, reason = "rates and shares")]
        let float = |count: u64| count as f64;
        let last = requests.last().map_or(Duration::ZERO, |r| r.at);
        let arrived = last.as_secs_f64().max(1e-9);
        let answered = done().count() as u64;
        Self {
            trace,
            url: config.url.clone(),
            speed: config.shape.speed,
            lengths: config.shape.lengths,
            deadlines: config.deadlines,
            is_cut,
            requests: requests.len(),
            answered,
            refused,
            failed,
            seconds,
            offered_per_second: float(requests.len() as u64) / arrived,
            answered_per_second: float(answered) / seconds,
            good_per_second: float(good as u64) / seconds,
            good_share: float(good as u64) / float(answers.len().max(1) as u64),
            prompt_tokens_per_second: float(prompts) / seconds,
            output_tokens_per_second: float(outputs) / seconds,
            cached_share: cached
                .filter(|_| prompts > 0)
                .map(|c| float(c) / float(prompts)),
            first_ms: Times::new(done().filter_map(|a| a.first)),
            end_ms: Times::new(done().map(|a| a.end)),
            per_token_ms: Times::new(done().filter_map(per_token)),
            sent_ms: Times::new(answers.iter().map(|a| a.sent)),
            answers: { answers.into_iter() }
                .map(|answer| (requests[answer.request].at, answer))
                .collect(),
        }
    }

    /// Returns the report as text for a terminal: what happened, and the distributions of times.
    #[must_use]
    pub fn render(&self) -> String {
        let mut happened = Table::new(["", ""]);
        let cut = if self.is_cut { ", ended early" } else { "" };
        let ended = self.answers.len();
        happened.row(["requests", &format!("{ended} of {}{cut}", self.requests)]);
        happened.row(["answered", &self.answered.to_string()]);
        for (status, count) in &self.refused {
            happened.row(["refused", &format!("{count} with status {status}")]);
        }
        for (why, count) in &self.failed {
            happened.row(["failed", &format!("{count}: {why}")]);
        }
        let rate = |per_second: f64| format!("{per_second:.2} requests/s");
        happened.row(["offered", &rate(self.offered_per_second)]);
        happened.row(["answered", &rate(self.answered_per_second)]);
        let good = rate(self.good_per_second);
        happened.row([
            "goodput",
            &format!("{good}, {:.1} %", 100.0 * self.good_share),
        ]);
        let (prompts, outputs) = (self.prompt_tokens_per_second, self.output_tokens_per_second);
        let tokens = format!("{prompts:.0} prompt and {outputs:.0} generated tokens/s");
        happened.row(["tokens", &tokens]);
        if let Some(share) = self.cached_share {
            happened.row([
                "cached",
                &format!("{:.1} % of prompt tokens", 100.0 * share),
            ]);
        }
        let mut times = Table::new(["ms", ">mean", ">P50", ">P90", ">P99", ">max"]);
        for (name, t) in [
            ("time to first token", self.first_ms),
            ("time to the end", self.end_ms),
            ("time per output token", self.per_token_ms),
            ("delay of the generator", self.sent_ms),
        ] {
            let figures = [t.mean, t.p50, t.p90, t.p99, t.max].map(|ms| format!("{ms:.2}"));
            times.row([name.to_owned()].into_iter().chain(figures));
        }
        format!(
            "{} against {}, {} times as fast, lengths x {}\n\n{}\n{}",
            self.trace,
            self.url,
            self.speed,
            self.lengths,
            happened.text(),
            times.text()
        )
    }

    /// Writes `replay.txt`, `replay.json` and `replay.html`, which needs no other file, to a
    /// folder.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let write = |name: &str, text: String| {
            let path = folder.join(name);
            std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        write("replay.txt", self.render())?;
        write("replay.json", serde_json::to_string_pretty(self)?)?;
        write("replay.html", html::page(self)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(first: u64, end: u64, fate: Fate) -> Answer {
        Answer {
            request: 0,
            fate,
            sent: Duration::ZERO,
            first: Some(Duration::from_millis(first)),
            end: Duration::from_millis(end),
            tokens: 3,
            cached_tokens: None,
        }
    }

    #[test]
    fn deadlines_count_first_token_and_end() {
        let check = |first_ms, end_ms, expected| {
            let deadlines = Deadlines { first_ms, end_ms };
            let answer = answer(20, 90, Fate::Answered);
            assert_eq!(deadlines.are_met(&answer), expected, "{deadlines:?}");
        };
        check(None, None, true);
        check(Some(20), Some(90), true);
        check(Some(19), None, false);
        check(None, Some(89), false);
        let refused = answer(1, 1, Fate::Refused(429, String::new()));
        assert!(!Deadlines::default().are_met(&refused));
    }

    #[test]
    fn times_have_their_quantiles() {
        assert_eq!(Times::new([]), Times::default());
        let times = Times::new((1..=100).map(Duration::from_millis));
        let close = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 0.002);
        assert_eq!(times.count, 100);
        close(times.p50, 50.0);
        close(times.p99, 99.0);
        close(times.max, 100.0);
        close(times.mean, 50.5);
    }
}
