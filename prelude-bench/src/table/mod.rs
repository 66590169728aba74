//! The first table: tokenizer, one forward pass, one HTTP round trip.
//!
//! Absolute times depend on the machine and on what else it does; ratios of rows measured in the
//! same run, in turns, are what to read.

mod forward;
mod http;
mod tokenizer;

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use anyhow::Result;

/// A line of the table.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Row {
    /// The name of the measured value.
    pub name: String,
    /// The median, in `unit`.
    pub value: f64,
    /// The unit, for example `µs` or `MB/s`.
    pub unit: &'static str,
    /// Smallest and largest of the rounds.
    pub spread: (f64, f64),
    /// The compared program, and the factor by which Prelude is better (above 1 is better).
    pub against: Option<(String, f64)>,
}

/// The number and the duration of rounds.
#[derive(Clone, Copy, Debug)]
pub struct TableConfig {
    /// Rounds of each measurement; the median counts.
    pub rounds: usize,
    /// Time for one round of one measurement.
    pub round: Duration,
}

impl Default for TableConfig {
    fn default() -> Self {
        Self {
            rounds: 9,
            round: Duration::from_millis(120),
        }
    }
}

/// Runs all measurements; `progress` is told what comes next.
///
/// # Errors
/// If a model cannot be loaded or a server does not answer.
pub fn run(config: TableConfig, mut progress: impl FnMut(&str)) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    progress("tokenizer");
    rows.extend(tokenizer::measure(config)?);
    progress("forward pass");
    rows.extend(forward::measure(config)?);
    progress("HTTP round trip");
    rows.extend(http::measure(config)?);
    Ok(rows)
}

/// Returns the rows as text with aligned columns.
#[must_use]
pub fn render(rows: &[Row]) -> String {
    let width = rows
        .iter()
        .map(|r| r.name.chars().count())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for row in rows {
        let (low, high) = row.spread;
        let digits = if row.value < 10.0 {
            2
        } else {
            usize::from(row.value < 1000.0)
        };
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "{:<width$}  {:>9.digits$} {:<8} [{low:.digits$} .. {high:.digits$}]",
            row.name, row.value, row.unit
        );
        if let Some((rival, ratio)) = &row.against {
            let _ = write!(text, "  {ratio:.2}x {rival}");
        }
        text.push('\n');
    }
    text
}

/// Calls each of `works` in turn, round after round, and returns for each the seconds per call of
/// every round. Turns make them share whatever else the machine does meanwhile.
fn in_turns(config: TableConfig, works: &mut [&mut dyn FnMut()]) -> Vec<Vec<f64>> {
    let calls: Vec<u32> = works
        .iter_mut()
        .map(|work| {
            work();
            let start = Instant::now();
            work();
            let once = start.elapsed().as_secs_f64().max(1e-7);
            let calls = (config.round.as_secs_f64() / once).clamp(1.0, 1e6);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "clamped to 1..1e6"
            )]
            let calls = calls as u32;
            calls
        })
        .collect();
    let mut seconds = vec![Vec::new(); works.len()];
    for _ in 0..config.rounds.max(1) {
        for ((work, &calls), seconds) in works.iter_mut().zip(&calls).zip(&mut seconds) {
            let start = Instant::now();
            for _ in 0..calls {
                work();
            }
            seconds.push(start.elapsed().as_secs_f64() / f64::from(calls));
        }
    }
    seconds
}

/// Returns a row of `values`, one per round.
fn row(name: impl Into<String>, unit: &'static str, mut values: Vec<f64>) -> Row {
    values.sort_by(f64::total_cmp);
    let spread = (values[0], values[values.len() - 1]);
    Row {
        name: name.into(),
        value: median(&values),
        unit,
        spread,
        against: None,
    }
}

fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    } else {
        sorted[middle]
    }
}

impl Row {
    /// Notes a comparison; `ratio` above 1 means that this row is better.
    fn against(mut self, rival: impl Into<String>, ratio: f64) -> Self {
        self.against = Some((rival.into(), ratio));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_spreads() {
        let odd = row("a", "µs", vec![3.0, 1.0, 2.0]);
        assert_eq!((odd.value, odd.spread), (2.0, (1.0, 3.0)));
        assert_eq!(row("b", "µs", vec![4.0, 1.0, 2.0, 3.0]).value, 2.5);
    }

    #[test]
    fn turns_are_taken() {
        let (mut a, mut b) = (0, 0);
        let config = TableConfig {
            rounds: 3,
            round: Duration::ZERO,
        };
        let seconds = in_turns(config, &mut [&mut || a += 1, &mut || b += 1]);
        assert_eq!((seconds.len(), seconds[0].len()), (2, 3));
        assert_eq!((a, b), (5, 5));
    }

    #[test]
    fn tables_align() {
        let rows = [
            row("short", "µs", vec![1.0]),
            row("a longer name", "MB/s", vec![1234.5]).against("rival", 2.0),
        ];
        let text = render(&rows);
        let columns: Vec<_> = text
            .lines()
            .map(|l| l.chars().position(|c| c == '['))
            .collect();
        assert_eq!(columns[0], columns[1], "{text}");
        assert!(text.contains("2.00x rival"));
    }
}
