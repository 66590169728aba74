//! Matrix products.

use super::{
    ConformanceDevice, Demands, ROWS, SMALL_SHAPE, SUM, Spec, WIDTHS, idle, spec,
    values::{Stored, Values, assert_within, wide},
};
use crate::{MlpRoom, Norm, Ops, TensorView, WeightLoader, naive};

/// Checks `linear` and `linear_add`: every width as input and as output, fused parts, biases; and
/// `norm_linear` and `mlp_add` over inner widths that tiles divide and that they do not.
///
/// # Panics
/// If the device is wrong.
pub fn products<D: ConformanceDevice>(demands: Demands, open: impl Fn(&Spec) -> D) {
    for rows in ROWS {
        for (hidden, inner) in [(96, 128), (80, 152), (56, 192)] {
            mlp(demands, (rows, hidden, inner), &open);
        }
    }
    for (i, &input) in WIDTHS.iter().enumerate() {
        for rows in ROWS {
            let output = WIDTHS[WIDTHS.len() - 1 - i];
            for parts in [vec![output], vec![output, 16, 40], vec![1, 2]] {
                for biased in [false, true] {
                    let case = Case {
                        rows,
                        input,
                        parts: parts.clone(),
                        biased,
                    };
                    case.run(demands, &open);
                }
            }
        }
    }
}

/// Checks `norm_linear` and `mlp_add` against the operations that they stand for.
fn mlp<D: ConformanceDevice>(
    demands: Demands,
    (rows, hidden, inner): (usize, usize, usize),
    open: &impl Fn(&Spec) -> D,
) {
    const BEFORE: usize = 2;
    let precision = demands.precision;
    let mut values = Values::new(precision, 11);
    let norm = values.many(hidden, 0.25, 1.0);
    let gate_up = values.many(2 * inner * hidden, -0.5, 0.5);
    let down = values.many(hidden * inner, -0.5, 0.5);
    let tall = BEFORE + rows;
    let before = values.many(tall * hidden, -8.0, 8.0);
    let arena = rows * (hidden + 3 * inner) + 2 * tall * hidden;
    let mut model = spec(hidden, SMALL_SHAPE, 1, arena);
    model.model.intermediate_size = inner;
    model.chunk_tokens = model.chunk_tokens.max(rows);
    let mut device = open(&model);
    let mut loader = device.loader();
    let parts = gate_up.chunks_exact(inner * hidden);
    let parts: Vec<Stored> = parts
        .map(|part| Stored::new(part, &[inner, hidden]))
        .collect();
    let gate_up_weight = loader
        .linear("gate_up", &views(&parts), &[])
        .expect("a matrix loads");
    let parts = [Stored::new(&down, &[hidden, inner])];
    let down_weight = loader
        .linear("down", &views(&parts), &[])
        .expect("a matrix loads");
    let norm = Stored::new(&norm, &[hidden]);
    let weight = loader.norm("norm", &norm.view(), 0.0).expect("it loads");
    let norm = Norm {
        weight: &weight,
        eps: 1e-6,
    };
    let (mut got, mut a, mut first) = (Vec::new(), Vec::new(), Vec::new());
    device.step(idle(), &mut |ops, _| {
        let mut tx = ops.alloc(rows, hidden).expect("room");
        let mut tg = ops.alloc(rows, 2 * inner).expect("room");
        let mut ta = ops.alloc(rows, inner).expect("room");
        let mut th = ops.alloc(tall, hidden).expect("room");
        D::write(ops, &mut th, &before);
        let room = MlpRoom {
            x: &mut tx,
            gate_up: &mut tg,
            a: &mut ta,
        };
        let of_rows = BEFORE..tall;
        let weights = (&gate_up_weight, &down_weight);
        ops.mlp_add(of_rows.clone(), norm, weights.0, weights.1, room, &mut th)
            .expect("mlp_add runs");
        got = D::read(ops, &th);
        D::write(ops, &mut th, &before);
        ops.norm_linear(&th, of_rows.clone(), norm, weights.0, &mut tx, &mut tg)
            .expect("norm_linear runs");
        let at_once = D::read(ops, &tg);
        ops.rms_norm(&th, of_rows, norm.weight, norm.eps, &mut tx)
            .expect("rms_norm runs");
        ops.linear(&tx, rows, &gate_up_weight, &mut tg)
            .expect("linear runs");
        first = vec![at_once, D::read(ops, &tg)];
        ops.silu_mul(&tg, rows, &mut ta).expect("silu_mul runs");
        a = D::read(ops, &ta);
    });
    assert_eq!(first[0], first[1], "norm_linear [{rows}, {hidden}]");
    assert_eq!(got[..BEFORE * hidden], before[..BEFORE * hidden]);
    let (a, down) = (wide(&a), wide(&down));
    let abs = |v: &[f64]| v.iter().map(|v| v.abs()).collect::<Vec<_>>();
    for row in 0..rows {
        let a = &a[row * inner..][..inner];
        let sums = naive::linear(a, &down, &[]);
        let sizes = naive::linear(&abs(a), &abs(&down), &[]);
        let at = (BEFORE + row) * hidden;
        assert_within(
            || format!("mlp_add [{rows}, {hidden}] over {inner}, row {row}"),
            &got[at..][..hidden],
            // Gates and ups, silu and the product may be stored or not, in either way, and the
            // sum is stored.
            (sums.iter().zip(&sizes).zip(&before[at..])).map(|((y, size), &h)| {
                let sum = y + f64::from(h);
                let stored = precision.stored(6.0) * size + precision.stored(1.0) * sum.abs();
                (sum, stored + precision.stored(1.0) * y.abs() + SUM * size)
            }),
        );
    }
}

