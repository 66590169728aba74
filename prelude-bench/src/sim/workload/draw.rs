//! Distributions with given moments.

use std::{ops::RangeInclusive, time::Duration};

use prelude_core::Timestamp;
use serde::Serialize;

use super::Arrival;
use crate::random::Random;

/// Mean and standard deviation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Moments {
    /// Mean.
    pub mean: f64,
    /// Standard deviation.
    pub sd: f64,
}

impl Moments {
    pub(super) const fn new(mean: f64, sd: f64) -> Self {
        Self { mean, sd }
    }

    /// Returns the moments of numbers, as a population and not as a sample.
    #[must_use]
    pub fn of(numbers: &[f64]) -> Self {
        let n = numbers.len().max(1) as f64;
        let mean = numbers.iter().sum::<f64>() / n;
        let variance = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        Self {
            mean,
            sd: variance.sqrt(),
        }
    }

    /// Returns the moments of the other part of a sum, given the moments of one independent part.
    pub(super) fn less(self, other: Self) -> Self {
        Self {
            mean: self.mean - other.mean,
            sd: (self.sd.powi(2) - other.sd.powi(2)).max(0.0).sqrt(),
        }
    }
}

/// A number whose logarithm is normally distributed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LogNormal {
    mu: f64,
    sigma: f64,
}

impl LogNormal {
    /// Creates a distribution with these moments of the number itself.
    pub(super) fn new(moments: Moments) -> Self {
        let variance = (1.0 + (moments.sd / moments.mean).powi(2)).ln();
        Self {
            mu: moments.mean.ln() - variance / 2.0,
            sigma: variance.sqrt(),
        }
    }

    pub(super) fn of_median(median: f64, sigma: f64) -> Self {
        Self {
            mu: median.ln(),
            sigma,
        }
    }

    /// Returns the distribution whose draws, each counted as often as it is large, are distributed
    /// like this one.
    pub(super) fn before_counting_by_size(self) -> Self {
        Self {
            mu: self.mu - self.sigma.powi(2),
            ..self
        }
    }

    pub(super) fn draw(self, random: &mut Random) -> f64 {
        (self.mu + self.sigma * random.normal()).exp()
    }

    /// Returns a number of tokens, truncated: drawn anew until it is within the limits, which
    /// lowers the mean where the upper limit is near (of `LooGLE`'s by 4 %, and the deviation by 25
    /// %).
    pub(super) fn tokens(self, random: &mut Random, limits: RangeInclusive<u32>) -> u32 {
        // As many tries as leave nothing to chance, unless the limits are absurd.
        for _ in 0..100 {
            let drawn = self.draw(random).round();
            if drawn >= f64::from(*limits.start()) && drawn <= f64::from(*limits.end()) {
                return drawn as u32;
            }
        }
        *limits.start()
    }
}

/// Splits `total` among parts as their weights say: largest remainders first, so the counts are
/// as near to the weights as whole numbers can be.
pub(super) fn apportion(total: u32, weights: &[f64]) -> Vec<u32> {
    let sum: f64 = weights.iter().sum();
    let exact = |w: &f64| f64::from(total) * w / sum;
    let mut counts: Vec<u32> = weights.iter().map(|w| exact(w) as u32).collect();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    // Stable, so ties go to the first.
    order.sort_by(|&a, &b| {
        exact(&weights[b])
            .fract()
            .total_cmp(&exact(&weights[a]).fract())
    });
    let given: u32 = counts.iter().sum();
    for &i in order.iter().take((total - given) as usize) {
        counts[i] += 1;
    }
    counts
}

/// Sets when each comes: independently of the others, `rate` in a second on average.
pub(super) fn poisson(arrivals: &mut [Arrival], rate: f64, random: &mut Random) {
    let mut at = Timestamp::ZERO;
    for arrival in arrivals {
        at = at.saturating_add(seconds(random.exponential(1.0 / rate)));
        arrival.at = at;
    }
}

pub(super) fn seconds(seconds: f64) -> Duration {
    Duration::from_nanos((seconds * 1e9) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(distribution: LogNormal, expected: Moments) {
        let mut random = Random::far(3);
        let numbers: Vec<f64> = (0..200_000)
            .map(|_| distribution.draw(&mut random))
            .collect();
        let got = Moments::of(&numbers);
        assert!((got.mean / expected.mean - 1.0).abs() < 0.02, "{got:?}");
        assert!((got.sd / expected.sd - 1.0).abs() < 0.04, "{got:?}");
    }

    #[test]
    fn log_normals_have_their_moments() {
        let moments = Moments::new(1835.0, 742.0);
        check(LogNormal::new(moments), moments);
        // exp(mu + sigma²/2), and that times sqrt(exp(sigma²) - 1).
        check(LogNormal::of_median(60.0, 0.9), Moments::new(89.96, 100.77));
    }

    #[test]
    fn counted_by_size_it_is_the_distribution_asked_for() {
        let moments = Moments::new(9865.0, 5976.0);
        let mut random = Random::far(4);
        let before = LogNormal::new(moments).before_counting_by_size();
        let numbers: Vec<f64> = (0..200_000).map(|_| before.draw(&mut random)).collect();
        let sum: f64 = numbers.iter().sum();
        let mean = numbers.iter().map(|x| x * x / sum).sum::<f64>();
        assert!((mean / moments.mean - 1.0).abs() < 0.03, "mean {mean}");
    }

    #[test]
    fn truncated_draws_stay_within_their_limits() {
        let mut random = Random::far(5);
        let wide = LogNormal::new(Moments::new(100.0, 400.0));
        let drawn: Vec<u32> = (0..1000)
            .map(|_| wide.tokens(&mut random, 10..=50))
            .collect();
        assert!(drawn.iter().all(|n| (10..=50).contains(n)));
        assert!(drawn.iter().any(|n| *n > 40) && drawn.iter().any(|n| *n < 15));
        // Nothing comes near: the lower limit, and no loop without end.
        assert_eq!(
            wide.tokens(&mut random, 4_000_000_000..=4_000_000_001),
            4_000_000_000
        );
    }

    #[test]
    fn whole_numbers_sum_to_the_total() {
        assert_eq!(apportion(10, &[1.0, 1.0, 1.0]), [4, 3, 3]);
        assert_eq!(apportion(7, &[0.5, 0.25, 0.25]), [3, 2, 2]);
        assert_eq!(apportion(2, &[0.1, 9.9]), [0, 2]);
        assert_eq!(apportion(0, &[1.0]), [0]);
    }
}
