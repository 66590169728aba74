//! Products in fp8 at model shapes, against what the host makes of rows that it rounds itself.

use anyhow::{Context as _, Result, ensure};
use half::bf16;
use prelude_exec_cuda::{
    ProductEngine, Weight,
    measure::{Device, ProductCounts},
};
use prelude_models::Ops as _;

use super::{Layer, in_step};
use crate::{session::Session, values};

/// Returns the value of an e4m3 without its sign.
fn value(bits: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(bits >> 3), f64::from(bits & 7));
    match exponent {
        0 => mantissa * 2f64.powi(-9),
        _ => (8.0 + mantissa) * 2f64.powi(exponent - 10),
    }
}

/// Returns the value of the nearest e4m3, ties to even.
fn nearest(x: f64) -> f64 {
    let size = x.abs();
    // The numbers below it, of which the last is the largest: bits count up with values.
    let (mut low, mut high) = (0u8, 0x7e);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match value(middle) <= size {
            true => low = middle,
            false => high = middle,
        }
    }
    let (below, above) = (size - value(low), value(high) - size);
    let is_low = below < above || below == above && low.is_multiple_of(2);
    let bits = if is_low { low } else { high };
    value(bits).copysign(x)
}

/// The elements of a matrix that share one scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scales {
    /// A row of either factor.
    Rows,
    /// A block of 128 × 128 of the weight, and 128 elements of a row.
    Blocks,
}

impl Scales {
    /// Returns a row as products take it.
    fn rounded(self, row: &[bf16]) -> Vec<f64> {
        match self {
            Self::Rows => rounded(row),
            Self::Blocks => row.chunks(values::BLOCK).flat_map(rounded).collect(),
        }
    }
}

/// Returns the numbers as products with one scale take them: e4m3 times that scale.
fn rounded(row: &[bf16]) -> Vec<f64> {
    let largest = row.iter().map(|x| x.to_f32().abs());
    let scale = largest.fold(2f32.powi(-24), f32::max) / 448.0;
    let round = |x: &bf16| nearest(f64::from(x.to_f32() / scale)) * f64::from(scale);
    row.iter().map(round).collect()
}

/// A matrix on the GPU and what the host keeps of it.
struct Matrix {
    weight: Weight,
    row: Box<dyn Fn(usize) -> Vec<f64>>,
}

impl Matrix {
    fn new(device: &Device, scales: Scales, n: usize, k: usize) -> Result<Self> {
        let mut loader = device.loader()?;
        if scales == Scales::Rows {
            let (weight, w) = values::matrix(&mut loader, 11, n, k)?;
            let row = Box::new(move |row: usize| rounded(&w[row * k..][..k]));
            return Ok(Self { weight, row });
        }
        let (weight, data, scales) = values::blocks(&mut loader, 11, n, k)?;
        let element = move |row: usize, i: usize| {
            let (byte, of_row) = (data[row * k + i], k / values::BLOCK);
            let scale = scales[row / values::BLOCK * of_row + i / values::BLOCK];
            let sign = if byte & 0x80 == 0 { 1.0 } else { -1.0 };
            sign * value(byte & 0x7f) * f64::from(scale)
        };
        let row = Box::new(move |row| (0..k).map(|i| element(row, i)).collect());
        Ok(Self { weight, row })
    }
}

/// Checks products of each matrix of a layer, written and added, at row counts around tiles.
///
/// # Errors
/// The first sum that is wrong.
pub(super) fn products(
    session: &mut Session,
    layer: Layer,
    scales: Scales,
    deterministic: bool,
) -> Result<String> {
    let mut compared = 0;
    let mut ran = ProductCounts::default();
    let mut has_library = false;
    for (name, n, k) in layer.matrices() {
        // The smallest model's are narrower than a block.
        let k = match scales {
            Scales::Rows => k,
            Scales::Blocks => k.next_multiple_of(values::BLOCK),
        };
        for m in session.pick(vec![1, 17, 130, 515], vec![1, 17]) {
            session.beat(|| format!("{name}, M {m}"))?;
            let mut room = layer.room(m, 4, 64, m * (2 * n + k) + 4096)?;
            room.fp8 = true;
            room.model.intermediate_size = room.model.intermediate_size.max(k);
            let mut device = Device::open(&session.target, &room, deterministic)?;
            let Matrix { weight, row: of_w } = Matrix::new(&device, scales, n, k)?;
            let x = match scales {
                Scales::Rows => values::values(12, m * k),
                Scales::Blocks => values::uneven_groups(12, m * k),
            };
            let before = values::values(13, m * n);
            let (written, added, counts, engine) = in_step(&mut device, &room, |ops| {
                let input = ops.filled(m, k, &x)?;
                let mut written = ops.alloc(m, n)?;
                ops.linear(&input, m, &weight, &mut written)?;
                let mut added = ops.filled(m, n, &before)?;
                ops.linear_add(&input, 0..m, &weight, &mut added)?;
                let (written, added) = (ops.read(&written)?, ops.read(&added)?);
                Ok((written, added, ops.product_counts(), ops.products().clone()))
            })?;
            has_library = takes_scales(&engine);
            ran.library += counts.library;
            ran.own += counts.own;
            ran.skinny += counts.skinny;
            for column in (0..n).step_by(97).chain([n - 1]) {
                let w = of_w(column);
                for row in [0, 1.min(m - 1), m / 2, m - 1] {
                    let x = scales.rounded(&x[row * k..][..k]);
                    let at = row * n + column;
                    let got = [written[at], added[at]].map(f64::from);
                    check(got, (&x, &w), f64::from(before[at]))
                        .with_context(|| format!("{name} [{m}, {n}] row {row} column {column}"))?;
                    compared += 2;
                }
            }
        }
    }
    let ProductCounts {
        library,
        own,
        skinny,
    } = ran;
    let kernel = match scales {
        Scales::Rows => "gemm_fp8",
        Scales::Blocks => "gemm_fp8_block",
    };
    // Other GPUs have no such products.
    let facts = session.target.facts();
    let is_hopper = facts.is_some_and(|facts| facts.compute_capability == (9, 0));
    ensure!(
        library > 0 || !(has_library && is_hopper),
        "cuBLASLt has multiplied nothing, and {kernel} all"
    );
    Ok(format!(
        "{compared} sums; products: {library} by cuBLASLt, {skinny} by {kernel}_few, {own} by {kernel}"
    ))
}

