//! Figures of a run: values with their spread, beside a rival's and a target.

use std::fmt::Write as _;

use prelude_measure::stats::Spread;
use serde::{Deserialize, Serialize};

/// The unit of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Unit {
    /// Microseconds.
    #[serde(rename = "us")]
    Micros,
    /// Milliseconds.
    #[serde(rename = "ms")]
    Millis,
    /// Seconds.
    #[serde(rename = "s")]
    Seconds,
    /// Requests per second.
    #[serde(rename = "req/s")]
    PerSecond,
    /// Tokens per second.
    #[serde(rename = "tok/s")]
    TokensPerSecond,
    /// Thousand million floating-point operations per second.
    #[serde(rename = "GFLOP/s")]
    GigaflopsPerSecond,
    /// Thousand million bytes per second.
    #[serde(rename = "GB/s")]
    GigabytesPerSecond,
    /// Percent: more is better.
    #[serde(rename = "%")]
    Percent,
    /// A number of things.
    #[serde(rename = "count")]
    Count,
    /// Mebibytes.
    #[serde(rename = "MiB")]
    Mebibytes,
    /// A value as a ratio to another: more is better.
    #[serde(rename = "ratio")]
    Ratio,
    /// A value as a ratio to another: less is better.
    #[serde(rename = "times")]
    Times,
}

impl Unit {
    /// Returns the name of the unit in tables.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Micros => "µs",
            Self::Millis => "ms",
            Self::Seconds => "s",
            Self::PerSecond => "req/s",
            Self::TokensPerSecond => "tok/s",
            Self::GigaflopsPerSecond => "GFLOP/s",
            Self::GigabytesPerSecond => "GB/s",
            Self::Percent => "%",
            Self::Count => "",
            Self::Mebibytes => "MiB",
            Self::Ratio | Self::Times => "x",
        }
    }

    const fn more_is_better(self) -> bool {
        matches!(
            self,
            Self::PerSecond
                | Self::TokensPerSecond
                | Self::GigaflopsPerSecond
                | Self::GigabytesPerSecond
                | Self::Ratio
                | Self::Percent
        )
    }
}

/// The result of comparing a value with its target.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The target, for example `≤ 60`.
    pub target: String,
    /// True if the target was reached.
    pub reached: bool,
}

impl Verdict {
    pub(super) fn at_most(value: f64, target: f64) -> Self {
        Self {
            target: format!("≤ {target}"),
            reached: value <= target,
        }
    }

    pub(super) fn at_least(value: f64, target: f64) -> Self {
        Self {
            target: format!("≥ {target}"),
            reached: value >= target,
        }
    }
}

/// A rival's value of the same thing, measured in turns with ours.
#[derive(Clone, Debug, Serialize)]
pub struct Rivalry {
    /// The name of the other server.
    pub name: String,
    /// The median of its rounds.
    pub value: f64,
    /// Smallest and largest of its rounds.
    pub spread: (f64, f64),
    /// The factor by which Prelude is better: the median over rounds of the ratio within a round.
    /// The ratio is valid on a busy machine; the values are not.
    pub ratio: f64,
    /// The target of the ratio.
    pub verdict: Option<Verdict>,
}

/// A line of the report.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The name of the measured value.
    pub name: String,
    /// The unit of the values.
    pub unit: Unit,
    /// The median of the rounds.
    pub value: f64,
    /// Smallest and largest of the rounds.
    pub spread: (f64, f64),
    /// The target of the value itself, if it has one.
    pub verdict: Option<Verdict>,
    /// Rivals.
    pub rivals: Vec<Rivalry>,
    /// A note for the reader.
    pub note: Option<String>,
    /// The value of each round.
    #[serde(skip)]
    pub(super) rounds: Vec<f64>,
}

impl Row {
    /// Returns the row as lines of text.
    pub(crate) fn render(&self) -> String {
        let mut text = String::new();
        line(&mut text, self, self.name.chars().count());
        text
    }

    /// Returns a row of `rounds`, one value each.
    pub(crate) fn new(name: impl Into<String>, unit: Unit, rounds: Vec<f64>) -> Self {
        let (value, spread) = summary(&rounds);
        Self {
            name: name.into(),
            unit,
            value,
            spread,
            verdict: None,
            rivals: Vec::new(),
            note: None,
            rounds,
        }
    }

    /// Returns a row of one value.
    pub(crate) fn one(name: impl Into<String>, unit: Unit, value: f64) -> Self {
        Self::new(name, unit, vec![value])
    }

    /// Sets the target of the value: at most this.
    pub(crate) fn at_most(self, target: f64) -> Self {
        let verdict = Verdict::at_most(self.value, target);
        self.with(verdict)
    }

    /// Sets the target of the value: at least this.
    pub(crate) fn at_least(self, target: f64) -> Self {
        let verdict = Verdict::at_least(self.value, target);
        self.with(verdict)
    }

    pub(super) fn with(mut self, verdict: Verdict) -> Self {
        self.verdict = Some(verdict);
        self
    }

