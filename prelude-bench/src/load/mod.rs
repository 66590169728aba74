//! A load generator: kept connections, bodies serialised beforehand, latencies in a histogram.
//!
//! One thread drives all connections, so that on a small machine most of it is left to the server
//! under test. In a closed loop each connection sends its next request when the last one is
//! answered: that finds a server's capacity, and says nothing about what a crowd would have felt
//! meanwhile. In an open loop requests come when they come; one that finds no connection free has
//! waited since its arrival, and that wait counts (Schroeder et al., *Open Versus Closed*, NSDI
//! 2006).

mod connection;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use hdrhistogram::Histogram;
use tokio::{task::JoinSet, time::sleep_until};

use crate::random::Random;
use connection::Connection;

/// One request: where it goes, and its body.
#[derive(Clone, Debug)]
pub struct Job {
    /// The path, for example `/classify`.
    pub path: &'static str,
    /// JSON.
    pub body: Bytes,
}

/// Requests in an order, handed out once each and, when they run out, again from the first.
#[derive(Debug)]
pub struct Jobs {
    jobs: Vec<Job>,
    next: AtomicUsize,
    /// The number of jobs to hand out.
    limit: usize,
    /// The offset of the number in each body; empty if bodies are not numbered.
    marks: Vec<usize>,
    /// The number of consecutive bodies with the same number.
    alike: usize,
}

/// The placeholder for the number in a body: eight digits.
pub const NUMBER: &str = "00000000";

impl Jobs {
    /// # Panics
    /// If there are none.
    #[must_use]
    pub fn new(jobs: Vec<Job>) -> Self {
        assert!(!jobs.is_empty(), "there is something to send");
        Self {
            jobs,
            next: AtomicUsize::new(0),
            limit: usize::MAX,
            marks: Vec::new(),
            alike: 1,
        }
    }

    /// Jobs that are handed out once each: the load ends when they run out.
    ///
    /// # Panics
    /// If there are none.
    #[must_use]
    pub fn once(jobs: Vec<Job>) -> Self {
        Self {
            limit: jobs.len(),
            ..Self::new(jobs)
        }
    }

    /// Jobs whose bodies say [`NUMBER`] somewhere, where each gets a number as it is handed out:
    /// `alike` in a row the same one, and no other connection, however many are handed out.
    ///
    /// # Panics
    /// If there are none, or a body has no place for its number, or none are to be alike.
    #[must_use]
    pub fn numbered(jobs: Vec<Job>, alike: usize) -> Self {
        assert!(alike > 0, "each has a number");
        let mark = |job: &Job| {
            let mut windows = job.body.windows(NUMBER.len());
            let at = windows.position(|bytes| bytes == NUMBER.as_bytes());
            at.expect("a numbered body says where its number goes")
        };
        let marks = jobs.iter().map(mark).collect();
        Self {
            marks,
            alike,
            ..Self::new(jobs)
        }
    }

    fn take(&self) -> Option<Job> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if number >= self.limit {
            return None;
        }
        let at = number % self.jobs.len();
        let mut job = self.jobs[at].clone();
        if let Some(&mark) = self.marks.get(at) {
            let mut body = job.body.to_vec();
            let digits = format!("{:08}", number / self.alike % 100_000_000);
            body[mark..mark + NUMBER.len()].copy_from_slice(digits.as_bytes());
            job.body = body.into();
        }
        Some(job)
    }

    /// Returns the number of bodies handed out, with repetitions.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.next.load(Ordering::Relaxed).min(self.limit)
    }

    /// The first `count`, without handing them out.
    #[must_use]
    pub fn first(&self, count: usize) -> Vec<Job> {
        self.jobs.iter().take(count).cloned().collect()
    }

    /// Returns the number of different bodies.
    #[must_use]
    pub fn distinct(&self) -> usize {
        match self.marks.is_empty() {
            true => self.jobs.len(),
            false => usize::MAX,
        }
    }
}

