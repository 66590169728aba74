//! Service times from measurements.

use thiserror::Error;

use super::{Sample, ServiceTime, StepWork};

/// A service time that was fitted to samples, and how well it fits them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fitted {
    /// The fit.
    pub service: ServiceTime,
    /// Share of the variance of prefill times that the fit explains, R².
    pub r2: f64,
    /// Correlation (Pearson's) of computed tokens and time of a prefill. Where it is high (0.987
    /// for a 32B model on an A100, PrefillOnly §6.3), tokens alone order requests as time would.
    pub correlation: f64,
}

/// Samples that nothing can be fitted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FitError {
    /// The samples are too few, or too much alike.
    #[error("{samples} samples do not tell the parts of a service time apart")]
    Alike {
        /// The number of samples.
        samples: usize,
    },
    /// A sample is no measurement.
    #[error("sample {at} computes nothing, or takes no positive number of milliseconds")]
    NoTime {
        /// The index of the sample, from 0 on.
        at: usize,
    },
    /// More tokens do not take longer.
    #[error("the time does not grow with the tokens, so the samples do not follow the model")]
    Flat,
}

impl Fitted {
    /// Fits a service time to steps of prompts and to steps of generations, of which there may be
    /// none.
    ///
    /// Errors count relative to the time, so that short steps count as much as long ones. No
    /// coefficient is negative, so predictions grow with the work.
    ///
    /// # Errors
    /// [`FitError`] if the samples do not say what it is.
    pub fn of(prefill: &[Sample], decode: &[Sample]) -> Result<Self, FitError> {
        for samples in [prefill, decode] {
            if let Some(at) = samples.iter().position(|sample| !sample.is_valid()) {
                return Err(FitError::NoTime { at });
            }
        }
        let service = fit(prefill, decode)?;
        let works = prefill.iter().map(Sample::prefill_work);
        let predicted = works.clone().map(|work| service.step_ms(&work));
        let ms = || prefill.iter().map(|sample| sample.ms);
        let mean = ms().sum::<f64>() / prefill.len() as f64;
        let total: f64 = ms().map(|ms| (ms - mean).powi(2)).sum();
        let rest: f64 = ms().zip(predicted).map(|(ms, p)| (ms - p).powi(2)).sum();
        Ok(Self {
            service,
            r2: if total > 0.0 { 1.0 - rest / total } else { 1.0 },
            correlation: correlation(works.map(|work| work.tokens), ms()),
        })
    }

    /// Returns the standard error of each coefficient, estimated from the fits without one of the
    /// samples (the jackknife). As many fits as there are samples.
    #[must_use]
    pub fn standard_errors(prefill: &[Sample], decode: &[Sample]) -> ServiceTime {
        let without = |samples: &[Sample], at: usize| {
            let (before, after) = samples.split_at(at);
            [before, &after[1..]].concat()
        };
        let of_prefill = (0..prefill.len()).map(|at| fit(&without(prefill, at), decode));
        let of_decode = (0..decode.len()).map(|at| fit(prefill, &without(decode, at)));
        // A fit that fails says nothing about the error.
        let fits: Vec<_> = of_prefill.chain(of_decode).filter_map(Result::ok).collect();
        let error = |of: fn(&ServiceTime) -> f64| {
            let count = fits.len().max(1) as f64;
            let mean = fits.iter().map(of).sum::<f64>() / count;
            let squares: f64 = fits.iter().map(|fit| (of(fit) - mean).powi(2)).sum();
            (squares * (count - 1.0) / count).sqrt()
        };
        ServiceTime {
            floor_ms: error(|s| s.floor_ms),
            per_cached_ms: error(|s| s.per_cached_ms),
            base_ms: error(|s| s.base_ms),
            per_token_ms: error(|s| s.per_token_ms),
            per_pair_ms: error(|s| s.per_pair_ms),
            decode_ms: error(|s| s.decode_ms),
        }
    }
}

