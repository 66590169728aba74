//! Matrix products.

use super::{
    ConformanceDevice, Demands, ROWS, SMALL_SHAPE, SUM, Spec, WIDTHS, idle, spec,
    values::{
        Stored, Values, assert_rows, assert_within, empty, filled, linear, matrix, run, wide,
    },
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
    let arena = rows * (hidden + 5 * inner) + tall * hidden;
    let mut model = spec(hidden, SMALL_SHAPE, 1, arena);
    model.model.intermediate_size = inner;
    model.chunk_tokens = model.chunk_tokens.max(rows);
    let mut device = open(&model);
    let mut loader = device.loader();
    let parts = gate_up.chunks_exact(inner * hidden);
    let parts: Vec<Stored> = parts
        .map(|part| Stored::new(part, &[inner, hidden]))
        .collect();
    let up_weight = loader.linear("gate_up", &views(&parts), &[]);
    let up_weight = up_weight.expect("a matrix loads");
    let down_weight = matrix(&mut loader, &down, hidden);
    let norm = Stored::new(&norm, &[hidden]);
    let weight = loader.norm("norm", &norm.view(), 0.0).expect("it loads");
    let norm = Norm {
        weight: &weight,
        eps: 1e-6,
    };
    let of_rows = BEFORE..tall;
    let rooms = [
        empty(rows, hidden),
        empty(rows, 2 * inner),
        empty(rows, inner),
        filled(&before, hidden),
    ];
    let [_, _, _, got] = run(&mut device, idle(), rooms, |ops, _, [x, gate_up, a, h]| {
        let room = MlpRoom { x, gate_up, a };
        ops.mlp_add(of_rows.clone(), norm, &up_weight, &down_weight, room, h)
    });
    let rooms = [
        filled(&before, hidden),
        empty(rows, hidden),
        empty(rows, 2 * inner),
        empty(rows, 2 * inner),
        empty(rows, inner),
    ];
    let steps = run(
        &mut device,
        idle(),
        rooms,
        |ops, _, [h, x, once, two, a]| {
            ops.norm_linear(h, of_rows.clone(), norm, &up_weight, x, once)?;
            ops.rms_norm(h, of_rows.clone(), norm.weight, norm.eps, x)?;
            ops.linear(x, rows, &up_weight, two)?;
            ops.silu_mul(two, rows, a)
        },
    );
    let [_, _, at_once, in_two, a] = steps;
    assert_eq!(at_once, in_two, "norm_linear [{rows}, {hidden}]");
    assert_eq!(got[..BEFORE * hidden], before[..BEFORE * hidden]);
    let (a, down) = (wide(&a), wide(&down));
    let what = || format!("mlp_add [{rows}, {hidden}] over {inner}");
    assert_rows(what, &got[BEFORE * hidden..], hidden, |row| {
        let sums = linear(&a[row * inner..][..inner], &down, &[]);
        // Gates and ups, silu and the product may be stored or not, in either way, and the sum is
        // stored.
        let within = |((y, size), &h): ((f64, f64), &f32)| {
            let sum = y + f64::from(h);
            let stored = precision.stored(6.0) * size + precision.stored(1.0) * sum.abs();
            (sum, stored + precision.stored(1.0) * y.abs() + SUM * size)
        };
        let before = &before[(BEFORE + row) * hidden..];
        sums.into_iter().zip(before).map(within).collect()
    });
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
        let arena = rows * (input + output) + (tall + 1) * output;
        let mut device = open(&spec(input.max(output), SMALL_SHAPE, 1, arena));
        let weight = self.load(&mut device.loader(), &w, &bias);
        let rooms = [
            filled(&x, input),
            empty(rows, output),
            filled(&before, output),
            empty(1, output),
        ];
        let results = run(&mut device, idle(), rooms, |ops, _, [x, y, h, alone]| {
            ops.linear(x, rows, &weight, y)?;
            ops.linear_add(x, BEFORE..BEFORE + rows, &weight, h)?;
            // The same first row, now the only one.
            ops.linear(x, 1, &weight, alone)
        });
        let [_, y, h, alone] = results;
        if demands.batch_invariant {
            assert_eq!(alone[..], y[..output], "{}: row 0 alone", self.name());
        }
        let (x, w, bias) = (wide(&x), wide(&w), wide(&bias));
        for row in 0..rows {
            let x = &x[row * input..][..input];
            let sums = linear(x, &w, &bias);
            let unbiased = naive::linear(x, &w, &[]);
            let expected = || sums.iter().zip(&unbiased);
            assert_within(
                || format!("linear {} row {row}", self.name()),
                &y[row * output..][..output],
                // A product may be stored before its bias is added, as cuBLASLt does for few rows.
                expected().map(|(&(y, m), &product)| {
                    let before = if self.biased { product.abs() } else { 0.0 };
                    (y, SUM * m + precision.stored(1.0) * (y.abs() + before))
                }),
            );
            let at = (BEFORE + row) * output;
            assert_within(
                || format!("linear_add {} row {row}", self.name()),
                &h[at..][..output],
                // The product may be stored before it is added, with its bias or before that is added
                // too, and the sum is.
                (expected().zip(&before[at..])).map(|((&(y, m), &product), &h)| {
                    let sum = y + f64::from(h);
                    let first = (f64::from(h) + product).abs().max(y.abs());
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
}

fn views(stored: &[Stored]) -> Vec<TensorView<'_>> {
    stored.iter().map(Stored::view).collect()
}
