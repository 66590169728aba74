//! Products by the kernel for Hopper, `sm90_gemm`, beside cuBLASLt: right, the same bits in any company,
//! and how fast; also with the gates of a layer computed at once.

use anyhow::{Context as _, Result, ensure};
use half::bf16;
use prelude_exec_cuda::{
    CudaOps, Error, Weight,
    measure::{Device, Room, WeightCycle, times},
};
use prelude_models::{Ops as _, step::ArenaTensor};

use super::{Layer, gemm::ROTATION_BYTES, in_step};
use crate::{
    session::{Figure, Session, Work},
    values,
};

pub(super) fn run(session: &mut Session) -> Result<()> {
    let layer = Layer::of(session.pick("qwen3-0.6b", "tiny"))?;
    session.check("sm90_gemm against sums in f64", |s| sums(s, layer))?;
    session.check("sm90_gemm in any company", |s| company(s, layer))?;
    session.check("gates by sm90_gemm and by two kernels", |s| {
        two_kernels(s, layer)
    })?;
    session.attempt("sm90_gemm beside gemm_mma", |s| beside_mma(s, layer))?;
    // So large that nothing but the products themselves counts.
    let size = session.pick(8192, 64);
    let what = format!("product {size}³");
    session.attempt_within(&what, 2.0, |s| {
        products(s, layer, &what, ("square", size, size))
    })?;
    let models: &[&str] = session.pick(&["qwen3-4b", "qwen3-0.6b"], &["tiny"]);
    for model in models {
        let layer = Layer::of(model)?;
        let what = format!("{model} gate-up and silu");
        session.attempt_within(&what, 4.0, |s| gates(s, layer, &what))?;
        for (name, n, k) in layer.matrices() {
            if name != "gate-up" {
                let what = format!("{model} {name} {n}×{k}");
                session.attempt_within(&what, 2.0, |s| products(s, layer, &what, (name, n, k)))?;
            }
        }
    }
    Ok(())
}

/// The use of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Write,
    Add,
    Gates,
}

/// Returns all uses of a product, and both ways of storing.
fn forms() -> impl Iterator<Item = (Form, bool)> {
    let forms = [Form::Write, Form::Add, Form::Gates];
    forms
        .into_iter()
        .flat_map(|form| [(form, false), (form, true)])
}

/// A product of `[n, k]` by the kernel.
#[derive(Clone, Copy, Debug)]
struct Product {
    form: Form,
    /// True if tiles are stored by warps of their own.
    apart: bool,
    n: usize,
    k: usize,
}

/// The two ways in which tiles are stored.
const KERNELS: [(&str, bool); 2] = [("sm90_gemm", false), ("sm90_gemm, stored apart", true)];

impl Product {
    /// Columns of the output.
    const fn width(&self) -> usize {
        match self.form {
            Form::Gates => self.n / 2,
            Form::Write | Form::Add => self.n,
        }
    }

    fn queue(
        &self,
        ops: &mut CudaOps,
        x: &ArenaTensor,
        w: &Weight,
        y: &mut ArenaTensor,
    ) -> Result<(), Error> {
        match self.form {
            Form::Gates => ops.gates_on_hopper(x, w, self.apart, y),
            form => ops.linear_on_hopper(x, w, (form == Form::Add, self.apart), y),
        }
    }
}

/// A device with room for rows of products of `[n, k]`, their outputs and what comes of these.
struct Bench {
    device: Device,
    room: Room,
}

impl Bench {
    fn open(
        session: &Session,
        layer: Layer,
        (m, n, k): (usize, usize, usize),
        deterministic: bool,
    ) -> Result<Self> {
        let room = layer.room(m, 4, 64, m * (2 * n + k) + 4096)?;
        let device = Device::open(&session.target, &room, deterministic)?;
        Ok(Self { device, room })
    }

    /// Returns the matrix of products that are checked.
    fn matrix(&self, n: usize, k: usize) -> Result<Weight> {
        Ok(values::matrix(&mut self.device.loader()?, 11, n, k)?.0)
    }

    fn step<T>(&mut self, body: impl FnOnce(&mut CudaOps) -> Result<T, Error>) -> Result<T> {
        in_step(&mut self.device, &self.room, body)
    }

