//! Products alone: sums as they were summed, and the library's algorithms, timed.

use std::path::Path;

use half::bf16;
use prelude_models::step::ArenaTensor;

use super::times::{Times, times};
use crate::{
    CudaOps, Error, ProductEngine, Weight,
    kernels::{
        fp8::{Fp8View, gemm_fp8},
        gemm::{ProductCounts, ProductOutput, gemm_mma},
        lt::{
            Call, Lt, WORKSPACE_BYTES,
            plans::{self, Machine, Plans, ProductPlan},
        },
    },
    memory::view::View,
};

/// Computes `x · wᵀ` by `gemm_mma`, in f32 as it was summed. `x`: `[m, k]`, `w`: `[n, k]`; `[m, n]`.
///
/// # Errors
/// [`Error::Launch`] if the shapes do not fit, or the driver's.
pub fn product_f32(ops: &mut CudaOps, x: &ArenaTensor, w: &Weight) -> Result<Vec<f32>, Error> {
    let (x, (w, _)) = (ops.arena.view(x), w.matrix());
    let (m, n) = (x.rows(), w.rows());
    let sums = ops.space.alloc("sums", m * n * size_of::<f32>())?;
    let output = ProductOutput::Logits(sums.view(0, m, n));
    gemm_mma(&mut ops.launcher, x, w, None, output)?;
    ops.space.synchronize("a product")?;
    let mut values = vec![0f32; m * n];
    sums.read(0, bytemuck::cast_slice_mut(&mut values))?;
    Ok(values)
}

/// Computes `x · wᵀ` as the executor computes logits: by the library where that is used.
///
/// # Errors
/// The errors of [`product_f32`].
pub fn logits_f32(ops: &mut CudaOps, x: &ArenaTensor, w: &Weight) -> Result<Vec<f32>, Error> {
    let (x, (w, _)) = (ops.arena.view(x), w.matrix());
    let (m, n) = (x.rows(), w.rows());
    let sums = ops.space.alloc("sums", m * n * size_of::<f32>())?;
    let output = ProductOutput::Logits(sums.view(0, m, n));
    ops.products
        .multiply(&mut ops.launcher, x, w, None, output)?;
    ops.space.synchronize("a product")?;
    let mut values = vec![0f32; m * n];
    sums.read(0, bytemuck::cast_slice_mut(&mut values))?;
    Ok(values)
}

impl CudaOps {
    /// Returns the number of products, by what they ran on, since these operations were made.
    #[must_use]
    pub const fn product_counts(&self) -> ProductCounts {
        self.products.counts()
    }

    /// Returns the code that runs products, and the reason.
    #[must_use]
    pub const fn products(&self) -> &ProductEngine {
        self.products.engine()
    }
}

/// The next of several weights of one shape. It goes on from one measurement to another, so that
/// weights come from memory: what was used last is still in the L2 cache.
#[derive(Debug, Default)]
pub struct WeightCycle(usize);

impl WeightCycle {
    /// Returns the next item.
    ///
    /// # Panics
    /// If there is none.
    pub fn next<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        self.0 = (self.0 + 1) % of.len();
        &of[self.0]
    }
}

/// A product to be measured, by weights of one shape.
#[derive(Debug)]
pub struct Operands<'a> {
    /// `[m, k]`.
    pub x: &'a ArenaTensor,
    /// `[n, k]` each, more of them together than a cache holds.
    pub weights: &'a [Weight],
    /// `[m, n]`; its contents are lost.
    pub y: &'a mut ArenaTensor,
    /// True if the product is added to `y`, as those before a residual are.
    pub adds: bool,
}

impl Operands<'_> {
    fn output(&self, ops: &CudaOps) -> ProductOutput {
        let y = ops.arena.view(self.y);
        match self.adds {
            true => ProductOutput::Add(y),
            false => ProductOutput::Write(y),
        }
    }
}

/// The rows of a product that is measured, as its weights are.
#[derive(Clone, Copy, Debug)]
enum Rows {
    Bf16(View<bf16>),
    Fp8(Fp8View),
}

impl Rows {
    /// Returns the rows `x` as `weight` is multiplied with them: rounded, if it is.
    fn of(ops: &mut CudaOps, x: View<bf16>, weight: &Weight) -> Result<Self, Error> {
        match weight.fp8() {
            Some((w, _)) => ops.rounded(x, w.scaling).map(Self::Fp8),
            None => Ok(Self::Bf16(x)),
        }
    }

