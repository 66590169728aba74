//! The result of a load.

use std::{
    collections::BTreeMap,
    fmt,
    ops::Range,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;

use super::stream::Reader;

/// Latencies of one kind of answer.
pub type Latencies = Histogram<u64>;

/// The result of a load. Latencies are in nanoseconds.
#[derive(Clone)]
pub struct Tally {
    /// The latencies of responses by status.
    pub by_status: BTreeMap<u16, Latencies>,
    /// Requests without an answer: the connection broke, or could not be made.
    pub broken: u64,
    /// The time from the end of the warm-up to the last counted response.
    pub elapsed: Duration,
    /// The answers and tokens that arrived in the counted time; empty for [`super::Arrivals::Together`].
    pub window: Window,
    /// The streams among the answers with status 200, if there are any.
    pub streams: Option<Streams>,
}

/// Answers and tokens that arrived in the counted time, whenever they were asked for. Requests that
/// are answered after that time do not dilute these rates.
#[derive(Clone, Copy, Debug, Default)]
pub struct Window {
    /// The counted time.
    pub time: Duration,
    /// Answers with status 200 that ended in it.
    pub answers: u64,
    /// Tokens that streams brought in it.
    pub tokens: f64,
}

impl Window {
    /// Returns the answers per second with status 200.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    pub fn answers_per_second(&self) -> f64 {
        self.answers as f64 / self.time.as_secs_f64().max(1e-9)
    }

    /// Returns the tokens per second of streams.
    #[must_use]
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens / self.time.as_secs_f64().max(1e-9)
    }

    /// Counts an answer with status 200 that ended at `end`. A stream's tokens are spread over its
    /// texts by their bytes: a text may hold several tokens, or one and a half.
    #[expect(clippy::cast_precision_loss, reason = "counts of one answer")]
    fn note(&mut self, window: &Range<Instant>, reader: &Reader, end: Instant) {
        self.answers += u64::from(window.contains(&end));
        let (mut all, mut within) = (0, 0);
        for text in &reader.texts {
            all += text.bytes;
            within += if window.contains(&text.at) {
                text.bytes
            } else {
                0
            };
        }
        if all > 0 {
            self.tokens += f64::from(reader.tokens()) * within as f64 / all as f64;
        }
    }
}

/// Streamed answers with status 200. Times are in nanoseconds.
#[derive(Clone, Debug)]
pub struct Streams {
    /// The times from the arrival of a counted request to its first text.
    pub first: Latencies,
    /// The time between two texts of one stream, if any of it was in the counted time. Streams that
    /// began before it have such gaps too: a server that stalls them would otherwise have none.
    pub gaps: Latencies,
    /// The mean time of a token behind the first of each counted stream that has more than one: what
    /// is often called TPOT.
    pub each: Latencies,
    /// Tokens of the answers to counted requests, as the server counts them.
    pub tokens: u64,
}

impl Streams {
    fn new() -> Self {
        Self {
            first: latencies(),
            gaps: latencies(),
            each: latencies(),
            tokens: 0,
        }
    }

    fn note(&mut self, window: &Range<Instant>, start: Instant, reader: &Reader) {
        for pair in reader.texts.windows(2) {
            if pair[0].at < window.end && pair[1].at >= window.start {
                record(&mut self.gaps, pair[1].at - pair[0].at);
            }
        }
        if window.contains(&start) {
            if let Some(text) = reader.texts.first() {
                record(&mut self.first, text.at - start);
            }
            if let ([first, .., last], more @ 1..) =
                (&reader.texts[..], reader.tokens().saturating_sub(1))
            {
                record(&mut self.each, (last.at - first.at) / more);
            }
            self.tokens += u64::from(reader.tokens());
        }
    }

    fn merge(&mut self, other: &Self) {
        self.first.add(&other.first).expect("the same bounds");
        self.gaps.add(&other.gaps).expect("the same bounds");
        self.each.add(&other.each).expect("the same bounds");
        self.tokens += other.tokens;
    }
}

