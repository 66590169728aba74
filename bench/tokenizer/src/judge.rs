//! Decides which engine won a row.

use prelude_measure::stats::{Spread, median};
use serde::Serialize;

use crate::{
    engines::Who,
    race::Entry,
    workloads::{Must, Part, Row, Unit},
};

/// A measured row with its judgement.
#[derive(Debug, Serialize)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) unit: Unit,
    pub(crate) entries: Vec<Cell>,
    /// The best published rival, and how many times better we are than it.
    pub(crate) against_best: Option<(Who, f64)>,
    pub(crate) must: String,
    pub(crate) verdict: Verdict,
    pub(crate) part: Part,
}

/// An engine's value: the median over rounds, the smallest and the largest.
#[derive(Debug, Serialize)]
pub(crate) struct Cell {
    pub(crate) who: Who,
    pub(crate) median: f64,
    pub(crate) spread: (f64, f64),
    /// Texts with other ids than the reference's, of how many that were compared.
    pub(crate) differing: (usize, usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Verdict {
    Pass,
    Miss,
    /// Our ids are not the reference's: no time counts.
    Wrong,
    /// The rival that the row is judged by was not there.
    Skip,
    /// The row has no target.
    None,
}

impl Verdict {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Miss => "MISS",
            Self::Wrong => "WRONG",
            Self::Skip => "SKIP",
            Self::None => "",
        }
    }
}

pub(crate) fn judge(row: &Row, entries: Vec<Entry>) -> Line {
    let measured: Vec<&Entry> = entries.iter().filter(|e| !e.values.is_empty()).collect();
    let ours = measured.iter().find(|e| e.who == Who::Fasttoken);
    let ratio = |who: Who| -> Option<f64> {
        let rival = measured.iter().find(|e| e.who == who)?;
        Some(better(row.unit, &ours?.values, &rival.values))
    };
    // The best rival is the rival with the smallest ratio.
    let against_best = measured
        .iter()
        .filter(|e| e.who.is_rival() && e.differing.0 == 0)
        .filter_map(|e| Some((e.who, ratio(e.who)?)))
        .min_by(|a, b| a.1.total_cmp(&b.1));
    let reached = |ratio: Option<f64>, least: f64| match ratio {
        Some(ratio) if ratio >= least => Verdict::Pass,
        Some(_) => Verdict::Miss,
        None => Verdict::Skip,
    };
    let verdict = match (ours, row.must) {
        (Some(ours), _) if ours.differing.0 > 0 => Verdict::Wrong,
        (_, Must::Nothing) => Verdict::None,
        (None, _) => Verdict::Skip,
        (_, Must::Beat(who, least)) => reached(ratio(who), least),
        (_, Must::BeatBest(least)) => reached(against_best.map(|(_, ratio)| ratio), least),
        (Some(ours), Must::Reach(limit)) => {
            let value = median(&ours.values);
            let fine = if row.unit.more_is_better() {
                value >= limit
            } else {
                value <= limit
            };
            if fine { Verdict::Pass } else { Verdict::Miss }
        }
    };
    Line {
        name: row.name.clone(),
        unit: row.unit,
        against_best,
        must: row.must.text(row.unit),
        verdict,
        part: row.part,
        entries: measured
            .iter()
            .map(|entry| {
                let Spread { median, low, high } = Spread::of(&entry.values);
                Cell {
                    who: entry.who,
                    median,
                    spread: (low, high),
                    differing: entry.differing,
                }
            })
            .collect(),
    }
}

