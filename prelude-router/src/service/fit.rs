//! Service times that follow what finished requests took, by recursive least squares.

use prelude_core::{Regression, Sample, ServiceTime};
use serde::{Deserialize, Serialize};

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
    measured: Regression,
}

impl Fit {
    pub(crate) fn new(profile: ServiceTime) -> Self {
        Self {
            profile,
            applied: profile,
            measured: Regression::default(),
        }
    }

    /// Learns from one measurement, and returns the service time now. One that no engine can have
    /// is passed over, and so is what the floor hides.
    pub(crate) fn learn(&mut self, config: &FitConfig, sample: Sample) -> ServiceTime {
        // The upper bound is eleven days: no sum of squares overflows.
        let is_time = sample.ms > self.profile.floor_ms && sample.ms < 1e9;
        if sample.computed == 0 || !is_time {
            return self.applied;
        }
        let bounds = self.profile.compute_coefficients();
        let mut terms = sample.prefill_work().compute_terms();
        // A coefficient that is 0 in the endpoint's profile stays 0.
        terms
            .iter_mut()
            .zip(bounds)
            .filter(|(_, of)| *of == 0.0)
            .for_each(|(term, _)| *term = 0.0);
        self.measured.fade(config.forgetting);
        self.measured.add(terms, sample.ms, 1.0);
        let mut with_profile = self.measured;
        for (at, of) in bounds.into_iter().enumerate() {
            // One measurement of it, as far off as all of it, to one of a request by 1 ms.
            let weight = if of > 0.0 { 1.0 / (of * of) } else { 1.0 };
            let mut alone = [0.0; 3];
            alone[at] = 1.0;
            with_profile.add(alone, of, weight);
        }
        let fit = with_profile.solve();
        if let Some(mut fit) = fit.filter(|fit| fit.iter().all(|c| *c >= 0.0)) {
            let [low, high] = config.clamp;
            for (c, bound) in fit.iter_mut().zip(bounds) {
                *c = c.clamp(low * bound, high * bound);
            }
            self.applied = self.profile.with_compute_coefficients(fit);
        }
        self.applied
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cost;

    const TRUE: ServiceTime = ServiceTime {
        floor_ms: 0.0,
        per_cached_ms: 0.0,
        base_ms: 5.0,
        per_token_ms: 0.1,
        per_pair_ms: 3e-6,
        decode_ms: 0.0,
    };

    fn sample(missed: u32, tokens: u32) -> Sample {
        Sample {
            batch: 1,
            computed: missed,
            cached: tokens - missed,
            ms: 0.0,
        }
    }

    /// Returns the grid on which an engine is profiled.
    fn grid(of: ServiceTime) -> Vec<Sample> {
        let lens = (1..=16).map(|n| n * 1000);
        let pairs = lens.flat_map(|n| (0..n).step_by(1000).map(move |cached| (n - cached, n)));
        pairs
            .map(|(missed, tokens)| Sample {
                ms: Cost::of_prefill(&of, missed, tokens).as_ms(),
                ..sample(missed, tokens)
            })
            .collect()
    }

    fn assert_near(a: ServiceTime, b: ServiceTime, by: f64) {
        for (a, b) in a
            .compute_coefficients()
            .into_iter()
            .zip(b.compute_coefficients())
        {
            assert!((a - b).abs() <= by * b, "{a} is not {b}");
        }
    }

    #[test]
    fn a_fit_follows_an_engine_that_changes_within_its_bounds() {
        let config = FitConfig::default();
        let mut fit = Fit::new(TRUE);
        let slower = TRUE.with_compute_coefficients(TRUE.compute_coefficients().map(|c| c * 1.5));
        let mut now = TRUE;
        for _ in 0..20 {
            for sample in grid(slower) {
                now = fit.learn(&config, sample);
            }
        }
        assert_near(now, slower, 1e-3);
        // Ten times as slow: it may double.
        let tenfold = TRUE.with_compute_coefficients(TRUE.compute_coefficients().map(|c| c * 10.0));
        for _ in 0..20 {
            for sample in grid(tenfold) {
                now = fit.learn(&config, sample);
            }
        }
        assert_near(
            now,
            TRUE.with_compute_coefficients(TRUE.compute_coefficients().map(|c| c * 2.0)),
            1e-9,
        );
        // And back again: in what it predicts, at least. Of what takes a hundred milliseconds, five
        // that are always there are hard to tell.
        for _ in 0..20 {
            for sample in grid(TRUE) {
                now = fit.learn(&config, sample);
            }
        }
        for sample in grid(TRUE) {
            let predicted = now.step_ms(&sample.prefill_work());
            assert!(
                (predicted / sample.ms - 1.0).abs() < 0.02,
                "{predicted} for {sample:?}"
            );
        }
    }

    #[test]
    fn equal_samples_do_not_make_the_rest_uncertain() {
        let config = FitConfig::default();
        let mut fit = Fit::new(TRUE);
        let same = Sample {
            ms: 58.0,
            ..sample(500, 2000)
        };
        for _ in 0..100_000 {
            fit.learn(&config, same);
        }
        // One outlier then moves nothing far.
        let long = Sample {
            ms: 1000.0,
            ..sample(8000, 8000)
        };
        let now = fit.learn(&config, long);
        assert!(now.prefill_ms(8000, 8000) < 1600.0);
        assert!(now.prefill_ms(500, 2000) > 40.0);
    }

    #[test]
    fn nonsense_teaches_nothing() {
        let mut fit = Fit::new(TRUE);
        for ms in [f64::NAN, f64::INFINITY, 1e300, -4.0, 0.0] {
            let sample = Sample {
                ms,
                ..sample(10, 10)
            };
            assert_near(fit.learn(&FitConfig::default(), sample), TRUE, 1e-12);
        }
        let none = Sample {
            ms: 1.0,
            ..sample(0, 10)
        };
        assert_near(fit.learn(&FitConfig::default(), none), TRUE, 1e-12);
    }
}
