//! Three times what the server can do, in an open loop, for a while.
//!
//! An open loop: requests arrive at their rate whatever the server does.
//!
//! Server and generator run on cores of their own where there are several: a generator that sends
//! three times as much would otherwise take from the server what the server then lacks. Capacity
//! is what the same server on the same cores does before and after.
//!
//! A refusal costs the server some tenths of a millisecond, most of it the system's for a packet
//! each way. Two of them come with each answer, so goodput falls by what they are of a request's
//! own time: requests are decisions of 16 questions, some milliseconds each even on the small
//! model that is measured here.

use std::sync::Arc;

use anyhow::{Result, ensure};

use super::{
    Bar, Config, Session, closed,
    cores::Cores,
    report::{Row, Unit, Verdict},
    versus::{tokenizer, workload},
};
use crate::{
    load::{Arrivals, Jobs, Load, Tally, run as load},
    process::Process,
};

/// Connections that find capacity.
const BUSY: usize = 64;
/// Connections in the overload: more than the queue has rows, so that it is the queue that is
/// full and not the generator that waits.
const CROWD: usize = 512;
/// Requests that may wait: what a second of work is, more or less.
const QUEUE: usize = 256;
/// The offered load, as a multiple of the server's capacity.
const TIMES: f64 = 3.0;
/// Least of that which must have been asked for in the end, in terms of what the server could do
/// before and after: a machine that was slower while capacity was measured is overloaded by less.
const LEAST_TIMES: f64 = 2.7;

/// The counts of one run.
struct Run {
    before: Tally,
    overload: Tally,
    after: Tally,
    server: Seen,
    pinned: Option<Cores>,
}

/// The server's own metrics.
#[derive(Clone, Copy)]
struct Seen {
    /// Requests whose texts were tokenised.
    encoded: f64,
    /// Requests answered 200.
    answered: f64,
    /// Rows that wait now.
    queued: f64,
}

/// Measures capacity, then what is left of it under three times as much.
pub(super) fn measure(session: &mut Session<'_>) -> Result<Vec<Row>> {
    let Session { config, bar, .. } = &*session;
    let tokenizer = tokenizer()?;
    let workload = workload(&tokenizer);
    let questions = config.overload_questions;
    let jobs = Arc::new(workload.decide_for_ever(500, questions));
    let queue = (QUEUE * questions).to_string();
    let settings = [
        ("PRELUDE_LIMITS__QUEUED_ROWS", &*queue),
        ("PRELUDE_LIMITS__ROWS", &*queue),
    ];
    let start = || Process::prelude_with(&config.program, &settings);
    let pinned = Cores::apart();
    // In the order of dropping: the server ends before this thread gets its cores back.
    let _back;
    let server;
    match &pinned {
        Some(cores) => (server, _back) = cores.part(start).map(|(s, back)| (s, Some(back)))?,
        None => (server, _back) = (start()?, None),
    }
    let run = ask(config, bar, &server, &jobs, pinned)?;
    Ok(run.rows(questions, &mut session.skipped))
}

fn ask(
    config: &Config,
    bar: &Bar,
    server: &Process,
    jobs: &Arc<Jobs>,
    pinned: Option<Cores>,
) -> Result<Run> {
    let find = closed(BUSY, config.overload / 6);
    bar.says("overload: capacity before");
    let before = load(&server.address, jobs, find)?;
    ensure!(before.failures() == 0, "requests failed: {before:?}");
    ensure!(before.count(200) > 0, "no request was answered");
    let crowd = Load {
        connections: CROWD,
        arrivals: Arrivals::Open {
            per_second: TIMES * before.per_second(),
            seed: 11,
        },
        warm_up: config.overload / 20,
        time: config.overload,
    };
    let from = seen(server)?;
    bar.says("overload: three times as much");
    let overload = load(&server.address, jobs, crowd)?;
    let to = seen(server)?;
    bar.says("overload: capacity after");
    let after = load(&server.address, jobs, find)?;
    ensure!(
        after.failures() == 0,
        "requests failed afterwards: {after:?}"
    );
    ensure!(after.count(200) > 0, "no request was answered afterwards");
    for (when, tally) in [("before", &before), ("after", &after)] {
        ensure!(
            tally.count(429) == 0,
            "capacity {when}: requests were refused: {tally:?}"
        );
    }
    Ok(Run {
        before,
        overload,
        after,
        server: Seen {
            encoded: to.encoded - from.encoded,
            answered: to.answered - from.answered,
            queued: to.queued,
        },
        pinned,
    })
}

fn seen(server: &Process) -> Result<Seen> {
    let answered = "prelude:requests_total{route=\"/v1/systemone\",code=\"200\",";
    Ok(Seen {
        encoded: server.metric("prelude:encode_seconds_count")?,
        answered: server.metric(answered)?,
        queued: server.metric("prelude:queue_rows")?,
    })
}

