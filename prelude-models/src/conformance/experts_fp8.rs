//! Mixtures of experts in fp8.

use half::bf16;

use super::{
    ConformanceDevice, Demands, Precision, Spec,
    experts::{Mixture, Part},
    values::{Stored, Values, assert_within, wide},
};
use crate::{Fp8Matrix, Routing, WeightLoader, fp8::numbers, naive};

/// `experts_add` of a device that rounds matrices of layers to fp8: experts that it rounds with a scale
/// for each row, and experts that are stored with scales of blocks; few rows and many, experts of no
/// rows; and, if demanded, the same bits for a row in any company.
///
/// # Panics
/// If the device is wrong.
pub fn experts_in_fp8<D: ConformanceDevice>(demands: Demands, open: impl Fn(&Spec) -> D) {
    for form in [Form::Rows, Form::Blocks] {
        // The rows of more than 16 have their scales in another order; the last ones fill an expert's tile
        // of 64.
        for rows in [1, 18, 150] {
            check(form, demands, rows, &open);
        }
    }
}

/// The elements that have a scale in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// A row of either factor.
    Rows,
    /// 128 elements of a row, and a block of 128 × 128 of a weight.
    Blocks,
}

const BLOCK: usize = 128;
const COUNT: usize = 5;
const ROUTING: Routing = Routing {
    per_token: 2,
    normalise: true,
};
/// Relative to the sum of magnitudes, what sums of products may be off: instructions that multiply e4m3
/// keep some 14 bits of a sum on some GPUs.
const FP8_SUM: f64 = 1.0 / 4096.0;

impl Form {
    /// Hidden size and width of an expert.
    const fn sizes(self) -> (usize, usize) {
        match self {
            Self::Rows => (80, 48),
            Self::Blocks => (256, 128),
        }
    }

    /// The elements of a row of `width` that have a scale in common.
    const fn group(self, width: usize) -> usize {
        match self {
            Self::Rows => width,
            Self::Blocks => BLOCK,
        }
    }
}

/// The largest e4m3.
const LARGEST: f32 = 448.0;

/// Returns the byte of the nearest e4m3, ties to even.
fn nearest(x: f64) -> u8 {
    let value = |byte: u8| f64::from(numbers(&[byte]).next().expect("a byte has a number"));
    let size = x.abs().min(f64::from(LARGEST));
    // The numbers on either side: bytes count up with their numbers.
    let (mut low, mut high) = (0u8, 0x7e);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match value(middle) <= size {
            true => low = middle,
            false => high = middle,
        }
    }
    let (below, above) = (size - value(low), value(high) - size);
    let is_low = below < above || below == above && low.is_multiple_of(2);
    let byte = if is_low { low } else { high };
    if x < 0.0 { byte | 0x80 } else { byte }
}

/// Returns the number of the nearest e4m3.
fn rounded(x: f64) -> f64 {
    let number = numbers(&[nearest(x)]).next();
    f64::from(number.expect("a byte has a number"))
}

fn scale_of(largest: f64) -> f64 {
    f64::from((largest as f32).max(2f32.powi(-24)) / LARGEST)
}

/// A number, and how far a device's may be from it.
#[derive(Clone, Copy, Debug)]
struct Within {
    value: f64,
    off: f64,
}

/// Returns the numbers that a product has for a row, `group` of which have a scale in common. A number
/// that may be off a little may become the next e4m3.
fn quantised(row: &[Within], group: usize) -> Vec<Within> {
    let mut out = Vec::with_capacity(row.len());
    for part in row.chunks(group) {
        let magnitude = |x: &Within| x.value.abs();
        let largest = part.iter().map(magnitude).fold(0.0, f64::max);
        let largest_off = part.iter().map(|x| x.off).fold(0.0, f64::max);
        let scale = scale_of(largest);
        // The scale may be off by as much as the largest number.
        let scales = [
            scale_of((largest - largest_off).max(0.0)),
            scale_of(largest + largest_off),
        ];
        out.extend(part.iter().map(|x| {
            // Quotients of f32, as devices round them.
            let number = |x: f64, scale: f64| rounded(f64::from(x as f32 / scale as f32)) * scale;
            let value = number(x.value, scale);
            let ends = [x.value - x.off, x.value, x.value + x.off];
            let others = ends
                .into_iter()
                .flat_map(|x| scales.map(|scale| number(x, scale)));
            let off = others
                .map(|other| (other - value).abs())
                .fold(0.0, f64::max);
            Within { value, off }
        }));
    }
    out
}

