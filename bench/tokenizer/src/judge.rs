//! Decides which engine won a row.

use anyhow::Result;
use prelude_measure::{
    record::{self, Better, Verdict},
    stats::{Spread, median},
};

use crate::{
    engines::Who,
    race::Entry,
    workloads::{Must, Row},
};

/// A measured row with its judgement.
#[derive(Debug)]
pub(crate) struct Line {
    /// The title of the part of the table.
    pub(crate) part: &'static str,
    pub(crate) row: Row,
    pub(crate) entries: Vec<Cell>,
    /// The best published rival, and how many times better we are than it.
    pub(crate) against_best: Option<(Who, f64)>,
    pub(crate) verdict: Verdict,
}

/// An engine's value: the median over rounds, the smallest and the largest.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) who: Who,
    pub(crate) spread: Spread,
    /// How many times better we are.
    pub(crate) ratio: Option<f64>,
    /// Texts with other ids than the reference's, of how many that were compared.
    pub(crate) differing: (usize, usize),
}

pub(crate) fn judge(part: &'static str, row: &Row, entries: Vec<Entry>) -> Result<Line> {
    let measured = || entries.iter().filter(|entry| !entry.values.is_empty());
    let ours = measured().find(|entry| entry.who == Who::Fasttoken);
    let cell = |entry: &Entry| Cell {
        who: entry.who,
        spread: Spread::of(&entry.values),
        ratio: ours.map(|ours| factor(row.better(), &ours.values, &entry.values)),
        differing: entry.differing,
    };
    let cells: Vec<Cell> = measured().map(cell).collect();
    // The best rival is the rival with the smallest ratio.
    let against_best = { cells.iter() }
        .filter(|cell| cell.who.is_rival() && cell.differing.0 == 0)
        .filter_map(|cell| Some((cell.who, cell.ratio?)))
        .min_by(|a, b| a.1.total_cmp(&b.1));
    let against = |who: Who| cells.iter().find(|cell| cell.who == who)?.ratio;
    let reached = |ratio: Option<f64>| match ratio {
        Some(ratio) if ratio >= 1.0 => Verdict::Pass,
        Some(_) => Verdict::Miss,
        None => Verdict::Skip,
    };
    let verdict = match (ours, Must::read(&row.must)?) {
        // No time counts with other ids than the reference's.
        (Some(ours), _) if ours.differing.0 > 0 => Verdict::Fail,
        (_, Must::Nothing) => Verdict::Note,
        (_, Must::Beat(Some(who), least)) => reached(against(who).map(|ratio| ratio / least)),
        (_, Must::Beat(None, least)) => reached(against_best.map(|(_, ratio)| ratio / least)),
        (ours, Must::Reach(limit)) => {
            reached(ours.map(|ours| row.better().factor(median(&ours.values), limit)))
        }
    };
    Ok(Line {
        part,
        row: row.clone(),
        entries: cells,
        against_best,
        verdict,
    })
}

/// Returns the factor by which `ours` is better: the median of the rounds' ratios, since both
/// values of a round are close in time, or the ratio of medians if rounds do not pair up.
fn factor(better: Better, ours: &[f64], rival: &[f64]) -> f64 {
    if ours.len() != rival.len() {
        return better.factor(median(ours), median(rival));
    }
    let pairs = ours.iter().zip(rival);
    let ratios: Vec<f64> = pairs.map(|(a, b)| better.factor(*a, *b)).collect();
    median(&ratios)
}

