//! Service times from measurements: a profile at start, and recursive least squares afterwards.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::ServiceTime;

/// How long one prefill took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// Tokens that were computed.
    pub missed: u32,
    /// Tokens of the prompt.
    pub tokens: u32,
    /// Milliseconds.
    pub ms: f64,
}

/// A service time that was fitted to samples, and how well it fits them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// The fit. Its floor is the shortest time of all samples; its `decode_ms` is none of theirs,
    /// and 0.
    pub service: ServiceTime,
    /// Share of the samples' variance that it explains, R².
    pub r2: f64,
    /// Correlation (Pearson's) of computed tokens and time. Where it is high (0.987 for a 32B
    /// model on an A100, PrefillOnly §4.2), tokens alone order requests as time would; below 0.95
    /// they should not be taken for it.
    pub correlation: f64,
}

/// Samples that nothing can be fitted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FitError {
    /// They are too few, or too much alike.
    #[error("{samples} samples do not tell the parts of a service time apart")]
    Alike {
        /// How many there are.
        samples: usize,
    },
    /// One of them is no time.
    #[error("sample {at} takes no positive number of milliseconds")]
    NoTime {
        /// The index of the coefficient, from 0 on.
        at: usize,
    },
    /// The best fit has a negative coefficient.
    #[error("the best fit has a negative {0}, so the samples do not follow the model")]
    Negative(&'static str),
}

type Vector = [f64; 3];
type Matrix = [Vector; 3];

/// The factors that the coefficients are multiplied with, each about one.
fn features(missed: u32, tokens: u32) -> Vector {
    let (m, n) = (f64::from(missed), f64::from(tokens));
    [1.0, m / 1e3, m * n / 1e6]
}

fn dot(a: &Vector, b: &Vector) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl ServiceTime {
    fn coefficients(&self) -> Vector {
        [
            self.base_ms,
            self.per_token_ms * 1e3,
            self.per_pair_ms * 1e6,
        ]
    }

    fn with(self, coefficients: Vector) -> Self {
        Self {
            base_ms: coefficients[0],
            per_token_ms: coefficients[1] / 1e3,
            per_pair_ms: coefficients[2] / 1e6,
            ..self
        }
    }
}

impl Profile {
    /// The service time that fits best, by least squares.
    ///
    /// # Errors
    /// If the samples do not say what it is.
    pub fn of(samples: &[Sample]) -> Result<Self, FitError> {
        let is_time = |sample: &Sample| sample.ms.is_finite() && sample.ms > 0.0;
        if let Some(at) = samples.iter().position(|sample| !is_time(sample)) {
            return Err(FitError::NoTime { at });
        }
        let mut sums = [[0.0; 3]; 3];
        let mut right = [0.0; 3];
        for sample in samples {
            let x = features(sample.missed, sample.tokens);
            for (row, a) in sums.iter_mut().zip(x) {
                row.iter_mut().zip(x).for_each(|(sum, b)| *sum += a * b);
            }
            right
                .iter_mut()
                .zip(x)
                .for_each(|(sum, a)| *sum += a * sample.ms);
        }
        let alike = FitError::Alike {
            samples: samples.len(),
        };
        let fit = solve(sums, right).ok_or(alike)?;
        // Rounding alone makes nothing negative.
        let names = ["base_ms", "per_token_ms", "per_pair_ms"];
        if let Some((name, _)) = names.iter().zip(fit).find(|(_, value)| *value < -1e-6) {
            return Err(FitError::Negative(name));
        }
        let floor = samples.iter().map(|s| s.ms).fold(f64::INFINITY, f64::min);
        let service = ServiceTime {
            floor_ms: floor,
            base_ms: 0.0,
            per_token_ms: 0.0,
            per_pair_ms: 0.0,
            decode_ms: 0.0,
        };
        let fit = fit.map(|value| value.max(0.0));
        let missed = samples.iter().map(|s| f64::from(s.missed));
        let predicted = samples
            .iter()
            .map(|s| dot(&features(s.missed, s.tokens), &fit));
        let ms = || samples.iter().map(|s| s.ms);
        let mean = ms().sum::<f64>() / samples.len() as f64;
        let total: f64 = ms().map(|ms| (ms - mean).powi(2)).sum();
        let rest: f64 = ms().zip(predicted).map(|(ms, p)| (ms - p).powi(2)).sum();
        Ok(Self {
            service: service.with(fit),
            r2: if total > 0.0 { 1.0 - rest / total } else { 1.0 },
            correlation: correlation(missed, ms()),
        })
    }
}