    /// Multiplies rows; the output holds `before` at first.
    fn multiply(
        &mut self,
        product: &Product,
        w: &Weight,
        x: &[bf16],
        before: &[bf16],
    ) -> Result<Vec<bf16>> {
        let m = x.len() / product.k;
        self.step(|ops| {
            let x = ops.filled(m, product.k, x)?;
            let mut y = ops.filled(m, product.width(), before)?;
            product.queue(ops, &x, w, &mut y)?;
            ops.read(&y)
        })
    }
}

/// Checks products of each matrix of a layer, at row counts around tiles.
fn sums(session: &mut Session, layer: Layer) -> Result<String> {
    let mut compared = 0;
    let rows = session.pick(vec![1, 127, 128, 129, 515], vec![1, 17]);
    for (name, n, k) in layer.matrices() {
        let mut bench = Bench::open(session, layer, (515, n, k), false)?;
        let weight = bench.matrix(n, k)?;
        let w = values::values(11, n * k);
        for (form, apart) in forms() {
            let product = Product { form, apart, n, k };
            for &m in &rows {
                session.beat(|| format!("{name}, {form:?}, M {m}"))?;
                let x = values::values(12, m * k);
                let width = product.width();
                let before = values::values(13, m * width);
                let got = bench.multiply(&product, &weight, &x, &before)?;
                for column in (0..width).step_by(97).chain([width - 1]) {
                    let sum = |row: usize, column: usize| {
                        let terms = x[row * k..][..k].iter().zip(&w[column * k..][..k]);
                        let terms = terms.map(|(x, w)| x.to_f64() * w.to_f64());
                        terms.fold((0.0, 0.0), |(s, a): (f64, f64), t| (s + t, a + t.abs()))
                    };
                    for row in [0, m / 2, m - 1] {
                        let at = row * width + column;
                        let up = match form {
                            Form::Gates => sum(row, width + column).0,
                            Form::Write | Form::Add => 0.0,
                        };
                        check(form, got[at], sum(row, column), up, before[at].to_f64())
                            .with_context(|| {
                                format!("{name}, {form:?}, M {m}, row {row} column {column}")
                            })?;
                        compared += 1;
                    }
                }
            }
        }
    }
    Ok(format!("{compared} elements: written, added, gates"))
}

/// Compares an element with what it is of: a sum with the sum of its terms' sizes, that of its other
/// half, and what was there before.
fn check(form: Form, got: bf16, (sum, size): (f64, f64), up: f64, before: f64) -> Result<()> {
    // Tensor cores cut bits of partial sums off.
    let order = size * 2f64.powi(-18);
    let (expected, bound) = match form {
        Form::Write => (sum, order + sum.abs() / 256.0),
        Form::Add => (sum + before, order + (sum + before).abs() / 256.0 + 1e-6),
        Form::Gates => {
            let silu = sum / (1.0 + (-sum).exp());
            // Gate, silu, up and product are rounded, and the slope of silu is at most 1.1.
            let of_gate = 1.1 * (order + sum.abs() / 256.0) + silu.abs() / 256.0;
            let of_up = order + up.abs() / 256.0;
            let bound = of_gate * (up.abs() + of_up) + silu.abs() * of_up;
            (silu * up, 1.02 * bound + (silu * up).abs() / 256.0 + 1e-6)
        }
    };
    let got = got.to_f64();
    ensure!(
        (got - expected).abs() <= bound,
        "{got} and not {expected} ± {bound}"
    );
    Ok(())
}

