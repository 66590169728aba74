//! Everything that is not a product, as plain loops over rows.
//!
//! `super::simd` compiles each function once per instruction family. A multiplication and an
//! addition are fused only where the source says `mul_add`, and sums run over 16 lanes that are
//! folded in one fixed order, so every family computes the same bits. x86-64 processors older than
//! 2013 have no instruction for `mul_add`: a function of the C library computes it there, slowly.

use super::panel::{MR, NR};

/// Lanes of a sum.
const LANES: usize = 16;

/// Combines 16 lanes pairwise.
#[inline(always)]
fn fold(mut lanes: [f32; LANES], combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = combine(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// Returns the larger number, and `a` if `b` is NaN.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// Returns `Σ f(x)`, summed in 16 lanes.
#[inline(always)]
fn sum_of(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (body, tail) = x.as_chunks::<LANES>();
    for chunk in body {
        for (lane, &v) in lanes.iter_mut().zip(chunk) {
            *lane += f(v);
        }
    }
    for (lane, &v) in lanes.iter_mut().zip(tail) {
        *lane += f(v);
    }
    fold(lanes, |a, b| a + b)
}

/// The numbers of [`exp`], after Moshier's Cephes.
pub(super) mod exp_terms {
    /// 1.5 · 2^23: adding it rounds to an integer, which then sits in the low mantissa bits.
    pub(crate) const MAGIC: f32 = 12_582_912.0;
    pub(crate) const LN2_HIGH: f32 = 0.693_359_4;
    pub(crate) const LN2_LOW: f32 = -2.121_944_4e-4;
    pub(crate) const COEFFICIENTS: [f32; 6] = [
        1.987_569_1e-4,
        1.398_199_9e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        0.5,
    ];
}
use exp_terms::{COEFFICIENTS, LN2_HIGH, LN2_LOW, MAGIC};

/// Returns `e^x` within 2 units in the last place for x in [-87, 88]; 0 below, ∞ above; NaN stays.
/// `exp(0)` is exactly 1: reduction by ln 2 in two parts, degree 6.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    if x > 88.0 {
        f32::INFINITY
    } else {
        exp_to_88(x)
    }
}

/// Returns [`exp`] of x for x of at most 88; a wrong number above.
#[inline(always)]
fn exp_to_88(x: f32) -> f32 {
    let t = x.mul_add(std::f32::consts::LOG2_E, MAGIC);
    let n = t - MAGIC;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
    let mut p = COEFFICIENTS[0];
    for &coefficient in &COEFFICIENTS[1..] {
        p = r.mul_add(p, coefficient);
    }
    let value = p.mul_add(r * r, r) + 1.0;
    let power = f32::from_bits((t.to_bits() << 23).wrapping_add(127 << 23));
    // For a smaller x, `power` is no power of two.
    if x < -87.0 { 0.0 } else { value * power }
}

/// Returns the bf16 bits of `x`, rounded to nearest, ties to even; NaN stays NaN.
#[inline(always)]
pub(crate) fn bf16_bits(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    // Adding may carry a NaN's mantissa into nothing, so NaN is kept apart.
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        (bits >> 16) | 0x40
    } else {
        rounded
    }
}

/// Rounds a row to pairs of bf16: `out[p]` holds elements `2p` and `2p + 1`.
#[inline(always)]
pub(crate) fn round_to_pairs(x: &[f32], out: &mut [u32]) {
    let (pairs, rest) = x.as_chunks::<2>();
    debug_assert!(rest.is_empty());
    for (out, &[low, high]) in out.iter_mut().zip(pairs) {
        *out = bf16_bits(low) | (bf16_bits(high) << 16);
    }
}

/// Rounds a row to bf16.
#[inline(always)]
pub(crate) fn round_to_bf16(x: &[f32], out: &mut [u16]) {
    for (out, &v) in out.iter_mut().zip(x) {
        *out = bf16_bits(v) as u16;
    }
}