/// Returns the factor by which `ours` is better: the median of the rounds' ratios, since both
/// values of a round are close in time, or the ratio of medians if rounds do not pair up.
fn better(unit: Unit, ours: &[f64], rival: &[f64]) -> f64 {
    let ratio = |a: f64, b: f64| if unit.more_is_better() { a / b } else { b / a };
    if ours.len() != rival.len() {
        return ratio(median(ours), median(rival));
    }
    let ratios: Vec<f64> = ours.iter().zip(rival).map(|(a, b)| ratio(*a, *b)).collect();
    median(&ratios)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::workloads::Work;

    pub(crate) fn row(unit: Unit, must: Must) -> Row {
        Row {
            name: "a row".to_owned(),
            unit,
            work: Work::Load,
            must,
            part: Part::Targets,
        }
    }

    pub(crate) fn entry(who: Who, values: &[f64], differing: usize) -> Entry {
        Entry {
            who,
            values: values.to_vec(),
            differing: (differing, 9),
        }
    }

    fn check(unit: Unit, must: Must, ours: f64, rivals: &[(Who, f64)], expected: Verdict) {
        let mut entries = vec![entry(Who::Fasttoken, &[ours], 0)];
        entries.extend(rivals.iter().map(|(who, v)| entry(*who, &[*v], 0)));
        let line = judge(&row(unit, must), entries);
        assert_eq!(line.verdict, expected, "{line:?}");
    }

    #[test]
    fn rows_are_judged() {
        let (rate, time) = (Unit::MegabytesPerSecond, Unit::Microseconds);
        let rivals = [(Who::Fastokens, 100.0), (Who::Tokenizers, 300.0)];
        check(rate, Must::BeatBest(1.3), 390.0, &rivals, Verdict::Pass);
        check(rate, Must::BeatBest(1.3), 380.0, &rivals, Verdict::Miss);
        check(
            rate,
            Must::Beat(Who::Fastokens, 2.0),
            200.0,
            &rivals,
            Verdict::Pass,
        );
        check(
            rate,
            Must::Beat(Who::Gigatoken, 1.0),
            900.0,
            &rivals,
            Verdict::Skip,
        );
        check(time, Must::BeatBest(1.0), 90.0, &rivals, Verdict::Pass);
        check(time, Must::BeatBest(1.0), 110.0, &rivals, Verdict::Miss);
        check(time, Must::Reach(20.0), 21.0, &rivals, Verdict::Miss);
        check(rate, Must::Reach(20.0), 21.0, &[], Verdict::Pass);
    }

    #[test]
    fn wrong_ids_win_nothing() {
        let must = row(Unit::Nanoseconds, Must::Reach(20.0));
        let line = judge(&must, vec![entry(Who::Fasttoken, &[1.0], 1)]);
        assert_eq!(line.verdict, Verdict::Wrong);
        // A rival with other ids is not the one to beat, and is marked.
        let must = row(Unit::MegabytesPerSecond, Must::BeatBest(1.0));
        let entries = vec![
            entry(Who::Fasttoken, &[100.0], 0),
            entry(Who::Gigatoken, &[900.0], 3),
            entry(Who::Fastokens, &[50.0], 0),
        ];
        let line = judge(&must, entries);
        assert_eq!(line.against_best, Some((Who::Fastokens, 2.0)));
    }

    #[test]
    fn who_joins_for_one_run_is_marked_but_sets_no_target() {
        let fork = Who::Also("a fork");
        let must = row(Unit::Microseconds, Must::BeatBest(1.0));
        let entries = vec![
            entry(Who::Fasttoken, &[100.0], 0),
            entry(Who::Fastokens, &[200.0], 0),
            entry(fork, &[10.0], 2),
        ];
        let line = judge(&must, entries);
        assert_eq!(line.against_best, Some((Who::Fastokens, 2.0)));
        assert_eq!(line.verdict, Verdict::Pass);
        let cell = line.entries.iter().find(|cell| cell.who == fork);
        assert!(cell.is_some_and(|cell| cell.differing == (2, 9)));
        let alone = vec![entry(Who::Fasttoken, &[100.0], 0), entry(fork, &[10.0], 0)];
        assert_eq!(judge(&must, alone).verdict, Verdict::Skip);
    }

    #[test]
    fn ratios_pair_up_by_round() {
        // The machine was twice as slow in the second round, for both.
        let ratio = better(Unit::Microseconds, &[1.0, 2.0, 1.0], &[3.0, 6.0, 3.0]);
        assert!((ratio - 3.0).abs() < 1e-12);
    }
}
