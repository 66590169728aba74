//! The matrix product of vector registers: rows times a packed panel of 64 columns.
//!
//! Where there is no matrix unit, everything dense runs on it: layers' weights, the output head,
//! label rows, and both products of attention, whose keys and values are panels in blocks or are
//! packed for a tile. Where there is one, bf16 weights are multiplied by [`super::tiles`], from the
//! same panels.
//!
//! ```text
//! panel, bf16: dword (p, c) = elements (2p, c) low and (2p + 1, c) high   [depth/2][64] dwords
//! panel, f32:  dword (k, c) = element (k, c)                              [depth][64] dwords
//! rows,  bf16: dword (r, p) = elements (r, 2p), (r, 2p + 1)               stride in dwords
//! rows,  f32:  element (r, k)                                             stride in elements
//! ```
//!
//! An output element is one accumulator, from first to last `k` in order. It does not depend on
//! how many rows are multiplied together, on the split of columns or on threads: that is the
//! whole of the batch invariance of these products.

use super::{Isa, Supported, native};

/// Columns of a panel: four AVX-512 registers.
pub(crate) const NR: usize = 64;

/// Rows of a tile: with 4 registers of columns, 24 accumulators of 32 registers.
pub(crate) const MR: usize = 6;

/// The product of up to [`MR`] rows with a panel.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(crate) struct Tile(pub(crate) [[f32; NR]; MR]);

impl Tile {
    pub(crate) const ZERO: Self = Self([[0.0; NR]; MR]);
}

impl Default for Tile {
    fn default() -> Self {
        Self::ZERO
    }
}

/// Left-hand rows.
#[derive(Clone, Copy)]
pub(crate) enum Rows<'a> {
    /// Pairs of bf16.
    Bf16(&'a [u32]),
    /// f32.
    F32(&'a [f32]),
}

impl<'a> Rows<'a> {
    /// Returns the rows without the first `n` dwords.
    pub(crate) fn skip(self, n: usize) -> Self {
        match self {
            Self::Bf16(a) => Rows::<'a>::Bf16(&a[n..]),
            Self::F32(a) => Rows::<'a>::F32(&a[n..]),
        }
    }

    fn len(self) -> usize {
        match self {
            Self::Bf16(a) => a.len(),
            Self::F32(a) => a.len(),
        }
    }
}

/// A right-hand panel; its depth follows from its length.
#[derive(Clone, Copy)]
pub(crate) enum Panel<'a> {
    /// Pairs of bf16.
    Bf16(&'a [u32]),
    /// f32, as bits.
    F32(&'a [u32]),
}

impl Panel<'_> {
    fn len(self) -> usize {
        match self {
            Self::Bf16(b) | Self::F32(b) => b.len(),
        }
    }
}

/// The right-hand side of a product.
#[derive(Clone, Copy)]
pub(crate) struct Right<'a> {
    pub(crate) panel: Panel<'a>,
    /// The number of columns to compute, from the first on; at most [`NR`].
    pub(crate) columns: usize,
    /// Dwords that a later product reads. Where a family has the instructions, the product fetches
    /// them into the second-level cache meanwhile: one cache line for each line of its panel.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "only the products of x86-64 fetch ahead")
    )]
    pub(crate) next: &'a [u32],
}

impl<'a> Right<'a> {
    /// Returns the first `columns` columns of `panel`, with nothing to fetch.
    pub(crate) const fn new(panel: Panel<'a>, columns: usize) -> Self {
        Self {
            panel,
            columns,
            next: &[],
        }
    }
}

/// `out[r][c] = Σ_k rows[r][k] · panel[k][c]` for `count` rows, `stride` apart, and at least for the
/// first `columns` columns. What the others hold afterwards is not defined.
///
/// # Panics
/// If `count` is not in `1..=MR`, `columns` is more than [`NR`], the rows are shorter than the panel
/// is deep, or the machine's family has no product of these formats (bf16 rows need bf16
/// instructions).
#[inline]
pub(crate) fn multiply(
    isa: Supported,
    rows: Rows<'_>,
    stride: usize,
    count: usize,
    right: Right<'_>,
    out: &mut Tile,
) {
    let Right { panel, columns, .. } = right;
    let dwords = panel.len() / NR;
    let per_dword = match (rows, panel) {
        (Rows::F32(_), Panel::Bf16(_)) => 2,
        _ => 1,
    };
    assert!((1..=MR).contains(&count), "a tile has 1 to {MR} rows");
    assert!(columns <= NR, "a panel has {NR} columns");
    assert!(
        panel.len().is_multiple_of(NR) && (count - 1) * stride + dwords * per_dword <= rows.len(),
        "rows shorter than the panel is deep"
    );
    match (rows, panel) {
        _ if native::multiply(isa, rows, stride, count, right, out) => {}
        (Rows::F32(a), Panel::Bf16(b)) => scalar_bf16(a, stride, count, b, out),
        (Rows::F32(a), Panel::F32(b)) => scalar_f32(a, stride, count, b, out),
        (Rows::Bf16(_), _) => panic!("bf16 rows need bf16 panels and bf16 instructions"),
    }
}

