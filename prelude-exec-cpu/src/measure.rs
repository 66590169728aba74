//! Rates of the kernels on this machine, for examples and benchmarks.

use std::{
    hint::black_box,
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    ComputePool, CpuDtype, Error, Isa,
    kernels::{
        Backend, InputForm, Supported,
        gemm::{Format, Matrix, Multiplier, ProductOutput},
        spin,
    },
};

/// Rounds of a measurement of handing over a cache line, the fastest of which counts.
const HANDOVER_ROUNDS: u32 = 8;
/// Times that a round hands a cache line over and gets it back.
const HANDOVERS: u32 = 500;

/// Returns the time in nanoseconds in which a cache line goes from one core to another and back.
///
/// A step of few tokens is a chain of joins, which wait for such lines. On a virtual machine the time
/// changes while it runs, as the host moves its processors: on an EPYC 60 ns where two processors
/// share a third-level cache, 300 ns where they do not, 30 ns where they share a core.
#[must_use]
pub fn handover_ns() -> f64 {
    /// A counter that shares its cache lines with nothing.
    #[repr(align(128))]
    struct Line(AtomicU32);

    fn wait_for(line: &Line, value: u32) {
        let mut spins = 0u32;
        while line.0.load(Ordering::Acquire) != value {
            spins = spins.wrapping_add(1);
            std::hint::spin_loop();
            // The other thread may have no core.
            if spins.is_multiple_of(1 << 16) {
                thread::yield_now();
            }
        }
    }

    let line = Line(AtomicU32::new(0));
    let mut fastest = Duration::MAX;
    thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..HANDOVER_ROUNDS * HANDOVERS {
                wait_for(&line, 2 * i + 1);
                line.0.store(2 * i + 2, Ordering::Release);
            }
        });
        for round in 0..HANDOVER_ROUNDS {
            let start = Instant::now();
            for i in round * HANDOVERS..(round + 1) * HANDOVERS {
                line.0.store(2 * i + 1, Ordering::Release);
                wait_for(&line, 2 * i + 2);
            }
            fastest = fastest.min(start.elapsed());
        }
    });
    fastest.as_secs_f64() * 1e9 / f64::from(HANDOVERS)
}

/// A weight matrix on one path, and rows to multiply with it.
#[derive(Debug)]
pub struct Product {
    matrix: Matrix,
    multiplier: Multiplier,
    x: Vec<f32>,
    out: Vec<f32>,
    flops: usize,
}

impl Product {
    /// Makes a product of `rows` rows by a matrix of `dtype`, whose shape is `[outputs, inputs]`.
    ///
    /// # Errors
    /// [`Error::Instructions`] if the machine lacks `isa`.
    ///
    /// # Panics
    /// If `inputs` is odd.
    pub fn new(
        pool: &ComputePool,
        isa: Isa,
        dtype: CpuDtype,
        rows: usize,
        shape: (usize, usize),
    ) -> Result<Self, Error> {
        let supported = Supported::new(isa).ok_or(Error::Instructions { isa: isa.as_str() })?;
        let act = InputForm::of(supported, dtype);
        let format = match (dtype, act) {
            (CpuDtype::Bf16, InputForm::Tiles) => Format::Tiles,
            (CpuDtype::Bf16, _) => Format::Bf16,
            (CpuDtype::F32, _) => Format::F32,
        };
        Ok(Self::of_format(pool, (supported, act), format, rows, shape))
    }

    /// Makes the products of [`Self::new`] with weights and rows rounded to int8.
    ///
    /// # Errors
    /// [`Error::Instructions`] if the machine lacks `isa`.
    pub fn int8(
        pool: &ComputePool,
        isa: Isa,
        rows: usize,
        shape: (usize, usize),
    ) -> Result<Self, Error> {
        let supported = Supported::new(isa).ok_or(Error::Instructions { isa: isa.as_str() })?;
        let form = (supported, InputForm::F32);
        Ok(Self::of_format(pool, form, Format::Int8, rows, shape))
    }