/// `x = e^((x - max) / temperature)`.
#[inline(always)]
pub(crate) fn soften(x: &mut [f32], max: f32, temperature: f32) {
    for v in x {
        *v = exp((*v - max) / temperature);
    }
}

/// `out = x / sqrt(mean(x²) + eps) · weight`.
#[inline(always)]
pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let mean = sum_of(x, |v| v * v) / x.len() as f32;
    let inverse = 1.0 / (mean + eps).sqrt();
    for ((out, &v), &w) in out.iter_mut().zip(x).zip(weight) {
        *out = v * inverse * w;
    }
}

/// `out += x / sqrt(mean(x²) + eps) · weight`.
#[inline(always)]
pub(crate) fn rms_norm_add(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let mean = sum_of(x, |v| v * v) / x.len() as f32;
    let inverse = 1.0 / (mean + eps).sqrt();
    for ((out, &v), &w) in out.iter_mut().zip(x).zip(weight) {
        *out += v * inverse * w;
    }
}

/// Normalises a head by `weight` and rotates it: element `i` with `i + D/2`, by the angles whose
/// cosines and sines are the two halves of `rotation`.
#[inline(always)]
pub(crate) fn norm_rotate(head: &mut [f32], weight: &[f32], eps: f32, rotation: &[f32]) {
    let half = head.len() / 2;
    let mean = sum_of(head, |v| v * v) / head.len() as f32;
    let inverse = 1.0 / (mean + eps).sqrt();
    let (first, second) = head.split_at_mut(half);
    let (first_weight, second_weight) = weight.split_at(half);
    let (cos, sin) = rotation.split_at(half);
    // Equal lengths that the compiler sees, so that it makes vectors of the loop.
    let (second, first_weight, second_weight) = (
        &mut second[..half],
        &first_weight[..half],
        &second_weight[..half],
    );
    let (cos, sin) = (&cos[..half], &sin[..half]);
    for i in 0..half {
        let a = first[i] * inverse * first_weight[i];
        let b = second[i] * inverse * second_weight[i];
        first[i] = a * cos[i] - b * sin[i];
        second[i] = b * cos[i] + a * sin[i];
    }
}

/// Rotates a head: element `i` with `i + D/2`, by the angles whose cosines and sines are the two
/// halves of `rotation`.
#[inline(always)]
pub(crate) fn rotate(head: &mut [f32], rotation: &[f32]) {
    let half = head.len() / 2;
    let (first, second) = head.split_at_mut(half);
    let (cos, sin) = rotation.split_at(half);
    // Equal lengths that the compiler sees, so that it makes vectors of the loop.
    let (second, cos, sin) = (&mut second[..half], &cos[..half], &sin[..half]);
    for i in 0..half {
        let (a, b) = (first[i], second[i]);
        first[i] = a * cos[i] - b * sin[i];
        second[i] = b * cos[i] + a * sin[i];
    }
}

/// `out = silu(gate) · up`.
#[inline(always)]
pub(crate) fn silu_mul(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((out, &g), &u) in out.iter_mut().zip(gate).zip(up) {
        *out = g / (1.0 + exp(-g)) * u;
    }
}

/// `x = (x - mean(x)) / sqrt(var(x) + eps) · weight + bias`.
#[inline(always)]
pub(crate) fn layer_norm(x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) {
    let mean = sum_of(x, |v| v) / x.len() as f32;
    let variance = sum_of(x, |v| (v - mean) * (v - mean)) / x.len() as f32;
    let inverse = 1.0 / (variance + eps).sqrt();
    for ((x, &w), &b) in x.iter_mut().zip(weight).zip(bias) {
        *x = (*x - mean) * inverse * w + b;
    }
}

