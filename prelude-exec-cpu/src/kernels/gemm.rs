//! Products of activations with weights.
//!
//! Weights are cut into panels of 64 output columns (see [`super::panel`]); a product is cut into
//! tasks of one panel by up to 96 rows, on tiles of a matrix unit (see [`tiled`]) by more. A panel
//! of 1024 inputs is 128 KiB in bf16 and stays in a core's second-level cache while the rows pass
//! by; the 12 KiB of six rows stay in the first.

mod gated;
mod matrix;
mod tiled;

pub(crate) use matrix::{Format, Matrix};

use super::{Backend, InputForm, Supported};
use crate::{
    kernels::{
        fp8, int8,
        lines::Lines,
        panel::{MR, NR, Right, Rows, Tile, multiply},
        simd,
    },
    pool::ComputePool,
};

/// Most rows of a task.
const ROW_BLOCK: usize = 16 * MR;

/// Least rows of a task where a product has more: with fewer, reading the panel takes longer than
/// multiplying it.
const LEAST_ROWS: usize = 4 * MR;

/// The use of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProductOutput {
    /// Overwritten.
    Write,
    /// Added to.
    Add,
}

/// Multiplies rows with matrices.
#[derive(Debug)]
pub(crate) struct Multiplier {
    backend: Backend,
    /// Rounded rows, or left tiles.
    pairs: Lines,
    /// Rounded rows, or left tiles, between two products.
    gated: Lines,
    /// Rows in int8 or fp8.
    rounded: Lines,
}

impl Multiplier {
    /// Makes room for `chunk` rows of `widest` inputs, and as many of `gated` between two products.
    pub(crate) fn new(backend: Backend, chunk: usize, widest: usize, gated: usize) -> Self {
        let (pairs, gated) = match backend.act {
            InputForm::F32 => (0, 0),
            InputForm::Bf16 => (chunk * widest.div_ceil(2), chunk * gated.div_ceil(2)),
            InputForm::Tiles => (
                tiled::left_len(chunk, widest),
                tiled::left_len(chunk, gated),
            ),
        };
        Self {
            backend,
            pairs: Lines::zeroed(pairs),
            gated: Lines::zeroed(gated),
            rounded: Lines::zeroed(0),
        }
    }

    /// Adds room for `chunk` rows of `widest` inputs in int8.
    pub(crate) fn with_int8(mut self, chunk: usize, widest: usize) -> Self {
        self.rounded = Lines::zeroed(chunk * int8::row_dwords(widest));
        self
    }

    /// Makes room for `chunk` rows of at most `widest` elements in fp8.
    pub(crate) fn with_fp8(mut self, chunk: usize, widest: usize) -> Self {
        self.rounded = Lines::zeroed(chunk * fp8::room_dwords(widest));
        self
    }

    /// Multiplies as [`Self::run`] does, with rows rounded to the matrix's format, int8 or fp8.
    fn run_rounded(
        &mut self,
        pool: &ComputePool,
        isa: Supported,
        x: &[f32],
        matrix: &Matrix,
        output: ProductOutput,
        out: &mut [f32],
    ) {
        let (inputs, outputs) = (matrix.inputs, matrix.outputs);
        // About 300 operations of bytes per nanosecond and core, 100 of f32.
        let (stride, rate) = match matrix.format {
            Format::Int8 => (int8::row_dwords(inputs), 150),
            Format::Fp8Blocks => (fp8::blocks::row_dwords(inputs), 50),
            _ => (fp8::row_dwords(inputs), 50),
        };
        self.rounded.fit(stride);
        let chunk = self.rounded.len() / stride;
        let chunks = x
            .chunks(chunk * inputs)
            .zip(out.chunks_mut(chunk * outputs));
        for (x, out) in chunks {
            let rounded = &mut self.rounded[..x.len() / inputs * stride];
            pool.rows(rounded, stride, 8, x.len() / 8, |_, first, part| {
                let rows = x[first * inputs..].chunks_exact(inputs);
                for (row, out) in rows.zip(part.chunks_exact_mut(stride)) {
                    match matrix.format {
                        Format::Int8 => simd::quantise_row(isa, row, out),
                        Format::Fp8Blocks => simd::round_groups(isa, row, out),
                        _ => simd::round_row(isa, row, out),
                    }
                }
            });
            let rounded = &*rounded;
            let product = |first: usize, count, panel, _: &[u32], sums: &mut Tile| {
                let (rows, panel) = (&rounded[first * stride..], matrix.dwords(panel));
                match matrix.format {
                    Format::Int8 => int8::multiply(isa, rows, stride, count, panel, sums),
                    Format::Fp8Blocks => {
                        fp8::blocks::multiply(isa, rows, stride, count, panel, sums);
                    }
                    _ => fp8::multiply(isa, rows, stride, count, panel, sums),
                }
            };
            run_tiles(pool, isa, matrix, (output, out), rate, product);
        }
    }

