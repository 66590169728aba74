//! Differences, what is allowed, and the table that says so.

use std::fmt;

/// One array of one model, compared.
pub(crate) struct Line {
    pub(crate) model: String,
    pub(crate) dtype: &'static str,
    pub(crate) array: &'static str,
    pub(crate) values: usize,
    pub(crate) max: f64,
    pub(crate) mean: f64,
    pub(crate) differences: Vec<f64>,
    pub(crate) allowed: Allowed,
}

/// Largest and mean difference allowed.
#[derive(Clone, Copy)]
pub(crate) struct Allowed {
    pub(crate) max: f64,
    pub(crate) mean: Option<f64>,
}

impl Line {
    pub(crate) fn passes(&self) -> bool {
        // Written so that a NaN fails, and so does an array of nothing.
        self.values > 0
            && self.max <= self.allowed.max
            && self.allowed.mean.is_none_or(|mean| self.mean <= mean)
    }

    /// Adds a difference.
    pub(crate) fn add(&mut self, got: f64, expected: f64) {
        let difference = (got - expected).abs();
        // `f64::max` would drop a NaN.
        if difference.is_nan() || difference > self.max {
            self.max = difference;
        }
        self.values += 1;
        self.mean += (difference - self.mean) / self.values as f64;
        self.differences.push(difference);
    }

    /// Returns the difference that 99 of 100 values do not exceed: what a user may expect of other
    /// prompts, where the largest one grows with the number of prompts.
    fn p99(&self) -> f64 {
        let mut sorted = self.differences.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1);
        sorted.get(last * 99 / 100).copied().unwrap_or(f64::NAN)
    }
}

/// Heads the lines.
pub(crate) const HEADER: &str = "model                dtype array                   values  max       P99       mean      \
                          allowed max  mean      ";

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mean = self
            .allowed
            .mean
            .map_or_else(|| "-".to_owned(), |m| format!("{m:.2e}"));
        write!(
            f,
            "{:20} {:5} {:22} {:7}  {:.2e}  {:.2e}  {:.2e}  {:11.2e}  {mean:9} {}",
            self.model,
            self.dtype,
            self.array,
            self.values,
            self.max,
            self.p99(),
            self.mean,
            self.allowed.max,
            if self.passes() { "PASS" } else { "FAIL" }
        )
    }
}
