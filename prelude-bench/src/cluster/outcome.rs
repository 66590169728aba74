//! The figures of a run, and the rows that compare the runs of both set-ups.

use super::setup::{Counters, Setup};
use crate::{
    load::Tally,
    server::{Row, Unit},
};

/// Least gain of the picker over round robin: of the hit rate, and of the mean latency.
const AIMS: [f64; 2] = [1.5, 1.3];

/// The result of a run.
pub(super) struct Outcome {
    pub(super) counted: Counters,
    pub(super) tally: Tally,
}

impl Outcome {
    /// Returns the percentage of prompt tokens that engines found in their caches.
    fn hit_rate(&self) -> f64 {
        100.0 * self.sum(1) / self.sum(0)
    }

    /// Returns the percentage of prompt tokens that were found in caches, or that another request
    /// of the same step computed.
    fn not_computed(&self) -> f64 {
        100.0 * (self.sum(1) + self.sum(2)) / self.sum(0)
    }

    fn sum(&self, counter: usize) -> f64 {
        let counters = self.counted.engines.iter().map(|engine| engine[counter]);
        counters.sum()
    }

    /// Returns the mean latency of answers with status 200, in milliseconds; NaN if there are none.
    fn mean_ms(&self) -> f64 {
        let answers = self.tally.by_status.get(&200);
        answers.map_or(f64::NAN, |latencies| latencies.mean() / 1e6)
    }

    fn p99_ms(&self) -> f64 {
        1e3 * self.tally.latency_at(200, 0.99)
    }

    /// Returns the requests that had no answer with status 200.
    pub(super) fn refused_or_broken(&self) -> u64 {
        self.tally.asked() - self.tally.count(200)
    }

    /// Returns the prompt tokens of the engine that got most, in times of the mean.
    #[expect(clippy::cast_precision_loss, reason = "a number of engines")]
    fn busiest(&self) -> f64 {
        let tokens = || self.counted.engines.iter().map(|engine| engine[0]);
        tokens().fold(0.0, f64::max) * self.counted.engines.len() as f64 / tokens().sum::<f64>()
    }
}

/// A figure of a run that is compared between the set-ups.
struct Figure {
    name: &'static str,
    unit: Unit,
    of: fn(&Outcome) -> f64,
    aim: Option<f64>,
}

const FIGURES: [Figure; 4] = [
    Figure {
        name: "prompt tokens found in the caches",
        unit: Unit::Percent,
        of: Outcome::hit_rate,
        aim: Some(AIMS[0]),
    },
    Figure {
        name: "prompt tokens found there or shared within a step",
        unit: Unit::Percent,
        of: Outcome::not_computed,
        aim: None,
    },
    Figure {
        name: "mean latency",
        unit: Unit::Millis,
        of: Outcome::mean_ms,
        aim: Some(AIMS[1]),
    },
    Figure {
        name: "P99 of the latency",
        unit: Unit::Millis,
        of: Outcome::p99_ms,
        aim: None,
    },
];

/// Returns the rows of runs through the picker beside those in turns, seed by seed.
#[expect(clippy::cast_precision_loss, reason = "counts of requests")]
pub(super) fn pair_rows(picked: &[Outcome], in_turn: &[Outcome]) -> Vec<Row> {
    let mut rows: Vec<Row> = FIGURES
        .iter()
        .map(|figure| figure.row(figure.name.to_owned(), picked, in_turn, figure.aim))
        .collect();
    for (seed, (mine, theirs)) in picked.iter().zip(in_turn).enumerate() {
        for figure in &FIGURES {
            let name = format!("seed {}: {}", seed + 1, figure.name);
            let pair = (std::slice::from_ref(mine), std::slice::from_ref(theirs));
            rows.push(figure.row(name, pair.0, pair.1, None));
        }
    }
    let busiest = |of: &[Outcome]| of.iter().map(Outcome::busiest).collect::<Vec<_>>();
    let name = "busiest engine, in times of the mean";
    let mut row = Row::new(name, Unit::Times, busiest(picked));
    row.against(Setup::RoundRobin.title(), &busiest(in_turn), None);
    rows.push(row);
    for (setup, of) in [(Setup::Picker, picked), (Setup::RoundRobin, in_turn)] {
        let failed: u64 = of.iter().map(Outcome::refused_or_broken).sum();
        let name = format!("{}: refused, failed or broken", setup.title());
        rows.push(Row::one(name, Unit::Count, failed as f64).at_most(0.0));
    }
    let unpicked = picked.iter().map(|run| run.counted.unpicked).sum();
    let name = format!("{}: requests without a pick", Setup::Picker.title());
    rows.push(Row::one(name, Unit::Count, unpicked).at_most(0.0));
    rows
}

