//! Embeddings and class logits.

use prelude_core::{OutputHead, Pooling, RowOutput, TokenHead};
use prelude_models::DenseModule;

use super::{HeadPass, NOT_FINITE};
use crate::{
    kernels::{
        activation,
        gemm::{Matrix, ProductOutput},
    },
    weights::Weight,
};

/// Positions that a mean sums before it adds to its total: a fixed order of additions.
const MEAN_CHUNK: u32 = 256;

impl HeadPass<'_> {
    /// Answers every row that wants a vector, or one of each token. Products of `dense` follow a
    /// pooling.
    pub(crate) fn pooling(&mut self, dense: &[DenseModule<Weight>]) {
        for (i, row) in self.layout.rows.iter().enumerate() {
            if row.refused.is_some() {
                continue;
            }
            let outputs = self.layout.outputs_of(row).iter();
            let mut states = outputs.map(|&output| self.state(output));
            match row.head {
                OutputHead::Embed {
                    pooling,
                    normalise,
                    dimensions,
                } => {
                    let mut state = match pooling {
                        Pooling::First => states.next().expect("a row has positions").to_vec(),
                        Pooling::Last => states.next_back().expect("a row has positions").to_vec(),
                        Pooling::Mean => mean(states, row.first_position, self.width),
                    };
                    for module in dense {
                        state = self.dense(module, &state);
                    }
                    let vector = vector(state, dimensions, normalise);
                    self.results[i] = Some(finite(vector, RowOutput::Embedding));
                }
                OutputHead::Tokens(TokenHead::Embed {
                    normalise,
                    dimensions,
                }) => {
                    let vectors = states.map(|s| vector(s.to_vec(), dimensions, normalise));
                    let vectors = vectors.collect();
                    self.results[i] = Some(finite_rows(row.first_position, vectors));
                }
                _ => {}
            }
        }
    }

    /// Multiplies one vector: the same product as for a row alone, so the same bits.
    fn dense(&mut self, module: &DenseModule<Weight>, state: &[f32]) -> Vec<f32> {
        let matrix = module.weight.matrix();
        let mut out = vec![0.0; matrix.outputs()];
        self.multiplier
            .run(self.pool, state, matrix, ProductOutput::Write, &mut out);
        if let Some(f) = module.activation {
            activation::activate(self.isa, f, &mut out);
        }
        out
    }

    /// Answers every classification row.
    pub(crate) fn classes(&mut self, score: &Matrix) {
        let layout = self.layout;
        for (i, row) in layout.rows.iter().enumerate() {
            if row.refused.is_some() {
                continue;
            }
            // One state after the other: the same product as for a row alone, so the same bits.
            let mut logits = |output: u32| {
                let mut logits = vec![0.0; score.outputs()];
                let state = self.state(output);
                self.multiplier
                    .run(self.pool, state, score, ProductOutput::Write, &mut logits);
                logits
            };
            let outputs = layout.outputs_of(row);
            match row.head {
                OutputHead::Classify => {
                    let logits = logits(outputs[0]);
                    self.results[i] = Some(finite(logits, RowOutput::Classes));
                }
                OutputHead::Tokens(TokenHead::Classify) => {
                    let rows = outputs.iter().map(|&p| logits(p)).collect();
                    self.results[i] = Some(finite_rows(row.first_position, rows));
                }
                _ => {}
            }
        }
    }
}

/// Returns a state cut to the wanted dimensions, then scaled if wanted.
fn vector(mut state: Vec<f32>, dimensions: Option<u32>, normalise: bool) -> Vec<f32> {
    if let Some(dimensions) = dimensions {
        state.truncate(dimensions as usize);
    }
    if normalise {
        scale_to_one(&mut state);
    }
    state
}

fn finite_rows(first_position: u32, rows: Vec<Vec<f32>>) -> RowOutput {
    if rows.iter().flatten().all(|x| x.is_finite()) {
        RowOutput::Tokens {
            first_position,
            rows,
        }
    } else {
        RowOutput::Failed(NOT_FINITE)
    }
}

fn finite(numbers: Vec<f32>, make: fn(Vec<f32>) -> RowOutput) -> RowOutput {
    if numbers.iter().all(|x| x.is_finite()) {
        make(numbers)
    } else {
        RowOutput::Failed(NOT_FINITE)
    }
}

/// Returns the mean over positions from `first` on: sums of chunks that start at multiples of
/// [`MEAN_CHUNK`], added in order.
pub(crate) fn mean<'a>(
    states: impl Iterator<Item = &'a [f32]>,
    first: u32,
    width: usize,
) -> Vec<f32> {
    let mut total = vec![0.0; width];
    let mut chunk = vec![0.0; width];
    let mut count = 0u32;
    for state in states {
        if count > 0 && (first + count).is_multiple_of(MEAN_CHUNK) {
            add(&mut total, &chunk);
            chunk.fill(0.0);
        }
        add(&mut chunk, state);
        count += 1;
    }
    add(&mut total, &chunk);
    for x in &mut total {
        *x /= count as f32;
    }
    total
}

fn add(sum: &mut [f32], x: &[f32]) {
    for (sum, x) in sum.iter_mut().zip(x) {
        *sum += x;
    }
}

/// Scales to length 1, as far as the length is above 1e-12, which is where the reference stops.
fn scale_to_one(vector: &mut [f32]) {
    let square: f64 = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    let length = square.sqrt().max(1e-12);
    for x in vector {
        *x = (f64::from(*x) / length) as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_exact_enough_and_cut_at_absolute_positions() {
        let states: Vec<[f32; 2]> = (0..1000)
            .map(|i| [(i as f32 * 0.37).sin(), i as f32 / 64.0])
            .collect();
        for first in [0, 100, 256] {
            let states = &states[first as usize..];
            let got = mean(states.iter().map(|s| &s[..]), first, 2);
            for (j, &got) in got.iter().enumerate() {
                let sum: f64 = states.iter().map(|s| f64::from(s[j])).sum();
                let exact = sum / states.len() as f64;
                assert!((f64::from(got) - exact).abs() < 1e-5, "{got} {exact}");
            }
        }
        // In f32, 1 vanishes beside 1e8 unless it is summed in a chunk of its own.
        let [a, b, c] = [[1e8], [-1e8], [1.0]];
        let at = |first| mean([&a[..], &c, &b].into_iter(), first, 1)[0];
        assert_eq!(at(0), 0.0);
        let at = |first| mean([&a[..], &b, &c].into_iter(), first, 1)[0];
        assert_eq!((at(0), at(254)), (1.0 / 3.0, 1.0 / 3.0));
        let at = |first| mean([&c[..], &a, &b].into_iter(), first, 1)[0];
        assert_eq!((at(0), at(255)), (0.0, 1.0 / 3.0));
    }

    #[test]
    fn vectors_get_length_one() {
        let mut v = vec![3.0, 4.0];
        scale_to_one(&mut v);
        assert_eq!(v, [0.6, 0.8]);
        let mut zero = vec![0.0; 3];
        scale_to_one(&mut zero);
        assert_eq!(zero, [0.0; 3]);
    }
}
