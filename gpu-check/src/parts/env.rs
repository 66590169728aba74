//! The machine, and the ceilings that bound the figures of all other parts.

use anyhow::{Result, ensure};
use half::bf16;
use prelude_exec_cuda::measure::{Device, times};
use prelude_models::Ops as _;

use super::{Layer, NO_FP8, has_fp8, in_step};
use crate::{
    session::{CEILING_BYTES, CEILING_FLOPS, Figure, Session, Work},
    values,
};

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
    session.attempt(CEILING_FLOPS, |s| product(s, Product::Ceiling))?;
    // From here on as just measured.
    session.look_for_ceilings();
    session.attempt("gemm_mma 8192³, bf16", |s| product(s, Product::Own))?;
    if has_fp8(session) {
        session.attempt("product 8192³, fp8", |s| product(s, Product::Fp8))?;
        session.attempt("gemm_fp8 8192³", |s| product(s, Product::OwnFp8))?;
    } else {
        session.skip("product 8192³, fp8", NO_FP8)?;
    }
    match crate::nvcc::find() {
        Some(path) => session.note("nvcc", path.display().to_string()),
        None => session.skip("nvcc", "not on this machine"),
    }
}

/// The simplest kernel, against the host's own arithmetic.
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

/// A product of the size at which GPUs are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Product {
    /// The library's of bf16, the ceiling of all others of bf16.
    Ceiling,
    /// Our own kernel's of bf16.
    Own,
    /// Of rows and weights in fp8; rounding the rows is in its time.
    Fp8,
    /// The same by our own kernel.
    OwnFp8,
}

impl Product {
    const fn name(self) -> &'static str {
        match self {
            Self::Ceiling => CEILING_FLOPS,
            Self::Own => "gemm_mma 8192³, bf16",
            Self::Fp8 => "product 8192³, fp8",
            Self::OwnFp8 => "gemm_fp8 8192³",
        }
    }
}

fn product(session: &mut Session, of: Product) -> Result<()> {
    let deterministic = matches!(of, Product::Own | Product::OwnFp8);
    let n = session.pick(8192, 128);
    let layer = Layer {
        hidden: n,
        mlp: n,
        ..Layer::of("tiny")?
    };
    let mut room = layer.room(n, 4, 64, 2 * n * n)?;
    room.fp8 = matches!(of, Product::Fp8 | Product::OwnFp8);
    let mut device = Device::open(&session.target, &room, deterministic)?;
    let (weight, _) = values::matrix(&mut device.loader(), 1, n, n)?;
    let input: Vec<bf16> = values::values(2, n * n);
    let repetitions = session.pick(12, 3);
    let (engine, counts, times) = in_step(&mut device, &room, |ops| {
        let x = ops.filled(n, n, &input)?;
        let mut y = ops.alloc(n, n)?;
        let times = times(ops, repetitions, |ops, _| {
            ops.linear(&x, n, &weight, &mut y)
        })?;
        Ok((ops.products().to_string(), ops.product_counts(), times))
    })?;
    session.log(&engine)?;
    // Our own kernel is no bound of anything.
    if !deterministic && session.target.is_gpu() && counts.own > 0 {
        return session.skip(of.name(), format!("not by cuBLASLt: {engine}"));
    }
    // Products of e4m3 take half the time of those of bf16 at best.
    let ceiling = session.ceilings.flops.map(|flops| match of {
        Product::Ceiling | Product::Own => flops,
        Product::Fp8 | Product::OwnFp8 => 2.0 * flops,
    });
    let ceiling = ceiling.filter(|_| of != Product::Ceiling);
    let work = 2.0 * (n as f64).powi(3);
    session.figure(Figure {
        work: Some(Work::Flops(work)),
        bound_s: ceiling.map(|ceiling| work / ceiling),
        reason: engine,
        ..Figure::of(of.name(), &times)
    })
}
