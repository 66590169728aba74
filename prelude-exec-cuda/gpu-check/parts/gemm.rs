//! Products at both models' shapes, by the number of rows.

use anyhow::Result;
use half::bf16;
use prelude_exec_cuda::{
    CudaOps, Error, Tensor, Weight,
    measure::{Device, Room, Target, Tuner, seconds},
};
use prelude_models::Ops as _;

use super::{Layer, checked};
use crate::{
    batches::Forest,
    results,
    session::{Figure, Session, Work},
    values,
};

/// Row counts, the ends and the most telling first.
const ROWS: [usize; 15] = [
    1, 512, 128, 16, 8192, 64, 2048, 256, 32, 1024, 4096, 4, 8, 384, 1536,
];
const ROWS_SMOKE: [usize; 2] = [1, 17];
/// Bytes of weights that a measurement goes round, so that they come from memory and not from the
/// L2 cache.
const ROTATION_BYTES: usize = 240 << 20;

pub(super) fn run(session: &mut Session) -> Result<()> {
    session.say_ceilings()?;
    let models: &[&str] = session.pick(&["qwen3-0.6b", "qwen3-4b"], &["tiny"]);
    let rows: &[usize] = session.pick(&ROWS, &ROWS_SMOKE);
    let mut tuner = Tuner::default();
    for model in models {
        let layer = Layer::of(model)?;
        for (name, n, k) in layer.matrices() {
            let what = format!("{model} {name} {n}×{k}");
            if session.has_time(&what, 12.0)? {
                session.attempt(&what, |s| {
                    library(s, &mut tuner, layer, &what, (n, k), rows)
                })?;
                session.attempt(&what, |s| own(s, layer, &what, (n, k), rows))?;
            }
        }
    }
    match tuner.file() {
        Some(text) => {
            results::replace(&session.out.join("gemm-plans.json"), text.as_bytes())?;
            session.pass("plan file", "gemm-plans.json")?;
        }
        None => session.skip("plan file", "no algorithm of cuBLASLt was measured")?,
    }
    session.skip("fp8, scale a row", "fp8 products are not built yet")?;
    session.skip("fp8, scale a block", "fp8 products are not built yet")?;
    session.skip("gemm_skinny, M ≤ 16", "the kernel is not built yet")
}

/// One matrix, several copies of it, and room for the largest number of rows.
struct Bench {
    device: Device,
    room: Room,
    weights: Vec<Weight>,
    input: Vec<bf16>,
}

impl Bench {
    fn open(
        session: &Session,
        target: &Target,
        layer: Layer,
        (n, k): (usize, usize),
        most: usize,
        deterministic: bool,
    ) -> Result<Self> {
        let room = layer.room(most, 4, 64, most * (n + k) + 4096)?;
        let device = Device::open(target, &room, deterministic)?;
        let copies = session.pick(ROTATION_BYTES.div_ceil(2 * n * k), 2);
        let mut loader = device.loader();
        let mut weights = Vec::new();
        for copy in 0..copies as u64 {
            weights.push(values::matrix(&mut loader, copy, n, k)?.0);
        }
        Ok(Self {
            device,
            room,
            weights,
            input: values::values(9, most * k),
        })
    }

    /// Calls `body` in a step with `m` rows of input and of output.
    fn with<T>(
        &mut self,
        m: usize,
        (n, k): (usize, usize),
        body: impl FnOnce(&mut CudaOps, &Tensor, &[Weight], &mut Tensor) -> Result<T, Error>,
    ) -> Result<T> {
        let batch = checked(Forest::prompt(&[0], vec![]).oneshot(), &self.room)?;
        let (input, weights) = (&self.input[..m * k], &self.weights);
        let (made, _) = self.device.step(batch, |ops, _| {
            let x = ops.filled(m, k, input)?;
            let mut y = ops.alloc(m, n)?;
            body(ops, &x, weights, &mut y)
        })?;
        Ok(made)
    }
}

/// Rows in which a matrix is measured, and what a figure of it is held against.
fn figure(
    session: &mut Session,
    name: &str,
    (m, n, k): (usize, usize, usize),
    times: &[f64],
    reason: String,
) -> Result<()> {
    let flops = 2.0 * (m * n) as f64 * k as f64;
    let bytes = 2.0 * (n * k + m * (n + k)) as f64;
    session.figure(Figure {
        name,
        // The first ones wait for the host.
        seconds: &times[session.pick(2, 1)..],
        work: Some(Work::Flops(flops)),
        bound_s: session.ceilings.bound_s(flops, bytes),
        detail: !matches!(m, 1 | 128 | 512 | 8192),
        reason,
        ..Figure::default()
    })
}

/// cuBLASLt: the heuristic's first algorithm and the fastest of those that it names.
fn library(
    session: &mut Session,
    tuner: &mut Tuner,
    layer: Layer,
    what: &str,
    (n, k): (usize, usize),
    rows: &[usize],
) -> Result<()> {
    // The emulation has no library; the device that writes down plays one.
    let target = match session.is_smoke() {
        true => Target::recorded(),
        false => session.target.clone(),
    };
    let most = rows.iter().copied().max().unwrap_or(1);
    let mut bench = Bench::open(session, &target, layer, (n, k), most, false)?;
    let repetitions = session.pick(12, 2);
    for &m in rows {
        let measured = bench.with(m, (n, k), |ops, x, weights, y| {
            let engine = ops.products().to_string();
            let measured = tuner.measure(ops, (x, weights, y), repetitions)?;
            Ok(measured.ok_or(engine))
        })?;
        let name = format!("{what}, M {m}, cuBLASLt");
        match measured {
            Ok(measured) => {
                let reason = format!("best of {}", measured.candidates);
                figure(
                    session,
                    &format!("{name}, best"),
                    (m, n, k),
                    &measured.best,
                    reason,
                )?;
                let name = format!("{name}, heuristic's first");
                figure(session, &name, (m, n, k), &measured.first, String::new())?;
            }
            Err(engine) => return session.skip(&format!("{what}, cuBLASLt"), engine),
        }
    }
    Ok(())
}

/// Our own kernel, as deterministic mode runs it.
fn own(
    session: &mut Session,
    layer: Layer,
    what: &str,
    (n, k): (usize, usize),
    rows: &[usize],
) -> Result<()> {
    let most = rows.iter().copied().max().unwrap_or(1);
    let target = session.target.clone();
    let mut bench = Bench::open(session, &target, layer, (n, k), most, true)?;
    let repetitions = session.pick(12, 2);
    for &m in rows {
        let times = bench.with(m, (n, k), |ops, x, weights, y| {
            seconds(ops, repetitions, |ops, i| {
                ops.linear(x, m, &weights[i % weights.len()], y)
            })
        })?;
        let name = format!("{what}, M {m}, gemm_mma");
        figure(session, &name, (m, n, k), &times, String::new())?;
    }
    Ok(())
}
