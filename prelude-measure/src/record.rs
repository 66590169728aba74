//! Dated results of measurements: written as JSON, shown as a table, compared with earlier ones.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::{
    stats::Spread,
    table::{Table, number},
};

/// Format of the file.
const SCHEMA: u32 = 1;

/// The results of one measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Format of the record.
    pub schema: u32,
    /// The measurement's name, which is part of the file's.
    pub name: String,
    /// The day, UTC, for example `2026-11-29`.
    pub date: String,
    /// The sources' commit, with `+` behind it if they were changed, or nothing outside a checkout.
    pub commit: String,
    /// The processor's name and how many of them there are.
    pub machine: String,
    /// The results.
    pub rows: Vec<Row>,
}

/// One result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The measured thing, for example `one decision`.
    pub name: String,
    /// The median of what was repeated, in `unit`; none if nothing was measured.
    pub value: Option<f64>,
    /// The unit, for example `µs`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unit: String,
    /// The smallest and the largest value of what was repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<(f64, f64)>,
    /// The machine's limit, in the same unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<f64>,
    /// The direction in which the value is better.
    pub better: Better,
    /// The judgement of the value.
    #[serde(default)]
    pub verdict: Verdict,
    /// The reason for the verdict, what the value is compared with, or where the bound comes from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// The direction in which a value is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Times, bytes, instructions.
    #[default]
    Lower,
    /// Rates.
    Higher,
}

/// The judgement of a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// Right, and within its target.
    Pass,
    /// Right, and slower or larger than its target.
    Miss,
    /// Wrong.
    Fail,
    /// The result was not looked at, for the reason given.
    Skip,
    /// A figure without a target.
    #[default]
    Note,
}

impl Verdict {
    /// Returns the word of the tables.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Miss => "MISS",
            Self::Fail => "FAIL",
            Self::Skip => "SKIP",
            Self::Note => "note",
        }
    }
}

impl Better {
    /// Returns by which factor `ours` is better than `theirs`: above 1 is better.
    #[must_use]
    pub fn factor(self, ours: f64, theirs: f64) -> f64 {
        match self {
            Self::Lower => theirs / ours,
            Self::Higher => ours / theirs,
        }
    }
}

impl Row {
    /// Makes a row without a value.
    #[must_use]
    pub fn new(name: impl Into<String>, verdict: Verdict) -> Self {
        Self {
            name: name.into(),
            value: None,
            unit: String::new(),
            spread: None,
            bound: None,
            better: Better::Lower,
            verdict,
            note: String::new(),
        }
    }

    /// Makes a row of repeated measurements.
    #[must_use]
    pub fn measured(name: impl Into<String>, unit: &str, spread: Spread, better: Better) -> Self {
        Self {
            value: Some(spread.median),
            unit: unit.to_owned(),
            spread: Some((spread.low, spread.high)),
            better,
            ..Self::new(name, Verdict::Note)
        }
    }

    /// Sets the machine's limit, in the row's unit.
    #[must_use]
    pub const fn bound(mut self, bound: f64) -> Self {
        self.bound = Some(bound);
        self
    }

    /// Judges the value by a target that it must reach.
    #[must_use]
    pub fn must(mut self, target: f64) -> Self {
        let reached = { self.value }.is_some_and(|v| self.better.factor(v, target) >= 1.0);
        self.verdict = match (self.value, reached) {
            (None, _) => Verdict::Skip,
            (_, true) => Verdict::Pass,
            (_, false) => Verdict::Miss,
        };
        self
    }

    /// Adds a note.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// Returns how near the value is to the bound, in percent: 100 is the bound, for times and
    /// rates alike.
    #[must_use]
    pub fn percent(&self) -> Option<f64> {
        Some(100.0 * self.better.factor(self.value?, self.bound?))
    }
}

impl Record {
    /// Makes a record of today, this checkout and this machine.
    #[must_use]
    pub fn new(name: impl Into<String>, rows: Vec<Row>) -> Self {
        Self {
            schema: SCHEMA,
            name: name.into(),
            date: today(),
            commit: commit(),
            machine: machine(),
            rows,
        }
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If the file cannot be read or holds no record of this format.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let record: Self = serde_json::from_slice(&text)
            .with_context(|| format!("{} holds no record", path.display()))?;
        ensure!(
            record.schema == SCHEMA,
            "{} is of format {}, not {SCHEMA}",
            path.display(),
            record.schema
        );
        Ok(record)
    }

