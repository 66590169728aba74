//! Products on tiles of a matrix unit: rows are rounded to bf16 and cut into left tiles, then a
//! task multiplies many of them with one panel, which comes from memory once for all.

use super::{Format, Matrix, Multiplier, ProductOutput};
use crate::{
    kernels::{Backend, InputForm, Supported, lines::Lines, panel::NR, tiles},
    pool::ComputePool,
};

/// Dwords of a task's left tiles, at most: with a panel, they stay in a core's second-level cache
/// while a panel is read from memory once for all of them.
const LEFT_DWORDS: usize = 1 << 18;

/// Dwords of `rows` rows, cut into left tiles.
pub(super) fn left_len(rows: usize, inputs: usize) -> usize {
    rows.div_ceil(tiles::ROWS) * run_len(inputs)
}

/// Dwords of 16 rows.
fn run_len(inputs: usize) -> usize {
    tiles::ROWS * Format::Tiles.dwords(inputs)
}

/// Rows in left tiles.
#[derive(Clone, Copy)]
struct Left<'a> {
    rows: usize,
    inputs: usize,
    tiles: &'a [u32],
}

impl Left<'_> {
    /// Tiles of rows `first..first + rows`, of which the first is a multiple of 16.
    fn part(&self, first: usize, rows: usize) -> &[u32] {
        let run = run_len(self.inputs);
        &self.tiles[first / tiles::ROWS * run..][..rows.div_ceil(tiles::ROWS) * run]
    }

    /// Rows of a task, a multiple of 32: a few tasks for each thread, even of few panels.
    fn block(&self, threads: usize, panels: usize) -> usize {
        let down = (4 * threads).div_ceil(panels);
        let most = LEFT_DWORDS / run_len(self.inputs) * tiles::ROWS;
        let block = self.rows.div_ceil(down).min(most);
        block.max(1).next_multiple_of(2 * tiles::ROWS)
    }

    /// About 1000 flops, or 16 bytes of weights, per nanosecond and core.
    fn cost_ns(&self, matrix: &Matrix) -> usize {
        (self.rows * matrix.inputs * matrix.outputs / 500).max(matrix.data.len() / 4)
    }

    /// `out (+)= matrix · self (+ bias)`.
    fn multiply(
        self,
        pool: &ComputePool,
        isa: Supported,
        matrix: &Matrix,
        output: ProductOutput,
        out: &mut [f32],
    ) {
        assert_eq!(self.inputs, matrix.inputs, "rows of another width");
        let block = self.block(pool.threads(), matrix.outputs.div_ceil(NR));
        let cost_ns = self.cost_ns(matrix);
        pool.tiles(out, matrix.outputs, (block, NR), cost_ns, |_, mut tile| {
            let index = tile.first_col / NR;
            // The workers take panels in turn, so this is likely the next of this one.
            let next = matrix.dwords(index + pool.threads());
            let panels = (matrix.dwords(index), next);
            let columns = tile.first_col..tile.first_col + tile.cols;
            let bias = matrix.bias.as_ref().map(|bias| &bias[columns]);
            let left = self.part(tile.first_row, tile.rows);
            tiles::multiply(
                isa,
                left,
                panels,
                bias,
                output == ProductOutput::Add,
                &mut tile,
            );
        });
    }
}

/// Cuts rows into left tiles.
fn cut<'a>(
    pool: &ComputePool,
    isa: Supported,
    x: &[f32],
    inputs: usize,
    buffer: &'a mut Lines,
) -> Left<'a> {
    let (rows, run) = (x.len() / inputs, run_len(inputs));
    let tiles = &mut buffer[..left_len(rows, inputs)];
    pool.rows(tiles, run, 1, x.len() / 12, |_, first, part| {
        let x = &x[first * tiles::ROWS * inputs..];
        let x = &x[..x.len().min(tiles::ROWS * inputs)];
        tiles::pack_rows(isa, x, inputs, part);
    });
    Left {
        rows,
        inputs,
        tiles,
    }
}

impl Multiplier {
    pub(super) fn run_tiled(
        &mut self,
        pool: &ComputePool,
        isa: Supported,
        x: &[f32],
        matrix: &Matrix,
        output: ProductOutput,
        out: &mut [f32],
    ) {
        let (inputs, outputs) = (matrix.inputs, matrix.outputs);
        let run = run_len(inputs);
        self.pairs.fit(run);
        let chunk = self.pairs.len() / run * tiles::ROWS;
        let chunks = x
            .chunks(chunk * inputs)
            .zip(out.chunks_mut(chunk * outputs));
        for (x, out) in chunks {
            cut(pool, isa, x, inputs, &mut self.pairs).multiply(pool, isa, matrix, output, out);
        }
    }

