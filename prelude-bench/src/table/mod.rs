//! The first table: tokenizer, one forward pass, one HTTP round trip, a step of the scheduler.
//!
//! Absolute times depend on the machine and on what else it does; ratios of rows measured in the
//! same run, in turns, and shares of the machine's limit are what to read.

mod forward;
mod http;
mod tokenizer;

use std::time::Duration;

use anyhow::Result;
use prelude_measure::{
    clock::Rounds,
    record::{Better, Record, Row},
    stats::Spread,
};

use crate::sched;

/// Runs all measurements; `progress` is told what comes next.
///
/// # Errors
/// If a model cannot be loaded or a server does not answer.
pub fn run(rounds: usize, round: Duration, mut progress: impl FnMut(&str)) -> Result<Record> {
    let rounds = Rounds {
        count: rounds,
        time: round,
    };
    progress("tokenizer");
    let mut rows = tokenizer::measure(rounds)?;
    progress("forward pass");
    rows.extend(forward::measure(rounds)?);
    progress("HTTP round trip");
    rows.extend(http::measure(rounds)?);
    progress("scheduler");
    rows.extend(sched::rows(rounds.count)?);
    Ok(Record::new("table", rows))
}

/// Returns a row of times in microseconds.
fn micros(name: impl Into<String>, seconds: &[f64]) -> Row {
    let micros: Vec<f64> = seconds.iter().map(|s| s * 1e6).collect();
    Row::measured(name, "µs", Spread::of(&micros), Better::Lower)
}

/// Notes how many times better a row is than another one of its unit.
fn against(row: Row, other: &Row, rival: &str) -> Row {
    let value = |row: &Row| row.value.unwrap_or(f64::NAN);
    let factor = row.better.factor(value(&row), value(other));
    row.note(format!("{factor:.2}x {rival}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_say_how_many_times_better() {
        let (fast, slow) = (micros("fast", &[1e-6]), micros("slow", &[3e-6, 1e-6, 2e-6]));
        assert_eq!(slow.spread, Some((1.0, 3.0)));
        assert_eq!(
            against(fast, &slow, "the slow one").note,
            "2.00x the slow one"
        );
    }
}