    pub(crate) fn noting(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// Sets a rival's rounds beside ours, round by round.
    pub(crate) fn against(&mut self, name: &str, theirs: &[f64], target: Option<f64>) {
        let ratios: Vec<f64> = self
            .rounds
            .iter()
            .zip(theirs)
            .map(|(ours, theirs)| match self.unit.more_is_better() {
                true => ours / theirs,
                false => theirs / ours,
            })
            .collect();
        let (value, spread) = summary(theirs);
        let (ratio, _) = summary(&ratios);
        self.rivals.push(Rivalry {
            name: name.to_owned(),
            value,
            spread,
            ratio,
            verdict: target.map(|target| Verdict::at_least(ratio, target)),
        });
    }
}

/// Returns the median, and the smallest and largest, of the rounds that have a value.
fn summary(rounds: &[f64]) -> (f64, (f64, f64)) {
    let found: Vec<f64> = rounds.iter().copied().filter(|v| v.is_finite()).collect();
    let Spread { median, low, high } = Spread::of(&found);
    (median, (low, high))
}

/// A run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Cores and processor.
    pub machine: String,
    /// The load average before and after the run: what else the machine did.
    pub load_average: (String, String),
    /// The date of the run, in UTC.
    pub date: String,
    /// The commit of the checkout.
    pub commit: String,
    /// Rounds of each measurement.
    pub rounds: usize,
    /// The measured values.
    pub rows: Vec<Row>,
    /// The parts that were skipped, with the reason.
    pub skipped: Vec<String>,
}

impl Report {
    /// Returns the rows as text with aligned columns.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = format!(
            "{}; {}; commit {}; load average {} before, {} after; medians of {} rounds\n\n",
            self.date,
            self.machine,
            self.commit,
            self.load_average.0,
            self.load_average.1,
            self.rounds
        );
        let width = self.rows.iter().map(|r| r.name.chars().count()).max();
        let width = width.unwrap_or(0);
        for row in &self.rows {
            line(&mut text, row, width);
        }
        for skipped in &self.skipped {
            let _ = writeln!(text, "SKIP  {skipped}");
        }
        text
    }

    /// Targets that were not reached.
    #[must_use]
    pub fn missed(&self) -> usize {
        let own = self.rows.iter().filter_map(|row| row.verdict.as_ref());
        let rivals = self.rows.iter().flat_map(|row| &row.rivals);
        let all = own.chain(rivals.filter_map(|rival| rival.verdict.as_ref()));
        all.filter(|verdict| !verdict.reached).count()
    }
}

fn line(text: &mut String, row: &Row, width: usize) {
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "{:<width$}  {:>9} {:<5} [{} .. {}]",
        row.name,
        number(row.value),
        row.unit.text(),
        number(row.spread.0),
        number(row.spread.1)
    );
    verdict(text, row.verdict.as_ref());
    if let Some(note) = &row.note {
        let _ = write!(text, "  ({note})");
    }
    text.push('\n');
    for rival in &row.rivals {
        let _ = write!(
            text,
            "{:<width$}  {:>9} {:<5} [{} .. {}]  {}x",
            format!("  {}", rival.name),
            number(rival.value),
            row.unit.text(),
            number(rival.spread.0),
            number(rival.spread.1),
            number(rival.ratio),
        );
        verdict(text, rival.verdict.as_ref());
        text.push('\n');
    }
}

fn verdict(text: &mut String, verdict: Option<&Verdict>) {
    if let Some(verdict) = verdict {
        let word = if verdict.reached { "PASS" } else { "MISS" };
        let _ = write!(text, "  {word} {}", verdict.target);
    }
}

/// Returns a value with three or four digits; `none` for one that no round had.
pub(super) fn number(value: f64) -> String {
    if value.is_nan() {
        return "none".into();
    }
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_rounds_and_point_upwards() {
        let mut fast = Row::new("a", Unit::Millis, vec![1.0, 2.0, 4.0]);
        // Each round was disturbed as a whole.
        fast.against("r", &[6.0, 12.0, 24.0], Some(6.0));
        assert_eq!((fast.value, fast.spread), (2.0, (1.0, 4.0)));
        assert_eq!((fast.rivals[0].value, fast.rivals[0].ratio), (12.0, 6.0));
        assert!(fast.rivals[0].verdict.as_ref().unwrap().reached);
        let mut many = Row::new("b", Unit::PerSecond, vec![10.0, 30.0]);
        many.against("r", &[5.0, 10.0], Some(4.0));
        assert_eq!(many.rivals[0].ratio, 2.5);
        assert!(!many.rivals[0].verdict.as_ref().unwrap().reached);
    }

    #[test]
    fn reports_align_and_count_what_was_missed() {
        let slow = Row::new("short", Unit::Micros, vec![71.0]);
        let slow = slow.with(Verdict::at_most(71.0, 60.0));
        let mut other = Row::new("a longer name", Unit::PerSecond, vec![12_345.6]);
        other.against("rival", &[20_000.0], Some(4.0));
        let report = Report {
            machine: "2 cores".to_owned(),
            load_average: ("0.1".to_owned(), "0.2".to_owned()),
            date: "today".to_owned(),
            commit: "abc".to_owned(),
            rounds: 1,
            rows: vec![slow, other],
            skipped: vec!["this: because".to_owned()],
        };
        assert_eq!(report.missed(), 2);
        let text = report.render();
        let columns: Vec<_> = text
            .lines()
            .filter_map(|l| l.chars().position(|c| c == '['))
            .collect();
        assert_eq!(columns.len(), 3, "{text}");
        assert!(columns.iter().all(|&c| c == columns[0]), "{text}");
        assert!(text.contains("MISS ≤ 60") && text.contains("SKIP  this"));
    }

    #[test]
    fn rounds_without_a_value_do_not_count() {
        assert_eq!(summary(&[f64::NAN, 3.0, 1.0]).0, 2.0);
        assert!(summary(&[]).0.is_nan());
    }
}