impl Figure {
    fn row(&self, name: String, picked: &[Outcome], in_turn: &[Outcome], aim: Option<f64>) -> Row {
        let values = |of: &[Outcome]| of.iter().map(self.of).collect::<Vec<_>>();
        let mut row = Row::new(name, self.unit, values(picked));
        row.against(Setup::RoundRobin.title(), &values(in_turn), aim);
        row
    }
}

#[cfg(test)]
mod tests {
    use hdrhistogram::Histogram;

    use super::*;

    /// Returns a run whose answers take `ms` each, and whose engines found `hits` of 100 and of 300
    /// tokens.
    fn outcome(ms: u64, hits: [f64; 2], statuses: &[(u16, u64)], unpicked: f64) -> Outcome {
        let latencies = |&(status, count): &(u16, u64)| {
            let mut of = Histogram::new_with_max(10_000_000_000, 3).unwrap();
            of.record_n(ms * 1_000_000, count).unwrap();
            (status, of)
        };
        Outcome {
            counted: Counters {
                engines: vec![[100.0, hits[0], 10.0], [300.0, hits[1], 30.0]],
                unpicked,
            },
            tally: Tally {
                by_status: statuses.iter().map(latencies).collect(),
                ..Tally::new()
            },
        }
    }

    #[test]
    fn figures_are_of_all_engines() {
        let run = outcome(4, [90.0, 110.0], &[(200, 8), (429, 2), (503, 1)], 0.0);
        assert_eq!((run.hit_rate(), run.busiest()), (50.0, 1.5));
        assert_eq!(run.not_computed(), 60.0);
        assert!((run.mean_ms() - 4.0).abs() < 0.01 && (run.p99_ms() - 4.0).abs() < 0.01);
        assert_eq!(run.refused_or_broken(), 3);
        assert!(outcome(4, [0.0; 2], &[], 0.0).mean_ms().is_nan());
    }

    #[test]
    fn rows_compare_seed_by_seed_and_say_what_was_missed() {
        let good = || outcome(4, [80.0, 240.0], &[(200, 5)], 0.0);
        let slow = || outcome(6, [40.0, 120.0], &[(200, 5)], 0.0);
        let missed = |picked: &[Outcome], in_turn: &[Outcome]| -> Vec<String> {
            let rows = pair_rows(picked, in_turn);
            let is_missed = |row: &&Row| {
                let own = row.verdict.iter();
                let all = own.chain(row.rivals.iter().filter_map(|r| r.verdict.as_ref()));
                { all }.any(|verdict| !verdict.reached)
            };
            rows.iter()
                .filter(is_missed)
                .map(|r| r.name.clone())
                .collect()
        };
        assert!(missed(&[good(), good()], &[slow(), slow()]).is_empty());
        let rows = pair_rows(&[good(), good()], &[slow(), slow()]);
        assert_eq!(rows.len(), 4 + 2 * 4 + 4);
        assert!(
            (rows[0].rivals[0].ratio - 2.0).abs() < 1e-9,
            "{:?}",
            rows[0]
        );
        assert!(
            (rows[2].rivals[0].ratio - 1.5).abs() < 1e-2,
            "{:?}",
            rows[2]
        );
        let found = missed(&[slow()], &[good()]);
        assert_eq!(found, ["prompt tokens found in the caches", "mean latency"]);
        let broken = outcome(4, [80.0, 240.0], &[(200, 4), (502, 1)], 2.0);
        let found = missed(&[broken], &[slow()]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].ends_with("refused, failed or broken"));
        assert!(found[1].ends_with("requests without a pick"));
    }
}
