//! Products at model shapes, in bf16 and in fp8, against sums of the host; it rounds rows in fp8 itself.

use anyhow::{Context as _, Result, ensure};
use half::bf16;
use prelude_exec_cuda::{
    ProductEngine, Weight,
    measure::{Device, ProductCounts, logits_f32},
};
use prelude_models::Ops as _;

use super::{Layer, in_step};
use crate::{
    results::{Outcome, Verdict},
    session::Session,
    values,
};

/// Name of the result that says if cuBLASLt ran the products that were right.
const BY_LIBRARY: &str = "cuBLASLt products";

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
    /// None: both factors are in bf16.
    None,
    /// A row of either factor.
    Rows,
    /// A block of 128 × 128 of the weight, and 128 elements of a row.
    Blocks,
}

impl Scales {
    /// Returns a row as products take it.
    fn rounded(self, row: &[bf16]) -> Vec<f64> {
        match self {
            Self::None => row.iter().map(|&x| f64::from(x)).collect(),
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
        if scales != Scales::Blocks {
            let (weight, w) = values::matrix(&mut loader, 11, n, k)?;
            let row = Box::new(move |row: usize| scales.rounded(&w[row * k..][..k]));
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

/// Checks products in bf16, and notes whether the library ran them.
pub(super) fn in_bf16(session: &mut Session, layer: Layer) -> Result<()> {
    let mut ran = None;
    session.check("products at model shapes", |s| {
        let by = products(s, layer, Scales::None, false)?;
        let text = format!("{} sums: bf16, added, f32", by.compared);
        ran = Some(by);
        Ok(text)
    })?;
    session.add(match ran {
        Some(ran) => ran.by_library(),
        None => Outcome::new(BY_LIBRARY, Verdict::Skip).because("the products are not right"),
    })
}

/// Checks products in fp8.
///
/// # Errors
/// The first sum that is wrong.
pub(super) fn in_fp8(
    session: &mut Session,
    layer: Layer,
    scales: Scales,
    deterministic: bool,
) -> Result<String> {
    let ran = products(session, layer, scales, deterministic)?;
    let ProductCounts {
        library,
        own,
        skinny,
    } = ran.counts;
    let kernel = match scales {
        Scales::Blocks => "gemm_fp8_block",
        Scales::None | Scales::Rows => "gemm_fp8",
    };
    // Other GPUs have no such products.
    let facts = session.target.facts();
    let is_hopper = facts.is_some_and(|facts| facts.compute_capability == (9, 0));
    ensure!(
        library > 0 || !(takes_scales(&ran.engine) && is_hopper),
        "cuBLASLt has multiplied nothing, and {kernel} all"
    );
    Ok(format!(
        "{} sums; products: {library} by cuBLASLt, {skinny} by {kernel}_few, {own} by {kernel}",
        ran.compared
    ))
}

/// Counts of products at model shapes, by the code that ran them.
#[derive(Debug)]
struct Ran {
    engine: ProductEngine,
    counts: ProductCounts,
    /// Shapes that the library did not take.
    fallbacks: Vec<String>,
    /// Sums that were right.
    compared: usize,
}

impl Ran {
    /// Returns the outcome: the library must have run the products, since right products by our own
    /// kernel say nothing about it.
    fn by_library(&self) -> Outcome {
        let ProductCounts {
            library,
            own,
            skinny,
        } = self.counts;
        let verdict = match &self.engine {
            ProductEngine::CublasLt { .. } if library > 0 && own == 0 => Verdict::Pass,
            ProductEngine::CublasLt { .. } => Verdict::Fail,
            _ => Verdict::Skip,
        };
        let mut text = match verdict {
            Verdict::Skip => self.engine.to_string(),
            _ => format!(
                "{library} by it, {skinny} by gemm_skinny, {own} by gemm_mma; {}",
                self.engine
            ),
        };
        if verdict == Verdict::Fail && !self.fallbacks.is_empty() {
            text = format!("by gemm_mma: {}; {text}", self.fallbacks.join(", "));
        }
        Outcome::new(BY_LIBRARY, verdict).because(text)
    }
}

/// Checks products of each matrix of a layer, in each form that models have, at row counts around
/// tiles.
///
/// # Errors
/// The first sum that is wrong.
fn products(
    session: &mut Session,
    layer: Layer,
    scales: Scales,
    deterministic: bool,
) -> Result<Ran> {
    let mut ran = Ran {
        engine: ProductEngine::Deterministic,
        counts: ProductCounts::default(),
        fallbacks: Vec::new(),
        compared: 0,
    };
    for (name, n, k) in layer.matrices() {
        // The smallest model's are narrower than a block.
        let k = match scales {
            Scales::None | Scales::Rows => k,
            Scales::Blocks => k.next_multiple_of(values::BLOCK),
        };
        for m in session.pick(vec![1, 17, 130, 515], vec![1, 17]) {
            session.beat(|| format!("{name}, M {m}"))?;
            let mut room = layer.room(m, 4, 64, m * (2 * n + k) + 4096)?;
            room.fp8 = scales != Scales::None;
            room.model.intermediate_size = room.model.intermediate_size.max(k);
            let mut device = Device::open(&session.target, &room, deterministic)?;
            let Matrix { weight, row: of_w } = Matrix::new(&device, scales, n, k)?;
            let x = match scales {
                Scales::None | Scales::Rows => values::values(12, m * k),
                Scales::Blocks => values::uneven_groups(12, m * k),
            };
            let before = values::values(13, m * n);
            let (written, added, logits, counts) = in_step(&mut device, &room, |ops| {
                let input = ops.filled(m, k, &x)?;
                let mut written = ops.alloc(m, n)?;
                ops.linear(&input, m, &weight, &mut written)?;
                let mut added = ops.filled(m, n, &before)?;
                ops.linear_add(&input, 0..m, &weight, &mut added)?;
                let logits = match scales {
                    Scales::None => Some(logits_f32(ops, &input, &weight)?),
                    Scales::Rows | Scales::Blocks => None,
                };
                ran.engine = ops.products().clone();
                let (written, added) = (ops.read(&written)?, ops.read(&added)?);
                Ok((written, added, logits, ops.product_counts()))
            })?;
            ran.counts.library += counts.library;
            ran.counts.own += counts.own;
            ran.counts.skinny += counts.skinny;
            if counts.own > 0 {
                ran.fallbacks.push(format!("{name} M {m}"));
            }
            for column in (0..n).step_by(97).chain([n - 1]) {
                let w = of_w(column);
                for row in [0, 1.min(m - 1), m / 2, m - 1] {
                    let x = scales.rounded(&x[row * k..][..k]);
                    let at = row * n + column;
                    let got = [written[at], added[at]].map(f64::from);
                    let logit = logits.as_ref().map(|logits| f64::from(logits[at]));
                    check(scales, (got, logit), (&x, &w), f64::from(before[at]))
                        .with_context(|| format!("{name} [{m}, {n}] row {row} column {column}"))?;
                    ran.compared += 2 + usize::from(logit.is_some());
                }
            }
        }
    }
    Ok(ran)
}

/// Returns true if a library multiplies that takes scales of rows and blocks: cuBLASLt from 12.9 on.
fn takes_scales(engine: &ProductEngine) -> bool {
    let ProductEngine::CublasLt { version, .. } = engine else {
        return false;
    };
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(12), Some(9))
}

/// Compares an element of a product, written, added and in f32 if it was asked for so, with the sum of
/// its terms.
fn check(
    scales: Scales,
    ([written, added], logit): ([f64; 2], Option<f64>),
    (x, w): (&[f64], &[f64]),
    before: f64,
) -> Result<()> {
    let terms = x.iter().zip(w).map(|(x, w)| x * w);
    let (sum, size) = terms.fold((0.0, 0.0), |(s, a): (f64, f64), t| (s + t, a + t.abs()));
    // Sums in f32 in any order. Tensor cores of Hopper keep fewer bits of sums of e4m3 than of bf16.
    let order = match scales {
        Scales::None => size * 2f64.powi(-20),
        Scales::Rows | Scales::Blocks => size * 2f64.powi(-12),
    };
    let after = before + sum;
    // Then one rounding to bf16, but of logits. A product may be rounded before it is added too:
    // cuBLASLt's kernels for one row do that.
    let of_added = order + before.abs() * 2f64.powi(-20) + (after.abs() + sum.abs()) / 256.0;
    for (form, got, expected, bound) in [
        ("bf16", Some(written), sum, order + sum.abs() / 256.0),
        ("added", Some(added), after, of_added),
        ("f32", logit, sum, 2.0 * order + sum.abs() * 2f64.powi(-20)),
    ] {
        ensure!(
            got.is_none_or(|got| (got - expected).abs() <= bound),
            "{form}: {got:?} and not {expected} ± {bound}"
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
        let passes = |sum: f64| {
            let got = ([sum, sum + 1.0], None);
            check(Scales::Blocks, got, (&x[1], &w), 1.0).is_ok()
        };
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

    #[test]
    fn products_by_our_own_kernel_are_none_of_the_library() {
        let library = ProductEngine::CublasLt {
            version: "13.1.0".to_owned(),
            library: "libcublasLt.so.13".into(),
            plans: "none".to_owned(),
            counts: prelude_exec_cuda::PlanCounts::default(),
        };
        let check = |engine: &ProductEngine, library, own, expected| {
            let ran = Ran {
                engine: engine.clone(),
                counts: ProductCounts {
                    library,
                    own,
                    skinny: 4,
                },
                fallbacks: (0..own).map(|i| format!("qkv M {i}")).collect(),
                compared: 0,
            };
            let outcome = ran.by_library();
            assert_eq!(outcome.verdict, expected, "{library} and {own}");
            outcome.reason
        };
        check(&library, 48, 0, Verdict::Pass);
        let some = check(&library, 47, 1, Verdict::Fail);
        assert!(some.starts_with("by gemm_mma: qkv M 0; 47 by it"), "{some}");
        check(&library, 0, 48, Verdict::Fail);
        check(&library, 0, 0, Verdict::Fail);
        let none = check(&ProductEngine::Emulated, 0, 48, Verdict::Skip);
        assert!(none.contains("emulated"), "{none}");
    }

    /// Counts are right where the recording device stands in for the library.
    #[test]
    fn counts_say_what_multiplied() {
        let layer = Layer::of("tiny").unwrap();
        let room = layer.room(20, 4, 64, 1 << 13).unwrap();
        let counts = |deterministic| {
            let target = prelude_exec_cuda::measure::Target::recorded();
            let mut device = Device::open(&target, &room, deterministic).unwrap();
            let (weight, _) = values::matrix(&mut device.loader().unwrap(), 1, 64, 64).unwrap();
            let counts = in_step(&mut device, &room, |ops| {
                let (x, mut y) = (ops.alloc(20, 64)?, ops.alloc(20, 64)?);
                ops.linear(&x, 3, &weight, &mut y)?;
                ops.linear(&x, 20, &weight, &mut y)?;
                ops.linear_add(&x, 0..17, &weight, &mut y)?;
                Ok(ops.product_counts())
            });
            counts.unwrap()
        };
        let of = |library, own, skinny| ProductCounts {
            library,
            own,
            skinny,
        };
        assert_eq!(counts(false), of(2, 0, 1));
        assert_eq!(counts(true), of(0, 3, 0));
    }
}
