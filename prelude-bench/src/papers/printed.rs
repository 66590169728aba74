//! The papers' own figures, and the comparison of ours with them.

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::Paper;

/// A figure that a paper prints: one number, or a range.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Printed {
    pub(super) paper: Paper,
    /// The number of the table, figure or section.
    pub(super) at: String,
    /// The quantity, with its unit.
    pub(super) what: String,
    pub(super) low: f64,
    /// The other end of a range.
    pub(super) high: Option<f64>,
}

impl Printed {
    pub(super) fn high(&self) -> f64 {
        self.high.unwrap_or(self.low)
    }

    /// Writes the number or the range.
    pub(super) fn text(&self) -> String {
        span(self.low, self.high())
    }
}

/// The figures of `figures.json`.
pub(super) struct Figures(Vec<Printed>);

impl Figures {
    /// Reads the file that is part of the program.
    ///
    /// # Errors
    /// If it is broken.
    pub(super) fn load() -> Result<Self> {
        let figures = serde_json::from_str(include_str!("figures.json"));
        Ok(Self(figures.context("figures.json of the papers")?))
    }

    /// Returns a paper's figure.
    ///
    /// # Errors
    /// If the file lacks it.
    pub(super) fn of(&self, paper: Paper, what: &str) -> Result<&Printed> {
        let found = self.0.iter().find(|f| f.paper == paper && f.what == what);
        found.with_context(|| format!("figures.json has no \"{what}\" of {}", paper.name()))
    }
}

/// A figure of a paper beside ours.
pub(super) struct Claim {
    printed: Printed,
    low: f64,
    high: f64,
    /// The reason for a difference, printed only where there is one.
    why: &'static str,
}

impl Claim {
    /// Compares the range of our figures with what the paper prints.
    pub(super) fn new(
        printed: &Printed,
        ours: impl IntoIterator<Item = f64>,
        why: &'static str,
    ) -> Self {
        let ours = ours.into_iter().filter(|value| value.is_finite());
        let (low, high) = ours.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        Self {
            printed: printed.clone(),
            low,
            high,
            why,
        }
    }

    /// Returns the cells of its row: place, quantity, the paper's figure, ours, and the verdict.
    pub(super) fn row(&self) -> Vec<String> {
        vec![
            self.printed.at.clone(),
            self.printed.what.clone(),
            self.printed.text(),
            span(self.low, self.high),
            self.verdict(),
        ]
    }

    /// Tells whether our range and the paper's, which is rounded, meet; and if not, why.
    fn verdict(&self) -> String {
        /// The part by which a printed figure may be rounded.
        const ROUNDED: f64 = 0.05;
        let differs = |word: &str| format!("{word}: {}", self.why);
        if self.low > self.printed.high() * (1.0 + ROUNDED) {
            differs("more")
        } else if self.high < self.printed.low * (1.0 - ROUNDED) {
            differs("less")
        } else {
            "meets".to_owned()
        }
    }
}

/// Writes a range, or one number if its ends look the same.
fn span(low: f64, high: f64) -> String {
    let (low, high) = (number(low), number(high));
    match low == high {
        true => low,
        false => format!("{low} to {high}"),
    }
}

/// Writes a number with three significant digits, and whole ones as such.
pub(super) fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 || value.fract() == 0.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_named_once_and_is_a_range() {
        let Figures(all) = Figures::load().unwrap();
        for figure in &all {
            let same = |f: &&Printed| (f.paper, &f.what) == (figure.paper, &figure.what);
            assert_eq!(all.iter().filter(same).count(), 1, "{figure:?}");
            assert!(figure.low <= figure.high(), "{figure:?}");
        }
        let error = Figures(all).of(Paper::Laps, "no such").unwrap_err();
        let expected = "figures.json has no \"no such\" of laps";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn the_reason_is_told_where_ranges_do_not_meet() {
        let printed = Printed {
            paper: Paper::Preble,
            at: "Figure 3".to_owned(),
            what: "a ratio".to_owned(),
            low: 2.0,
            high: Some(10.0),
        };
        let check = |ours: &[f64], shown: &str, verdict: &str| {
            let claim = Claim::new(&printed, ours.iter().copied(), "it is another device");
            let expected = ["Figure 3", "a ratio", "2 to 10", shown, verdict];
            assert_eq!(claim.row(), expected);
        };
        check(&[3.0, 1.0], "1 to 3", "meets");
        check(&[1.95], "1.95", "meets");
        check(&[1.0, 1.5], "1 to 1.50", "less: it is another device");
        check(&[120.0, f64::NAN], "120", "more: it is another device");
    }
}