    /// Writes the record to `folder`, as a file named by its date and name, and returns the path. A
    /// record of the same name and day is replaced.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<PathBuf> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let path = folder.join(format!("{}-{}.json", self.date, self.name));
        replace(&path, &serde_json::to_vec_pretty(self)?)?;
        Ok(path)
    }

    /// Returns the rows as a table; columns that no row fills are left out.
    #[must_use]
    pub fn table(&self) -> Table {
        type Cell = fn(&Row) -> String;
        let columns: [(&str, Cell); 7] = [
            ("measured", |row| row.name.clone()),
            (">value", |row| row.value.map(number).unwrap_or_default()),
            ("unit", |row| row.unit.clone()),
            (">lowest to highest", |row| {
                let spread = row
                    .spread
                    .map(|(l, h)| format!("{} to {}", number(l), number(h)));
                spread.unwrap_or_default()
            }),
            (">limit", |row| row.bound.map(number).unwrap_or_default()),
            (">of it", |row| {
                let percent = row.percent().map(|p| format!("{p:.0} %"));
                percent.unwrap_or_default()
            }),
            ("", |row| match row.verdict {
                Verdict::Note => row.note.clone(),
                verdict => format!("{} {}", verdict.word(), row.note).trim().to_owned(),
            }),
        ];
        let is_filled = |(_, cell): &&(&str, Cell)| self.rows.iter().any(|r| !cell(r).is_empty());
        let columns: Vec<_> = columns.iter().filter(is_filled).collect();
        let mut table = Table::new(columns.iter().map(|(title, _)| title));
        for row in &self.rows {
            table.row(columns.iter().map(|(_, cell)| cell(row)));
        }
        table
    }

    /// Returns a line for each row that is worse than the row of this name and unit in `earlier` by
    /// more than the share `tolerance`, and for each that is gone: nothing is well.
    #[must_use]
    pub fn worse_than(&self, earlier: &Self, tolerance: f64) -> Vec<String> {
        let mut lines = Vec::new();
        for old in &earlier.rows {
            let is_same = |new: &&Row| (&new.name, &new.unit) == (&old.name, &old.unit);
            let new = self.rows.iter().find(is_same).and_then(|new| new.value);
            match (old.value, new) {
                (None, _) => {}
                (Some(_), None) => lines.push(format!("{}: not measured any more", old.name)),
                (Some(was), Some(is)) => {
                    let change = old.better.factor(was, is) - 1.0;
                    if change > tolerance {
                        lines.push(format!(
                            "{}: {} {}, {:.1} % worse than {}",
                            old.name,
                            number(is),
                            old.unit,
                            100.0 * change,
                            number(was)
                        ));
                    }
                }
            }
        }
        lines
    }
}

/// Replaces a file as a whole: who reads it meanwhile sees the old or the new one.
///
/// # Errors
/// If it cannot be written.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let written = fs::write(&partial, bytes).and_then(|()| fs::rename(&partial, path));
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Returns today's date, UTC, for example `2026-11-29`.
#[must_use]
pub fn today() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    date_of(since.map_or(0, |since| since.as_secs() / 86_400))
}

/// Returns the date of a number of days after 1970-01-01 (Hinnant, `chrono`-compatible low-level
/// date algorithms: years begin in March, so that the day that some years have is the last one).
fn date_of(days: u64) -> String {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let leaps = day_of_era / 1_460 + day_of_era / 146_096 - day_of_era / 36_524;
    let year_of_era = (day_of_era - leaps) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    format!("{}-{month:02}-{day:02}", era * 400 + year_of_era + next)
}

fn commit() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]);
    let sign = changed.is_some_and(|files| !files.is_empty());
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_default();
    format!("{commit}{}", if sign { "+" } else { "" })
}

fn machine() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|l| l.strip_prefix("model name"));
    let name = name.map_or(std::env::consts::ARCH, |n| {
        n.trim_start_matches([' ', '\t', ':'])
    });
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{name}, {count} processors")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, value: f64, better: Better) -> Row {
        Row::measured(name, "x", Spread::of(&[value]), better)
    }

    #[test]
    fn records_round_trip() {
        let folder = std::env::temp_dir().join(format!("prelude-record-{}", std::process::id()));
        let mut skipped = Row::new("another", Verdict::Skip).note("no GPU");
        skipped.better = Better::Higher;
        let record = Record::new(
            "test",
            vec![row("one", 2.5, Better::Lower).bound(1.0), skipped],
        );
        let path = record.write(&folder).unwrap();
        let read = Record::read(&path).unwrap();
        assert_eq!(read.rows, record.rows);
        assert_eq!((&read.date, &read.commit), (&record.date, &record.commit));
        assert!(path.ends_with(format!("{}-test.json", record.date)));
        fs::write(&path, "{}").unwrap();
        assert!(Record::read(&path).is_err());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn dates_are_of_the_calendar() {
        let check = |days, expected: &str| assert_eq!(date_of(days), expected);
        check(0, "1970-01-01");
        check(59, "1970-03-01");
        check(11_016, "2000-02-29");
        check(20_786, "2026-11-29");
        check(20_818, "2026-12-31");
    }

    #[test]
    fn the_table_has_limits_and_verdicts() {
        let rows = vec![
            row("rate", 50.0, Better::Higher).bound(200.0),
            row("time", 8.0, Better::Lower).bound(2.0).must(10.0),
            row("slow", 8.0, Better::Lower).must(4.0).note("why"),
        ];
        let text = Record::new("t", rows).table().text();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("limit"), "{text}");
        assert!(lines[1].ends_with("25 %"), "{text}");
        assert!(
            lines[2].contains("25 %") && lines[2].ends_with("PASS"),
            "{text}"
        );
        assert!(lines[3].ends_with("MISS why"), "{text}");
        let plain = Record::new("t", vec![row("a", 1.0, Better::Lower)]);
        assert!(!plain.table().text().contains("limit"));
    }

    #[test]
    fn the_gate_knows_directions() {
        let old = Record::new(
            "t",
            vec![
                row("time", 100.0, Better::Lower),
                row("rate", 100.0, Better::Higher),
                row("gone", 1.0, Better::Lower),
            ],
        );
        let new = |time, rate| {
            let rows = vec![
                row("time", time, Better::Lower),
                row("rate", rate, Better::Higher),
            ];
            Record::new("t", rows).worse_than(&old, 0.03)
        };
        assert_eq!(new(102.0, 98.0), ["gone: not measured any more"]);
        assert_eq!(new(50.0, 200.0).len(), 1);
        let worse = new(104.0, 90.0);
        assert_eq!(worse.len(), 3, "{worse:?}");
        assert!(worse[0].contains("4.0 % worse"), "{worse:?}");
    }
}
