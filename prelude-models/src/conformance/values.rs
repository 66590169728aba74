//! Drawing values and comparing results.

use super::Precision;
use crate::{DType, TensorView};

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

/// Panics unless each of `got` is within its bound of `expected`, given as (value, bound).
pub(super) fn assert_within(
    what: impl Fn() -> String,
    got: &[f32],
    expected: impl ExactSizeIterator<Item = (f64, f64)>,
) {
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
