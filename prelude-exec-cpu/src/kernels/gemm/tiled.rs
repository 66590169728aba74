//! Products on tiles of a matrix unit: rows are rounded to bf16 and cut into left tiles, then a
//! task multiplies many of them with one panel, which comes from memory once for all.

use super::{Format, Matrix, Multiplier, ProductOutput};
use crate::{
    kernels::{Supported, lines::Lines, panel::NR, tiles},
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
    /// Returns the tiles of rows `first..first + rows`, of which the first is a multiple of 16.
    fn part(&self, first: usize, rows: usize) -> &[u32] {
        let run = run_len(self.inputs);
        &self.tiles[first / tiles::ROWS * run..][..rows.div_ceil(tiles::ROWS) * run]
    }

    /// Returns the number of rows of a task, a multiple of 32: a few tasks for each thread, even of
    /// few panels.
    fn block(&self, threads: usize, panels: usize) -> usize {
        let down = (4 * threads).div_ceil(panels);
        let most = LEFT_DWORDS / run_len(self.inputs) * tiles::ROWS;
        let block = self.rows.div_ceil(down).min(most);
        block.max(1).next_multiple_of(2 * tiles::ROWS)
    }

    /// Returns an estimate of the time: about 1000 flops, or 16 bytes of weights, per nanosecond
    /// and core.
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

    /// [`Self::run_gated`] with both matrices in tiles.
    pub(super) fn run_gated_tiles(
        &mut self,
        pool: &ComputePool,
        isa: Supported,
        x: &[f32],
        (gate_up, down): (&Matrix, &Matrix),
        out: &mut [f32],
    ) -> bool {
        let (inputs, width) = (gate_up.inputs, down.inputs);
        let rows = x.len() / inputs;
        let fits =
            left_len(rows, inputs) <= self.pairs.len() && left_len(rows, width) <= self.gated.len();
        if !fits {
            return false;
        }
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