/// Columns that lie together in [`Pieces`]: one AVX-512 register.
pub(crate) const GROUP: usize = 16;

/// A right-hand side of bf16 pairs that lies in pieces of `lines` lines, one piece below the other.
/// Of each piece, line l of the columns from `16 g` on begins at dword `l · width` of `pieces[i][g]`.
#[derive(Clone, Copy)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "only x86-64 has products of pieces")
)]
pub(crate) struct Pieces<'a> {
    pub(crate) pieces: &'a [[&'a [u32]; NR / GROUP]],
    pub(crate) lines: usize,
    pub(crate) width: usize,
    /// The number of columns to compute, from the first on; at most [`NR`].
    pub(crate) columns: usize,
    /// Pieces that a later product reads, as many or none: the product fetches them into the
    /// second-level cache meanwhile.
    pub(crate) next: &'a [[&'a [u32]; NR / GROUP]],
}

/// Returns true if [`multiply_pieces`] has instructions.
pub(crate) fn takes_pieces(isa: Supported) -> bool {
    isa.isa() == Isa::Avx512Bf16
}

/// Multiplies as [`multiply`] does, with the bits that it has if the pieces are copied to a panel.
///
/// # Panics
/// As [`multiply`], and if the family has no such product: see [`takes_pieces`].
#[inline]
pub(crate) fn multiply_pieces(
    isa: Supported,
    rows: &[u32],
    stride: usize,
    count: usize,
    right: Pieces<'_>,
    out: &mut Tile,
) {
    let depth = right.pieces.len() * right.lines;
    assert!((1..=MR).contains(&count), "a tile has 1 to {MR} rows");
    assert!(right.columns <= NR, "a panel has {NR} columns");
    assert!(
        (count - 1) * stride + depth <= rows.len(),
        "rows shorter than the pieces are deep"
    );
    let done = native::multiply_pieces(isa, rows, stride, count, right, out);
    assert!(done, "pieces need bf16 instructions of 512 bits");
}

fn scalar_bf16(a: &[f32], stride: usize, count: usize, b: &[u32], out: &mut Tile) {
    for (r, out) in out.0.iter_mut().enumerate().take(count) {
        *out = [0.0; NR];
        for (pair, x) in b.chunks_exact(NR).zip(a[r * stride..].chunks_exact(2)) {
            for (sum, &w) in out.iter_mut().zip(pair) {
                *sum += x[0] * f32::from_bits(w << 16);
                *sum += x[1] * f32::from_bits(w & 0xffff_0000);
            }
        }
    }
}

