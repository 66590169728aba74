//! Every wrapper on the conformance table, products of real shapes, and equal bits.

use anyhow::{Result, ensure};
use half::bf16;
use prelude_exec_cuda::measure::{Device, Room, product_f32};
use prelude_models::{
    Ops as _,
    conformance::{self, Demands, Precision, Spec},
};

use super::{Layer, checked};
use crate::{
    batches::Forest,
    golden,
    session::{Session, Size},
    values,
};

/// A suite of the conformance table.
type Suite = fn(Demands, &dyn Fn(&Spec) -> Device);

const SUITES: [(&str, Suite); 4] = [
    ("products", |d, open| conformance::products(d, open)),
    ("elementwise", |d, open| conformance::elementwise(d, open)),
    ("heads", |d, open| conformance::heads(d, open)),
    ("attention", |d, open| conformance::attention(d, open)),
];

pub(super) fn run(session: &mut Session) -> Result<()> {
    let layer = Layer::of(match session.size {
        Size::Full => "qwen3-0.6b",
        Size::Small | Size::Smoke => "tiny",
    })?;
    session.check("products at model shapes", |s| products(s, layer))?;
    session.check("a row's bits for every M", |s| same_bits(s, layer))?;
    session.attempt("order of sums in m16n8k16", tensor_core_order)?;
    if session.size == Size::Small {
        // Every kernel in models, without the thousands of small cases.
        for name in ["rand-cls3", "demo-lm"] {
            session.check(&format!("golden {name}"), |s| {
                golden::check(s, name, 70, 128, 256, false)
            })?;
        }
        return Ok(());
    }
    for (name, suite) in SUITES {
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
            let mode = if deterministic { ", deterministic" } else { "" };
            let name = format!("conformance: {name}{mode}");
            if session.has_time(&name, 30.0)? {
                session.check(&name, |s| conform(s, suite, deterministic))?;
            }
        }
    }
    Ok(())
}

fn conform(session: &mut Session, suite: Suite, deterministic: bool) -> Result<String> {
    let demands = Demands {
        precision: Precision::Bf16,
        batch_invariant: deterministic,
    };
    let devices = std::cell::Cell::new(0);
    suite(demands, &|spec| {
        devices.set(devices.get() + 1);
        match Device::open(&session.target, &Room::from(spec), deterministic) {
            Ok(device) => device,
            Err(error) => panic!("case {}: {error}", devices.get()),
        }
    });
    Ok(format!("{} cases", devices.get()))
}

/// Rows of a product of each matrix of a layer, against sums in f64, at row counts around tiles.
fn products(session: &mut Session, layer: Layer) -> Result<String> {
    let mut compared = 0;
    for (name, n, k) in layer.matrices() {
        for m in session.pick(vec![1, 17, 130, 515], vec![1, 17]) {
            let (output, input, weight) = multiply(session, layer, n, k, m, false)?;
            for row in [0, m / 2, m - 1] {
                for column in (0..n).step_by(97).chain([n - 1]) {
                    let x = &input[row * k..][..k];
                    let w = &weight[column * k..][..k];
                    let terms = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
                    let (sum, size) =
                        terms.fold((0.0, 0.0), |(s, a): (f64, f64), t| (s + t, a + t.abs()));
                    let got = f64::from(output[row * n + column]);
                    // Sums in f32 in any order, then one rounding to bf16.
                    let bound = size * 2f64.powi(-20) + sum.abs() / 256.0;
                    ensure!(
                        (got - sum).abs() <= bound,
                        "{name} [{m}, {n}] row {row} column {column}: {got} and not {sum} ± {bound}"
                    );
                    compared += 1;
                }
            }
        }
    }
    Ok(format!("{compared} sums"))
}

/// `x · wᵀ` of fixed values: output `[m, n]`, `x` `[m, k]`, `w` `[n, k]`.
fn multiply(
    session: &Session,
    layer: Layer,
    n: usize,
    k: usize,
    m: usize,
    deterministic: bool,
) -> Result<(Vec<bf16>, Vec<bf16>, Vec<bf16>)> {
    let room = layer.room(m, 4, 64, m * (n + k) + 4096)?;
    let mut device = Device::open(&session.target, &room, deterministic)?;
    let (weight, w) = values::matrix(&mut device.loader(), 11, n, k)?;
    // A row's values do not depend on how many there are.
    let x: Vec<bf16> = (0..m as u64)
        .flat_map(|row| values::values(100 + row, k))
        .collect();
    let batch = checked(Forest::prompt(&[0], vec![]).oneshot(), &room)?;
    let (y, _) = device.step(batch, |ops, _| {
        let input = ops.filled(m, k, &x)?;
        let mut y = ops.alloc(m, n)?;
        ops.linear(&input, m, &weight, &mut y)?;
        ops.read(&y)
    })?;
    Ok((y, x, w))
}

/// In deterministic mode a row of a product has the same bits among any number of rows.
fn same_bits(session: &mut Session, layer: Layer) -> Result<String> {
    let counts = session.pick(vec![1, 2, 16, 17, 64, 128, 129, 1000], vec![1, 16, 17, 130]);
    let [_, (name, n, k), ..] = layer.matrices();
    let mut first: Option<Vec<bf16>> = None;
    for &m in &counts {
        let (y, ..) = multiply(session, layer, n, k, m, true)?;
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

/// Which order of sums explains the tensor core's results for K = 16: the emulation adds k = 0, 1,
/// 2, … with a rounding each, hardware is believed to add several products exactly and to cut off.
fn tensor_core_order(session: &mut Session) -> Result<()> {
    const K: usize = 16;
    let (m, n) = (64, 64);
    let layer = Layer::of("tiny")?;
    let room = layer.room(m, 4, 64, 1 << 14)?;
    let mut device = Device::open(&session.target, &room, true)?;
    let (weight, w) = values::matrix(&mut device.loader(), 21, n, K)?;
    let x = values::values(22, m * K);
    let batch = checked(Forest::prompt(&[0], vec![]).oneshot(), &room)?;
    let (y, _) = device.step(batch, |ops, _| {
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