/// The times at which requests are sent.
#[derive(Clone, Copy, Debug)]
pub enum Arrivals {
    /// A closed loop: each connection sends a request when it has the last response.
    Closed,
    /// An open loop: a Poisson process, whatever the server does.
    Open {
        /// The mean.
        per_second: f64,
        /// The seed of the process.
        seed: u64,
    },
    /// One on every connection at the same moment, the next ones when all are answered. What is
    /// timed is each such round as a whole.
    Together,
}

/// The load on a server.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Connections, which is the most requests at the same time.
    pub connections: usize,
    /// The times at which requests are sent.
    pub arrivals: Arrivals,
    /// Time before counting begins.
    pub warm_up: Duration,
    /// Time in which requests are counted.
    pub time: Duration,
}

/// Latencies of one kind of answer.
pub type Latencies = Histogram<u64>;

/// The result of a load. Latencies are in nanoseconds.
#[derive(Clone, Debug)]
pub struct Tally {
    /// The latencies of responses by status.
    pub by_status: BTreeMap<u16, Latencies>,
    /// Requests without an answer: the connection broke, or could not be made.
    pub broken: u64,
    /// The time from the end of the warm-up to the last counted response.
    pub elapsed: Duration,
}

/// Longest latency that the histograms tell from longer ones.
const LATENCY_MAX_NS: u64 = 600_000_000_000;

impl Tally {
    fn new() -> Self {
        Self {
            by_status: BTreeMap::new(),
            broken: 0,
            elapsed: Duration::ZERO,
        }
    }

    fn note(&mut self, status: u16, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        let empty = || Histogram::new_with_max(LATENCY_MAX_NS, 3).expect("bounds in range");
        let latencies = self.by_status.entry(status).or_insert_with(empty);
        latencies.saturating_record(ns);
    }

    fn merge(&mut self, other: &Self) {
        for (&status, latencies) in &other.by_status {
            match self.by_status.get_mut(&status) {
                Some(mine) => mine.add(latencies).expect("the same bounds"),
                None => drop(self.by_status.insert(status, latencies.clone())),
            }
        }
        self.broken += other.broken;
        self.elapsed = self.elapsed.max(other.elapsed);
    }

    /// Answers with this status.
    #[must_use]
    pub fn count(&self, status: u16) -> u64 {
        self.by_status.get(&status).map_or(0, Histogram::len)
    }

    /// Answers that are neither 200 nor a refusal for load.
    #[must_use]
    pub fn failures(&self) -> u64 {
        let bad = |&(&status, _): &(&u16, &Latencies)| status != 200 && status != 429;
        let answers = self.by_status.iter().filter(bad);
        answers.map(|(_, l)| l.len()).sum::<u64>() + self.broken
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
        let answers: u64 = self.by_status.values().map(Histogram::len).sum();
        (answers + self.broken) as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Returns the seconds that each answer with this status took, in order and to three digits.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a duration")]
    pub fn seconds(&self, status: u16) -> Vec<f64> {
        let latencies = self.by_status.get(&status).into_iter();
        let recorded = latencies
            .flat_map(Histogram::iter_recorded)
            .flat_map(|value| {
                let seconds = value.value_iterated_to() as f64 / 1e9;
                std::iter::repeat_n(seconds, value.count_since_last_iteration() as usize)
            });
        recorded.collect()
    }

    /// Seconds that this fraction of answers with this status took at most; NaN if there were
    /// none.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a duration")]
    pub fn quantile(&self, status: u16, fraction: f64) -> f64 {
        let latencies = self.by_status.get(&status);
        latencies.map_or(f64::NAN, |l| l.value_at_quantile(fraction) as f64 / 1e9)
    }
}

/// Loads the server at `address` (`host:port`) and returns what came of it.
///
/// # Errors
/// If the first connection cannot be made, or no thread started.
pub fn run(address: &str, jobs: &Arc<Jobs>, load: Load) -> Result<Tally> {
    ensure!(load.connections > 0, "a load has connections");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match load.arrivals {
            Arrivals::Together => together(address, jobs, load).await,
            Arrivals::Closed | Arrivals::Open { .. } => apart(address, jobs, load).await,
        }
    })
}

