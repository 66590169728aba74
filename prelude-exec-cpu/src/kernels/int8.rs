//! The product of int8 rows with int8 panels: `--quantization int8`.
//!
//! A weight is `w ≈ s · q`: one f32 scale `s` per output, and `q` in -127..=127. An input is
//! `x ≈ t · p`: one f32 scale `t` per row and group of [`GROUP`] inputs, and `p` in -127..=127, so
//! that one large input costs its own group its precision and no other. The largest magnitude of
//! an output's weights, or of a group, becomes 127; rounding is to nearest, ties to even.
//!
//! ```text
//! y = s · Σ over groups g, in order:  t[g] · (f32 of) Σ over k in g:  q[k] · p[k]
//! ```
//!
//! The inner sums are integers below 2^24, which f32 holds exactly, so every instruction family
//! computes the same ones; the outer sum has one product and one addition in f32 per group, never
//! fused. So the result has **the same
//! bits on every path**, and depends on nothing but its row and its column.
//!
//! Instructions of x86-64 multiply unsigned with signed bytes: rows hold `p + 128`, and panels hold
//! `-128 · Σ q` of each group, with which its sum begins. Those of ARM multiply signed bytes: rows
//! hold `p`, and sums begin with 0. Panels are the same everywhere.
//!
//! ```text
//! row:    [groups] scales t, f32 bits;  [quads] dwords of four bytes, p or p + 128
//! panel:  per group:  one line of 64 first values -128 · Σ q, i32
//!                     up to 32 lines of 64 dwords: four bytes q of inputs 4i .. 4i + 4
//!         at the end: one line of 64 scales s, f32 bits
//! ```
//!
//! Bytes of a dword are in the order of the machine. What an odd end leaves of a dword is zero.

use super::{
    Supported, native,
    panel::{MR, NR, Tile},
};

/// Inputs that share a scale of their row.
pub(crate) const GROUP: usize = 128;

/// Lines of a whole group's weights.
pub(super) const GROUP_QUADS: usize = GROUP / 4;

/// The bit in which a row's byte differs from `p`.
const FLIP: u8 = if cfg!(target_arch = "aarch64") {
    0
} else {
    0x80
};

/// Magnitudes up to this count as zero: their reciprocals times 127 would overflow.
const TINY: f32 = 1e-36;

/// Returns the number of groups of a row.
pub(crate) const fn groups(inputs: usize) -> usize {
    inputs.div_ceil(GROUP)
}

/// Dwords of a row.
pub(crate) const fn row_dwords(inputs: usize) -> usize {
    groups(inputs) + inputs.div_ceil(4)
}

/// Returns the number of lines of a panel.
pub(crate) const fn panel_lines(inputs: usize) -> usize {
    row_dwords(inputs) + 1
}

/// Returns the groups and dwords of weights of a panel of so many lines: the inverse of
/// [`panel_lines`].
const fn of_lines(lines: usize) -> (usize, usize) {
    let groups = (lines - 1).div_ceil(GROUP_QUADS + 1);
    (groups, lines - 1 - groups)
}

/// Returns a scale and the factor that turns numbers up to `largest` into -127..=127. The scale is
/// NaN if `largest` is not finite, so that the row's results are.
#[inline(always)]
fn scale(largest: f32) -> (f32, f32) {
    if largest <= TINY {
        (0.0, 0.0)
    } else if largest.is_finite() {
        (largest / 127.0, 127.0 / largest)
    } else {
        (f32::NAN, 0.0)
    }
}

/// Returns the largest magnitude, or a number that is not finite if there is one.
#[inline(always)]
fn largest(x: &[f32]) -> f32 {
    // Bits of magnitudes are in the order of the magnitudes, then infinity, then NaN.
    let bits = x
        .iter()
        .fold(0, |most: u32, v| most.max(v.to_bits() & 0x7fff_ffff));
    f32::from_bits(bits)
}

/// Returns the low byte of `x · factor` rounded to an integer.
#[inline(always)]
fn round(x: f32, factor: f32) -> u8 {
    // 1.5 · 2^23: adding it rounds to an integer, which then sits in the low mantissa bits.
    const MAGIC: f32 = 12_582_912.0;
    (x * factor + MAGIC).to_bits() as u8
}