/// Returns the error function: Abramowitz and Stegun, Handbook of Mathematical Functions (1964),
/// 7.1.26, within 1.5e-7 of it.
#[inline(always)]
fn erf(x: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.327_591_1 * x.abs());
    let mut p = 1.061_405_4;
    for coefficient in [-1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
        p = t.mul_add(p, coefficient);
    }
    (1.0 - p * t * exp(-x * x)).copysign(x)
}

/// `tanh(x) = 1 - 2 / (e^2x + 1)`, within some units of the last place of 1.
#[inline(always)]
fn tanh_of(x: f32) -> f32 {
    1.0 - 2.0 / (exp(2.0 * x) + 1.0)
}

/// `x = x · Φ(x)`.
#[inline(always)]
pub(crate) fn gelu(x: &mut [f32]) {
    for v in x {
        *v = *v * 0.5 * (1.0 + erf(*v * std::f32::consts::FRAC_1_SQRT_2));
    }
}

/// The approximation of [`gelu`] by tanh.
#[inline(always)]
pub(crate) fn gelu_tanh(x: &mut [f32]) {
    // √(2/π).
    const SCALE: f32 = 0.797_884_6;
    for v in x {
        let inner = SCALE * (*v + 0.044_715 * *v * *v * *v);
        *v = *v * 0.5 * (1.0 + tanh_of(inner));
    }
}

/// `x = max(x, 0)`; NaN stays.
#[inline(always)]
pub(crate) fn relu(x: &mut [f32]) {
    for v in x {
        *v = if *v < 0.0 { 0.0 } else { *v };
    }
}

/// `x = tanh(x)`.
#[inline(always)]
pub(crate) fn tanh(x: &mut [f32]) {
    for v in x {
        *v = tanh_of(*v);
    }
}

/// `x = cap · tanh(x · scale / cap)`. Infinities become ±cap, and NaN stays.
#[inline(always)]
pub(crate) fn soft_cap(x: &mut [f32], scale: f32, cap: f32) {
    let factor = scale / cap;
    for v in x {
        *v = cap * tanh_of(*v * factor);
    }
}

/// The numbers that turn a row's scores into weights.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RowScores {
    /// The factor of the scores.
    pub(crate) scale: f32,
    /// The number of leading scores that count. A row in which none counts is left as it is.
    pub(crate) visible: usize,
}

/// Turns the scores of up to [`MR`] rows into weights `e^(score · scale - max)`, and 0 from lane
/// `visible` on, where `max` becomes the largest product if that is larger. `sum` becomes the sum of
/// the weights. Where no score counts, scores and `max` stay, and `sum` is not defined.
#[inline(always)]
pub(crate) fn softmax_rows(
    scores: &mut [[f32; NR]],
    rows: &[RowScores; MR],
    max: &mut [f32; MR],
    sum: &mut [f32; MR],
) {
    for (((scores, row), max), sum) in scores.iter_mut().zip(rows).zip(max).zip(sum) {
        if row.visible == 0 {
            continue;
        }
        for score in &mut *scores {
            *score *= row.scale;
        }
        scores[row.visible..].fill(f32::NEG_INFINITY);
        let mut lanes = [*max; LANES];
        for chunk in scores.as_chunks::<LANES>().0 {
            for (lane, &score) in lanes.iter_mut().zip(chunk) {
                *lane = larger(*lane, score);
            }
        }
        *max = fold(lanes, larger);
        let mut lanes = [0.0; LANES];
        for chunk in scores.as_chunks_mut::<LANES>().0 {
            for (score, lane) in chunk.iter_mut().zip(&mut lanes) {
                *score = exp_to_88(*score - *max);
                *lane += *score;
            }
        }
        *sum = fold(lanes, |a, b| a + b);
    }
}

/// `out = out · factor + x`.
#[inline(always)]
pub(crate) fn scale_add(out: &mut [f32], factor: f32, x: &[f32]) {
    for (out, &v) in out.iter_mut().zip(x) {
        *out = *out * factor + v;
    }
}

