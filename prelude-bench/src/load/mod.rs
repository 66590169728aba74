//! A load generator: kept connections, bodies serialised beforehand, latencies in a histogram.
//!
//! One thread drives all connections, so that on a small machine most of it is left to the server
//! under test. In a closed loop each connection sends its next request when the last one is
//! answered: that finds a server's capacity, and says nothing about what a crowd would have felt
//! meanwhile. In an open loop requests come when they come; one that finds no connection free has
//! waited since its arrival, and that wait counts (Schroeder et al., *Open Versus Closed*, NSDI
//! 2006).

mod connection;
mod jobs;
mod stream;
mod tally;

use std::{
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use tokio::{task::JoinSet, time::sleep_until};

pub use jobs::{Job, Jobs, NUMBER};
pub use tally::{Latencies, Streams, Tally, Window, latency_at, seconds};

use crate::random::Random;
pub(crate) use connection::Connection;
pub(crate) use stream::Reader;

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
    /// A request on every connection at the same moment, the next ones when all are answered. What
    /// is timed is each such round as a whole.
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

/// Loads the server at `address` (`host:port`) and returns what came of it.
///
/// # Errors
/// If the first connection cannot be made, or no thread started.
pub fn run(address: &str, jobs: &Arc<Jobs>, load: Load) -> Result<Tally> {
    let mut tallies = run_all(address, &[(jobs, load)])?;
    Ok(tallies.pop().expect("a tally for each load"))
}

/// Loads the server at `address` with several loads at the same time, and returns the
/// result of each, in their order. All begin at the same moment.
///
/// # Errors
/// The same as those of [`run`].
pub fn run_all(address: &str, loads: &[(&Arc<Jobs>, Load)]) -> Result<Vec<Tally>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let begin = Instant::now();
        let mut running = Vec::new();
        for &(jobs, load) in loads {
            ensure!(load.connections > 0, "a load has connections");
            let (address, jobs) = (address.to_owned(), Arc::clone(jobs));
            running.push(tokio::spawn(async move {
                match load.arrivals {
                    Arrivals::Together => together(&address, &jobs, load).await,
                    Arrivals::Closed | Arrivals::Open { .. } => {
                        apart(&address, &jobs, load, begin).await
                    }
                }
            }));
        }
        let mut tallies = Vec::new();
        for load in running {
            tallies.push(load.await.context("a load's task")??);
        }
        Ok(tallies)
    })
}

/// Longest wait for the answer of one request of [`check`].
const CHECK_WITHIN: Duration = Duration::from_secs(120);

/// Sends each of `jobs` once, one after another, and fails unless each is answered 200.
///
/// # Errors
/// With what the server said instead, or if it says nothing for two minutes.
pub fn check(address: &str, jobs: &[Job]) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut connection = Connection::open(address).await?;
        for job in jobs {
            let mut reader = Reader::default();
            let answer = connection.ask(job.clone(), &mut reader);
            let status = tokio::time::timeout(CHECK_WITHIN, answer).await;
            let status = status.with_context(|| {
                let seconds = CHECK_WITHIN.as_secs();
                format!("{} was not answered within {seconds} s", job.path)
            })??;
            let said = reader.refusal();
            ensure!(status == 200, "{} answered {status}: {said}", job.path);
        }
        Ok(())
    })
}

/// Connections that go their own ways.
async fn apart(address: &str, jobs: &Arc<Jobs>, load: Load, begin: Instant) -> Result<Tally> {
    let count_from = begin + load.warm_up;
    let times = Arc::new(Times {
        window: count_from..count_from + load.time,
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
    /// The counted time. No request is sent after it.
    window: Range<Instant>,
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
            if arrival >= times.window.end {
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
        if start >= times.window.end {
            return tally;
        }
        let Some(job) = jobs.take() else {
            return tally;
        };
        let mut reader = Reader::default();
        let status = connection.ask(job, &mut reader).await;
        let end = Instant::now();
        if matches!(status, Ok(200)) {
            tally.note_window(&times.window, (start, end), &reader);
        }
        if start < times.window.start {
            continue;
        }
        tally.elapsed = end - times.window.start;
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
                let status = connection.ask(job, &mut Reader::default()).await;
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

/// Returns a gap with the mean of `1 / per_second`, from 64 random bits.
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
}