/// Returns true if a library multiplies that takes scales of rows and blocks: cuBLASLt from 12.9 on.
fn takes_scales(engine: &ProductEngine) -> bool {
    let ProductEngine::CublasLt { version, .. } = engine else {
        return false;
    };
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(12), Some(9))
}

/// Compares an element of a product, written and added, with the sum of its terms.
fn check(got: [f64; 2], (x, w): (&[f64], &[f64]), before: f64) -> Result<()> {
    let terms = x.iter().zip(w).map(|(x, w)| x * w);
    let (sum, size) = terms.fold((0.0, 0.0), |(s, a): (f64, f64), t| (s + t, a + t.abs()));
    // Tensor cores of Hopper keep fewer bits of sums of e4m3 than of bf16.
    let order = |size: f64| size * 2f64.powi(-12);
    let added = before + sum;
    let bounds = [
        order(size) + sum.abs() / 256.0,
        order(size) + before.abs() * 2f64.powi(-20) + (added.abs() + sum.abs()) / 256.0,
    ];
    for ((got, expected), bound) in got.into_iter().zip([sum, added]).zip(bounds) {
        ensure!(
            (got - expected).abs() <= bound,
            "{got} and not {expected} ± {bound}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums with the scales of another row, group or block are off by more than is allowed.
    #[test]
    fn scales_in_another_order_show() {
        let (rows, groups) = (6, 8);
        let k = groups * values::BLOCK;
        let x = values::uneven_groups(12, rows * k);
        let x: Vec<Vec<f64>> = x.chunks(k).map(|row| Scales::Blocks.rounded(row)).collect();
        let w: Vec<f64> = values::values(11, k).into_iter().map(f64::from).collect();
        let size = |row: usize, group: usize| {
            let part = &x[row][group * values::BLOCK..][..values::BLOCK];
            part.iter().fold(0.0, |most: f64, x| most.max(x.abs()))
        };
        // The sum of row 1, each group times what its scale would be in another order.
        let sum = |scale: &dyn Fn(usize) -> f64| -> f64 {
            let terms = x[1].iter().zip(&w).enumerate();
            terms
                .map(|(i, (x, w))| {
                    let group = i / values::BLOCK;
                    x * w * scale(group) / size(1, group)
                })
                .sum()
        };
        let right = sum(&|group| size(1, group));
        let passes = |sum: f64| check([sum, sum + 1.0], (&x[1], &w), 1.0).is_ok();
        assert!(passes(right));
        assert!(!passes(sum(&|group| size(2, group))), "another row's");
        let other = |group| size(1, (group + 1) % groups);
        assert!(!passes(sum(&other)), "another group's");
        let by_groups = |group: usize| size((6 + group) % rows, (6 + group) / rows);
        assert!(!passes(sum(&by_groups)), "group by group");
    }

    #[test]
    fn numbers_are_rounded_to_the_nearest() {
        for (x, expected) in [
            (0.0, 0.0),
            (1.0, 1.0),
            (-1.06, -1.0),
            (1.0625, 1.0),
            (1.1875, 1.25),
            (447.9, 448.0),
            (448.0, 448.0),
            (-0.001, -0.001_953_125),
            (0.000_9, 0.0),
            (0.000_976_562_5, 0.0),
            (0.002_929_687_5, 0.003_906_25),
        ] {
            assert_eq!(nearest(x), expected, "{x}");
        }
    }
}