/// Checks that a row has the same bits alone and at places of larger batches.
fn company(session: &mut Session, layer: Layer) -> Result<String> {
    let mut places = 0;
    for (name, n, k) in layer.matrices() {
        let mut bench = Bench::open(session, layer, (700, n, k), false)?;
        let weight = bench.matrix(n, k)?;
        for (form, apart) in forms() {
            let product = Product { form, apart, n, k };
            let width = product.width();
            let (row, before) = (values::values(21, k), values::values(22, width));
            let alone = bench.multiply(&product, &weight, &row, &before)?;
            let batches = session.pick(vec![(130, 128), (700, 77), (700, 699)], vec![(17, 9)]);
            for (m, at) in batches {
                session.beat(|| format!("{name}, {form:?}, M {m}"))?;
                let mut x = values::values(23, m * k);
                let mut all = values::values(24, m * width);
                x[at * k..][..k].copy_from_slice(&row);
                all[at * width..][..width].copy_from_slice(&before);
                let among = bench.multiply(&product, &weight, &x, &all)?;
                let among = &among[at * width..][..width];
                let other = alone
                    .iter()
                    .zip(among)
                    .position(|(a, b)| a.to_bits() != b.to_bits());
                ensure!(
                    other.is_none(),
                    "{name}, {form:?}: column {other:?} of row {at} of {m} has other bits than alone"
                );
                places += 1;
            }
        }
    }
    Ok(format!("{places} places"))
}

/// Gates have the bits of `silu_mul` behind a plain product.
fn two_kernels(session: &mut Session, layer: Layer) -> Result<String> {
    let (n, k) = (2 * layer.mlp, layer.hidden);
    let m = session.pick(515, 17);
    let product = Product {
        form: Form::Gates,
        apart: false,
        n,
        k,
    };
    let x = values::values(12, m * k);
    let mut bench = Bench::open(session, layer, (m, n, k), false)?;
    let w = bench.matrix(n, k)?;
    let at_once = bench.multiply(&product, &w, &x, &values::values(13, m * layer.mlp))?;
    let in_turn = bench.step(|ops| {
        let x = ops.filled(m, k, &x)?;
        let mut gate_up = ops.alloc(m, n)?;
        let mut a = ops.alloc(m, layer.mlp)?;
        ops.linear_on_hopper(&x, &w, (false, true), &mut gate_up)?;
        ops.silu_mul(&gate_up, m, &mut a)?;
        ops.read(&a)
    })?;
    let differ = differences(&at_once, &in_turn);
    ensure!(differ == 0, "{differ} of {} elements differ", in_turn.len());
    Ok(format!("{} elements have the same bits", in_turn.len()))
}

fn differences(a: &[bf16], b: &[bf16]) -> usize {
    let pairs = a.iter().zip(b);
    pairs.filter(|(a, b)| a.to_bits() != b.to_bits()).count()
}

/// Says how many elements have other bits by `gemm_mma`. With none, deterministic mode could give few
/// rows to that kernel and many to this one.
fn beside_mma(session: &mut Session, layer: Layer) -> Result<()> {
    let (_, n, k) = layer.matrices()[0];
    let m = session.pick(515, 17);
    let product = Product {
        form: Form::Write,
        apart: false,
        n,
        k,
    };
    let x = values::values(12, m * k);
    let mut bench = Bench::open(session, layer, (m, n, k), true)?;
    let w = bench.matrix(n, k)?;
    let hopper = bench.multiply(&product, &w, &x, &values::values(13, m * n))?;
    let mma = bench.step(|ops| {
        let x = ops.filled(m, k, &x)?;
        let mut y = ops.alloc(m, n)?;
        ops.linear(&x, m, &w, &mut y)?;
        ops.read(&y)
    })?;
    let text = format!(
        "{} of {} elements have other bits than by gemm_mma",
        differences(&hopper, &mma),
        mma.len()
    );
    session.note("sm90_gemm beside gemm_mma", text)
}

/// Returns weights of one shape, more of them than the L2 cache holds.
fn weights(session: &Session, bench: &Bench, n: usize, k: usize) -> Result<Vec<Weight>> {
    let mut loader = bench.device.loader()?;
    let copies = session.pick(ROTATION_BYTES.div_ceil(n * k * 2), 2);
    let copies = 0..copies as u64;
    copies
        .map(|copy| Ok(values::matrix(&mut loader, copy, n, k)?.0))
        .collect()
}