    /// Rounds rows of `inputs` elements to pairs of bf16.
    fn round(&mut self, pool: &ComputePool, isa: Supported, x: &[f32], inputs: usize) {
        let pairs = &mut self.pairs[..x.len() / 2];
        pool.rows(pairs, inputs / 2, 16, x.len() / 8, |_, first, part| {
            let rows = &x[first * inputs..][..part.len() * 2];
            simd::bf16_pairs(isa, rows, part);
        });
    }

    /// `out[i] (+)= matrix · x[i] (+ bias)`. `x`: `[m, inputs]`, `out`: `[m, outputs]`.
    pub(crate) fn run(
        &mut self,
        pool: &ComputePool,
        x: &[f32],
        matrix: &Matrix,
        output: ProductOutput,
        out: &mut [f32],
    ) {
        let (inputs, outputs) = (matrix.inputs, matrix.outputs);
        assert!(x.len().is_multiple_of(inputs), "rows of another width");
        assert_eq!(
            x.len() / inputs * outputs,
            out.len(),
            "another number of rows"
        );
        let Backend { isa, act } = self.backend;
        match act {
            _ if matrix.format.is_rounded() => {
                self.run_rounded(pool, isa, x, matrix, output, out);
            }
            InputForm::F32 => {
                run_panels(pool, isa, (Rows::F32(x), inputs), matrix, output, out);
            }
            InputForm::Tiles => self.run_tiled(pool, isa, x, matrix, output, out),
            InputForm::Bf16 => {
                let half = inputs / 2;
                let chunk = (self.pairs.len() / half).max(1);
                self.pairs.fit(half);
                let chunks = x
                    .chunks(chunk * inputs)
                    .zip(out.chunks_mut(chunk * outputs));
                for (x, out) in chunks {
                    self.round(pool, isa, x, inputs);
                    let rows = Rows::Bf16(&self.pairs[..x.len() / 2]);
                    run_panels(pool, isa, (rows, half), matrix, output, out);
                }
            }
        }
    }
}