/// Returns the product of a row and a row of a weight.
fn product(x: &[Within], w: &[f64]) -> Within {
    let (mut value, mut off) = (0.0, 0.0);
    for (x, w) in x.iter().zip(w) {
        value += x.value * w;
        off += (x.off + x.value.abs() * FP8_SUM) * w.abs();
    }
    Within { value, off }
}

/// A matrix in the form that a loader takes, and its numbers as products have them.
struct Matrix {
    shape: [usize; 2],
    numbers: Vec<f64>,
    stored: Either,
}

enum Either {
    Rows(Stored),
    /// e4m3 and scales.
    Blocks(Vec<u8>, Vec<f32>),
}

impl Matrix {
    fn new(values: &mut Values, form: Form, shape: [usize; 2]) -> Self {
        let [rows, width] = shape;
        let many = values.many(rows * width, -0.4, 0.4);
        if form == Form::Rows {
            let exact = |&value: &f32| Within {
                value: f64::from(value),
                off: 0.0,
            };
            let row = |row: &[f32]| quantised(&row.iter().map(exact).collect::<Vec<_>>(), width);
            let numbers = many.chunks(width).flat_map(row);
            return Self {
                shape,
                numbers: numbers.map(|x| x.value).collect(),
                stored: Either::Rows(Stored::new(&many, &shape)),
            };
        }
        let of_row = width / BLOCK;
        // Of different sizes, so that another block's shows.
        let scales = (0..rows.div_ceil(BLOCK) * of_row).map(|_| {
            let size = values.one(0.0, 4.0) as i32;
            2f32.powi(size - 12)
        });
        let scales: Vec<f32> = scales.collect();
        let byte = |value: &f32| nearest(f64::from(value * 1000.0));
        let bytes: Vec<u8> = many.iter().map(byte).collect();
        let scale = |i: usize| scales[i / width / BLOCK * of_row + i % width / BLOCK];
        let scaled = numbers(&bytes).enumerate();
        Self {
            shape,
            numbers: scaled.map(|(i, x)| f64::from(x * scale(i))).collect(),
            stored: Either::Blocks(bytes, scales),
        }
    }

    /// Loads the matrix as one of a stack.
    fn load<L: WeightLoader>(&self, loader: &mut L, place: (usize, usize)) -> L::Weight {
        match &self.stored {
            Either::Rows(stored) => {
                let loaded = loader.linear_of_stack("expert", place, &[stored.view()]);
                loaded.expect("a matrix loads")
            }
            Either::Blocks(data, scales) => {
                let matrix = Fp8Matrix {
                    shape: self.shape,
                    block: [BLOCK; 2],
                    data,
                    scales: scales.clone(),
                };
                let loaded = loader.linear_fp8_of_stack("expert", place, &[matrix]);
                let loaded = loaded.expect("a matrix loads");
                loaded.expect("blocks of 128 × 128 are multiplied as they are stored")
            }
        }
    }

    fn row(&self, row: usize) -> &[f64] {
        let width = self.shape[1];
        &self.numbers[row * width..][..width]
    }
}

struct Weights {
    form: Form,
    router: Vec<f32>,
    /// Gate and up, and down.
    experts: Vec<(Matrix, Matrix)>,
}

