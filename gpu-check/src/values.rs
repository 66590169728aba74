//! Random inputs and weights for single operations.

use anyhow::Result;
use half::bf16;
use prelude_exec_cuda::{CudaLoader, Weight};
use prelude_models::{DType, TensorView, WeightLoader as _};

use crate::batches::mix;

/// Values drawn once; longer lists repeat them. An odd length, so that rows differ.
const DRAWN: usize = (1 << 16) + 1;

/// Values in -1..1 with a spread of about 0.4, a function of seed and place.
pub(crate) fn values(seed: u64, len: usize) -> Vec<bf16> {
    let drawn: Vec<bf16> = (0..len.min(DRAWN) as u64)
        .map(|i| {
            let bits = mix(seed.wrapping_mul(0x1_0000_0001).wrapping_add(i));
            let unit = |bits: u64| (bits & 0xff_ffff) as f32 / 16_777_216.0;
            bf16::from_f32(unit(bits) - unit(bits >> 32))
        })
        .collect();
    let mut all = Vec::with_capacity(len);
    while all.len() < len {
        all.extend_from_slice(&drawn[..drawn.len().min(len - all.len())]);
    }
    all
}

/// A matrix `[rows, width]` of such values.
pub(crate) fn matrix(
    loader: &mut CudaLoader,
    seed: u64,
    rows: usize,
    width: usize,
) -> Result<(Weight, Vec<bf16>)> {
    let values = values(seed, rows * width);
    let view = TensorView {
        dtype: DType::Bf16,
        shape: vec![rows, width],
        bytes: bytemuck::cast_slice(&values),
    };
    Ok((loader.linear("measured", &[view], &[])?, values))
}

/// A vector of values between 0.5 and 1.5.
pub(crate) fn vector(loader: &mut CudaLoader, seed: u64, len: usize) -> Result<Weight> {
    let around_one = |v: bf16| bf16::from_f32(1.0 + 0.5 * v.to_f32());
    let values: Vec<bf16> = values(seed, len).into_iter().map(around_one).collect();
    let view = TensorView {
        dtype: DType::Bf16,
        shape: vec![len],
        bytes: bytemuck::cast_slice(&values),
    };
    Ok(loader.vector("measured", &view)?)
}