/// Returns the fit: that of prompts, and with its base the time that a generation adds.
fn fit(prefill: &[Sample], decode: &[Sample]) -> Result<ServiceTime, FitError> {
    let service = fit_prefill(prefill)?;
    let largest = decode.iter().map(|sample| sample.batch).max();
    // In a step with the largest batch, the step's own time is the smallest part of each row's
    // time.
    let of_largest = decode.iter().filter(|s| Some(s.batch) == largest);
    let added = of_largest.map(|s| ((s.ms - service.base_ms) / f64::from(s.batch)).max(0.0));
    let mut added: Vec<f64> = added.collect();
    added.sort_by(f64::total_cmp);
    Ok(ServiceTime {
        decode_ms: added.get(added.len() / 2).copied().unwrap_or(0.0),
        ..service
    })
}

/// Returns the fit to steps of prompts.
///
/// A step takes the longer of two times, and the samples do not say which. So the samples are split
/// in many ways: those of few tokens, and those of few tokens for each cached one, are taken for
/// bound by memory. Each split is improved by asking its fit which time is the longer for each
/// sample, and the best of all fits counts.
fn fit_prefill(samples: &[Sample]) -> Result<ServiceTime, FitError> {
    let alike = FitError::Alike {
        samples: samples.len(),
    };
    let all: Vec<Measured> = samples.iter().map(Measured::new).collect();
    let mut whole = Regression::default();
    all.iter().for_each(|sample| sample.add_compute(&mut whole));
    whole.solve().ok_or(alike)?;
    let tokens = |of: &Measured| of.work.tokens;
    let tokens_of_cached = |of: &Measured| of.work.tokens / of.work.cached.max(1.0);
    let fits = [splits(&all, tokens), splits(&all, tokens_of_cached)].concat();
    let better = |a: &(ServiceTime, f64), b: &(ServiceTime, f64)| a.1.total_cmp(&b.1);
    let (service, _) = fits.into_iter().min_by(better).ok_or(alike)?;
    if service.per_token_ms + service.per_pair_ms <= 0.0 {
        return Err(FitError::Flat);
    }
    Ok(service)
}

/// Returns a fit, with its error, for each place where the samples can be split by what `by` says
/// of them: those up to there start as bound by memory.
fn splits(all: &[Measured], by: impl Fn(&Measured) -> f64) -> Vec<(ServiceTime, f64)> {
    let mut places: Vec<f64> = all.iter().map(&by).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let starts = std::iter::once(f64::NEG_INFINITY).chain(places);
    let fits = starts.filter_map(|most| {
        let mut best = parts(all, |sample| by(sample) <= most)?;
        while let Some(next) = parts(all, |sample| best.0.is_memory_bound(&sample.work)) {
            if next.1 >= best.1 {
                break;
            }
            best = next;
        }
        Some(best)
    });
    fits.collect()
}

/// A sample with its work.
struct Measured {
    work: StepWork,
    ms: f64,
}

impl Measured {
    fn new(sample: &Sample) -> Self {
        Self {
            work: sample.prefill_work(),
            ms: sample.ms,
        }
    }

    fn add_compute(&self, to: &mut Regression) {
        to.add(self.work.compute_terms(), self.ms, self.ms.powi(-2));
    }

    fn add_memory(&self, to: &mut Regression) {
        let terms = [1.0, self.work.cached / 1e3, 0.0];
        to.add(terms, self.ms, self.ms.powi(-2));
    }
}

impl StepWork {
    /// Returns the terms that [`ServiceTime::compute_coefficients`] are multiplied with, each about
    /// one.
    #[must_use]
    pub fn compute_terms(&self) -> [f64; 3] {
        [1.0, self.tokens / 1e3, self.pairs / 1e6]
    }
}

/// Returns the service time whose memory term is fitted to some of the samples and whose compute
/// term to the others, and the sum of its squared relative errors. `None` if too few are left to
/// compute.
fn parts(all: &[Measured], is_memory: impl Fn(&Measured) -> bool) -> Option<(ServiceTime, f64)> {
    let (mut memory, mut compute) = (Regression::default(), Regression::default());
    for sample in all {
        match is_memory(sample) {
            true => sample.add_memory(&mut memory),
            false => sample.add_compute(&mut compute),
        }
    }
    let fitted = compute.solve_non_negative()?;
    // If no sample is bound by memory, the shortest sample is the upper bound of the memory term.
    let shortest = all.iter().map(|s| s.ms).fold(f64::INFINITY, f64::min);
    let [floor, per_cached, _] = memory.solve_non_negative().unwrap_or([shortest, 0.0, 0.0]);
    let service = ServiceTime {
        floor_ms: floor,
        per_cached_ms: per_cached / 1e3,
        base_ms: 0.0,
        per_token_ms: 0.0,
        per_pair_ms: 0.0,
        decode_ms: 0.0,
    };
    let service = service.with_compute_coefficients(fitted);
    let error = all
        .iter()
        .map(|sample| (service.step_ms(&sample.work) / sample.ms - 1.0).powi(2));
    Some((service, error.sum()))
}