/// `out = x / divisor`.
#[inline(always)]
pub(crate) fn divide(x: &[f32], divisor: f32, out: &mut [f32]) {
    for (out, &v) in out.iter_mut().zip(x) {
        *out = v / divisor;
    }
}

/// `out = sums + bias`, or `out += sums + bias`; without a bias that is `sums`.
#[inline(always)]
pub(crate) fn put_sums(sums: &[f32], bias: Option<&[f32]>, add: bool, out: &mut [f32]) {
    match (add, bias) {
        (false, None) => out.copy_from_slice(sums),
        (true, None) => {
            for (out, &sum) in out.iter_mut().zip(sums) {
                *out += sum;
            }
        }
        (false, Some(bias)) => {
            for ((out, &sum), &bias) in out.iter_mut().zip(sums).zip(bias) {
                *out = sum + bias;
            }
        }
        (true, Some(bias)) => {
            for ((out, &sum), &bias) in out.iter_mut().zip(sums).zip(bias) {
                *out += sum + bias;
            }
        }
    }
}

/// Packs two rows of bf16 bits: `out[c]` holds element `c` of both.
#[inline(always)]
pub(crate) fn interleave(low: &[u16], high: &[u16], out: &mut [u32]) {
    for ((out, &low), &high) in out.iter_mut().zip(low).zip(high) {
        *out = u32::from(low) | u32::from(high) << 16;
    }
}

/// Returns the largest number, and whether all are finite.
#[inline(always)]
pub(crate) fn max_finite(x: &[f32]) -> (f32, bool) {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let mut bad = [0u32; LANES];
    let (body, tail) = x.as_chunks::<LANES>();
    for chunk in body {
        for i in 0..LANES {
            lanes[i] = if chunk[i] > lanes[i] {
                chunk[i]
            } else {
                lanes[i]
            };
            bad[i] |= u32::from(chunk[i].to_bits() & 0x7f80_0000 == 0x7f80_0000);
        }
    }
    let mut max = f32::NEG_INFINITY;
    let mut finite = true;
    for (lane, bad) in lanes.into_iter().zip(bad) {
        max = if lane > max { lane } else { max };
        finite &= bad == 0;
    }
    for &v in tail {
        max = if v > max { v } else { max };
        finite &= v.is_finite();
    }
    (max, finite)
}

/// Returns `Σ e^(x - max)`: f32 within runs of 1024, f64 across them, in order.
#[inline(always)]
pub(crate) fn sum_exp(x: &[f32], max: f32) -> f64 {
    // A loop: the closure of an iterator's `sum` is not compiled for the caller's instructions, and
    // calls a function for each multiply-add.
    let mut sum = 0.0;
    for run in x.chunks(1024) {
        sum += f64::from(sum_of(run, |v| exp(v - max)));
    }
    sum
}

/// Returns the number of elements of `x` that are larger than `bound`.
#[inline(always)]
pub(crate) fn count_above(x: &[f32], bound: f32) -> u32 {
    let mut count = 0;
    for &v in x {
        count += u32::from(v > bound);
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_and_exact_where_it_must_be() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(100.0), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
        let mut worst = 0.0f64;
        for i in -870_000..880_000 {
            let x = i as f32 / 10_000.0;
            let exact = f64::from(x).exp();
            worst = worst.max(((f64::from(exp(x)) - exact) / exact).abs());
        }
        assert!(worst < 2.5e-7, "relative error {worst:e}");
    }

    #[test]
    fn bf16_rounding_is_that_of_half() {
        for i in 0..2_000_000u32 {
            let x = f32::from_bits(i.wrapping_mul(2_147_483_647).wrapping_add(i));
            let expected = half::bf16::from_f32(x);
            let got = half::bf16::from_bits(bf16_bits(x) as u16);
            assert!(
                got == expected || got.is_nan() && expected.is_nan(),
                "{x:e}"
            );
        }
    }
}