/// Pearson's correlation; 0 if one of them is always the same.
fn correlation(a: impl Iterator<Item = f64> + Clone, b: impl Iterator<Item = f64> + Clone) -> f64 {
    let mean = |values: &mut dyn Iterator<Item = f64>| {
        let (sum, count) = values.fold((0.0, 0.0), |(sum, count), v| (sum + v, count + 1.0));
        sum / count
    };
    let (mean_a, mean_b) = (mean(&mut a.clone()), mean(&mut b.clone()));
    let sums = a.zip(b).fold([0.0; 3], |[ab, aa, bb], (a, b)| {
        let (a, b) = (a - mean_a, b - mean_b);
        [ab + a * b, aa + a * a, bb + b * b]
    });
    let [ab, aa, bb] = sums;
    if aa > 0.0 && bb > 0.0 {
        ab / (aa * bb).sqrt()
    } else {
        0.0
    }
}

/// Solves `m x = v` by elimination; none if `m` is singular, or nearly.
fn solve(mut m: Matrix, mut v: Vector) -> Option<Vector> {
    let scale = m.iter().flatten().fold(0.0f64, |most, x| most.max(x.abs()));
    for column in 0..3 {
        let pivot =
            (column..3).max_by(|a, b| m[*a][column].abs().total_cmp(&m[*b][column].abs()))?;
        if m[pivot][column].abs() <= scale * 1e-12 {
            return None;
        }
        m.swap(column, pivot);
        v.swap(column, pivot);
        for row in column + 1..3 {
            let factor = m[row][column] / m[column][column];
            let above = m[column];
            m[row]
                .iter_mut()
                .zip(above)
                .for_each(|(x, a)| *x -= factor * a);
            v[row] -= factor * v[column];
        }
    }
    let mut x = [0.0; 3];
    for row in (0..3).rev() {
        x[row] = (v[row] - dot(&m[row], &x)) / m[row][row];
    }
    Some(x)
}

/// Knobs of fitting service times to finished requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FitConfig {
    /// Weight of a measurement against that of the next one (default 0.995), above 0.5 and below
    /// 1: less follows changes faster, and noise too.
    pub forgetting: f64,
    /// Least and most of each coefficient, as ratios to what the endpoint said when it joined
    /// (default 0.5 and 2).
    pub clamp: [f64; 2],
}

impl Default for FitConfig {
    fn default() -> Self {
        Self {
            forgetting: 0.995,
            clamp: [0.5, 2.0],
        }
    }
}

/// A service time that follows what is measured, by recursive least squares with forgetting.
///
/// It keeps the sums of the normal equations and solves them anew each time: three unknowns cost
/// nothing, and the usual update of a covariance loses its digits when measurements are all but
/// exact and an engine changes. What the endpoint said when it joined counts as a measurement of
/// each coefficient that is never forgotten, so one that the requests say nothing about stays.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fit {
    profile: ServiceTime,
    /// Returns the service time that applies now: a fit with a negative coefficient is not applied.
    applied: ServiceTime,
    sums: Matrix,
    right: Vector,
}

impl Fit {
    pub(crate) fn new(profile: ServiceTime) -> Self {
        Self {
            profile,
            applied: profile,
            sums: [[0.0; 3]; 3],
            right: [0.0; 3],
        }
    }

