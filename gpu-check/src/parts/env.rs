//! The machine, and the ceilings that bound the figures of all other parts.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use half::bf16;
use prelude_exec_cuda::measure::{Device, times};
use prelude_models::Ops as _;

use super::{Layer, NO_FP8, has_fp8, in_step};
use crate::{
    session::{CEILING_BYTES, CEILING_FLOPS, CEILING_SUSTAINED, Figure, Session, Work},
    values,
};

const OWN_PRODUCT: &str = "gemm_mma 8192³, bf16";
/// The products of that size in fp8.
const FP8_PRODUCT: &str = "product 8192³, fp8";
const OWN_FP8_PRODUCT: &str = "gemm_fp8 8192³";
/// The time that sustained products take at least.
const SUSTAINED: Duration = Duration::from_secs(2);
/// Products of a round: about 0.3 s at 800 TFLOP/s, and no more launches than a driver queues.
const SUSTAINED_ROUND: usize = 200;

pub(super) fn run(session: &mut Session) -> Result<()> {
    if let Some(facts) = session.target.facts() {
        let (major, minor) = facts.compute_capability;
        let text = format!("{} sm_{major}{minor}, CUDA {}", facts.name, facts.driver);
        session.note("device", text)?;
    } else {
        session.skip("device", "emulated: no GPU was asked for")?;
    }
    for line in session.run().libraries.clone() {
        session.log(&line)?;
    }
    if session.is_smoke() {
        session.skip(
            "kernel images load",
            "emulated: kernels are compiled for the host",
        )?;
    } else {
        session.check("kernel images load", |s| {
            s.target.load_kernels()?;
            Ok(format!("{} families", prelude_kernels::FAMILIES.len()))
        })?;
    }
    session.check("one launch", one_launch)?;
    let bytes = session.pick(2 << 30, 1 << 16);
    session.attempt(CEILING_BYTES, |s| {
        let times = s.target.copy_times(bytes, s.pick(12, 3))?;
        s.figure(Figure {
            // Read once, written once.
            work: Some(Work::Bytes(2.0 * bytes as f64)),
            ..Figure::of(CEILING_BYTES, &times)
        })
    })?;
    session.attempt(CEILING_FLOPS, |s| product(s, Product::Burst))?;
    session.attempt(CEILING_SUSTAINED, |s| product(s, Product::Sustained))?;
    // From here on as just measured.
    session.look_for_ceilings();
    session.attempt(OWN_PRODUCT, |s| product(s, Product::Own))?;
    if has_fp8(session) {
        session.attempt(FP8_PRODUCT, |s| product(s, Product::Fp8))?;
        session.attempt(OWN_FP8_PRODUCT, |s| product(s, Product::OwnFp8))?;
    } else {
        session.skip(FP8_PRODUCT, NO_FP8)?;
    }
    match crate::nvcc::find() {
        Some(path) => session.note("nvcc", path.display().to_string()),
        None => session.skip("nvcc", "not on this machine"),
    }
}

/// Checks the simplest kernel against the host's own arithmetic.
fn one_launch(session: &mut Session) -> Result<String> {
    let layer = Layer::of("tiny")?;
    let room = layer.room(1, 4, 64, 1 << 14)?;
    let mut device = Device::open(&session.target, &room, false)?;
    let input = values::values(7, 2 * 3 * 64);
    let output = in_step(&mut device, &room, |ops| {
        let gate_up = ops.filled(3, 128, &input)?;
        let mut a = ops.alloc(3, 64)?;
        ops.silu_mul(&gate_up, 3, &mut a)?;
        ops.read(&a)
    })?;
    for (row, got) in input.chunks_exact(128).zip(output.chunks_exact(64)) {
        for i in 0..64 {
            let (g, u) = (f64::from(row[i]), f64::from(row[64 + i]));
            let expected = g / (1.0 + (-g).exp()) * u;
            // Two roundings to bf16.
            let bound = 2.0 * expected.abs() / 256.0 + 1e-30;
            let off = (f64::from(got[i]) - expected).abs();
            ensure!(
                off <= bound,
                "silu({g}) · {u} is {} and not {expected}",
                got[i]
            );
        }
    }
    Ok("silu_mul is right".to_owned())
}

/// The way in which the product of 8192³ is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Product {
    /// The product by NVIDIA's library, some milliseconds: before power is what bounds it.
    Burst,
    /// The product by NVIDIA's library, until the clocks have settled: what long work may hope for.
    Sustained,
    /// The product by our own kernel.
    Own,
    /// The product by NVIDIA's library, of rows and weights in fp8; the time includes rounding the
    /// rows.
    Fp8,
    /// The product in fp8 by our own kernel.
    OwnFp8,
}

impl Product {
    const fn name(self) -> &'static str {
        match self {
            Self::Burst => CEILING_FLOPS,
            Self::Sustained => CEILING_SUSTAINED,
            Self::Own => OWN_PRODUCT,
            Self::Fp8 => FP8_PRODUCT,
            Self::OwnFp8 => OWN_FP8_PRODUCT,
        }
    }
}

fn product(session: &mut Session, kind: Product) -> Result<()> {
    let own = matches!(kind, Product::Own | Product::OwnFp8);
    let n = session.pick(8192, 128);
    let layer = Layer {
        hidden: n,
        mlp: n,
        ..Layer::of("tiny")?
    };
    let mut room = layer.room(n, 4, 64, 2 * n * n)?;
    room.fp8 = matches!(kind, Product::Fp8 | Product::OwnFp8);
    let mut device = Device::open(&session.target, &room, own)?;
    let (weight, _) = values::matrix(&mut device.loader()?, 1, n, n)?;
    let input: Vec<bf16> = values::values(2, n * n);
    let (repetitions, lasts) = match kind {
        Product::Sustained => session.pick((SUSTAINED_ROUND, SUSTAINED), (3, Duration::ZERO)),
        _ => (session.pick(12, 3), Duration::ZERO),
    };
    let (engine, counts, times) = in_step(&mut device, &room, |ops| {
        let x = ops.filled(n, n, &input)?;
        let mut y = ops.alloc(n, n)?;
        let start = Instant::now();
        let mut round = || {
            times(ops, repetitions, |ops, _| {
                ops.linear(&x, n, &weight, &mut y)
            })
        };
        // The last round counts: the clocks are then what they stay at.
        let mut times = round()?;
        while start.elapsed() < lasts {
            times = round()?;
        }
        Ok((ops.products().to_string(), ops.product_counts(), times))
    })?;
    session.log(&engine)?;
    // Our own kernel is no bound of anything.
    if !own && session.target.is_gpu() && counts.own > 0 {
        return session.skip(kind.name(), format!("not by cuBLASLt: {engine}"));
    }
    // Products of e4m3 take half the time of those of bf16 at best.
    let ceiling = session.ceilings.flops.and_then(|flops| match kind {
        Product::Burst | Product::Sustained => None,
        Product::Own => Some(flops),
        Product::Fp8 | Product::OwnFp8 => Some(2.0 * flops),
    });
    let work = 2.0 * (n as f64).powi(3);
    session.figure(Figure {
        work: Some(Work::Flops(work)),
        bound_s: ceiling.map(|ceiling| work / ceiling),
        reason: engine,
        ..Figure::of(kind.name(), &times)
    })
}