/// Quantises one row.
#[inline(always)]
pub(crate) fn quantise_row(x: &[f32], out: &mut [u32]) {
    let (scales, quads) = out.split_at_mut(groups(x.len()));
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(quads);
    let parts = x.chunks(GROUP).zip(bytes.chunks_mut(GROUP));
    for ((x, bytes), out) in parts.zip(scales) {
        let (scale, factor) = scale(largest(x));
        *out = scale.to_bits();
        for (byte, &v) in bytes.iter_mut().zip(x) {
            *byte = round(v, factor) ^ FLIP;
        }
        bytes[x.len()..].fill(FLIP);
    }
}

/// Quantises one output's weights into column `lane` of a panel.
pub(crate) fn pack_column(row: &[f32], lane: usize, panel: &mut [u32]) {
    let (scale, factor) = scale(largest(row));
    let mut lines = panel.chunks_exact_mut(NR).map(|line| &mut line[lane]);
    let mut next = || lines.next().expect("the panel was made for this width");
    for group in row.chunks(GROUP) {
        let first = next();
        let mut sum = 0i32;
        for quad in group.chunks(4) {
            let mut bytes = [0; 4];
            for (byte, &w) in bytes.iter_mut().zip(quad) {
                *byte = round(w, factor);
                sum += i32::from(byte.cast_signed());
            }
            *next() = u32::from_ne_bytes(bytes);
        }
        *first = (-128 * sum).cast_unsigned();
    }
    *next() = scale.to_bits();
}

/// Writes the weights `s · q` of column `lane` of a panel.
pub(crate) fn read_column(panel: &[u32], lane: usize, out: &mut [f32]) {
    let (body, scales) = panel.split_at(panel.len() - NR);
    let scale = f32::from_bits(scales[lane]);
    let groups = body.chunks((GROUP_QUADS + 1) * NR);
    for (out, group) in out.chunks_mut(GROUP).zip(groups) {
        let lines = group[NR..].chunks_exact(NR);
        for (out, line) in out.chunks_mut(4).zip(lines) {
            for (out, byte) in out.iter_mut().zip(line[lane].to_ne_bytes()) {
                *out = f32::from(byte.cast_signed()) * scale;
            }
        }
    }
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
    assert!((1..=MR).contains(&count), "a tile has 1 to {MR} rows");
    assert!(
        panel.len().is_multiple_of(NR) && panel.len() >= NR,
        "not a panel"
    );
    let shape = of_lines(panel.len() / NR);
    assert!(
        (count - 1) * stride + shape.0 + shape.1 <= rows.len(),
        "rows shorter than the panel is deep"
    );
    if native::multiply_int8(isa, (rows, stride, count), (panel, shape), out) {
        return;
    }
    for (r, out) in out.0.iter_mut().enumerate().take(count) {
        scalar(
            &rows[r * stride..][..shape.0 + shape.1],
            panel,
            shape.0,
            out,
        );
    }
}

/// Multiplies one row in portable code.
fn scalar(row: &[u32], panel: &[u32], groups: usize, out: &mut [f32; NR]) {
    let (body, scales) = panel.split_at(panel.len() - NR);
    let (row_scales, quads) = row.split_at(groups);
    *out = [0.0; NR];
    let parts = body
        .chunks((GROUP_QUADS + 1) * NR)
        .zip(quads.chunks(GROUP_QUADS));
    for ((group, quads), &scale) in parts.zip(row_scales) {
        let mut sums = [0i32; NR];
        for (line, quad) in group[NR..].chunks_exact(NR).zip(quads) {
            let x = quad.to_ne_bytes();
            let x = x.map(|x| i32::from((x ^ FLIP).cast_signed()));
            for (sum, w) in sums.iter_mut().zip(line) {
                let w = w.to_ne_bytes().map(|w| i32::from(w.cast_signed()));
                *sum += x[0] * w[0] + x[1] * w[1] + x[2] * w[2] + x[3] * w[3];
            }
        }
        let scale = f32::from_bits(scale);
        for (out, sum) in out.iter_mut().zip(sums) {
            *out += sum as f32 * scale;
        }
    }
    for (out, &scale) in out.iter_mut().zip(scales) {
        *out *= f32::from_bits(scale);
    }
}

#[cfg(test)]
mod tests;
