//! Medians, quantiles and spreads of repeated measurements.

use serde::{Deserialize, Serialize};

/// Returns the middle value, or the mean of the two in the middle; NaN of none.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        n if n.is_multiple_of(2) => f64::midpoint(sorted[middle - 1], sorted[middle]),
        _ => sorted[middle],
    }
}

/// Returns the value of the nearest rank: the smallest value that `fraction` of all values do not
/// exceed; NaN of none.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "ranks are far below 2^52 and bounded by the number of values"
)]
pub fn quantile(values: &[f64], fraction: f64) -> f64 {
    let sorted = sorted(values);
    let rank = (fraction * sorted.len() as f64).ceil() as usize;
    let at = rank.clamp(1, sorted.len().max(1)) - 1;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Median, smallest and largest of repeated measurements.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The middle value.
    pub median: f64,
    /// The smallest value.
    pub low: f64,
    /// The largest value.
    pub high: f64,
}

impl Spread {
    /// Summarizes values; all three are NaN without any.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        Self {
            median: median(values),
            low: values.iter().copied().fold(f64::NAN, f64::min),
            high: values.iter().copied().fold(f64::NAN, f64::max),
        }
    }

    /// Returns the distance of largest and smallest value, as a share of the median.
    #[must_use]
    pub fn relative(&self) -> f64 {
        (self.high - self.low) / self.median
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_any_order() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn quantiles_are_of_the_nearest_rank() {
        let values: Vec<f64> = (1..=10).rev().map(f64::from).collect();
        assert_eq!(quantile(&values, 0.5), 5.0);
        assert_eq!(quantile(&values, 0.99), 10.0);
        assert_eq!(quantile(&values, 0.0), 1.0);
        assert_eq!(quantile(&[7.0], 0.9), 7.0);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn a_spread_has_both_ends() {
        let spread = Spread::of(&[2.0, 3.0, 1.0]);
        assert_eq!((spread.median, spread.low, spread.high), (2.0, 1.0, 3.0));
        assert_eq!(spread.relative(), 1.0);
    }
}
