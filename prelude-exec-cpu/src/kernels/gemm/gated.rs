//! The two products of a gated MLP in one operation: the gates between them are rounded to bf16 where
//! they were computed, and go to memory only in that form.

use super::{Format, Matrix, Multiplier, ProductOutput, ROW_BLOCK, row_block, run_panels};
use crate::{
    kernels::{
        Backend, InputForm, Supported,
        panel::{MR, NR, Right, Rows, Tile, multiply},
        simd,
    },
    pool::ComputePool,
};

impl Multiplier {
    /// `out[i] += down · (silu(g) · u)`, where `g` and `u` are the halves of `gate_up · x[i]`, if
    /// that can be done without writing `g` and `u` to memory; `false` if not. The bits are those of
    /// separate operations.
    ///
    /// # Panics
    /// If the matrices are not those of one MLP, or `out` has another number of rows than `x`.
    pub(crate) fn run_gated(
        &mut self,
        pool: &ComputePool,
        x: &[f32],
        gate_up: &Matrix,
        down: &Matrix,
        out: &mut [f32],
    ) -> bool {
        let (inputs, width) = (gate_up.inputs, down.inputs);
        if !width.is_multiple_of(NR) || gate_up.bias.is_some() {
            return false;
        }
        assert!(
            gate_up.outputs == 2 * width && out.len() == x.len() / inputs * down.outputs,
            "matrices of another model"
        );
        let both = (gate_up, down);
        let Backend { isa, act } = self.backend;
        match (act, gate_up.format, down.format) {
            (InputForm::Tiles, Format::Tiles, Format::Tiles) => {
                self.run_gated_tiles(pool, isa, x, both, out)
            }
            (InputForm::Bf16, Format::Bf16, Format::Bf16) => {
                self.run_gated_pairs(pool, isa, x, both, out)
            }
            _ => false,
        }
    }

    /// [`Self::run_gated`] with both matrices in pairs.
    fn run_gated_pairs(
        &mut self,
        pool: &ComputePool,
        isa: Supported,
        x: &[f32],
        (gate_up, down): (&Matrix, &Matrix),
        out: &mut [f32],
    ) -> bool {
        let (inputs, width) = (gate_up.inputs, down.inputs);
        let (depth, gated_depth) = (inputs / 2, width / 2);
        let rows = x.len() / inputs;
        if rows * depth > self.pairs.len() || rows * gated_depth > self.gated.len() {
            return false;
        }
        self.round(pool, isa, x, inputs);
        let pairs = Rows::Bf16(&self.pairs[..rows * depth]);
        let gated = &mut self.gated[..rows * gated_depth];
        let block = row_block(rows, pool.threads());
        let cost_ns = gate_up.cost_ns(rows, 50);
        let panels = width / NR;
        // The columns of a panel are half as many dwords of a row.
        let tiles = (block, NR / 2);
        pool.tiles(gated, gated_depth, tiles, cost_ns, |_, mut tile| {
            let index = tile.first_col / (NR / 2);
            let first_row = tile.first_row;
            let multiply = |panel: usize, next: usize, out: &mut [Tile]| {
                let mut next = gate_up.shares(next, tile.rows);
                for (i, out) in out.iter_mut().enumerate() {
                    let count = MR.min(tile.rows - i * MR);
                    let rows = pairs.skip((first_row + i * MR) * depth);
                    let right = Right {
                        next: next.next().unwrap_or_default(),
                        ..Right::new(gate_up.panel(panel), NR)
                    };
                    multiply(isa, rows, depth, count, right, out);
                }
            };
            let mut gate = [const { Tile::ZERO }; ROW_BLOCK / MR];
            let mut up = [const { Tile::ZERO }; ROW_BLOCK / MR];
            let used = tile.rows.div_ceil(MR);
            multiply(index, panels + index, &mut gate[..used]);
            multiply(panels + index, index + 1, &mut up[..used]);
            let gate = gate.iter().flat_map(|tile| &tile.0);
            let up = up.iter().flat_map(|tile| &tile.0);
            let mut row = [0.0; NR];
            for (i, (gate, up)) in gate.zip(up).enumerate().take(tile.rows) {
                simd::silu_mul(isa, gate, up, &mut row);
                simd::bf16_pairs(isa, &row, tile.row(i));
            }
        });
        let gated = Rows::Bf16(&self.gated[..rows * gated_depth]);
        let left = (gated, gated_depth);
        run_panels(pool, isa, left, down, ProductOutput::Add, out);
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
        let units = [
            (Isa::AmxBf16, InputForm::Tiles, Format::Tiles),
            (Isa::Avx512Bf16, InputForm::Bf16, Format::Bf16),
            (Isa::NeonBf16, InputForm::Bf16, Format::Bf16),
        ];
        for (isa, act, format) in units {
            match Supported::new(isa) {
                Some(isa) => check(Backend { isa, act }, format),
                None => eprintln!("SKIP: no {} on this machine", isa.as_str()),
            }
        }
    }

    fn check(backend: Backend, format: Format) {
        let pool = ComputePool::new(2);
        for (rows, inputs, width, outputs) in [(1, 2, 64, 1), (49, 70, 128, 96), (96, 64, 192, 70)]
        {
            let x: Vec<f32> = (0..rows * inputs).map(number).collect();
            let gate_weight = |o: usize, i: usize| number(o * 1009 + i * 31 + 5);
            let down_weight = |o: usize, i: usize| number(o * 811 + i * 17 + 3);
            let matrix = |shape: (usize, usize), weight: &(dyn Fn(usize, usize) -> f32 + Sync)| {
                Matrix::new(&pool, format, shape, |o, row| {
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