struct Case {
    rows: usize,
    input: usize,
    /// Output widths of the stacked matrices.
    parts: Vec<usize>,
    biased: bool,
}

impl Case {
    fn run<D: ConformanceDevice>(&self, demands: Demands, open: &impl Fn(&Spec) -> D) {
        // Rows of `h` around those that the product is added to; they must stay as they are.
        const BEFORE: usize = 3;
        const AFTER: usize = 2;
        let precision = demands.precision;
        let (rows, input) = (self.rows, self.input);
        let output: usize = self.parts.iter().sum();
        let mut values = Values::new(precision, 10);
        let x = values.many(rows * input, -2.0, 2.0);
        let w = values.many(output * input, -1.0, 1.0);
        let bias = values.many(if self.biased { output } else { 0 }, -4.0, 4.0);
        let tall = BEFORE + rows + AFTER;
        let before = values.many(tall * output, -8.0, 8.0);
        let arena = rows * (input + output) + tall * output;
        let mut device = open(&spec(input.max(output), SMALL_SHAPE, 1, arena));
        let weight = self.load(&mut device.loader(), &w, &bias);
        let (mut y, mut h, mut alone) = (Vec::new(), Vec::new(), Vec::new());
        device.step(idle(), &mut |ops, _| {
            let mut tx = ops.alloc(rows, input).expect("room");
            let mut ty = ops.alloc(rows, output).expect("room");
            let mut th = ops.alloc(tall, output).expect("room");
            D::write(ops, &mut tx, &x);
            D::write(ops, &mut th, &before);
            ops.linear(&tx, rows, &weight, &mut ty)
                .expect("linear runs");
            y = D::read(ops, &ty);
            ops.linear_add(&tx, BEFORE..BEFORE + rows, &weight, &mut th)
                .expect("linear_add runs");
            h = D::read(ops, &th);
            // The same first row, now the only one.
            ops.linear(&tx, 1, &weight, &mut ty).expect("linear runs");
            alone = D::read(ops, &ty);
        });
        if demands.batch_invariant {
            assert_eq!(alone[..output], y[..output], "{}: row 0 alone", self.name());
        }
        let (x, w, bias) = (wide(&x), wide(&w), wide(&bias));
        for row in 0..rows {
            let x = &x[row * input..][..input];
            let sums = naive::linear(x, &w, &bias);
            let unbiased = naive::linear(x, &w, &[]);
            let magnitudes = self.magnitudes(x, &w, &bias);
            let expected = || sums.iter().zip(&magnitudes);
            assert_within(
                || format!("linear {} row {row}", self.name()),
                &y[row * output..][..output],
                // A product may be stored before its bias is added, as cuBLASLt does for few rows.
                expected().zip(&unbiased).map(|((&y, &m), &product)| {
                    let before = if self.biased { product.abs() } else { 0.0 };
                    (y, SUM * m + precision.stored(1.0) * (y.abs() + before))
                }),
            );
            let at = (BEFORE + row) * output;
            let added = expected()
                .zip(&before[at..][..output])
                .map(|((&y, &m), &h)| (y + f64::from(h), y, m));
            assert_within(
                || format!("linear_add {} row {row}", self.name()),
                &h[at..][..output],
                // The product may be stored before it is added, with its bias or before that is added
                // too, and the sum is.
                added.zip(&unbiased).map(|((sum, y, m), &product)| {
                    let first = (sum - y + product).abs().max(y.abs());
                    let before = if self.biased { product.abs() } else { 0.0 };
                    let stored = first + sum.abs() + before;
                    (sum, SUM * m + precision.stored(1.0) * stored)
                }),
            );
        }
        let kept = |range: std::ops::Range<usize>| h[range.clone()] == before[range];
        assert!(
            kept(0..BEFORE * output) && kept((BEFORE + rows) * output..tall * output),
            "linear_add {}: rows outside the range changed",
            self.name()
        );
    }

    fn name(&self) -> String {
        let (rows, input, parts) = (self.rows, self.input, &self.parts);
        let bias = if self.biased { " with biases" } else { "" };
        format!("[{rows}, {input}] to {parts:?}{bias}")
    }

    fn load<L: WeightLoader>(&self, loader: &mut L, w: &[f32], bias: &[f32]) -> L::Weight {
        let (mut parts, mut biases, mut at) = (Vec::new(), Vec::new(), 0);
        for &part in &self.parts {
            let rows = &w[at * self.input..][..part * self.input];
            parts.push(Stored::new(rows, &[part, self.input]));
            if self.biased {
                biases.push(Stored::new(&bias[at..][..part], &[part]));
            }
            at += part;
        }
        loader
            .linear("product", &views(&parts), &views(&biases))
            .expect("a matrix loads")
    }

    /// Returns the sums of magnitudes, to which the error of a sum is relative.
    fn magnitudes(&self, x: &[f64], w: &[f64], bias: &[f64]) -> Vec<f64> {
        let abs = |v: &[f64]| v.iter().map(|v| v.abs()).collect::<Vec<_>>();
        naive::linear(&abs(x), &abs(w), &abs(bias))
    }
}

fn views(stored: &[Stored]) -> Vec<TensorView<'_>> {
    stored.iter().map(Stored::view).collect()
}