    /// Returns the library, where it is used, and the product with `weight`.
    fn call<'a>(
        self,
        ops: &'a mut CudaOps,
        weight: &Weight,
        output: ProductOutput,
    ) -> Result<Option<(&'a mut Lt, Call)>, Error> {
        match (self, weight.fp8()) {
            (Self::Fp8(x), Some((w, _))) => ops.products.measured_fp8(x, w, output),
            (Self::Bf16(x), None) => ops.products.measured(x, weight.matrix().0, output),
            _ => Err(Error::launch(
                "a product",
                "some weights are rounded, others not",
            )),
        }
    }

    /// Multiplies with `weight` by our own kernel.
    fn by_own(
        self,
        ops: &mut CudaOps,
        weight: &Weight,
        output: ProductOutput,
    ) -> Result<(), Error> {
        match (self, weight.fp8()) {
            (Self::Fp8(x), Some((w, _))) => gemm_fp8(&mut ops.launcher, x, w, None, output),
            (Self::Bf16(x), None) => {
                gemm_mma(&mut ops.launcher, x, weight.matrix().0, None, output)
            }
            _ => Err(Error::launch(
                "a product",
                "some weights are rounded, others not",
            )),
        }
    }
}

/// Times of a product by the library's algorithms.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The time by the algorithm that the library's heuristic names first, if that is right.
    pub first: Option<Times>,
    /// The time by the fastest of the algorithms that are right.
    pub best: Option<Times>,
    /// The number of candidates.
    pub candidates: usize,
    /// Algorithms whose results are not those of our own kernel, with the place.
    pub wrong: Vec<String>,
}

/// Finds the fastest algorithms and keeps them for the plan file.
#[derive(Debug, Default)]
pub struct Tuner {
    plans: Plans,
    machine: Option<Machine>,
}

/// Rows of a result that are compared: one of each tile of 128 at least, the ends among them.
const COMPARED_ROWS: usize = 66;
/// Content of `y` before a product that is checked: elements that are not written show.
const BEFORE: f32 = 3.0;

impl Tuner {
    /// Times all candidates for a product, each over the weights in turn, and keeps the fastest
    /// whose result is that of our own kernel, `gemm_mma` or `gemm_fp8`, if as many rows as these are
    /// a plan's. Rounding the rows is not in the times. `None` where products do not run on the
    /// library.
    ///
    /// # Errors
    /// [`Error::Launch`] if the shapes do not fit, or the driver's.
    pub fn measure(
        &mut self,
        ops: &mut CudaOps,
        operands: &mut Operands<'_>,
        repetitions: usize,
        turn: &mut WeightCycle,
    ) -> Result<Option<Measured>, Error> {
        let space = ops.space.clone();
        let x = ops.arena.view(operands.x);
        let output = operands.output(ops);
        let Some(first) = operands.weights.first() else {
            return Ok(None);
        };
        let rows = Rows::of(ops, x, first)?;
        let Some((lt, call)) = rows.call(ops, first, output)? else {
            return Ok(None);
        };
        let (key, candidates) = lt.candidates(&call)?;
        self.machine = lt.machine().cloned();
        let mut measured = Measured {
            first: None,
            best: None,
            candidates: candidates.len(),
            wrong: Vec::new(),
        };
        if candidates.is_empty() {
            return Ok(Some(measured));
        }
        let expected = ops.result(operands, |ops| rows.by_own(ops, first, output))?;
        let mut best: Option<((bool, f64), ProductPlan)> = None;
        for (i, plan) in candidates.iter().enumerate() {
            let by_plan = |ops: &mut CudaOps, weight| match rows.call(ops, weight, output)? {
                Some((lt, call)) => lt.multiply_by(&call, plan),
                None => Ok(()),
            };
            let got = ops.result(operands, |ops| by_plan(ops, first))?;
            if let Err(why) = agree(&got, &expected) {
                measured.wrong.push(format!("candidate {i}: {why}"));
                continue;
            }
            let times = times(&space, repetitions, |_| {
                by_plan(ops, turn.next(operands.weights))
            })?;
            if i == 0 {
                measured.first = Some(times.clone());
            }
            // Times of a host that was too slow choose nothing, unless there are no others.
            let middle = middle(&times.seconds);
            let rank = (times.is_host_bound, middle);
            if best.is_none_or(|(least, _)| rank < least) {
                let mut plan = *plan;
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "microseconds, a few digits"
                )]
                let us = (middle * 1e6) as f32;
                plan.us = (!times.is_host_bound).then_some(us);
                best = Some((rank, plan));
                measured.best = Some(times);
            }
        }
        let count = u32::try_from(x.rows()).unwrap_or(u32::MAX);
        if let Some((_, plan)) = best.filter(|_| key.m == count) {
            self.plans.insert(key, plan);
        }
        Ok(Some(measured))
    }

    /// Returns the number of plans.
    #[must_use]
    pub fn plans(&self) -> usize {
        self.plans.len()
    }

    /// Returns the plan file for the GPU, driver and library that were measured; `None` if none was.
    #[must_use]
    pub fn file(&self) -> Option<String> {
        let machine = self.machine.as_ref()?;
        (!self.plans.is_empty()).then(|| plans::text(&self.plans, machine))
    }

    /// Reads a plan file as an executor of this GPU, driver and library does, and returns the
    /// number of plans in the file.
    ///
    /// # Errors
    /// The reason why an executor would not use the file.
    pub fn read_back(&self, folder: &Path) -> Result<usize, String> {
        let machine = self.machine.as_ref().ok_or("nothing was measured")?;
        let plans = plans::read(&folder.join(plans::FILE), machine, WORKSPACE_BYTES)?;
        match plans == self.plans {
            true => Ok(plans.len()),
            false => Err("it holds other plans than were measured".to_owned()),
        }
    }

    /// Name of the file, in an executor's cache folder.
    pub const FILE: &str = plans::FILE;
}