impl Line {
    /// Returns the rows of a record: ours with its judgement, and each rival's.
    pub(crate) fn records(&self) -> impl Iterator<Item = record::Row> {
        self.entries.iter().map(|cell| {
            let (name, unit) = (&self.row.name, &self.row.unit);
            let better = self.row.better();
            if cell.who != Who::Fasttoken {
                let name = format!("{name} [{}]", cell.who.title());
                return record::Row::measured(name, unit, cell.spread, better);
            }
            let row = record::Row::measured(name, unit, cell.spread, better);
            record::Row {
                verdict: self.verdict,
                note: self.row.must.clone(),
                ..row
            }
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{protocol::Work, workloads::rows};

    pub(crate) fn row(unit: &str, must: &str) -> Row {
        let load = rows("targets", "")
            .into_iter()
            .find(|row| row.work == Work::Load);
        Row {
            name: "a row".to_owned(),
            unit: unit.to_owned(),
            must: must.to_owned(),
            ..load.expect("a row of loading")
        }
    }

    pub(crate) fn judged(row: &Row, entries: Vec<Entry>) -> Line {
        judge("a part", row, entries).expect("its target is one")
    }

    pub(crate) fn entry(who: Who, values: &[f64], differing: usize) -> Entry {
        Entry {
            who,
            values: values.to_vec(),
            differing: (differing, 9),
        }
    }

    fn check(unit: &str, must: &str, ours: f64, rivals: &[(Who, f64)], expected: Verdict) {
        let mut entries = vec![entry(Who::Fasttoken, &[ours], 0)];
        entries.extend(rivals.iter().map(|(who, v)| entry(*who, &[*v], 0)));
        let line = judged(&row(unit, must), entries);
        assert_eq!(line.verdict, expected, "{line:?}");
    }

    #[test]
    fn rows_are_judged() {
        let (rate, time) = ("MB/s", "µs");
        let rivals = [(Who::Fastokens, 100.0), (Who::Tokenizers, 300.0)];
        check(rate, "1.30x best", 390.0, &rivals, Verdict::Pass);
        check(rate, "1.30x best", 380.0, &rivals, Verdict::Miss);
        check(rate, "2.00x fastokens", 200.0, &rivals, Verdict::Pass);
        check(rate, "1.00x gigatoken", 900.0, &rivals, Verdict::Skip);
        check(time, "1.00x best", 90.0, &rivals, Verdict::Pass);
        check(time, "1.00x best", 110.0, &rivals, Verdict::Miss);
        check(time, "≤ 20 µs", 21.0, &rivals, Verdict::Miss);
        check(rate, "≥ 20 MB/s", 21.0, &[], Verdict::Pass);
    }

    #[test]
    fn wrong_ids_win_nothing() {
        let must = row("ns", "≤ 20 ns");
        let line = judged(&must, vec![entry(Who::Fasttoken, &[1.0], 1)]);
        assert_eq!(line.verdict, Verdict::Fail);
        // A rival with other ids is not the one to beat, and is marked.
        let must = row("MB/s", "1.00x best");
        let entries = vec![
            entry(Who::Fasttoken, &[100.0], 0),
            entry(Who::Gigatoken, &[900.0], 3),
            entry(Who::Fastokens, &[50.0], 0),
        ];
        let line = judged(&must, entries);
        assert_eq!(line.against_best, Some((Who::Fastokens, 2.0)));
    }

    #[test]
    fn who_joins_for_one_run_is_marked_but_sets_no_target() {
        let fork = Who::Also("a fork");
        let must = row("µs", "1.00x best");
        let entries = vec![
            entry(Who::Fasttoken, &[100.0], 0),
            entry(Who::Fastokens, &[200.0], 0),
            entry(fork, &[10.0], 2),
        ];
        let line = judged(&must, entries);
        assert_eq!(line.against_best, Some((Who::Fastokens, 2.0)));
        assert_eq!(line.verdict, Verdict::Pass);
        let cell = line.entries.iter().find(|cell| cell.who == fork);
        assert!(cell.is_some_and(|cell| cell.differing == (2, 9)));
        let alone = vec![entry(Who::Fasttoken, &[100.0], 0), entry(fork, &[10.0], 0)];
        assert_eq!(judged(&must, alone).verdict, Verdict::Skip);
    }

    #[test]
    fn ratios_pair_up_by_round() {
        // The machine was twice as slow in the second round, for both.
        let ratio = factor(Better::Lower, &[1.0, 2.0, 1.0], &[3.0, 6.0, 3.0]);
        assert!((ratio - 3.0).abs() < 1e-12);
    }
}
