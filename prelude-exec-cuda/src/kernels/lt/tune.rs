//! Algorithms that are measured at start, of shapes that are in no file and no table.
//!
//! The candidates of the library's heuristic are timed by the GPU's clock over different layers'
//! weights in turn, so that a weight comes from memory, as in a step, and not from the L2 cache. What
//! is chosen stays for the life of the process, and is kept for the next one.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use prelude_kernels::{
    DevicePtr,
    families::{GemmOutput, GemmParams},
};

use super::{
    Call, Lt, Matrix, Scales, Source, WORKSPACE_BYTES,
    plans::{self, Form, Key, Plans, ProductPlan},
};
use crate::{Error, ProductEngine};

/// Times of each candidate, of which the middle one counts.
const ROUNDS: usize = 5;
/// Short products run several times between two points, to take about so long together, and at most
/// so often.
const SPAN_S: f64 = 50e-6;
const CALLS_MAX: usize = 4;
/// Candidates that took so much longer than the fastest one, at one try, are not tried again.
const FAR_BEHIND: f64 = 1.4;
/// Shorter times than that of the heuristic's first choice by a smaller part count as the same.
const NOISE: f64 = 0.02;
/// Alignment of operands in the scratch memory.
const ALIGN: u64 = 256;

/// The places of a weight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WeightAt {
    pub(crate) w: DevicePtr,
    /// The scales of a matrix in e4m3, else null.
    pub(crate) scales: DevicePtr,
    /// Null if there is none.
    pub(crate) bias: DevicePtr,
}

/// A model's weights, by shape.
pub(crate) type Weights = BTreeMap<Matrix, Vec<WeightAt>>;

/// Memory for the other factor and the output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scratch {
    pub(crate) at: DevicePtr,
    pub(crate) bytes: u64,
}

/// A clock of a GPU's work.
pub(crate) trait Stopwatch {
    /// Waits for everything queued so far.
    ///
    /// # Errors
    /// [`Error::DeviceLost`].
    fn wait(&mut self) -> Result<(), Error>;

    /// Queues `count` pieces of work by their numbers and waits for them. Seconds of each; `None` if
    /// the GPU waited for the host, whose times these would be.
    ///
    /// # Errors
    /// `queue`'s, or the driver's.
    fn times(
        &mut self,
        count: usize,
        queue: &mut dyn FnMut(usize) -> Result<(), Error>,
    ) -> Result<Option<Vec<f64>>, Error>;

    /// Returns the time since the clock was made.
    fn elapsed(&self) -> Duration;
}

impl Key {
    const fn matrix(&self) -> Matrix {
        Matrix {
            n: self.n,
            k: self.k,
            has_bias: self.bias,
            fp8: self.fp8,
        }
    }
}

impl Lt {
    /// Measures the shapes whose plan is the heuristic's first choice, until `watch` has run for
    /// `budget`. Not before [`Lt::prepare`], and not after the first product of a step.
    ///
    /// # Errors
    /// [`Error::DeviceLost`]. A candidate that fails is passed over.
    pub(crate) fn tune(
        &mut self,
        weights: &Weights,
        scratch: Scratch,
        watch: &mut dyn Stopwatch,
        budget: Duration,
    ) -> Result<(), Error> {
        let keys = self.unmeasured();
        let (shapes, start) = (keys.len(), Instant::now());
        let mut measured = Plans::new();
        for key in keys {
            if watch.elapsed() >= budget {
                break;
            }
            let calls = calls(key, weights, scratch);
            let Some(&call) = calls.first() else { continue };
            let mut products = Turn { calls, next: 0 };
            let fastest = self.fastest(&mut products, watch, budget);
            if let Some(plan) = unless_lost(fastest)? {
                self.adopt(key, call, plan, &mut measured)?;
            }
        }
        if !measured.is_empty() {
            self.keep(&measured, shapes, start.elapsed());
        }
        Ok(())
    }

    /// Returns true if no shape has the heuristic's first choice.
    pub(crate) fn are_all_measured(&self) -> bool {
        let mut sources = self.sources().into_values();
        sources.all(|source| source != Source::Heuristic)
    }

    /// Returns the shapes without a measured plan: the most rows of each matrix, which long prompts
    /// have, then from the fewest on.
    fn unmeasured(&self) -> Vec<Key> {
        let sources = self.sources().into_iter();
        let keys = sources.filter(|&(_, source)| source == Source::Heuristic);
        let mut keys: Vec<Key> = keys.map(|(key, _)| key).collect();
        let mut most = BTreeMap::new();
        for key in &keys {
            let rows = most.entry(key.matrix()).or_insert(key.m);
            *rows = key.m.max(*rows);
        }
        keys.sort_by_key(|key| (key.m != most[&key.matrix()], key.m));
        keys
    }