    /// Learns from one measurement, and returns the service time now. One that no engine can have
    /// is passed over, and so is what the floor hides.
    pub(crate) fn learn(&mut self, config: &FitConfig, sample: Sample) -> ServiceTime {
        // Eleven days, and no sum of squares that is not a number.
        let is_time = sample.ms > self.profile.floor_ms && sample.ms < 1e9;
        if sample.missed == 0 || !is_time {
            return self.applied;
        }
        let bounds = self.profile.coefficients();
        let mut x = features(sample.missed, sample.tokens);
        // What the endpoint lacks, it lacks for good.
        x.iter_mut()
            .zip(bounds)
            .filter(|(_, of)| *of == 0.0)
            .for_each(|(x, _)| *x = 0.0);
        for (row, a) in self.sums.iter_mut().zip(x) {
            row.iter_mut()
                .zip(x)
                .for_each(|(sum, b)| *sum = config.forgetting * *sum + a * b);
        }
        for (sum, a) in self.right.iter_mut().zip(x) {
            *sum = config.forgetting * *sum + a * sample.ms;
        }
        let (mut sums, mut right) = (self.sums, self.right);
        for (at, of) in bounds.into_iter().enumerate() {
            // One measurement of it, as far off as all of it, to one of a request by 1 ms.
            let weight = if of > 0.0 { 1.0 / (of * of) } else { 1.0 };
            sums[at][at] += weight;
            right[at] += weight * of;
        }
        let fit = solve(sums, right).filter(|fit| fit.iter().all(|c| *c >= 0.0));
        if let Some(mut fit) = fit {
            let [low, high] = config.clamp;
            for (c, bound) in fit.iter_mut().zip(bounds) {
                *c = c.clamp(low * bound, high * bound);
            }
            self.applied = self.profile.with(fit);
        }
        self.applied
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRUE: ServiceTime = ServiceTime {
        floor_ms: 0.0,
        base_ms: 5.0,
        per_token_ms: 0.1,
        per_pair_ms: 3e-6,
        decode_ms: 0.0,
    };

    /// The grid on which an engine is profiled.
    fn grid(of: ServiceTime) -> Vec<Sample> {
        let lens = (1..=16).map(|n| n * 1000);
        let pairs = lens.flat_map(|n| (0..n).step_by(1000).map(move |cached| (n - cached, n)));
        pairs
            .map(|(missed, tokens)| Sample {
                missed,
                tokens,
                ms: of.prefill(missed, tokens).as_ms(),
            })
            .collect()
    }

    fn assert_near(a: ServiceTime, b: ServiceTime, by: f64) {
        for (a, b) in a.coefficients().into_iter().zip(b.coefficients()) {
            assert!((a - b).abs() <= by * b, "{a} is not {b}");
        }
    }

    #[test]
    fn a_profile_finds_what_made_its_samples() {
        let profile = Profile::of(&grid(TRUE)).expect("the grid tells everything apart");
        assert_near(profile.service, TRUE, 1e-4);
        assert!(profile.r2 > 0.999_999);
        assert!(profile.correlation > 0.95, "{}", profile.correlation);
        assert_eq!(profile.service.floor_ms, 5.0 + 100.0 + 3.0);
    }

    #[test]
    fn what_says_nothing_is_refused() {
        let sample = Sample {
            missed: 1000,
            tokens: 1000,
            ms: 3.0,
        };
        assert_eq!(
            Profile::of(&[sample; 9]),
            Err(FitError::Alike { samples: 9 })
        );
        assert_eq!(Profile::of(&[]), Err(FitError::Alike { samples: 0 }));
        let mut bad = grid(TRUE);
        bad[3].ms = f64::NAN;
        assert_eq!(Profile::of(&bad), Err(FitError::NoTime { at: 3 }));
        let falling = grid(TRUE).into_iter().map(|s| Sample {
            ms: 5000.0 - s.ms,
            ..s
        });
        let falling: Vec<_> = falling.collect();
        assert_eq!(
            Profile::of(&falling),
            Err(FitError::Negative("per_token_ms"))
        );
    }

    #[test]
    fn a_fit_follows_an_engine_that_changes_within_its_bounds() {
        let config = FitConfig::default();
        let mut fit = Fit::new(TRUE);
        let slower = TRUE.with(TRUE.coefficients().map(|c| c * 1.5));
        let mut now = TRUE;
        for _ in 0..20 {
            for sample in grid(slower) {
                now = fit.learn(&config, sample);
            }
        }
        assert_near(now, slower, 1e-3);
        // Ten times as slow: it may double.
        let tenfold = TRUE.with(TRUE.coefficients().map(|c| c * 10.0));
        for _ in 0..20 {
            for sample in grid(tenfold) {
                now = fit.learn(&config, sample);
            }
        }
        assert_near(now, TRUE.with(TRUE.coefficients().map(|c| c * 2.0)), 1e-9);
        // And back again: in what it predicts, at least. Of what takes a hundred milliseconds, five
        // that are always there are hard to tell.
        for _ in 0..20 {
            for sample in grid(TRUE) {
                now = fit.learn(&config, sample);
            }
        }
        for sample in grid(TRUE) {
            let predicted = now.prefill(sample.missed, sample.tokens).as_ms();
            assert!(
                (predicted / sample.ms - 1.0).abs() < 0.02,
                "{predicted} for {sample:?}"
            );
        }
    }

    #[test]
    fn what_is_always_the_same_does_not_make_the_rest_uncertain() {
        let config = FitConfig::default();
        let mut fit = Fit::new(TRUE);
        let same = Sample {
            missed: 500,
            tokens: 2000,
            ms: 58.0,
        };
        for _ in 0..100_000 {
            fit.learn(&config, same);
        }
        // One outlier then moves nothing far.
        let long = Sample {
            missed: 8000,
            tokens: 8000,
            ms: 1000.0,
        };
        let now = fit.learn(&config, long);
        assert!(now.prefill(8000, 8000).as_ms() < 1600.0);
        assert!(now.prefill(500, 2000).as_ms() > 40.0);
    }

    #[test]
    fn nonsense_teaches_nothing() {
        let mut fit = Fit::new(TRUE);
        for ms in [f64::NAN, f64::INFINITY, 1e300, -4.0, 0.0] {
            let sample = Sample {
                missed: 10,
                tokens: 10,
                ms,
            };
            assert_near(fit.learn(&FitConfig::default(), sample), TRUE, 1e-12);
        }
        let none = Sample {
            missed: 0,
            tokens: 10,
            ms: 1.0,
        };
        assert_near(fit.learn(&FitConfig::default(), none), TRUE, 1e-12);
    }
}
