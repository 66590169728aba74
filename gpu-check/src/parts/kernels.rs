//! Checks of every wrapper on the conformance table, of products of real shapes, and of equal bits.

use anyhow::{Context as _, Result, ensure};
use half::bf16;
use prelude_exec_cuda::{
    ProductEngine,
    measure::{Device, ProductCounts, Room, logits_f32, product_f32},
};
use prelude_models::{
    Ops as _,
    conformance::{self, Demands, Precision, Spec},
};

use super::{
    Layer, NO_FP8,
    fp8::{self, Scales},
    has_fp8, in_step, mode,
};
use crate::{
    golden::{self, Mode},
    results::{Outcome, Verdict},
    session::{Session, Size},
    values,
};

/// Name of the result that says if cuBLASLt ran the products that were right.
const BY_LIBRARY: &str = "cuBLASLt products";

/// A suite of the conformance table.
type Suite = fn(Demands, &dyn Fn(&Spec) -> Device);

/// The suites, and whether matrices of layers are in fp8 in each.
const SUITES: [(&str, Suite, bool); 7] = [
    ("products", |d, open| conformance::products(d, open), false),
    (
        "elementwise",
        |d, open| conformance::elementwise(d, open),
        false,
    ),
    ("experts", |d, open| conformance::experts(d, open), false),
    (
        "experts in fp8",
        |d, open| conformance::experts_in_fp8(d, open),
        true,
    ),
    ("heads", |d, open| conformance::heads(d, open), false),
    (
        "attention",
        |d, open| conformance::attention(d, open),
        false,
    ),
    ("encoders", |d, open| conformance::encoders(d, open), false),
];

pub(super) fn run(session: &mut Session) -> Result<()> {
    let layer = Layer::of(match session.size {
        Size::Full => "qwen3-0.6b",
        Size::Small | Size::Smoke => "tiny",
    })?;
    let mut ran = None;
    session.check("products at model shapes", |s| {
        let (text, by) = products(s, layer)?;
        ran = Some(by);
        Ok(text)
    })?;
    session.add(match ran {
        Some(ran) => ran.by_library(),
        None => Outcome::new(BY_LIBRARY, Verdict::Skip).because("the products are not right"),
    })?;
    session.check("a row's bits for every M", |s| same_bits(s, layer))?;
    if has_fp8(session) {
        for deterministic in [false, true] {
            for (scales, of) in [(Scales::Rows, ""), (Scales::Blocks, ", scales of blocks")] {
                let mode = mode(deterministic);
                let name = format!("products in fp8 at model shapes{of}{mode}");
                session.check(&name, |s| fp8::products(s, layer, scales, deterministic))?;
            }
        }
    } else {
        session.skip("products in fp8 at model shapes", NO_FP8)?;
    }
    session.attempt("order of sums in m16n8k16", tensor_core_order)?;
    if session.size == Size::Small {
        // Every kernel in models, without the thousands of small cases.
        for name in ["rand-cls3", "demo-lm"] {
            session.check(&format!("golden {name}"), |s| {
                golden::check(s, name, 70, 128, 256, Mode::default())
            })?;
        }
        return Ok(());
    }
    suites(session)
}

/// Runs the conformance suites in both modes.
fn suites(session: &mut Session) -> Result<()> {
    for (name, suite, fp8) in SUITES {
        if fp8 && !has_fp8(session) {
            session.skip(&format!("conformance: {name}"), NO_FP8)?;
            continue;
        }
        // The table of attention is long for an emulation, whose own tests run it.
        if session.is_smoke() && name == "attention" {
            session.skip(
                "conformance: attention",
                "emulated: `cargo test -p prelude-exec-cuda` runs it",
            )?;
            continue;
        }
        for deterministic in [true, false] {
            if session.is_smoke() && !deterministic {
                continue;
            }
            let name = format!("conformance: {name}{}", mode(deterministic));
            session.check_within(&name, 5.0, |s| conform(s, suite, fp8, deterministic))?;
        }
    }
    Ok(())
}

