//! The product of rows and panels that are rounded to fp8: `--quantization fp8`.
//!
//! This is the arithmetic that `prelude-exec-cuda` has on GPUs, for machines without one: the same
//! numbers are rounded alike, so what it costs in accuracy can be seen here. Nothing is saved: an e4m3
//! is kept in bf16, which holds it exactly, and multiplied in f32.
//!
//! A row of weights, or of inputs, is rounded to bf16 first, as a GPU has it, and then
//!
//! ```text
//! s = max(largest magnitude, 2^-24) / 448      f32, one for each row of either
//! q = e4m3(x / s)                              to nearest, ties to even
//! y = (Σ_k in order: q_x[k] · q_w[k]) · s_x · s_w
//! ```
//!
//! Products of two e4m3 are exact in f32, so it makes no difference whether an instruction rounds them
//! before it adds: the result has **the same bits on every path**, and depends on nothing but its row
//! and its column. A GPU adds the same products in another order.
//!
//! ```text
//! row:    one dword s, f32 bits;  [inputs] dwords q, f32 bits
//! panel:  [inputs / 2] lines of 64 dwords, pairs of q in bf16; one line of 64 scales s, f32 bits
//! ```

pub(crate) mod blocks;

use super::{
    Supported, elementwise,
    panel::{self, NR, Panel, Right, Rows, Tile},
};
pub(crate) use blocks::round_groups;

/// The largest e4m3.
const LARGEST: f32 = 448.0;

/// The least magnitude that a scale is made for: 2^-24.
const LEAST: f32 = 1.0 / 16_777_216.0;

/// The smallest e4m3 that is not subnormal: 2^-6.
const NORMAL: f32 = 1.0 / 64.0;

/// Dwords of a row.
pub(crate) const fn row_dwords(inputs: usize) -> usize {
    1 + inputs
}

/// Dwords that a row of at most so many inputs takes, with one scale or several.
pub(crate) const fn room_dwords(inputs: usize) -> usize {
    inputs + inputs.div_ceil(blocks::BLOCK)
}

/// Returns the number of lines of a panel. `inputs` is even.
pub(crate) const fn panel_lines(inputs: usize) -> usize {
    inputs / 2 + 1
}

/// Returns `x` rounded to bf16.
#[inline(always)]
fn bf16(x: f32) -> f32 {
    f32::from_bits(elementwise::bf16_bits(x) << 16)
}

/// Returns the scale of a row: not finite if a number of the row is not, so that its results are not.
#[inline(always)]
fn scale(row: &[f32]) -> f32 {
    // Bits of magnitudes are in the order of the magnitudes, then infinity, then NaN.
    let bits = row.iter().fold(LEAST.to_bits(), |most, &x| {
        most.max(bf16(x).to_bits() & 0x7fff_ffff)
    });
    f32::from_bits(bits) / LARGEST
}

/// Returns the nearest e4m3, ties to even, of a number of at most 448 and a little; NaN stays.
#[inline(always)]
fn round(x: f32) -> f32 {
    // 1.5 · 2^14: adding it leaves multiples of 2^-9, the step of e4m3 below 2^-6.
    const MAGIC: f32 = 24_576.0;
    let bits = x.to_bits();
    let odd = (bits >> 20) & 1;
    let nearest = f32::from_bits(bits.wrapping_add(0x7_ffff + odd) & !0xf_ffff);
    if x.abs() < NORMAL {
        (x + MAGIC) - MAGIC
    } else if x.is_nan() {
        x
    } else {
        nearest
    }
}

/// Rounds one row.
#[inline(always)]
pub(crate) fn round_row(x: &[f32], out: &mut [u32]) {
    let scale = scale(x);
    out[0] = scale.to_bits();
    for (out, &x) in out[1..].iter_mut().zip(x) {
        *out = round(bf16(x) / scale).to_bits();
    }
}

/// Rounds one output's weights into column `lane` of a panel.
pub(crate) fn pack_column(row: &[f32], lane: usize, panel: &mut [u32]) {
    let scale = scale(row);
    // An e4m3 is the high half of its f32.
    let bits = |x: f32| round(bf16(x) / scale).to_bits() >> 16;
    let (pairs, scales) = panel.split_at_mut(panel.len() - NR);
    let pairs = pairs.iter_mut().skip(lane).step_by(NR);
    for (out, pair) in pairs.zip(row.as_chunks::<2>().0) {
        *out = bits(pair[0]) | bits(pair[1]) << 16;
    }
    scales[lane] = scale.to_bits();
}

/// `out[r][c] = rows[r] · panel[c]` for `count` rows, `stride` dwords apart.
///
/// # Panics
/// If `count` is not in `1..=MR`, or the rows are shorter than the panel is deep.
#[inline]
pub(crate) fn multiply(
    isa: Supported,
    rows: &[u32],
    stride: usize,
    count: usize,
    panel: &[u32],
    out: &mut Tile,
) {
    let (pairs, scales) = panel.split_at(panel.len() - NR);
    let numbers: &[f32] = bytemuck::cast_slice(rows);
    let right = Right::new(Panel::Bf16(pairs), NR);
    let left = Rows::F32(&numbers[1..]);
    panel::multiply(isa, left, stride, count, right, out);
    let rows = out.0.iter_mut().zip(numbers.iter().step_by(stride));
    for (sums, &of_row) in rows.take(count) {
        for (sum, &of_column) in sums.iter_mut().zip(scales) {
            *sum = *sum * of_row * f32::from_bits(of_column);
        }
    }
}

#[cfg(test)]
mod tests;