impl Weights {
    fn new(values: &mut Values, form: Form) -> Self {
        let (hidden, inner) = form.sizes();
        Self {
            form,
            router: values.many(COUNT * hidden, -0.5, 0.5),
            experts: (0..COUNT)
                .map(|_| {
                    let gate_up = Matrix::new(values, form, [2 * inner, hidden]);
                    (gate_up, Matrix::new(values, form, [hidden, inner]))
                })
                .collect(),
        }
    }

    /// Returns the sum of the experts' work for a row.
    fn naive(&self, x: &[f32]) -> Vec<Within> {
        let (hidden, inner) = self.form.sizes();
        let logits = naive::linear(&wide(x), &wide(&self.router), &[]);
        let exact = |value: f64| Within { value, off: 0.0 };
        let x: Vec<Within> = wide(x).into_iter().map(exact).collect();
        let x = quantised(&x, self.form.group(hidden));
        let mut sum = vec![exact(0.0); hidden];
        for (e, share) in naive::route(&logits, ROUTING) {
            let (gate_up, down) = &self.experts[e];
            let gated = |i: usize| {
                let (gate, up) = (
                    product(&x, gate_up.row(i)),
                    product(&x, gate_up.row(inner + i)),
                );
                let silu = gate.value / (1.0 + (-gate.value).exp());
                // The gate grows by at most 1.1 times what its argument does.
                let silu_off = 1.1 * gate.off;
                let y = silu * up.value;
                let off = silu_off * up.value.abs() + up.off * silu.abs() + silu_off * up.off;
                let off = off + Precision::Bf16.stored(1.0) * y.abs();
                Within {
                    value: bf16::from_f64(y).to_f64(),
                    off,
                }
            };
            let inner: Vec<Within> = (0..inner).map(gated).collect();
            let inner = quantised(&inner, self.form.group(inner.len()));
            for (row, sum) in sum.iter_mut().enumerate() {
                let y = product(&inner, down.row(row));
                sum.value += share * y.value;
                sum.off += share * (y.off + Precision::Bf16.stored(1.0) * y.value.abs());
            }
        }
        sum
    }
}

fn check<D: ConformanceDevice>(
    form: Form,
    demands: Demands,
    rows: usize,
    open: &impl Fn(&Spec) -> D,
) {
    let (hidden, inner) = form.sizes();
    // All that is rounded to fp8 is rounded to bf16 before, which is exact here.
    let mut values = Values::new(Precision::Bf16, 91);
    let weights = Weights::new(&mut values, form);
    let x = values.many(rows * hidden, -2.0, 2.0);
    let h = values.many(rows * hidden, -2.0, 2.0);
    let mixture = Mixture {
        hidden,
        inner,
        count: COUNT,
        routing: ROUTING,
        router: &weights.router,
        before: 0,
        load: |loader: &mut D::Loader, part, place: (usize, usize)| {
            let (gate_up, down) = &weights.experts[place.0];
            let matrix = if part == Part::GateUp { gate_up } else { down };
            matrix.load(loader, place)
        },
    };
    let got = mixture.run((&x, &h), open);
    // Some sums are much larger than what they may be off, or nothing would be shown.
    let mut clearest: f64 = 0.0;
    // Every row by the definition takes long, and every row is checked for its bits by others.
    for row in (0..rows).step_by(7).chain([rows - 1]) {
        let at = row * hidden..(row + 1) * hidden;
        let sum = weights.naive(&x[at.clone()]);
        let expected = h[at.clone()].iter().zip(&sum).map(|(&h, sum)| {
            clearest = clearest.max(sum.value.abs() / sum.off);
            let value = f64::from(h) + sum.value;
            (value, sum.off + demands.precision.stored(1.0) * value.abs())
        });
        let expected: Vec<_> = expected.collect();
        let what = || format!("experts in fp8, {form:?}, row {row} of {rows}");
        assert_within(what, &got[at], expected);
    }
    assert!(
        clearest > 10.0,
        "{form:?}: sums of {clearest} times what they may be off"
    );
    if demands.batch_invariant {
        mixture.check_alone((&x, &h), &got, open);
    }
}