fn conform(session: &mut Session, suite: Suite, fp8: bool, deterministic: bool) -> Result<String> {
    let demands = Demands {
        precision: Precision::Bf16,
        batch_invariant: deterministic,
    };
    let devices = std::cell::Cell::new(0);
    suite(demands, &|spec| {
        devices.set(devices.get() + 1);
        // What cannot be said cannot be written either: the next result says so.
        let _ = session.beat(|| format!("case {}", devices.get()));
        let room = Room {
            fp8,
            ..Room::from(spec)
        };
        match Device::open(&session.target, &room, deterministic) {
            Ok(device) => device,
            Err(error) => panic!("case {}: {error}", devices.get()),
        }
    });
    Ok(format!("{} cases", devices.get()))
}

/// Counts of products at model shapes, by the code that ran them.
#[derive(Debug)]
struct Ran {
    engine: ProductEngine,
    counts: ProductCounts,
    /// Shapes that the library did not take.
    fallbacks: Vec<String>,
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

/// Checks products of each matrix of a layer, in each form that models have, against sums in f64,
/// at row counts around tiles.
fn products(session: &mut Session, layer: Layer) -> Result<(String, Ran)> {
    let mut compared = 0;
    let mut ran = Ran {
        engine: ProductEngine::Deterministic,
        counts: ProductCounts::default(),
        fallbacks: Vec::new(),
    };
    for (name, n, k) in layer.matrices() {
        for m in session.pick(vec![1, 17, 130, 515], vec![1, 17]) {
            let forms = forms(session, layer, (m, n, k))?;
            for row in [0, m / 2, m - 1] {
                for column in (0..n).step_by(97).chain([n - 1]) {
                    forms
                        .check(row, column, (n, k))
                        .with_context(|| format!("{name} [{m}, {n}] row {row} column {column}"))?;
                    compared += 3;
                }
            }
            ran.counts.library += forms.counts.library;
            ran.counts.own += forms.counts.own;
            ran.counts.skinny += forms.counts.skinny;
            if forms.counts.own > 0 {
                ran.fallbacks.push(format!("{name} M {m}"));
            }
            ran.engine = forms.engine;
        }
    }
    Ok((format!("{compared} sums: bf16, added, f32"), ran))
}

/// A product in each form, and what it is of.
struct Forms {
    engine: ProductEngine,
    counts: ProductCounts,
    x: Vec<bf16>,
    w: Vec<bf16>,
    written: Vec<bf16>,
    /// The values of `added` before the product.
    before: Vec<bf16>,
    added: Vec<bf16>,
    logits: Vec<f32>,
}

impl Forms {
    fn check(&self, row: usize, column: usize, (n, k): (usize, usize)) -> Result<()> {
        let x = &self.x[row * k..][..k];
        let w = &self.w[column * k..][..k];
        let terms = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
        let (sum, size) = terms.fold((0.0, 0.0), |(s, a): (f64, f64), t| (s + t, a + t.abs()));
        let at = row * n + column;
        let before = f64::from(self.before[at]);
        // Sums in f32 in any order; then one rounding to bf16, but of logits. A product may be
        // rounded before it is added too: cuBLASLt's kernels for one row do that.
        let order = |size: f64| size * 2f64.powi(-20);
        for (form, got, expected, bound) in [
            (
                "bf16",
                f64::from(self.written[at]),
                sum,
                order(size) + sum.abs() / 256.0,
            ),
            (
                "added",
                f64::from(self.added[at]),
                before + sum,
                order(size + before.abs()) + ((before + sum).abs() + sum.abs()) / 256.0,
            ),
            (
                "f32",
                f64::from(self.logits[at]),
                sum,
                2.0 * order(size) + sum.abs() * 2f64.powi(-20),
            ),
        ] {
            ensure!(
                (got - expected).abs() <= bound,
                "{form}: {got} and not {expected} ± {bound}"
            );
        }
        Ok(())
    }
}

fn forms(session: &Session, layer: Layer, (m, n, k): (usize, usize, usize)) -> Result<Forms> {
    let room = layer.room(m, 4, 64, m * (2 * n + k) + 4096)?;
    let mut device = Device::open(&session.target, &room, false)?;
    let (weight, w) = values::matrix(&mut device.loader()?, 11, n, k)?;
    let (x, before) = (values::values(12, m * k), values::values(13, m * n));
    let made = in_step(&mut device, &room, |ops| {
        let input = ops.filled(m, k, &x)?;
        let mut written = ops.alloc(m, n)?;
        ops.linear(&input, m, &weight, &mut written)?;
        let mut added = ops.filled(m, n, &before)?;
        ops.linear_add(&input, 0..m, &weight, &mut added)?;
        let logits = logits_f32(ops, &input, &weight)?;
        let (written, added) = (ops.read(&written)?, ops.read(&added)?);
        let (engine, counts) = (ops.products().clone(), ops.product_counts());
        Ok((written, added, logits, engine, counts))
    })?;
    let (written, added, logits, engine, counts) = made;
    Ok(Forms {
        engine,
        counts,
        x,
        w,
        written,
        before,
        added,
        logits,
    })
}

/// Multiplies fixed values in deterministic mode: `x · wᵀ`, `[m, n]`.
fn multiply(session: &Session, layer: Layer, n: usize, k: usize, m: usize) -> Result<Vec<bf16>> {
    let room = layer.room(m, 4, 64, m * (n + k) + 4096)?;
    let mut device = Device::open(&session.target, &room, true)?;
    let (weight, _) = values::matrix(&mut device.loader()?, 11, n, k)?;
    // A row's values do not depend on how many there are.
    let x: Vec<bf16> = (0..m as u64)
        .flat_map(|row| values::values(100 + row, k))
        .collect();
    let y = in_step(&mut device, &room, |ops| {
        let input = ops.filled(m, k, &x)?;
        let mut y = ops.alloc(m, n)?;
        ops.linear(&input, m, &weight, &mut y)?;
        ops.read(&y)
    })?;
    Ok(y)
}

/// Checks that in deterministic mode a row of a product has the same bits among any number of rows.
fn same_bits(session: &mut Session, layer: Layer) -> Result<String> {
    let counts = session.pick(vec![1, 2, 16, 17, 64, 128, 129, 1000], vec![1, 16, 17, 130]);
    let [_, (name, n, k), ..] = layer.matrices();
    let mut first: Option<Vec<bf16>> = None;
    for &m in &counts {
        let y = multiply(session, layer, n, k, m)?;
        let row = y[..n].to_vec();
        match &first {
            None => first = Some(row),
            Some(first) => {
                let other = row
                    .iter()
                    .zip(first)
                    .position(|(a, b)| a.to_bits() != b.to_bits());
                ensure!(
                    other.is_none(),
                    "{name}, M {m}: column {other:?} of row 0 has other bits than for M 1"
                );
            }
        }
    }
    Ok(format!("{name}, M {counts:?}"))
}

/// Finds the order of sums that explains the tensor core's results for K = 16: the emulation adds k
/// = 0, 1,
/// 2, … with a rounding each, hardware is believed to add several products exactly and to cut off.
fn tensor_core_order(session: &mut Session) -> Result<()> {
    const K: usize = 16;
    let (m, n) = (64, 64);
    let layer = Layer::of("tiny")?;
    let room = layer.room(m, 4, 64, 1 << 14)?;
    let mut device = Device::open(&session.target, &room, true)?;
    let (weight, w) = values::matrix(&mut device.loader()?, 21, n, K)?;
    let x = values::values(22, m * K);
    let y = in_step(&mut device, &room, |ops| {
        let x = ops.filled(m, K, &x)?;
        product_f32(ops, &x, &weight)
    })?;
    let (mut in_turn, mut exact) = (0, 0);
    for (i, got) in y.iter().enumerate() {
        let (x, w) = (&x[i / n * K..][..K], &w[i % n * K..][..K]);
        let terms: Vec<f32> = x
            .iter()
            .zip(w)
            .map(|(x, w)| x.to_f32() * w.to_f32())
            .collect();
        let turn = terms.iter().fold(0f32, |sum, t| sum + t);
        // Products of bf16 are exact in f32, and 16 of them of like size are exact in f64.
        let whole = terms.iter().map(|&t| f64::from(t)).sum::<f64>() as f32;
        in_turn += usize::from(turn.to_bits() == got.to_bits());
        exact += usize::from(whole.to_bits() == got.to_bits());
        let size: f32 = terms.iter().map(|t| t.abs()).sum();
        ensure!(
            (got - whole).abs() <= size * 2f32.powi(-19),
            "sum {i} is {got} and not {whole}"
        );
    }
    let text = format!(
        "of {} sums {in_turn} are as in the emulation (in turn), {exact} exact, rounded once",
        y.len()
    );
    match session.is_smoke() {
        true if in_turn == y.len() => session.pass("order of sums in m16n8k16", text),
        true => session.fail("order of sums in m16n8k16", text),
        false => session.note("order of sums in m16n8k16", text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