    /// Returns the fastest candidate for these products, with its time; `None` if there is no choice,
    /// if the time is up, or if the GPU waited for the host.
    fn fastest(
        &mut self,
        products: &mut Turn,
        watch: &mut dyn Stopwatch,
        budget: Duration,
    ) -> Result<Option<ProductPlan>, Error> {
        let blas = &mut self.blas;
        let candidates = blas.candidates(&products.calls[0])?;
        if candidates.len() < 2 {
            return Ok(None);
        }
        // The first call of an algorithm loads its kernel.
        let mut running = Vec::new();
        for plan in candidates {
            if watch.elapsed() >= budget {
                return Ok(None);
            }
            let ran = blas.multiply(products.next(), &plan);
            let ran = ran.and_then(|()| watch.wait());
            running.extend(unless_lost(ran.map(|()| Some(plan)))?);
        }
        let once = watch.times(running.len(), &mut |i| {
            blas.multiply(products.next(), &running[i])
        })?;
        let Some(once) = once else { return Ok(None) };
        let least = once.iter().copied().fold(f64::INFINITY, f64::min);
        let mut tried = once.iter();
        running.retain(|_| tried.next().is_some_and(|&s| s <= least * FAR_BEHIND));
        if running.is_empty() || watch.elapsed() >= budget {
            return Ok(None);
        }
        let (live, each) = (running.len(), calls_between_points(least));
        let times = watch.times(ROUNDS * live, &mut |i| {
            (0..each).try_for_each(|_| blas.multiply(products.next(), &running[i % live]))
        })?;
        let Some(times) = times else { return Ok(None) };
        let middles: Vec<f64> = (0..live)
            .map(|i| middle(times.iter().skip(i).step_by(live)) / each as f64)
            .collect();
        let best = choose(&middles);
        let mut plan = running[best];
        #[expect(
            clippy::cast_possible_truncation,
            reason = "microseconds, a few digits"
        )]
        let us = (middles[best] * 1e6) as f32;
        plan.us = Some(us);
        Ok(Some(plan))
    }

    /// Makes a measured algorithm that of a shape, written or added: time does not tell these apart.
    fn adopt(
        &mut self,
        key: Key,
        call: Call,
        plan: ProductPlan,
        measured: &mut Plans,
    ) -> Result<(), Error> {
        for form in [key.form, Form::Add] {
            let key = Key { form, ..key };
            let form = GemmOutput::from(form);
            let is_guess = self.chosen.get(&key);
            if is_guess.is_none_or(|&(_, source)| source != Source::Heuristic) {
                continue;
            }
            if let Some(checked) = self.blas.check(&Call { form, ..call }, plan.algo)? {
                let plan = ProductPlan {
                    us: plan.us,
                    ..checked
                };
                self.chosen.insert(key, (Some(plan), Source::Now));
                measured.insert(key, plan);
            }
        }
        Ok(())
    }

    /// Writes what was measured where the next start finds it, and a line about it.
    fn keep(&mut self, measured: &Plans, shapes: usize, took: Duration) {
        let kept = match (&self.own_file, &self.machine) {
            (Some(path), Some(machine)) => {
                match plans::keep(path, measured, machine, WORKSPACE_BYTES) {
                    Ok(()) => format!("kept in {}", path.display()),
                    Err(why) => format!("not kept in {}: {why}", path.display()),
                }
            }
            _ => "not kept".to_owned(),
        };
        let count = self.counts().measured;
        if let ProductEngine::CublasLt { plans, .. } = &mut self.engine {
            let seconds = took.as_secs_f64();
            *plans =
                format!("{plans}; {count} of {shapes} others measured in {seconds:.2} s, {kept}");
        }
    }
}

/// Products of one shape with different weights, in turn.
struct Turn {
    calls: Vec<Call>,
    next: usize,
}

impl Turn {
    fn next(&mut self) -> &Call {
        let at = self.next % self.calls.len();
        self.next += 1;
        &self.calls[at]
    }
}

/// Returns a call of this shape for each weight; none if it does not fit into the scratch memory.
fn calls(key: Key, weights: &Weights, scratch: Scratch) -> Vec<Call> {
    let form = GemmOutput::from(key.form);
    let up = |bytes: u64| bytes.next_multiple_of(ALIGN);
    let y_stride = key.n.next_multiple_of(8);
    let (rows, k) = (u64::from(key.m), u64::from(key.k));
    let element = if key.fp8.is_some() { 1 } else { 2 };
    let x_scales = up(rows * k * element);
    let scales = key.fp8.map_or(0, |scaling| {
        let [rows, width] = scaling.of_rows(key.m as usize, key.k as usize);
        up((rows * width * size_of::<f32>()) as u64)
    });
    let y = x_scales + scales;
    let output = if form == GemmOutput::F32 { 4 } else { 2 };
    if y + rows * u64::from(y_stride) * output > scratch.bytes {
        return Vec::new();
    }
    let at = |offset: u64| DevicePtr(scratch.at.0 + offset);
    let places = weights.get(&key.matrix()).into_iter().flatten();
    let call = |place: &WeightAt| Call {
        form,
        params: GemmParams {
            x: at(0),
            w: place.w,
            bias: place.bias,
            y: at(y),
            live: DevicePtr::NULL,
            m: key.m,
            n: key.n,
            k: key.k,
            x_stride: key.k,
            w_stride: key.k,
            y_stride,
        },
        scales: key.fp8.map(|scaling| Scales {
            scaling,
            x: at(x_scales),
            w: place.scales,
        }),
    };
    places.map(call).filter(Call::is_for_library).collect()
}

/// Returns the error if the GPU is lost; any other error counts as `None`.
fn unless_lost<T>(result: Result<Option<T>, Error>) -> Result<Option<T>, Error> {
    match result {
        Err(error) if !matches!(error, Error::DeviceLost { .. }) => Ok(None),
        other => other,
    }
}

/// The number of times that a product of `seconds` runs between two points.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a small positive number"
)]
fn calls_between_points(seconds: f64) -> usize {
    let wanted = (SPAN_S / seconds.max(1e-9)).ceil() as usize;
    wanted.clamp(1, CALLS_MAX)
}

/// Returns the middle one of some times.
fn middle<'a>(times: impl Iterator<Item = &'a f64>) -> f64 {
    let mut times: Vec<f64> = times.copied().collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Returns the place of the least time, or 0 where that is hardly more.
fn choose(times: &[f64]) -> usize {
    let places = 0..times.len();
    let least = places.min_by(|&a, &b| times[a].total_cmp(&times[b]));
    least
        .filter(|&least| times[least] < times[0] * (1.0 - NOISE))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests;