impl Run {
    fn rows(&self, questions: usize, skipped: &mut Vec<String>) -> Vec<Row> {
        let (before, after) = (self.before.per_second(), self.after.per_second());
        // The machine may have been slower in between, so the overload is compared with the mean
        // of before and after. A server that stays slower does not pass.
        let could = f64::midpoint(before, after);
        let times = self.overload.asked_per_second() / could;
        let where_ = match &self.pinned {
            Some(cores) => format!(
                "server on cores {:?}, generator on {:?}",
                cores.server, cores.generator
            ),
            None => "server and generator share their cores".to_owned(),
        };
        let asked = format!("decisions of {questions} questions, fresh state of 500 tokens");
        let answered = self.overload.per_second();
        let mut rows = vec![
            Row::one("capacity, 64 connections, before", Unit::PerSecond, before)
                .noting(format!("{asked}; {where_}")),
            Row::one("capacity, 64 connections, after", Unit::PerSecond, after)
                .with(Verdict::at_least(after / before, 0.8)),
            Row::one(
                "overload: asked for, in terms of capacity",
                Unit::Ratio,
                times,
            )
            .at_least(LEAST_TIMES),
            Row::one("overload: answered", Unit::PerSecond, answered),
        ];
        self.push_overload_rows(could, &mut rows, skipped);
        rows
    }

    /// Appends the rows of the overload itself. `could` is the server's capacity per second.
    #[expect(clippy::cast_precision_loss, reason = "counts of a run")]
    fn push_overload_rows(&self, could: f64, rows: &mut Vec<Row>, skipped: &mut Vec<String>) {
        let share = self.overload.per_second() / could;
        let failures = self.overload.failures() as f64;
        let broken = "overload: answers other than 200 and 429, broken connections";
        let refused = self.overload.count(429) as f64;
        rows.extend([
            Row::one("overload: goodput in terms of capacity", Unit::Ratio, share).at_least(0.9),
            Row::one(broken, Unit::Count, failures).at_most(0.0),
            Row::one("overload: refused", Unit::Count, refused).at_least(1.0),
        ]);
        if refused > 0.0 {
            let p99 = self.overload.quantile(429, 0.99) * 1e3;
            let median = self.overload.quantile(429, 0.5) * 1e3;
            let row = Row::one("overload: refusals, P99", Unit::Millis, p99).at_most(5.0);
            rows.push(row.noting(format!("median {median:.2} ms")));
        } else {
            skipped.push("overload: latency of refusals: nothing was refused".to_owned());
        }
        let Seen {
            encoded,
            answered,
            queued,
        } = self.server;
        let wasted = encoded - answered;
        let seen =
            format!("{encoded:.0} tokenised, {answered:.0} answered 200, by the server's metrics");
        rows.extend([
            Row::one(
                "overload: requests tokenised and then refused",
                Unit::Count,
                wasted,
            )
            .at_most(0.0)
            .noting(seen),
            Row::one("overload: rows left in the queue", Unit::Count, queued).at_most(0.0),
        ]);
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use hdrhistogram::Histogram;

    use super::*;

    fn tally(counts: &[(u16, u64)]) -> Tally {
        let latencies = |&(status, count): &(u16, u64)| {
            let mut of = Histogram::new_with_max(1_000_000_000, 3).unwrap();
            of.record_n(2_000_000, count).unwrap();
            (status, of)
        };
        Tally {
            by_status: counts.iter().map(latencies).collect::<BTreeMap<_, _>>(),
            elapsed: Duration::from_secs(1),
            ..Tally::new()
        }
    }

    fn verdicts(overload: &[(u16, u64)], encoded: f64) -> (Vec<bool>, usize) {
        verdicts_with(overload, encoded, 110)
    }

    fn verdicts_with(overload: &[(u16, u64)], encoded: f64, after: u64) -> (Vec<bool>, usize) {
        let run = Run {
            before: tally(&[(200, 90)]),
            overload: tally(overload),
            after: tally(&[(200, after)]),
            server: Seen {
                encoded,
                answered: 95.0,
                queued: 0.0,
            },
            pinned: None,
        };
        let mut skipped = Vec::new();
        let rows = run.rows(16, &mut skipped);
        assert!(rows.iter().all(|row| row.value.is_finite()));
        let verdicts = rows.iter().filter_map(|row| row.verdict.as_ref());
        (verdicts.map(|v| v.reached).collect(), skipped.len())
    }

    #[test]
    fn every_line_says_whether_it_holds() {
        // after, asked, goodput, failures, refused, latency, tokenised, left
        let all = vec![true; 8];
        assert_eq!(verdicts(&[(200, 95), (429, 205)], 95.0), (all, 0));
        let (found, _) = verdicts(&[(200, 85), (429, 105), (500, 1)], 96.0);
        assert_eq!(found, [true, false, false, false, true, true, false, true]);
        // Nothing refused: no latency to tell, and not what was to be shown.
        let (found, skipped) = verdicts(&[(200, 95)], 95.0);
        assert_eq!(found, [true, false, true, true, false, true, true]);
        assert_eq!(skipped, 1);
        // A server that is slow ever after.
        let (found, _) = verdicts_with(&[(200, 95), (429, 205)], 95.0, 60);
        assert!(!found[0]);
    }
}