/// Longest latency that the histograms tell from longer ones.
const LATENCY_MAX_NS: u64 = 600_000_000_000;

fn latencies() -> Latencies {
    Histogram::new_with_max(LATENCY_MAX_NS, 3).expect("bounds in range")
}

fn record(latencies: &mut Latencies, latency: Duration) {
    let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
    latencies.saturating_record(ns);
}

/// Prints the number of responses by status: histograms have thousands of numbers.
impl fmt::Debug for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: BTreeMap<u16, u64> = { self.by_status.iter() }
            .map(|(&status, latencies)| (status, latencies.len()))
            .collect();
        f.debug_struct("Tally")
            .field("by_status", &counts)
            .field("broken", &self.broken)
            .field("elapsed", &self.elapsed)
            .finish_non_exhaustive()
    }
}

/// Returns the seconds that this fraction of `latencies` are at most; NaN if there are none.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a duration")]
pub fn latency_at(latencies: &Latencies, fraction: f64) -> f64 {
    match latencies.is_empty() {
        true => f64::NAN,
        false => latencies.value_at_quantile(fraction) as f64 / 1e9,
    }
}

/// Returns each of `latencies` in seconds, in order and to three digits.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a duration")]
pub fn seconds(latencies: &Latencies) -> Vec<f64> {
    let recorded = latencies.iter_recorded().flat_map(|value| {
        let seconds = value.value_iterated_to() as f64 / 1e9;
        std::iter::repeat_n(seconds, value.count_since_last_iteration() as usize)
    });
    recorded.collect()
}

impl Tally {
    pub(crate) const fn new() -> Self {
        Self {
            by_status: BTreeMap::new(),
            broken: 0,
            elapsed: Duration::ZERO,
            window: Window {
                time: Duration::ZERO,
                answers: 0,
                tokens: 0.0,
            },
            streams: None,
        }
    }

    pub(super) fn note(&mut self, status: u16, latency: Duration) {
        let of = self.by_status.entry(status).or_insert_with(latencies);
        record(of, latency);
    }

