//! Drawing values and comparing results.

use prelude_core::ForwardBatch;

use super::{ConformanceDevice, Precision};
use crate::{DType, Ops, TensorView, WeightLoader, naive};

/// A small generator with a fixed seed per case (SplitMix64; Steele et al., OOPSLA 2014).
pub(super) struct Values {
    state: u64,
    precision: Precision,
}

impl Values {
    pub(super) fn new(precision: Precision, seed: u64) -> Self {
        Self {
            state: seed,
            precision,
        }
    }

    fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number in `low..high`, exact in the device's type.
    pub(super) fn one(&mut self, low: f32, high: f32) -> f32 {
        let unit = (self.bits() >> 40) as f32 / (1u64 << 24) as f32;
        self.exact(low + (high - low) * unit)
    }

    /// Returns `n` numbers in `low..high`.
    pub(super) fn many(&mut self, n: usize, low: f32, high: f32) -> Vec<f32> {
        (0..n).map(|_| self.one(low, high)).collect()
    }

    /// Scales the first rows to magnitudes at which epsilon decides, is invisible, and is all there is.
    pub(super) fn scale_rows(&self, values: &mut [f32], width: usize) {
        for (row, scale) in values.chunks_exact_mut(width).zip([1e-3, 1e3, 0.0]) {
            row.iter_mut().for_each(|v| *v = self.exact(*v * scale));
        }
    }

    /// Replaces the first numbers by others, as far as there are so many.
    pub(super) fn put_first(&self, values: &mut [f32], first: &[f32]) {
        values
            .iter_mut()
            .zip(first)
            .for_each(|(v, &new)| *v = self.exact(new));
    }

    /// Returns the nearest number that the device's type holds.
    pub(super) fn exact(&self, value: f32) -> f32 {
        match self.precision {
            Precision::F32 => value,
            Precision::Bf16 => half::bf16::from_f32(value).to_f32(),
        }
    }
}

/// Returns the values as f64.
pub(super) fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| f64::from(v)).collect()
}

/// Values as a checkpoint holds them.
pub(super) struct Stored {
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Stored {
    pub(super) fn new(values: &[f32], shape: &[usize]) -> Self {
        assert_eq!(values.len(), shape.iter().product::<usize>());
        Self {
            shape: shape.to_vec(),
            bytes: bytemuck::cast_slice(values).to_vec(),
        }
    }

    pub(super) fn view(&self) -> TensorView<'_> {
        TensorView {
            dtype: DType::F32,
            shape: self.shape.clone(),
            bytes: &self.bytes,
        }
    }
}

/// Loads a vector.
pub(super) fn vector<L: WeightLoader>(loader: &mut L, values: &[f32]) -> L::Weight {
    let stored = Stored::new(values, &[values.len()]);
    let loaded = loader.vector("vector", &stored.view());
    loaded.expect("a vector loads")
}

/// Loads a matrix of `outputs` rows, without a bias.
pub(super) fn matrix<L: WeightLoader>(loader: &mut L, values: &[f32], outputs: usize) -> L::Weight {
    let stored = Stored::new(values, &[outputs, values.len() / outputs]);
    let loaded = loader.linear("matrix", &[stored.view()], &[]);
    loaded.expect("a matrix loads")
}

/// Loads a table of rows of embeddings.
pub(super) fn table<L: WeightLoader>(loader: &mut L, values: &[f32], width: usize) -> L::Weight {
    let stored = Stored::new(values, &[values.len() / width, width]);
    let loaded = loader.embedding("table", &stored.view(), false);
    loaded.expect("a table loads")
}

/// A tensor of a step: rows of a width, and the values that the rows begin with, if there are any.
pub(super) struct Room<'a> {
    rows: usize,
    width: usize,
    values: Option<&'a [f32]>,
}

/// Returns the room of values.
pub(super) fn filled(values: &[f32], width: usize) -> Room<'_> {
    Room {
        rows: values.len() / width,
        width,
        values: Some(values),
    }
}

/// Returns the room of a result.
pub(super) const fn empty(rows: usize, width: usize) -> Room<'static> {
    Room {
        rows,
        width,
        values: None,
    }
}

type TensorOf<D> = <<D as ConformanceDevice>::Ops as Ops>::Tensor;
type ErrorOf<D> = <<D as ConformanceDevice>::Ops as Ops>::Error;

/// Runs `body` on tensors in one step, and returns the values that each of the tensors then holds.
pub(super) fn run<D: ConformanceDevice, const N: usize>(
    device: &mut D,
    step: ForwardBatch,
    rooms: [Room<'_>; N],
    mut body: impl for<'a> FnMut(
        &mut D::Ops,
        &<D::Ops as Ops>::Inputs<'a>,
        &mut [TensorOf<D>; N],
    ) -> Result<(), ErrorOf<D>>,
) -> [Vec<f32>; N] {
    let mut got = [const { Vec::new() }; N];
    device.step(step, &mut |ops, inputs| {
        let mut tensors = rooms.each_ref().map(|room| {
            let mut tensor = ops.alloc(room.rows, room.width).expect("room");
            if let Some(values) = room.values {
                D::write(ops, &mut tensor, values);
            }
            tensor
        });
        body(ops, inputs, &mut tensors).expect("operations run");
        got = tensors.each_ref().map(|tensor| D::read(ops, tensor));
    });
    for (values, room) in got.iter().zip(&rooms) {
        assert_eq!(values.len(), room.rows * room.width, "values of a tensor");
    }
    got
}

/// Returns the magnitudes of numbers.
pub(super) fn abs(values: &[f64]) -> Vec<f64> {
    values.iter().map(|v| v.abs()).collect()
}

/// Returns the sums of a product, each with the sum of its terms' magnitudes, to which the error of a
/// sum is relative.
pub(super) fn linear(x: &[f64], w: &[f64], bias: &[f64]) -> Vec<(f64, f64)> {
    let magnitudes = naive::linear(&abs(x), &abs(w), &abs(bias));
    { naive::linear(x, w, bias).into_iter() }
        .zip(magnitudes)
        .collect()
}

/// Returns numbers with bounds relative to their magnitudes.
pub(super) fn relative(values: Vec<f64>, bound: f64) -> Vec<(f64, f64)> {
    let with_bound = |y: f64| (y, bound * y.abs());
    values.into_iter().map(with_bound).collect()
}

/// Panics unless each of `got` is within its bound of `expected`, given as (value, bound).
pub(super) fn assert_within(
    what: impl Fn() -> String,
    got: &[f32],
    expected: impl IntoIterator<Item = (f64, f64)>,
) {
    let expected: Vec<_> = expected.into_iter().collect();
    assert_eq!(got.len(), expected.len(), "{}: number of values", what());
    for (i, (&got, (value, bound))) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(got) - value).abs();
        // Written so that a NaN fails.
        assert!(
            error <= bound,
            "{} at {i}: got {got}, expected {value:.9e}, off by {error:.3e} of {bound:.3e} allowed",
            what()
        );
    }
}

/// Panics unless each row is within the bounds that `expected` returns for its number.
pub(super) fn assert_rows(
    what: impl Fn() -> String,
    got: &[f32],
    width: usize,
    expected: impl Fn(usize) -> Vec<(f64, f64)>,
) {
    for (row, got) in got.chunks_exact(width).enumerate() {
        assert_within(|| format!("{} row {row}", what()), got, expected(row));
    }
}