    /// `out[i] += down · (silu(g) · u)`, where `g` and `u` are the halves of `gate_up · x[i]`, if
    /// that can be done without writing `g` and `u` to memory; `false` if not.
    pub(crate) fn run_gated(
        &mut self,
        pool: &ComputePool,
        x: &[f32],
        gate_up: &Matrix,
        down: &Matrix,
        out: &mut [f32],
    ) -> bool {
        let Backend::Fast {
            act: InputForm::Tiles,
            isa,
        } = self.backend
        else {
            return false;
        };
        if (gate_up.format, down.format) != (Format::Tiles, Format::Tiles) {
            return false;
        }
        let (inputs, width) = (gate_up.inputs, down.inputs);
        let rows = x.len() / inputs;
        let fits =
            left_len(rows, inputs) <= self.pairs.len() && left_len(rows, width) <= self.gated.len();
        if !width.is_multiple_of(NR) || gate_up.bias.is_some() || !fits {
            return false;
        }
        assert!(
            gate_up.outputs == 2 * width && out.len() == rows * down.outputs,
            "matrices of another model"
        );
        let left = cut(pool, isa, x, inputs, &mut self.pairs);
        let panels = width / NR;
        let block = left.block(pool.threads(), panels) / tiles::ROWS;
        let gated = &mut self.gated[..left_len(rows, width)];
        // A row of this buffer is 16 of ours, a panel's columns are two tiles of it.
        let columns = NR / tiles::DEPTH * tiles::TILE;
        let cost_ns = left.cost_ns(gate_up);
        pool.tiles(
            gated,
            run_len(width),
            (block, columns),
            cost_ns,
            |_, mut tile| {
                let index = tile.first_col / columns;
                let next = index + pool.threads();
                let next = if next < panels { next } else { index };
                let both = |index| [gate_up.dwords(index), gate_up.dwords(panels + index)];
                let first = tile.first_row * tiles::ROWS;
                let count = (rows - first).min(tile.rows * tiles::ROWS);
                let left = (left.part(first, count), count);
                tiles::gate(isa, left, both(index), both(next), &mut tile);
            },
        );
        let gated = Left {
            rows,
            inputs: width,
            tiles: gated,
        };
        gated.multiply(pool, isa, down, ProductOutput::Add, out);
        true
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::Isa;

    fn number(i: usize) -> f32 {
        ((i as u32).wrapping_mul(2_654_435_761) >> 24) as f32 / 128.0 - 1.0
    }

    /// Against f64, for numbers of rows that fill tiles and that do not, with rows alone.
    #[test]
    fn gated_products_are_right_and_rows_do_not_depend_on_each_other() {
        let Some(isa) = Supported::new(Isa::AmxBf16) else {
            eprintln!("SKIP: no AMX on this machine");
            return;
        };
        let backend = Backend::Fast {
            isa,
            act: InputForm::Tiles,
        };
        let pool = ComputePool::new(2);
        for (rows, inputs, width, outputs) in [(1, 2, 64, 1), (49, 70, 128, 96), (96, 64, 192, 70)]
        {
            let x: Vec<f32> = (0..rows * inputs).map(number).collect();
            let gate_weight = |o: usize, i: usize| number(o * 1009 + i * 31 + 5);
            let down_weight = |o: usize, i: usize| number(o * 811 + i * 17 + 3);
            let matrix = |shape: (usize, usize), weight: &(dyn Fn(usize, usize) -> f32 + Sync)| {
                Matrix::new(&pool, Format::Tiles, shape, |o, row| {
                    row.extend((0..shape.1).map(|i| weight(o, i)));
                })
            };
            let gate_up = matrix((2 * width, inputs), &gate_weight);
            let down = matrix((outputs, width), &down_weight);
            let mut multiplier = Multiplier::new(backend, rows, inputs, width);
            let mut run = |x: &[f32], out: &mut [f32]| {
                assert!(multiplier.run_gated(&pool, x, &gate_up, &down, out));
            };
            let mut out = vec![0.5; rows * outputs];
            run(&x, &mut out);
            for (r, out) in out.chunks_exact(outputs).enumerate() {
                let x = &x[r * inputs..][..inputs];
                let product = |o: usize| -> f64 {
                    let terms = x.iter().enumerate();
                    terms
                        .map(|(i, &x)| f64::from(x) * f64::from(gate_weight(o, i)))
                        .sum()
                };
                let gated: Vec<f64> = (0..width)
                    .map(|i| {
                        let (g, u) = (product(i), product(width + i));
                        g / (1.0 + (-g).exp()) * u
                    })
                    .collect();
                for (o, &got) in out.iter().enumerate() {
                    let terms = gated.iter().enumerate();
                    let terms = terms.map(|(i, &a)| a * f64::from(down_weight(o, i)));
                    let (exact, magnitude) = terms.fold((0.5, 0.0), |(sum, size), term| {
                        (sum + term, size + term.abs())
                    });
                    // What is between the products was rounded to bf16 once.
                    let bound = magnitude * f64::from(bf16::EPSILON) / 2.0 * 1.01 + 1e-6;
                    assert!(
                        (f64::from(got) - exact).abs() <= bound,
                        "{rows} by {inputs}: {r} {o}: {got} {exact}"
                    );
                }
                let mut alone = vec![0.5; outputs];
                run(x, &mut alone);
                assert_eq!(alone, out);
            }
        }
    }
}