/// Sends each of `jobs` once, one after another, and fails unless each is answered 200.
///
/// # Errors
/// With what the server said instead.
pub fn check(address: &str, jobs: &[Job]) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut connection = Connection::open(address).await?;
        for job in jobs {
            let (status, body) = connection.answer(job.clone()).await?;
            let body = String::from_utf8_lossy(&body);
            let start: String = body.chars().take(300).collect();
            ensure!(status == 200, "{} answered {status}: {start}", job.path);
        }
        Ok(())
    })
}

/// Connections that go their own ways.
async fn apart(address: &str, jobs: &Arc<Jobs>, load: Load) -> Result<Tally> {
    let begin = Instant::now();
    let times = Arc::new(Times {
        count_from: begin + load.warm_up,
        until: begin + load.warm_up + load.time,
        schedule: match load.arrivals {
            Arrivals::Open { per_second, seed } => Some(Mutex::new(Poisson {
                next: begin,
                per_second,
                random: Random::new(seed),
            })),
            _ => None,
        },
    });
    let mut workers = JoinSet::new();
    for _ in 0..load.connections {
        let connection = Connection::open(address).await?;
        let (jobs, times) = (Arc::clone(jobs), Arc::clone(&times));
        workers.spawn(worker(connection, jobs, times));
    }
    let mut all = Tally::new();
    while let Some(tally) = workers.join_next().await {
        all.merge(&tally.context("a connection's task")?);
    }
    Ok(all)
}

struct Times {
    count_from: Instant,
    until: Instant,
    /// The arrival times of an open loop.
    schedule: Option<Mutex<Poisson>>,
}

