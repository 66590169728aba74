//! Differences of numbers, and what is allowed of them.

use anyhow::{Result, ensure};

/// Times the reference's own largest error in bf16 that ours may be.
const MAX_FACTOR: f64 = 2.0;
/// The same of the mean.
const MEAN_FACTOR: f64 = 1.5;

/// Largest and mean difference seen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Differences {
    pub(crate) max: f64,
    sum: f64,
    pub(crate) count: usize,
}

/// What is allowed of [`Differences`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Allowed {
    pub(crate) max: f64,
    pub(crate) mean: f64,
}

impl Allowed {
    /// From the error that the reference itself shows in bf16.
    pub(crate) fn from_observed(max: f64, mean: f64) -> Self {
        Self {
            max: MAX_FACTOR * max,
            mean: MEAN_FACTOR * mean,
        }
    }
}

impl Differences {
    /// # Errors
    /// If the lengths differ, or a number is infinite or none.
    pub(crate) fn add(&mut self, got: &[f32], expected: &[f32]) -> Result<()> {
        ensure!(
            got.len() == expected.len(),
            "{} numbers where {} were expected",
            got.len(),
            expected.len()
        );
        for (i, (&a, &b)) in got.iter().zip(expected).enumerate() {
            let difference = f64::from(a - b).abs();
            ensure!(
                difference.is_finite(),
                "number {i} is {a} and should be {b}"
            );
            self.max = self.max.max(difference);
            self.sum += difference;
            self.count += 1;
        }
        Ok(())
    }

    pub(crate) fn mean(&self) -> f64 {
        self.sum / self.count.max(1) as f64
    }

    /// What was seen, if it is allowed.
    ///
    /// # Errors
    /// What was seen, if it is not, or if nothing was compared.
    pub(crate) fn check(&self, allowed: Allowed) -> Result<String> {
        ensure!(self.count > 0, "nothing was compared");
        let text = format!(
            "max {:.2e} of {:.2e}, mean {:.2e} of {:.2e}, {} numbers",
            self.max,
            allowed.max,
            self.mean(),
            allowed.mean,
            self.count
        );
        ensure!(
            self.max <= allowed.max && self.mean() <= allowed.mean,
            "{text}"
        );
        Ok(text)
    }
}

/// Scaled to length 1, as embeddings are returned.
pub(crate) fn unit(v: &[f32]) -> Vec<f32> {
    let length = v.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    v.iter().map(|&x| (f64::from(x) / length) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_largest_and_mean_count() {
        let mut seen = Differences::default();
        let allowed = |max, mean| Allowed { max, mean };
        assert!(seen.check(allowed(1.0, 1.0)).is_err(), "nothing compared");
        seen.add(&[1.0, 2.0, 3.0], &[1.0, 2.0, 2.0]).unwrap();
        assert!(seen.check(allowed(1.0, 0.4)).is_ok());
        assert!(seen.check(allowed(0.9, 0.4)).is_err());
        assert!(seen.check(allowed(1.0, 0.3)).is_err());
        assert!(seen.add(&[f32::NAN], &[1.0]).is_err());
        assert!(seen.add(&[1.0], &[f32::NAN]).is_err());
        assert!(seen.add(&[1.0], &[]).is_err());
        assert_eq!(Allowed::from_observed(1.0, 1.0), allowed(2.0, 1.5));
    }
}