    fn of_format(
        pool: &ComputePool,
        (isa, act): (Supported, InputForm),
        format: Format,
        rows: usize,
        (outputs, inputs): (usize, usize),
    ) -> Self {
        let value = |i: usize| ((i * 7919) % 255) as f32 / 128.0 - 1.0;
        let matrix = Matrix::new(pool, format, (outputs, inputs), |o, row| {
            row.extend((0..inputs).map(|i| value(o * 31 + i)));
        });
        let multiplier = Multiplier::new(Backend { isa, act }, rows, inputs, 0);
        Self {
            matrix,
            multiplier: match format {
                Format::Int8 => multiplier.with_int8(rows, inputs),
                _ => multiplier,
            },
            x: (0..rows * inputs).map(value).collect(),
            out: vec![0.0; rows * outputs],
            flops: 2 * rows * outputs * inputs,
        }
    }

    /// Multiplies once, conversion of the rows included.
    pub fn run(&mut self, pool: &ComputePool) {
        self.multiplier.run(
            pool,
            &self.x,
            &self.matrix,
            ProductOutput::Write,
            &mut self.out,
        );
    }

    /// Multiplications and additions of one run.
    #[must_use]
    pub const fn flops(&self) -> usize {
        self.flops
    }
}

/// Measures the floating-point operations per second of all workers with operands in registers:
/// multiply-adds of bf16 pairs or of f32. `None` where the path has no vector instructions for them; a
/// bf16 path without bf16 instructions multiplies in f32.
#[must_use]
pub fn peak_flops_per_second(pool: &ComputePool, isa: Isa, dtype: CpuDtype) -> Option<f64> {
    // About half a millisecond, so that of many tries some are not interrupted.
    const ROUNDS: usize = 100_000;
    const TRIES: usize = 100;
    let isa = Supported::new(isa)?;
    let bf16 = InputForm::of(isa, dtype) != InputForm::F32;
    spin(isa, bf16, 1)?;
    let mut best = 0.0f64;
    for _ in 0..TRIES {
        let start = Instant::now();
        let done = Mutex::new((0, Duration::ZERO));
        pool.run(pool.threads(), usize::MAX, &|_, _| {
            let flops = spin(isa, bf16, ROUNDS).unwrap_or(0);
            let mut done = done.lock().expect("nothing panics under the lock");
            done.0 += flops;
            done.1 = start.elapsed();
        });
        let (flops, elapsed) = done.into_inner().expect("nothing panics under the lock");
        best = best.max(flops as f64 / elapsed.as_secs_f64());
    }
    Some(best)
}

/// Measures the bytes per second at which all workers together read memory that no cache holds.
///
/// # Panics
/// If 512 MiB cannot be had.
#[must_use]
pub fn bytes_read_per_second(pool: &ComputePool) -> f64 {
    const LINES: usize = 8 << 20;
    const PARTS: usize = 64;
    const TRIES: usize = 5;
    let memory: Vec<[u64; 8]> = (0..LINES as u64).map(|line| [line; 8]).collect();
    let memory = black_box(memory);
    let read = |part: usize, _worker: usize| {
        let lines = &memory[part * (LINES / PARTS)..][..LINES / PARTS];
        let mut sums = [0u64; 8];
        for line in lines {
            for (sum, word) in sums.iter_mut().zip(line) {
                *sum = sum.wrapping_add(*word);
            }
        }
        black_box(sums);
    };
    let seconds = |_| {
        let start = Instant::now();
        pool.run(PARTS, usize::MAX, &read);
        start.elapsed().as_secs_f64()
    };
    let fastest = (0..TRIES).map(seconds).fold(f64::INFINITY, f64::min);
    size_of_val(memory.as_slice()) as f64 / fastest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_with_vectors_has_a_peak() {
        for isa in Isa::ALL.into_iter().filter_map(Supported::new) {
            for dtype in [CpuDtype::F32, CpuDtype::Bf16] {
                let bf16 = InputForm::of(isa, dtype) != InputForm::F32;
                let flops = spin(isa, bf16, 10);
                assert_eq!(flops.is_some(), isa.isa() != Isa::Scalar, "{isa:?}");
            }
        }
    }

    #[test]
    fn a_line_is_handed_over() {
        let ns = handover_ns();
        assert!(ns.is_finite() && ns > 0.0, "{ns}");
    }
}