/// Measures the first half of a layer's second half both ways.
fn gates(session: &mut Session, layer: Layer, what: &str) -> Result<()> {
    let rows = session.pick(vec![4096, 8192, 2048], vec![17]);
    let (n, k) = (2 * layer.mlp, layer.hidden);
    let product = |apart| Product {
        form: Form::Gates,
        apart,
        n,
        k,
    };
    let most = rows.iter().copied().max().unwrap_or(1);
    let mut bench = Bench::open(session, layer, (most, n, k), false)?;
    let weights = weights(session, &bench, n, k)?;
    let input = values::values(9, most * k);
    let repetitions = session.pick(12, 2);
    let mut turn = WeightCycle::default();
    for m in rows {
        session.beat(|| format!("{what}, M {m}"))?;
        let (in_turn, at_once) = bench.step(|ops| {
            let x = ops.filled(m, k, &input[..m * k])?;
            let mut gate_up = ops.alloc(m, n)?;
            let mut a = ops.alloc(m, layer.mlp)?;
            let in_turn = times(ops, repetitions, |ops, _| {
                ops.linear(&x, m, turn.next(&weights), &mut gate_up)?;
                ops.silu_mul(&gate_up, m, &mut a)
            })?;
            let at_once = KERNELS.map(|(by, apart)| {
                let times = times(ops, repetitions, |ops, _| {
                    product(apart).queue(ops, &x, turn.next(&weights), &mut a)
                })?;
                Ok((by, times))
            });
            Ok((in_turn, at_once))
        })?;
        let at_once = at_once.into_iter().collect::<Result<Vec<_>, Error>>()?;
        let in_turn = ("cuBLASLt and silu_mul", in_turn);
        for (by, times) in [in_turn].into_iter().chain(at_once) {
            let product = product(false);
            let bytes = 2 * (n * k + m * k + m * layer.mlp);
            figure(
                session,
                &format!("{what}, M {m}, {by}"),
                (m, product),
                bytes,
                &times,
            )?;
        }
    }
    Ok(())
}

/// Measures one matrix by the executor's choice, cuBLASLt where that is, and by this kernel.
fn products(
    session: &mut Session,
    layer: Layer,
    what: &str,
    (name, n, k): (&str, usize, usize),
) -> Result<()> {
    let m = session.pick(8192, 17);
    let form = match name {
        "qkv" | "square" => Form::Write,
        _ => Form::Add,
    };
    let product = |apart| Product { form, apart, n, k };
    let mut bench = Bench::open(session, layer, (m, n, k), false)?;
    let weights = weights(session, &bench, n, k)?;
    let (input, before) = (values::values(9, m * k), values::values(10, m * n));
    let repetitions = session.pick(12, 2);
    let mut turn = WeightCycle::default();
    session.beat(|| format!("{what}, M {m}"))?;
    let (library, hopper) = bench.step(|ops| {
        let x = ops.filled(m, k, &input)?;
        let mut y = ops.filled(m, n, &before)?;
        let library = times(ops, repetitions, |ops, _| {
            let w = turn.next(&weights);
            match form {
                Form::Add => ops.linear_add(&x, 0..m, w, &mut y),
                Form::Write | Form::Gates => ops.linear(&x, m, w, &mut y),
            }
        })?;
        let hopper = KERNELS.map(|(by, apart)| {
            let times = times(ops, repetitions, |ops, _| {
                product(apart).queue(ops, &x, turn.next(&weights), &mut y)
            })?;
            Ok((by, times))
        });
        Ok((library, hopper))
    })?;
    let hopper = hopper.into_iter().collect::<Result<Vec<_>, Error>>()?;
    for (by, times) in [("cuBLASLt", library)].into_iter().chain(hopper) {
        let product = product(false);
        let outputs = if form == Form::Add { 2 } else { 1 };
        let bytes = 2 * (n * k + m * k + outputs * m * n);
        figure(
            session,
            &format!("{what}, M {m}, {by}"),
            (m, product),
            bytes,
            &times,
        )?;
    }
    Ok(())
}

/// Writes down the rate of a product's operations, those of gates beside it not counted.
fn figure(
    session: &mut Session,
    name: &str,
    (m, product): (usize, Product),
    bytes: usize,
    times: &prelude_exec_cuda::measure::Times,
) -> Result<()> {
    let flops = 2.0 * (m * product.n) as f64 * product.k as f64;
    session.figure(Figure {
        work: Some(Work::Flops(flops)),
        bound_s: session.ceilings.bound_s(flops, bytes as f64),
        reason: format!("{:.0} us", 1e6 * crate::session::median(&times.seconds)),
        ..Figure::of(name, times)
    })
}
