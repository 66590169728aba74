//! Measures honest clients of a server whose log has no reader.

use std::sync::Arc;

use anyhow::Result;

use super::super::{
    Session,
    report::{Row, Unit},
};
use crate::{
    load::{Jobs, Load, Tally, run as load},
    process::Process,
};

/// Upper bound of the honest clients' P99, in times of what it is where the log is read.
const SLOWER_MAX: f64 = 2.0;

/// Measures honest clients beside a log that stands still, where they are `alone` otherwise.
pub(super) fn measure(
    session: &Session<'_>,
    jobs: &Arc<Jobs>,
    honest: Load,
    alone: &Tally,
) -> Result<Vec<Row>> {
    let Session { config, bar, .. } = session;
    let server = Process::prelude_unread(&config.program)?;
    bar.says("hostile: honest clients while nobody reads the log");
    let asked = load(&server.address, jobs, honest)?;
    let dropped = server.metric("prelude:log_lines_dropped_total")?;
    // An error if it does not end by itself.
    server.stop()?;
    Ok(rows(alone, &asked, dropped))
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run")]
fn rows(alone: &Tally, asked: &Tally, dropped: f64) -> Vec<Row> {
    let p99 = |tally: &Tally| tally.quantile(200, 0.99) * 1e3;
    let name = "hostile: nobody reads the log, requests refused or broken";
    vec![
        Row::one(name, Unit::Count, asked.failures() as f64).at_most(0.0),
        Row::one(
            "hostile: nobody reads the log, P99 in times of alone",
            Unit::Times,
            p99(asked) / p99(alone),
        )
        .at_most(SLOWER_MAX),
        // Without any, the log's reader did not stand still for long enough.
        Row::one(
            "hostile: nobody reads the log, lines dropped",
            Unit::Count,
            dropped,
        )
        .at_least(1.0),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use hdrhistogram::Histogram;

    use super::*;

    fn tally(status: u16, ns: u64) -> Tally {
        let mut latencies = Histogram::new_with_max(1_000_000_000, 3).unwrap();
        latencies.record_n(ns, 100).unwrap();
        Tally {
            by_status: BTreeMap::from([(status, latencies)]),
            ..Tally::new()
        }
    }

    #[test]
    fn each_verdict_can_fail() {
        let reached = |asked, dropped| {
            let rows = rows(&tally(200, 1_000_000), &asked, dropped);
            let verdicts = rows.iter().filter_map(|row| row.verdict.as_ref());
            verdicts.map(|verdict| verdict.reached).collect::<Vec<_>>()
        };
        assert_eq!(reached(tally(200, 1_500_000), 9.0), [true; 3]);
        let late = reached(tally(200, 3_000_000), 0.0);
        assert_eq!(late, [true, false, false]);
        assert!(!reached(tally(503, 1_000_000), 9.0)[0]);
    }
}