impl CudaOps {
    /// Returns some rows of what `multiply` makes of `y`, which is filled with [`BEFORE`] first.
    fn result(
        &mut self,
        operands: &Operands<'_>,
        multiply: impl FnOnce(&mut Self) -> Result<(), Error>,
    ) -> Result<Vec<bf16>, Error> {
        self.space.synchronize("what used the output before")?;
        let rows = compared_rows(operands.y.rows());
        let before = vec![bf16::from_f32(BEFORE); operands.y.width()];
        for &row in &rows {
            self.arena.write_row(operands.y, row, &before)?;
        }
        self.space.settle()?;
        multiply(self)?;
        self.space.synchronize("a product")?;
        let mut result = Vec::with_capacity(rows.len() * operands.y.width());
        for &row in &rows {
            result.extend(self.arena.read_row(operands.y, row)?);
        }
        Ok(result)
    }
}

/// Returns rows spread over all of `m`, the first and the last among them.
fn compared_rows(m: usize) -> Vec<usize> {
    let mut rows: Vec<usize> = match m {
        0 => vec![],
        m if m <= COMPARED_ROWS => (0..m).collect(),
        m => (0..COMPARED_ROWS)
            .map(|i| i * (m - 1) / (COMPARED_ROWS - 1))
            .collect(),
    };
    rows.dedup();
    rows
}

/// Checks that numbers are the same but for sums in another order and one rounding each.
///
/// # Errors
/// The first that is not.
fn agree(got: &[bf16], expected: &[bf16]) -> Result<(), String> {
    let squares = expected.iter().map(|x| f64::from(*x).powi(2));
    let size = (squares.sum::<f64>() / expected.len().max(1) as f64).sqrt();
    if got.len() != expected.len() {
        return Err(format!("{} numbers, not {}", got.len(), expected.len()));
    }
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        let (got, expected) = (f64::from(*got), f64::from(*expected));
        // One unit in bf16's last place; tensor cores cut partial sums off.
        let bound = expected.abs() / 128.0 + size / 64.0;
        if (got - expected).abs() > bound || !got.is_finite() {
            return Err(format!("number {i} is {got} and not {expected} ± {bound}"));
        }
    }
    Ok(())
}

fn middle(seconds: &[f64]) -> f64 {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_go_on_in_turn() {
        let mut turn = WeightCycle::default();
        let mut take = |count| -> Vec<char> {
            (0..count)
                .map(|_| *turn.next(&['a', 'b', 'c', 'd', 'e']))
                .collect()
        };
        let all = [take(2), take(7), take(1)].concat();
        for used in all.windows(5) {
            let mut used = used.to_vec();
            used.sort_unstable();
            assert_eq!(used, ['a', 'b', 'c', 'd', 'e']);
        }
    }

    #[test]
    fn every_tile_has_a_row_that_is_compared() {
        for m in [1, 2, 66, 67, 512, 4096, 8192] {
            let rows = compared_rows(m);
            assert_eq!((rows[0], *rows.last().unwrap()), (0, m - 1));
            assert!(rows.is_sorted() && rows.windows(2).all(|pair| pair[1] - pair[0] <= 128));
        }
        assert!(compared_rows(0).is_empty());
    }

    #[test]
    fn results_agree_but_for_their_rounding() {
        let expected: Vec<bf16> = (0..64)
            .map(|i| bf16::from_f32((i as f32 * 0.7).sin()))
            .collect();
        let check = |change: &dyn Fn(usize, f32) -> f32| {
            let got: Vec<bf16> = expected
                .iter()
                .enumerate()
                .map(|(i, x)| bf16::from_f32(change(i, x.to_f32())))
                .collect();
            agree(&got, &expected)
        };
        check(&|_, x| x).unwrap();
        check(&|_, x| x * (1.0 + 1.0 / 256.0)).unwrap();
        check(&|i, x| if i == 63 { BEFORE } else { x }).unwrap_err();
        check(&|_, x| x * 1.05).unwrap_err();
        check(&|_, x| -x).unwrap_err();
        check(&|i, x| if i == 5 { f32::NAN } else { x }).unwrap_err();
        agree(&expected[1..], &expected).unwrap_err();
    }
}