    /// Counts the parts of an answer with status 200 that arrived in the counted time. It was asked
    /// for at `start` and ended at `end`.
    pub(super) fn note_window(
        &mut self,
        window: &Range<Instant>,
        (start, end): (Instant, Instant),
        reader: &Reader,
    ) {
        self.window.time = window.end - window.start;
        self.window.note(window, reader, end);
        if !reader.texts.is_empty() {
            let streams = self.streams.get_or_insert_with(Streams::new);
            streams.note(window, start, reader);
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        for (&status, latencies) in &other.by_status {
            match self.by_status.get_mut(&status) {
                Some(mine) => mine.add(latencies).expect("the same bounds"),
                None => drop(self.by_status.insert(status, latencies.clone())),
            }
        }
        self.broken += other.broken;
        self.elapsed = self.elapsed.max(other.elapsed);
        self.window.time = self.window.time.max(other.window.time);
        self.window.answers += other.window.answers;
        self.window.tokens += other.window.tokens;
        if let Some(streams) = &other.streams {
            self.streams.get_or_insert_with(Streams::new).merge(streams);
        }
    }

    /// Returns the number of answers with this status.
    #[must_use]
    pub fn count(&self, status: u16) -> u64 {
        self.by_status.get(&status).map_or(0, Histogram::len)
    }

    /// Returns the number of answers that are neither 200 nor a refusal for load.
    #[must_use]
    pub fn failures(&self) -> u64 {
        let bad = |&(&status, _): &(&u16, &Latencies)| status != 200 && status != 429;
        let answers = self.by_status.iter().filter(bad);
        answers.map(|(_, l)| l.len()).sum::<u64>() + self.broken
    }

    /// Returns the requests that ended in any way: answered, refused or broken.
    #[must_use]
    pub fn asked(&self) -> u64 {
        let answers: u64 = self.by_status.values().map(Histogram::len).sum();
        answers + self.broken
    }

    /// Returns the answers with this status that took at most `limit`, to three digits.
    #[must_use]
    pub fn count_within(&self, status: u16, limit: Duration) -> u64 {
        let ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let latencies = self.by_status.get(&status);
        latencies.map_or(0, |latencies| latencies.count_between(0, ns))
    }

    /// Returns the answers per second with status 200.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    pub fn per_second(&self) -> f64 {
        self.count(200) as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Returns the requests per second that ended in any way: answered, refused or broken.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    pub fn asked_per_second(&self) -> f64 {
        self.asked() as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Returns the seconds that each answer with this status took, in order and to three digits.
    #[must_use]
    pub fn seconds(&self, status: u16) -> Vec<f64> {
        self.by_status.get(&status).map_or_else(Vec::new, seconds)
    }

    /// Returns the seconds that this fraction of answers with this status took at most; NaN if there
    /// were none.
    #[must_use]
    pub fn latency_at(&self, status: u16, fraction: f64) -> f64 {
        let latencies = self.by_status.get(&status);
        latencies.map_or(f64::NAN, |latencies| latency_at(latencies, fraction))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tallies_add_up() {
        let mut a = Tally::new();
        a.note(200, Duration::from_millis(2));
        a.note(429, Duration::from_millis(1));
        a.elapsed = Duration::from_secs(1);
        let mut b = Tally::new();
        b.note(200, Duration::from_millis(4));
        b.note(503, Duration::from_millis(9));
        b.broken = 1;
        b.elapsed = Duration::from_secs(2);
        a.merge(&b);
        assert_eq!((a.count(200), a.count(429), a.failures()), (2, 1, 2));
        assert_eq!((a.per_second(), a.asked_per_second()), (1.0, 2.5));
        assert_eq!(a.asked(), 5);
        let within = |ms| a.count_within(200, Duration::from_millis(ms));
        assert_eq!((within(1), within(3), within(4)), (0, 1, 2));
        assert!((a.latency_at(200, 1.0) - 0.004).abs() < 1e-5);
        assert!(a.latency_at(404, 0.5).is_nan());
        let close = |(a, b): (&f64, f64)| (a - b).abs() < 1e-5;
        assert!(a.seconds(200).iter().zip([0.002, 0.004]).all(close));
        assert_eq!((a.seconds(200).len(), a.seconds(404).len()), (2, 0));
    }

    #[test]
    fn streams_count_where_their_texts_came() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let stream = |tokens: u32, times: &[u64]| {
            let mut reader = Reader::default();
            for &ms in times {
                reader.feed(b"data: {\"choices\":[{\"text\":\"a\"}]}\n", at(ms));
            }
            let usage = format!("data: {{\"usage\":{{\"completion_tokens\":{tokens}}}}}\n");
            reader.feed(usage.as_bytes(), at(0));
            reader
        };
        let window = at(100)..at(1_100);
        let mut tally = Tally::new();
        // Asked for before the window: half of its tokens came in it, and two of its gaps.
        let early = stream(8, &[50, 99, 100, 101]);
        tally.note_window(&window, (at(40), at(101)), &early);
        // The last text came after the window, and so did the end.
        let late = stream(3, &[1_000, 1_060, 1_100]);
        tally.note_window(&window, (at(990), at(1_100)), &late);
        // No stream.
        tally.note_window(&window, (at(200), at(300)), &Reader::default());
        let mut both = Tally::new();
        both.merge(&tally);
        assert_eq!(both.window.answers, 2);
        assert_eq!(both.window.answers_per_second(), 2.0);
        assert_eq!(both.window.tokens_per_second(), 4.0 + 2.0);
        let streams = both.streams.unwrap();
        assert_eq!((streams.tokens, streams.first.len()), (3, 1));
        assert_eq!(streams.gaps.len(), 4);
        assert_eq!(streams.each.len(), 1);
        let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-4);
        close(latency_at(&streams.first, 0.5), 0.010);
        close(latency_at(&streams.gaps, 0.5), 0.001);
        close(latency_at(&streams.gaps, 1.0), 0.060);
        close(latency_at(&streams.each, 1.0), 0.050);
    }
}
