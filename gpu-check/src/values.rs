//! Random inputs and weights for single operations.

use anyhow::{Context as _, Result};
use half::bf16;
use prelude_exec_cuda::{CudaLoader, Weight};
use prelude_models::{DType, Fp8Matrix, TensorView, WeightLoader as _};

use crate::batches::mix;

/// Values drawn once; longer lists repeat them. An odd length, so that rows differ.
const DRAWN: usize = (1 << 16) + 1;

/// Returns values in -1..1 with a spread of about 0.4, a function of seed and place.
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

/// Returns a matrix `[rows, width]` of such values.
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

/// Rows and columns of a block of e4m3 that has a scale.
pub(crate) const BLOCK: usize = 128;

/// Returns a matrix `[rows, width]` in e4m3 with a scale for each block of 128 × 128, loaded as it is;
/// and its bytes and scales. `width` is a multiple of 128.
pub(crate) fn blocks(
    loader: &mut CudaLoader,
    seed: u64,
    rows: usize,
    width: usize,
) -> Result<(Weight, Vec<u8>, Vec<f32>)> {
    let byte = |v: bf16| {
        // Numbers of 1 to 448 with either sign.
        let magnitude = 56 + (v.to_f32().abs() * 70.0) as u8;
        if v.is_sign_negative() {
            magnitude | 0x80
        } else {
            magnitude
        }
    };
    let data: Vec<u8> = values(seed, rows * width).into_iter().map(byte).collect();
    let count = rows.div_ceil(BLOCK) * width / BLOCK;
    let scales = (0..count).map(|i| uneven(seed, i) / 4096.0);
    let scales: Vec<f32> = scales.collect();
    let matrix = Fp8Matrix {
        shape: [rows, width],
        block: [BLOCK; 2],
        data: &data,
        scales: scales.clone(),
    };
    let loaded = loader.linear_fp8("measured", &[matrix], &[])?;
    let weight = loaded.context("blocks of 128 × 128 are not multiplied as they are")?;
    Ok((weight, data, scales))
}

/// Returns a power of two between 1 and 32, unlike those of most other places: what belongs to another
/// place shows.
fn uneven(seed: u64, place: usize) -> f32 {
    let drawn = mix(seed.wrapping_mul(0x1_0000_0001) ^ (1 << 40 | place as u64));
    (1u32 << (drawn % 6)) as f32
}

/// Returns values of rows of `width`, as [`values`], whose groups of 128 elements are of very different
/// sizes.
pub(crate) fn uneven_groups(seed: u64, len: usize) -> Vec<bf16> {
    let mut all = values(seed, len);
    for (group, part) in all.chunks_mut(BLOCK).enumerate() {
        let size = uneven(seed, group);
        for x in part {
            *x = bf16::from_f32(x.to_f32() * size);
        }
    }
    all
}

/// Returns a vector of values between 0.5 and 1.5.
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