fn run_panels(
    pool: &ComputePool,
    isa: Supported,
    (rows, stride): (Rows<'_>, usize),
    matrix: &Matrix,
    output: ProductOutput,
    out: &mut [f32],
) {
    // About 100 flops per nanosecond and core.
    let product = |first: usize, count, panel, next: &[u32], sums: &mut Tile| {
        let rows = rows.skip(first * stride);
        let right = Right {
            next,
            ..Right::new(matrix.panel(panel), NR)
        };
        multiply(isa, rows, stride, count, right, sums);
    };
    run_tiles(pool, isa, matrix, (output, out), 50, product);
}

/// Returns the number of rows of a task: blocks of equal height, as many for one worker as for
/// another, so that each reads the rows which it wrote in the operation before.
fn row_block(rows: usize, workers: usize) -> usize {
    let least = rows.div_ceil(ROW_BLOCK).max(1);
    let most = (rows / LEAST_ROWS).max(least);
    let blocks = least.next_multiple_of(workers).min(most);
    rows.div_ceil(blocks).max(1).next_multiple_of(MR)
}

/// Cuts a product into tiles: `product(first row, rows, panel, next, tile)` computes one, and may fetch
/// the part `next` of the panel after it. A nanosecond and core suffice for `rate` multiply-adds, or
/// for 16 bytes of weights.
fn run_tiles(
    pool: &ComputePool,
    isa: Supported,
    matrix: &Matrix,
    (output, out): (ProductOutput, &mut [f32]),
    rate: usize,
    product: impl Fn(usize, usize, usize, &[u32], &mut Tile) + Sync,
) {
    let outputs = matrix.outputs;
    let m = out.len() / outputs;
    let cost_ns = matrix.cost_ns(m, rate);
    let block = row_block(m, pool.threads());
    pool.tiles(out, outputs, (block, NR), cost_ns, |_, mut tile| {
        let mut sums = Tile::ZERO;
        let panel = tile.first_col / NR;
        // Most likely this worker's next task.
        let mut next = matrix.shares(panel + 1, tile.rows);
        for first in (0..tile.rows).step_by(MR) {
            let count = MR.min(tile.rows - first);
            let next = next.next().unwrap_or_default();
            product(tile.first_row + first, count, panel, next, &mut sums);
            for (i, sums) in sums.0.iter().enumerate().take(count) {
                let (first_col, cols) = (tile.first_col, tile.cols);
                let out = tile.row(first + i);
                let add = output == ProductOutput::Add;
                matrix.finish(isa, first_col, &sums[..cols], add, out);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, kernels::Supported};

    /// Returns element `k` of row `i` of a matrix: -127 to 127 times 1/128, the first of each group
    /// 127, so that every format has it exactly.
    fn element(i: usize, k: usize) -> f32 {
        if k.is_multiple_of(int8::GROUP) {
            return 127.0 / 128.0;
        }
        let x = ((i * 1009 + k * 31 + 5) as u32).wrapping_mul(2_654_435_761) >> 24;
        (x as f32 / 128.0 - 1.0).max(-127.0 / 128.0)
    }

    /// Returns element `k` of row `i` of a matrix for fp8: -7 to 7 times 1/8, the first of each row 7.
    fn element_fp8(i: usize, k: usize) -> f32 {
        if k == 0 {
            return 7.0 / 8.0;
        }
        let x = ((i * 1009 + k * 31 + 5) as u32).wrapping_mul(2_654_435_761) >> 28;
        (x as f32 / 8.0 - 1.0).max(-7.0 / 8.0)
    }

    /// Every backend against f64, with bias and addition, ragged in all dimensions or in none.
    #[test]
    fn products_are_right() {
        let fast = Isa::ALL.into_iter().filter_map(Supported::new);
        let (mut backends, mut of_fp8) = (vec![], vec![]);
        for isa in fast {
            let act = InputForm::F32;
            let backend = Backend { isa, act };
            of_fp8.push((backend, Format::Fp8));
            backends.extend([Format::F32, Format::Bf16, Format::Int8].map(|f| (backend, f)));
            let own = match isa.isa() {
                Isa::AmxBf16 => Some((InputForm::Tiles, Format::Tiles)),
                Isa::Avx512Bf16 | Isa::NeonBf16 => Some((InputForm::Bf16, Format::Bf16)),
                _ => None,
            };
            backends.extend(own.map(|(act, format)| (Backend { isa, act }, format)));
        }
        for (m, outputs, inputs) in [
            (103, 150, 46),
            (103, 150, 2),
            (64, 192, 128),
            (50, 150, 300),
        ] {
            let shape = (m, outputs, inputs);
            backends.iter().for_each(|&of| check(shape, of, element));
            of_fp8.iter().for_each(|&of| check(shape, of, element_fp8));
        }
    }

    #[test]
    fn workers_have_as_many_blocks_of_rows_as_each_other() {
        for (rows, workers, block) in [
            (0, 2, 6),
            (1, 2, 6),
            (20, 2, 24),
            (47, 2, 48),
            (48, 2, 24),
            (128, 1, 66),
            (128, 2, 66),
            (128, 8, 30),
            (192, 2, 96),
            (8192, 2, 96),
        ] {
            assert_eq!(
                row_block(rows, workers),
                block,
                "{rows} rows, {workers} workers"
            );
        }
    }

    #[test]
    fn bf16_is_packed_as_it_is() {
        let pool = ComputePool::new(2);
        for (outputs, inputs) in [(1, 2), (64, 32), (150, 46), (130, 200)] {
            let bits = |o: usize, i: usize| (o * 7919 + i * 31 + 1) as u16 & 0xbfff;
            let rows: Vec<Vec<u8>> = (0..outputs)
                .map(|o| (0..inputs).flat_map(|i| bits(o, i).to_le_bytes()).collect())
                .collect();
            for format in [Format::Bf16, Format::Tiles] {
                let size = (outputs, inputs);
                let direct = Matrix::of_bf16(&pool, format, size, |o| &rows[o]);
                let through_f32 = Matrix::new(&pool, format, size, |o, row| {
                    let of = |i| f32::from_bits(u32::from(bits(o, i)) << 16);
                    row.extend((0..inputs).map(of));
                });
                assert!(*direct.data == *through_f32.data, "{outputs} x {inputs}");
            }
        }
    }

    fn check(
        (m, outputs, inputs): (usize, usize, usize),
        (backend, format): (Backend, Format),
        element: fn(usize, usize) -> f32,
    ) {
        let pool = ComputePool::new(2);
        let x: Vec<f32> = (0..m * inputs)
            .map(|i| element(7 + i / inputs, i % inputs))
            .collect();
        let weight = |o: usize, i: usize| element(1 + 3 * o, i);
        let bias: Vec<f32> = (0..outputs).map(|o| element(o, 77)).collect();
        let matrix = Matrix::new(&pool, format, (outputs, inputs), |o, row| {
            row.extend((0..inputs).map(|i| weight(o, i)));
        })
        .with_bias(Some(bias.clone()));
        let mut out = vec![1.0; m * outputs];
        let multiplier = Multiplier::new(backend, 40, inputs, 0);
        let mut multiplier = match format {
            Format::Fp8 => multiplier.with_fp8(40, inputs),
            _ => multiplier.with_int8(40, inputs),
        };
        multiplier.run(&pool, &x, &matrix, ProductOutput::Add, &mut out);
        for (i, &got) in out.iter().enumerate() {
            let (r, o) = (i / outputs, i % outputs);
            let products =
                (0..inputs).map(|k| f64::from(x[r * inputs + k]) * f64::from(weight(o, k)));
            let exact = products.sum::<f64>() + f64::from(bias[o]) + 1.0;
            assert!(
                (f64::from(got) - exact).abs() < 2e-5,
                "{backend:?} {format:?} {r} {o}: {got} {exact}"
            );
        }
        // Rows alone, and chosen columns alone, have the same bits.
        let chosen = [149, 3, 64, 3];
        let part = matrix.select(&pool, &chosen);
        let mut row = vec![0.0; chosen.len()];
        for r in [0, 41, m - 1] {
            let x = &x[r * inputs..][..inputs];
            multiplier.run(&pool, x, &part, ProductOutput::Write, &mut row);
            let mut whole = vec![0.0; outputs];
            multiplier.run(&pool, x, &matrix, ProductOutput::Write, &mut whole);
            assert!(row.iter().zip(chosen).all(|(&a, o)| a == whole[o as usize]));
            multiplier.run(&pool, x, &matrix, ProductOutput::Add, &mut whole);
            whole.fill(1.0);
            multiplier.run(&pool, x, &matrix, ProductOutput::Add, &mut whole);
            assert_eq!(whole, out[r * outputs..][..outputs]);
        }
        // Nothing reads rows of a layer's matrix.
        if format != Format::Fp8 {
            let mut back = vec![0.0; inputs];
            matrix.read_row(130, &mut back);
            assert!((0..inputs).all(|i| back[i] == weight(130, i)));
        }
    }
}
