//! Checks of every wrapper on the conformance table, of products of real shapes, and of equal bits.

use anyhow::{Result, ensure};
use half::bf16;
use prelude_exec_cuda::measure::{Device, Room, product_f32};
use prelude_models::{
    Ops as _,
    conformance::{self, Demands, Precision, Spec},
};

use super::{
    Layer, NO_FP8, has_fp8, in_step, mode,
    products::{self, Scales},
};
use crate::{
    golden::{self, Mode},
    session::{Session, Size},
    values,
};

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
    products::in_bf16(session, layer)?;
    session.check("a row's bits for every M", |s| same_bits(s, layer))?;
    if has_fp8(session) {
        for deterministic in [false, true] {
            for (scales, of) in [(Scales::Rows, ""), (Scales::Blocks, ", scales of blocks")] {
                let mode = mode(deterministic);
                let name = format!("products in fp8 at model shapes{of}{mode}");
                session.check(&name, |s| products::in_fp8(s, layer, scales, deterministic))?;
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