fn scalar_f32(a: &[f32], stride: usize, count: usize, b: &[u32], out: &mut Tile) {
    for (r, out) in out.0.iter_mut().enumerate().take(count) {
        *out = [0.0; NR];
        for (weights, &x) in b.chunks_exact(NR).zip(&a[r * stride..]) {
            for (sum, &w) in out.iter_mut().zip(weights) {
                *sum += x * f32::from_bits(w);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::{
        Isa,
        kernels::{CpuDtype, InputForm},
    };

    /// Pseudo-random numbers in [-1, 1) with few mantissa bits, so that bf16 holds them exactly.
    fn number(i: usize) -> f32 {
        let x = (i as u32).wrapping_mul(2_654_435_761) >> 24;
        (x as f32 - 128.0) / 128.0
    }

    fn pair(low: f32, high: f32) -> u32 {
        u32::from(bf16::from_f32(low).to_bits()) | u32::from(bf16::from_f32(high).to_bits()) << 16
    }

    /// All families, formats and row counts against f64, and equality of rows across counts.
    #[test]
    fn products_are_right_and_do_not_depend_on_the_number_of_rows() {
        for depth in [2, 32, 190] {
            let stride = depth + 4;
            let a: Vec<f32> = (0..MR * stride).map(number).collect();
            let a_pairs: Vec<u32> = a.chunks_exact(2).map(|x| pair(x[0], x[1])).collect();
            let b = |k: usize, c: usize| number(7919 + k * NR + c);
            let b_f32: Vec<u32> = (0..depth * NR)
                .map(|i| b(i / NR, i % NR).to_bits())
                .collect();
            let b_pairs: Vec<u32> = (0..depth / 2 * NR)
                .map(|i| pair(b(i / NR * 2, i % NR), b(i / NR * 2 + 1, i % NR)))
                .collect();
            for isa in Isa::ALL.into_iter().filter_map(Supported::new) {
                let mut cases = vec![
                    (Rows::F32(&a), Panel::F32(&b_f32), stride),
                    (Rows::F32(&a), Panel::Bf16(&b_pairs), stride),
                ];
                if InputForm::of(isa, CpuDtype::Bf16) == InputForm::Bf16 {
                    cases.push((Rows::Bf16(&a_pairs), Panel::Bf16(&b_pairs), stride / 2));
                }
                for (rows, panel, stride_dwords) in cases {
                    let mut full = Tile::ZERO;
                    let right = Right::new(panel, NR);
                    multiply(isa, rows, stride_dwords, MR, right, &mut full);
                    for (r, row) in full.0.iter().enumerate() {
                        for (c, &got) in row.iter().enumerate() {
                            let exact: f64 = (0..depth)
                                .map(|k| f64::from(a[r * stride + k]) * f64::from(b(k, c)))
                                .sum();
                            assert!(
                                (f64::from(got) - exact).abs() < 1e-4,
                                "{isa:?} depth {depth} ({r}, {c}): {got} against {exact}"
                            );
                        }
                        for count in 1..=MR - r {
                            let mut part = Tile::ZERO;
                            let skipped = rows.skip(r * stride_dwords);
                            // What is fetched meanwhile changes nothing.
                            let right = Right {
                                next: &b_f32,
                                ..right
                            };
                            multiply(isa, skipped, stride_dwords, count, right, &mut part);
                            assert_eq!(part.0[..count], full.0[r..r + count]);
                            for columns in [1, 16, 32, 33, 48] {
                                let mut narrow = Tile([[f32::NAN; NR]; MR]);
                                let part = Right::new(panel, columns);
                                multiply(isa, skipped, stride_dwords, count, part, &mut narrow);
                                for (narrow, full) in narrow.0.iter().zip(&full.0[r..r + count]) {
                                    assert_eq!(narrow[..columns], full[..columns], "{isa:?}");
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn pieces_have_the_bits_of_the_panel_that_they_make() {
        let Some(isa) = Supported::new(Isa::Avx512Bf16).filter(|&isa| takes_pieces(isa)) else {
            return;
        };
        let word = |i: usize| pair(ragged(2 * i), ragged(2 * i + 1));
        for (pieces, lines, width) in [(1, 64, 16), (1, 24, 32), (4, 8, 128), (3, 8, 80)] {
            let depth = pieces * lines;
            let a: Vec<u32> = (0..MR * depth).map(|i| word(i + 1_000_000)).collect();
            let parts: Vec<Vec<u32>> = (0..pieces * NR / GROUP)
                .map(|part| {
                    (0..(lines - 1) * width + GROUP)
                        .map(|i| word(part * 9_999 + i))
                        .collect()
                })
                .collect();
            let right: Vec<[&[u32]; NR / GROUP]> = (0..pieces)
                .map(|i| std::array::from_fn(|g| &parts[i * NR / GROUP + g][..]))
                .collect();
            let panel: Vec<u32> = (0..depth * NR)
                .map(|at| {
                    let (line, column) = (at / NR, at % NR);
                    right[line / lines][column / GROUP][line % lines * width + column % GROUP]
                })
                .collect();
            for (count, columns) in (1..=MR).flat_map(|count| [(count, 32), (count, 64)]) {
                let [mut expected, mut found] = [Tile::ZERO, Tile::ZERO];
                let whole = Right::new(Panel::Bf16(&panel), columns);
                multiply(isa, Rows::Bf16(&a), depth, count, whole, &mut expected);
                let right = Pieces {
                    pieces: &right[..],
                    lines,
                    width,
                    columns,
                    next: [&[], &right[..]][count % 2],
                };
                multiply_pieces(isa, &a, depth, count, right, &mut found);
                for (found, expected) in found.0.iter().zip(&expected.0) {
                    assert_eq!(found[..columns], expected[..columns]);
                }
            }
        }
    }

    /// Numbers with all bits of the mantissa, whose sums round at every step.
    fn ragged(i: usize) -> f32 {
        let x = (i as u32).wrapping_mul(2_654_435_761) ^ 0x9e37_79b9;
        (x >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    /// With f32 rows all families but portable code compute the bits of a chain of fused
    /// multiply-adds, whatever the number of rows.
    #[test]
    fn products_of_f32_rows_are_chains_of_fused_multiply_adds() {
        for depth in [1, 2, 3, 64, 191] {
            let paired = depth + depth % 2;
            let stride = paired + 2;
            let a: Vec<f32> = (0..MR * stride).map(ragged).collect();
            let exact = |k: usize, c: usize| ragged(50_000 + k * NR + c);
            let rounded = |k: usize, c: usize| bf16::from_f32(exact(k, c)).to_f32();
            let b_f32: Vec<u32> = (0..depth * NR)
                .map(|i| exact(i / NR, i % NR).to_bits())
                .collect();
            let b_pairs: Vec<u32> = (0..paired / 2 * NR)
                .map(|i| (i / NR * 2, i % NR))
                .map(|(k, c)| pair(rounded(k, c), rounded(k + 1, c)))
                .collect();
            type Weight<'a> = &'a dyn Fn(usize, usize) -> f32;
            let cases: [(_, usize, Weight<'_>); 2] = [
                (Panel::F32(&b_f32), depth, &exact),
                (Panel::Bf16(&b_pairs), paired, &rounded),
            ];
            for (panel, depth, weight) in cases {
                let chain = |r: usize, c: usize| {
                    let row = a[r * stride..][..depth].iter().enumerate();
                    row.fold(0.0, |sum: f32, (k, &x)| x.mul_add(weight(k, c), sum))
                };
                for isa in Isa::ALL.into_iter().filter_map(Supported::new) {
                    if isa.isa() == Isa::Scalar {
                        continue;
                    }
                    for first in 0..MR {
                        for count in 1..=MR - first {
                            let mut out = Tile([[f32::NAN; NR]; MR]);
                            let rows = Rows::F32(&a[first * stride..]);
                            multiply(isa, rows, stride, count, Right::new(panel, NR), &mut out);
                            for (r, row) in (first..).zip(&out.0[..count]) {
                                for (c, got) in row.iter().enumerate() {
                                    let expected = chain(r, c);
                                    assert_eq!(
                                        got.to_bits(),
                                        expected.to_bits(),
                                        "{isa:?} depth {depth} ({r}, {c})"
                                    );
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    /// With bf16 rows a row has the same bits alone and in company, and they do not depend on
    /// zeros behind it.
    #[test]
    fn products_of_bf16_rows_do_not_depend_on_company() {
        for depth in [1, 2, 3, 32, 95] {
            let stride = depth + 1;
            let a: Vec<u32> = (0..MR * stride)
                .map(|i| pair(ragged(2 * i), ragged(2 * i + 1)))
                .collect();
            let b: Vec<u32> = (0..depth * NR)
                .map(|i| pair(ragged(9_000 + 2 * i), ragged(9_001 + 2 * i)))
                .collect();
            for isa in Isa::ALL.into_iter().filter_map(Supported::new) {
                if InputForm::of(isa, CpuDtype::Bf16) != InputForm::Bf16 {
                    continue;
                }
                let mut full = Tile::ZERO;
                let panel = Panel::Bf16(&b);
                multiply(
                    isa,
                    Rows::Bf16(&a),
                    stride,
                    MR,
                    Right::new(panel, NR),
                    &mut full,
                );
                for first in 0..MR {
                    for count in 1..=MR - first {
                        let mut part = Tile([[f32::NAN; NR]; MR]);
                        let rows = Rows::Bf16(&a[first * stride..]);
                        multiply(isa, rows, stride, count, Right::new(panel, NR), &mut part);
                        let rows = part.0[..count].iter().zip(&full.0[first..]);
                        for (part, full) in rows {
                            assert_eq!(part.map(f32::to_bits), full.map(f32::to_bits), "{isa:?}");
                        }
                    }
                }
                let mut longer = b.clone();
                longer.resize(b.len() + NR, 0);
                let mut part = Tile::ZERO;
                let panel = Panel::Bf16(&longer);
                multiply(
                    isa,
                    Rows::Bf16(&a),
                    stride,
                    MR,
                    Right::new(panel, NR),
                    &mut part,
                );
                assert_eq!(part.0, full.0, "{isa:?}");
            }
        }
    }
}
