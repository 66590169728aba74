//! Loads of one kind of request in a closed loop, and the rows that they become.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use prelude_bench::{
    load::{Arrivals, Jobs, Load, Tally, run},
    process::Process,
};

use super::idle;
use crate::{
    results::{Goal, Outcome},
    session::{Figure, Session, at_least, at_most},
};

/// The times of a load.
#[derive(Clone, Copy)]
pub(in crate::parts) struct Span {
    pub(in crate::parts) warm_up: Duration,
    pub(in crate::parts) time: Duration,
}

impl Span {
    /// Returns a span of so many milliseconds; a walk without a GPU takes what it needs for an
    /// answer or two.
    pub(in crate::parts) fn of(session: &Session, warm_up_ms: u64, time_ms: u64) -> Self {
        let (warm_up_ms, time_ms) = session.pick((warm_up_ms, time_ms), (0, 60));
        Self {
            warm_up: Duration::from_millis(warm_up_ms),
            time: Duration::from_millis(time_ms),
        }
    }

    pub(super) fn load(self, connections: usize, arrivals: Arrivals) -> Load {
        Load {
            connections,
            arrivals,
            warm_up: self.warm_up,
            time: self.time,
        }
    }

    pub(super) fn seconds(self) -> f64 {
        (self.warm_up + self.time).as_secs_f64()
    }
}

/// The result of a load whose requests were all answered.
pub(in crate::parts) struct Measured {
    pub(in crate::parts) tally: Tally,
    /// Answers a second, by when they came.
    pub(in crate::parts) per_second: f64,
}

impl Measured {
    /// # Errors
    /// If a request was not answered.
    pub(super) fn new(tally: Tally, jobs: &Jobs) -> Result<Self> {
        let refused = tally.count(429);
        ensure!(refused == 0, "{refused} requests were refused for load");
        Self::with_refusals(tally, jobs)
    }

    /// Returns the figures as [`Self::new`] does, where refusals for load are a part of what is
    /// measured.
    ///
    /// # Errors
    /// If a request was neither answered nor refused for load.
    pub(super) fn with_refusals(tally: Tally, jobs: &Jobs) -> Result<Self> {
        let failures = tally.failures();
        ensure!(failures == 0, "{failures} requests were not answered");
        ensure!(tally.count(200) > 0, "no request was answered");
        // Requests that ran out leave the end of the counted time empty.
        let ran_out = jobs.taken() >= jobs.distinct();
        Ok(Self {
            per_second: match ran_out {
                true => tally.per_second(),
                false => tally.window.answers_per_second(),
            },
            tally,
        })
    }

    /// Returns quantiles of the answers' times, in words.
    pub(in crate::parts) fn times(&self) -> String {
        let ms = |fraction| 1e3 * self.tally.latency_at(200, fraction);
        format!("p50 {:.2}, p99 {:.2} ms", ms(0.5), ms(0.99))
    }
}

/// Loads a server in a closed loop.
///
/// # Errors
/// If a request is not answered.
pub(in crate::parts) fn closed(
    address: &str,
    jobs: Jobs,
    connections: usize,
    span: Span,
) -> Result<Measured> {
    let jobs = Arc::new(jobs);
    let tally = run(address, &jobs, span.load(connections, Arrivals::Closed))?;
    Measured::new(tally, &jobs)
}

/// Sends each of some requests once, over a number of connections.
///
/// # Errors
/// If a request is not answered.
pub(in crate::parts) fn each_once(
    session: &Session,
    address: &str,
    jobs: Jobs,
    connections: usize,
) -> Result<Measured> {
    let span = Span {
        warm_up: Duration::ZERO,
        time: session.left(),
    };
    closed(address, jobs, connections, span)
}

/// A kind of request at saturation.
pub(super) struct Saturated<'a> {
    pub(super) name: &'a str,
    pub(super) jobs: Jobs,
    pub(super) connections: usize,
    /// The number of items in a request, and the name of an item.
    pub(super) items: (f64, &'a str),
    pub(super) must: Option<f64>,
    /// Floating-point operations of an item, where a share of the ceiling says something.
    pub(super) flops: Option<f64>,
    pub(super) reason: &'a str,
    /// Most of the time that the GPU may be idle, where that is a row of its own.
    pub(super) idle_must: Option<f64>,
}

impl Saturated<'_> {
    /// Measures and writes down; items a second. None where there was no time.
    pub(super) fn measure(
        self,
        session: &mut Session,
        server: &Process,
        span: Span,
    ) -> Result<Option<f64>> {
        if !session.has_time(self.name, span.seconds() + 2.0)? {
            return Ok(None);
        }
        let (measured, idle) = idle::share_during(&server.address, span, || {
            closed(&server.address, self.jobs, self.connections, span)
        })?;
        let (each, unit) = self.items;
        let value = each * measured.per_second;
        let reason = match self.reason {
            "" => String::new(),
            reason => format!("; {reason}"),
        };
        let idle_part = idle.map_or_else(String::new, |idle| {
            format!("; GPU idle {:.1} %", 100.0 * idle)
        });
        let reason = format!(
            "{} at {}{idle_part}{reason}",
            measured.times(),
            self.connections
        );
        rate(
            session,
            self.name,
            (value, unit),
            (self.must, self.flops),
            reason,
        )?;
        if let Some(must) = self.idle_must {
            let label = format!("{}: GPU idle share", self.name);
            match idle {
                Some(idle) => {
                    let figure = (100.0 * idle, "%");
                    session.timed(Outcome::figure(label, figure, at_most(must)))?;
                }
                None => session.skip(&label, "the server's device has no clock: it is the CPU")?,
            }
        }
        Ok(Some(value))
    }
}

/// Writes a rate down, with its share of what sustained products allow.
pub(super) fn rate(
    session: &mut Session,
    name: &str,
    figure: (f64, &str),
    (must, flops): (Option<f64>, Option<f64>),
    reason: impl Into<String>,
) -> Result<()> {
    let mut outcome = Outcome::figure(name, figure, must.and_then(at_least)).because(reason);
    if let Some(flops) = flops {
        session.ceilings.share(&mut outcome, flops);
    }
    session.timed(outcome)
}

/// Writes the median of some seconds down, in milliseconds.
pub(super) fn times(
    session: &mut Session,
    name: &str,
    seconds: &[f64],
    goal: Option<Goal>,
    (rest, detail): (&str, bool),
) -> Result<()> {
    if seconds.is_empty() {
        // A server that is faster than its connection sends several tokens as one piece.
        return session.skip(name, "every answer came in one piece");
    }
    let last = (seconds.len() - 1) as f64;
    let at = |share: f64| 1e3 * seconds[(last * share) as usize];
    session.figure(Figure {
        reason: format!("p95 {:.2}, p99 {:.2}{rest}", at(0.95), at(0.99)),
        detail,
        ..Figure::wall(name, seconds, goal)
    })
}
