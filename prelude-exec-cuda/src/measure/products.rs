//! Products alone: sums as they were summed, and the library's algorithms, timed.

use super::clocked;
use crate::{
    CudaOps, Error, ProductEngine, Tensor, Weight,
    kernels::{
        gemm::{Output, gemm_mma},
        lt::plans::{self, Machine, Plans},
    },
};

/// `x · wᵀ` by `gemm_mma`, in f32 as it was summed. `x`: `[m, k]`, `w`: `[n, k]`; `[m, n]`.
///
/// # Errors
/// [`Error::Launch`] if the shapes do not fit, or the driver's.
pub fn product_f32(ops: &mut CudaOps, x: &Tensor, w: &Weight) -> Result<Vec<f32>, Error> {
    let (x, (w, _)) = (ops.arena.view(x), w.matrix());
    let (m, n) = (x.rows(), w.rows());
    let sums = ops.space.alloc("sums", m * n * size_of::<f32>())?;
    let output = Output::Logits(sums.view(0, m, n));
    gemm_mma(&mut ops.launcher, x, w, None, output)?;
    ops.space.synchronize("a product")?;
    let mut values = vec![0f32; m * n];
    sums.read(0, bytemuck::cast_slice_mut(&mut values))?;
    Ok(values)
}

/// The same as the executor's logits are: by the library where that is used.
///
/// # Errors
/// As [`product_f32`].
pub fn logits_f32(ops: &mut CudaOps, x: &Tensor, w: &Weight) -> Result<Vec<f32>, Error> {
    let (x, (w, _)) = (ops.arena.view(x), w.matrix());
    let (m, n) = (x.rows(), w.rows());
    let sums = ops.space.alloc("sums", m * n * size_of::<f32>())?;
    let output = Output::Logits(sums.view(0, m, n));
    ops.products
        .multiply(&mut ops.launcher, x, w, None, output)?;
    ops.space.synchronize("a product")?;
    let mut values = vec![0f32; m * n];
    sums.read(0, bytemuck::cast_slice_mut(&mut values))?;
    Ok(values)
}

/// Products that were queued, by what multiplies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProductCounts {
    /// By the library.
    pub library: u64,
    /// By `gemm_mma`.
    pub own: u64,
}

impl ProductCounts {
    pub(crate) const NONE: Self = Self { library: 0, own: 0 };

    pub(crate) const fn note(&mut self, by_library: bool) {
        match by_library {
            true => self.library += 1,
            false => self.own += 1,
        }
    }
}

impl CudaOps {
    /// How many products ran on what since these operations were made.
    #[must_use]
    pub const fn product_counts(&self) -> ProductCounts {
        self.products.counts()
    }

    /// What its products run on, and why.
    #[must_use]
    pub const fn products(&self) -> &ProductEngine {
        self.products.engine()
    }
}

/// Seconds of a product by the library's algorithms.
#[derive(Clone, Debug)]
pub struct Measured {
    /// By the one that its heuristic names first.
    pub first: Vec<f64>,
    /// By the fastest.
    pub best: Vec<f64>,
    /// How many there were.
    pub candidates: usize,
}

/// Finds the fastest algorithms and keeps them for the plan file.
#[derive(Debug, Default)]
pub struct Tuner {
    plans: Plans,
    machine: Option<Machine>,
}

impl Tuner {
    /// Times all candidates for `y = x · wᵀ` over different weights of one shape in turn, so that
    /// they come from memory. `None` where products do not run on the library, or it has no
    /// algorithm.
    ///
    /// # Errors
    /// [`Error::Launch`] if the shapes do not fit, or the driver's.
    pub fn measure(
        &mut self,
        ops: &mut CudaOps,
        (x, weights, y): (&Tensor, &[Weight], &Tensor),
        repetitions: usize,
    ) -> Result<Option<Measured>, Error> {
        let space = ops.space.clone();
        let (x, y) = (ops.arena.view(x), ops.arena.view(y));
        let Some(first_weight) = weights.first() else {
            return Ok(None);
        };
        let output = Output::Write(y);
        let asked = ops.products.measured(x, first_weight.matrix().0, output)?;
        let Some((lt, product)) = asked else {
            return Ok(None);
        };
        let (key, candidates) = lt.candidates(&product)?;
        self.machine = lt.machine().cloned();
        let mut times = Vec::new();
        for plan in &candidates {
            let seconds = clocked(&space, repetitions, |i| {
                let weight = weights[i % weights.len()].matrix().0;
                match ops.products.measured(x, weight, output)? {
                    Some((lt, product)) => lt.multiply_by(&product, plan),
                    None => Ok(()),
                }
            })?;
            times.push(seconds);
        }
        let best =
            (0..times.len()).min_by(|&a, &b| middle(&times[a]).total_cmp(&middle(&times[b])));
        let Some(best) = best else {
            return Ok(None);
        };
        let mut plan = candidates[best];
        #[expect(
            clippy::cast_possible_truncation,
            reason = "microseconds, a few digits"
        )]
        {
            plan.us = Some((middle(&times[best]) * 1e6) as f32);
        }
        self.plans.insert(key, plan);
        Ok(Some(Measured {
            first: times[0].clone(),
            best: times[best].clone(),
            candidates: candidates.len(),
        }))
    }

    /// The plan file for the GPU, driver and library that were measured; `None` if none was.
    #[must_use]
    pub fn file(&self) -> Option<String> {
        let machine = self.machine.as_ref()?;
        (!self.plans.is_empty()).then(|| plans::text(&self.plans, machine))
    }
}

fn middle(seconds: &[f64]) -> f64 {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