async fn worker(mut connection: Connection, jobs: Arc<Jobs>, times: Arc<Times>) -> Tally {
    let mut tally = Tally::new();
    loop {
        let arrival = times.schedule.as_ref().map(|schedule| {
            let mut schedule = schedule.lock().unwrap_or_else(PoisonError::into_inner);
            schedule.arrive()
        });
        let mut start = Instant::now();
        if let Some(arrival) = arrival {
            if arrival >= times.until {
                return tally;
            }
            if arrival > start {
                // A timer is a millisecond late: that is not the server's doing.
                sleep_until(arrival.into()).await;
                start = Instant::now();
            } else {
                // No connection was free when it came.
                start = arrival;
            }
        }
        if start >= times.until {
            return tally;
        }
        let Some(job) = jobs.take() else {
            return tally;
        };
        let status = connection.ask(job).await;
        let end = Instant::now();
        if start < times.count_from {
            continue;
        }
        tally.elapsed = end - times.count_from;
        match status {
            Ok(status) => tally.note(status, end - start),
            Err(_) => {
                tally.broken += 1;
                // A server that is gone is not to be asked a million times a second.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// Rounds of one request on each connection.
async fn together(address: &str, jobs: &Arc<Jobs>, load: Load) -> Result<Tally> {
    let mut idle = Vec::new();
    for _ in 0..load.connections {
        idle.push(Connection::open(address).await?);
    }
    let begin = Instant::now();
    let count_from = begin + load.warm_up;
    let mut tally = Tally::new();
    loop {
        let start = Instant::now();
        // However slow, there is one round to tell of.
        let is_enough = !tally.by_status.is_empty() || tally.broken > 0;
        if start >= count_from + load.time && is_enough {
            return Ok(tally);
        }
        let mut asked = JoinSet::new();
        for mut connection in idle.drain(..) {
            let Some(job) = jobs.take() else {
                return Ok(tally);
            };
            asked.spawn(async move {
                let status = connection.ask(job).await;
                (connection, status)
            });
        }
        let mut worst = Some(200);
        while let Some(done) = asked.join_next().await {
            let (connection, status) = done.context("a connection's task")?;
            idle.push(connection);
            worst = match (worst, status) {
                (Some(worst), Ok(status)) => Some(worst.max(status)),
                _ => None,
            };
        }
        let end = Instant::now();
        if start < count_from {
            continue;
        }
        tally.elapsed = end - count_from;
        match worst {
            Some(status) => tally.note(status, end - start),
            None => tally.broken += 1,
        }
    }
}

/// Arrivals whose gaps are exponential.
struct Poisson {
    next: Instant,
    per_second: f64,
    random: Random,
}

impl Poisson {
    fn arrive(&mut self) -> Instant {
        let arrival = self.next;
        self.next += exponential(self.random.next(), self.per_second);
        arrival
    }
}

/// A gap with the mean of `1 / per_second`, from 64 random bits.
fn exponential(bits: u64, per_second: f64) -> Duration {
    #[expect(clippy::cast_precision_loss, reason = "53 bits are kept")]
    let uniform = ((bits >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    Duration::from_secs_f64((-uniform.ln() / per_second.max(1e-6)).min(3600.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_have_their_mean_and_spread() {
        let mut poisson = Poisson {
            next: Instant::now(),
            per_second: 200.0,
            random: Random::new(7),
        };
        let arrivals: Vec<_> = (0..20_001).map(|_| poisson.arrive()).collect();
        let gaps: Vec<f64> = arrivals
            .windows(2)
            .map(|pair| (pair[1] - pair[0]).as_secs_f64())
            .collect();
        let n = 20_000.0;
        let mean = gaps.iter().sum::<f64>() / n;
        let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / n;
        assert!((mean * 200.0 - 1.0).abs() < 0.03, "{mean}");
        // An exponential's deviation is its mean.
        assert!((variance.sqrt() * 200.0 - 1.0).abs() < 0.05, "{variance}");
    }

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
        assert!((a.quantile(200, 1.0) - 0.004).abs() < 1e-5);
        assert!(a.quantile(404, 0.5).is_nan());
        let close = |(a, b): (&f64, f64)| (a - b).abs() < 1e-5;
        assert!(a.seconds(200).iter().zip([0.002, 0.004]).all(close));
        assert_eq!((a.seconds(200).len(), a.seconds(404).len()), (2, 0));
    }

    #[test]
    fn jobs_are_handed_out_once_and_then_again() {
        let job = |path| Job {
            path,
            body: Bytes::new(),
        };
        let jobs = Jobs::new(vec![job("/a"), job("/b")]);
        let paths: Vec<_> = (0..3).map(|_| jobs.take().unwrap().path).collect();
        assert_eq!(paths, ["/a", "/b", "/a"]);
        assert_eq!((jobs.taken(), jobs.distinct()), (3, 2));
        let jobs = Jobs::once(vec![job("/a")]);
        let paths: Vec<_> = (0..3).map(|_| jobs.take().map(|job| job.path)).collect();
        assert_eq!((paths, jobs.taken()), (vec![Some("/a"), None, None], 1));
    }

    #[test]
    fn numbered_jobs_are_as_alike_as_they_are_told() {
        let job = |text: &str| Job {
            path: "/a",
            body: Bytes::from(text.to_owned()),
        };
        let take = |alike| {
            let jobs = Jobs::numbered(vec![job("a 00000000."), job("00000000 0")], alike);
            (0..4)
                .map(|_| jobs.take().unwrap().body)
                .collect::<Vec<_>>()
        };
        let expected = ["a 00000000.", "00000001 0", "a 00000002.", "00000003 0"];
        assert_eq!(take(1), expected);
        let expected = ["a 00000000.", "00000000 0", "a 00000001.", "00000001 0"];
        assert_eq!(take(2), expected);
    }
}