impl ServiceTime {
    /// Returns the coefficients of the compute term of prompts, scaled to
    /// [`StepWork::compute_terms`].
    #[must_use]
    pub fn compute_coefficients(&self) -> [f64; 3] {
        [
            self.base_ms,
            self.per_token_ms * 1e3,
            self.per_pair_ms * 1e6,
        ]
    }

    /// Returns this service time with others of [`Self::compute_coefficients`].
    #[must_use]
    pub fn with_compute_coefficients(self, coefficients: [f64; 3]) -> Self {
        Self {
            base_ms: coefficients[0],
            per_token_ms: coefficients[1] / 1e3,
            per_pair_ms: coefficients[2] / 1e6,
            ..self
        }
    }

    fn is_memory_bound(&self, work: &StepWork) -> bool {
        let only_memory = Self {
            floor_ms: 0.0,
            per_cached_ms: 0.0,
            ..*self
        };
        self.step_ms(work) > only_memory.step_ms(work)
    }
}

/// Returns Pearson's correlation; 0 if one of the two series is always the same.
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

type Vector = [f64; 3];
type Matrix = [Vector; 3];

fn dot(a: &Vector, b: &Vector) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// A linear regression with up to three terms: the sums of its normal equations.
#[derive(Clone, Copy, Debug, Default)]
pub struct Regression {
    sums: Matrix,
    right: Vector,
}

impl Regression {
    /// Adds a measurement: the terms that the coefficients are multiplied with, what was measured,
    /// and how much it counts.
    pub fn add(&mut self, terms: [f64; 3], value: f64, weight: f64) {
        for (row, a) in self.sums.iter_mut().zip(terms) {
            row.iter_mut()
                .zip(terms)
                .for_each(|(sum, b)| *sum += weight * a * b);
        }
        for (sum, a) in self.right.iter_mut().zip(terms) {
            *sum += weight * a * value;
        }
    }

    /// Lets the measurements so far count `factor` times as much as they did.
    pub fn fade(&mut self, factor: f64) {
        let sums = self.sums.iter_mut().flatten();
        sums.chain(&mut self.right).for_each(|sum| *sum *= factor);
    }

    /// Returns the coefficients that fit best; `None` if the measurements do not tell them apart.
    #[must_use]
    pub fn solve(&self) -> Option<[f64; 3]> {
        solve(self.sums, self.right)
    }

    /// Returns the coefficients that fit best of those of which none is negative; `None` if the
    /// measurements do not tell any from the others. The best are those of the best fit to some of
    /// the terms alone, and three terms leave few choices.
    fn solve_non_negative(&self) -> Option<[f64; 3]> {
        let largest = (0..3).map(|i| self.sums[i][i]).fold(0.0, f64::max);
        let solve_some = |some: u32| {
            let (mut sums, mut right) = (self.sums, self.right);
            for out in (0..3).filter(|i| some & (1 << i) == 0) {
                sums[out] = [0.0; 3];
                sums.iter_mut().for_each(|row| row[out] = 0.0);
                (sums[out][out], right[out]) = (largest, 0.0);
            }
            solve(sums, right).filter(|fit| fit.iter().all(|c| *c >= 0.0))
        };
        // The sum of squared errors, less that of the measurements, which is the same for all.
        let error = |fit: &Vector| {
            let of_sums: Vector = std::array::from_fn(|i| dot(&self.sums[i], fit));
            dot(&of_sums, fit) - 2.0 * dot(&self.right, fit)
        };
        let fits = (1..8).filter_map(solve_some);
        fits.min_by(|a, b| error(a).total_cmp(&error(b)))
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

#[cfg(test)]
mod tests;
