//! The product with the matrices of checkpoints that store them in fp8 with a scale for each block of
//! 128 × 128: they are multiplied as they are stored, with rows that are rounded 128 inputs at a time.
//!
//! ```text
//! s = max(largest magnitude, 2^-24) / 448      f32, one for each group g of 128 inputs of a row
//! q = e4m3(x / s)
//! y = Σ_g in order: (Σ_k of g in order: q_x[k] · q_w[k]) · (s_x[g] · s_w[g])
//!
//! row:    [inputs / 128] dwords s, f32 bits;  [inputs] dwords q, f32 bits
//! panel:  [inputs / 2] lines of 64 dwords, pairs of q in bf16; [inputs / 128] lines of 64 scales, f32 bits
//! ```

use super::{
    Supported, bf16,
    panel::{self, NR, Panel, Right, Rows, Tile},
    round, scale,
};

/// Rows and columns of a block, and inputs of a row, that have a scale.
pub(crate) const BLOCK: usize = 128;

/// Dwords of a row. `inputs` is a multiple of [`BLOCK`].
pub(crate) const fn row_dwords(inputs: usize) -> usize {
    inputs / BLOCK + inputs
}

/// Returns the number of lines of a panel. `inputs` is a multiple of [`BLOCK`].
pub(crate) const fn panel_lines(inputs: usize) -> usize {
    inputs / 2 + inputs / BLOCK
}

/// Rounds one row.
#[inline(always)]
pub(crate) fn round_groups(x: &[f32], out: &mut [u32]) {
    let (scales, numbers) = out.split_at_mut(x.len() / BLOCK);
    let groups = x.chunks_exact(BLOCK).zip(numbers.chunks_exact_mut(BLOCK));
    for (of_group, (x, out)) in scales.iter_mut().zip(groups) {
        let scale = scale(x);
        *of_group = scale.to_bits();
        for (out, &x) in out.iter_mut().zip(x) {
            *out = round(bf16(x) / scale).to_bits();
        }
    }
}

/// Writes one output's weights into column `lane` of a panel: `row` holds the numbers, then the scales of
/// its blocks.
pub(crate) fn pack_column(row: &[f32], lane: usize, panel: &mut [u32]) {
    let (numbers, scales) = row.split_at(row.len() / (BLOCK + 1) * BLOCK);
    let (pairs, of_scales) = panel.split_at_mut(numbers.len() / 2 * NR);
    // An e4m3 is the high half of its f32.
    let bits = |x: f32| x.to_bits() >> 16;
    let pairs = pairs.iter_mut().skip(lane).step_by(NR);
    for (out, pair) in pairs.zip(numbers.as_chunks::<2>().0) {
        *out = bits(pair[0]) | bits(pair[1]) << 16;
    }
    let of_scales = of_scales.iter_mut().skip(lane).step_by(NR);
    for (out, scale) in of_scales.zip(scales) {
        *out = scale.to_bits();
    }
}

/// `out[r][c] = rows[r] · panel[c]` for `count` rows, `stride` dwords apart.
///
/// # Panics
/// If `count` is not in `1..=MR`, or the rows are not as long as the panel is deep.
#[inline]
pub(crate) fn multiply(
    isa: Supported,
    rows: &[u32],
    stride: usize,
    count: usize,
    panel: &[u32],
    out: &mut Tile,
) {
    const PAIRS: usize = BLOCK / 2 * NR;
    let groups = stride / (BLOCK + 1);
    let (pairs, scales) = panel.split_at(groups * PAIRS);
    let numbers: &[f32] = bytemuck::cast_slice(rows);
    out.0[..count].fill([0.0; NR]);
    let mut part = Tile::ZERO;
    let of_groups = pairs.chunks_exact(PAIRS).zip(scales.chunks_exact(NR));
    for (group, (pairs, scales)) in of_groups.enumerate() {
        let right = Right::new(Panel::Bf16(pairs), NR);
        let left = Rows::F32(&numbers[groups + group * BLOCK..]);
        panel::multiply(isa, left, stride, count, right, &mut part);
        let sums = out.0.iter_mut().zip(&part.0).take(count).enumerate();
        for (row, (sums, part)) in sums {
            let of_row = numbers[row * stride + group];
            for ((sum, part), &of_column) in sums.iter_mut().zip(part).zip(scales) {
                *sum += part * (of_row * f32::from_bits(of_column));
            }
        }
    }
}
