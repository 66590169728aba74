//! Three times what the server can do, in an open loop, for a while.
//!
//! Nobody waits for anybody: requests come at their rate however the server does. It must refuse
//! what it cannot take at once and by name, and still do as much as it could before.

use std::sync::Arc;

use anyhow::{Result, ensure};
use prelude_server::{assets::Assets, demo};

use super::{
    Config, DISTINCT_STATES, closed,
    process::Process,
    report::{Row, Unit, Verdict},
    workload::Workload,
};
use crate::load::{Arrivals, Load, Tally, run as load};

/// Connections that find capacity.
const BUSY: usize = 64;
/// Connections in the overload: more than the queue has rows, so that it is the queue that is
/// full and not the generator that waits.
const CROWD: usize = 512;
/// Rows that may wait: what a second of work is, more or less.
const QUEUE: &str = "256";

/// Measures capacity, then what is left of it under three times as much.
pub(super) fn measure(config: &Config) -> Result<Vec<Row>> {
    let assets = Assets::embedded(&demo::LM)?;
    let workload = Workload {
        tokenizer: &assets.tokenizer,
        lm: demo::LM.name,
        classifier: demo::CLASSIFIER.name,
    };
    // Requests of some milliseconds each: what is overloaded is the server, not the generator.
    let jobs = Arc::new(workload.decide(DISTINCT_STATES, 500, 1));
    let settings = [
        ("PRELUDE_LIMITS__QUEUED_ROWS", QUEUE),
        ("PRELUDE_LIMITS__ROWS", QUEUE),
    ];
    let server = Process::prelude_with(&config.program, &settings)?;
    let capacity = load(&server.address, &jobs, closed(BUSY, config.overload / 4))?;
    ensure!(capacity.failures() == 0, "requests failed: {capacity:?}");
    let encoded_before = encoded(&server)?;
    let crowd = Load {
        connections: CROWD,
        arrivals: Arrivals::Open {
            per_second: 3.0 * capacity.per_second(),
            seed: 11,
        },
        warm_up: config.overload / 10,
        time: config.overload,
    };
    let tally = load(&server.address, &jobs, crowd)?;
    let after = load(&server.address, &jobs, closed(BUSY, config.overload / 4))?;
    let encoded = encoded(&server)? - encoded_before;
    Ok(rows(&capacity, &tally, &after, encoded))
}

/// Texts that the server has tokenised.
fn encoded(server: &Process) -> Result<f64> {
    server.metric("prelude:encode_seconds_count")
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run")]
fn rows(capacity: &Tally, tally: &Tally, after: &Tally, encoded: f64) -> Vec<Row> {
    let one = |name: &str, unit, value| Row::new(name, unit, vec![value]);
    // The machine may have had less to give meanwhile: the mean of before and after is what to
    // compare with.
    let could = f64::midpoint(capacity.per_second(), after.per_second());
    let failures = tally.failures() as f64;
    let bad = one(
        "overload: answers other than 200 and 429, broken connections",
        Unit::Count,
        failures,
    );
    let bad = bad.with(Verdict::at_most(failures, 0.0));
    let share = tally.per_second() / could;
    let goodput = one("overload: goodput in terms of capacity", Unit::Ratio, share);
    let goodput = goodput.with(Verdict::at_least(share, 0.9));
    let refused = tally.quantile(429, 0.99) * 1e3;
    let p99 = one("overload: refusals, P99", Unit::Millis, refused);
    let p99 = p99.with(Verdict::at_most(refused, 5.0));
    let note = format!("{encoded:.0} texts were tokenised since the first measurement");
    vec![
        one(
            "capacity, 64 connections, before",
            Unit::PerSecond,
            capacity.per_second(),
        ),
        one(
            "capacity, 64 connections, after",
            Unit::PerSecond,
            after.per_second(),
        ),
        one("overload: answered", Unit::PerSecond, tally.per_second()),
        one("overload: refused", Unit::Count, tally.count(429) as f64).noting(note),
        bad,
        goodput,
        p99,
    ]
}
