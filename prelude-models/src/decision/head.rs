//! Heads of decision models: a number for each option of a question, from hidden states.
//!
//! Every head computes in f32 on the host, whatever the backbone's type and device: the products are
//! small beside the backbone's, and the same numbers come out wherever it runs.

use super::tensors::HeadTensors;
use crate::Error;

/// Added to the variance by the heads' layer norms: PyTorch's default.
const EPS: f32 = 1e-5;

/// Partial sums of a product of two vectors, so that it is made of vector instructions.
const LANES: usize = 16;

/// The head of a decision model.
#[derive(Debug)]
#[non_exhaustive]
#[expect(clippy::large_enum_variant, reason = "a model has one")]
pub enum DecisionHead {
    /// A row for each code by which options are named: `W · query`.
    Codes(Linear),
    /// `(K · option) · (Q · query) / √d`: a pointer from the question to its options.
    Pointer {
        /// `[d, H]`, of the question.
        query: Linear,
        /// `[d, H]`, of an option.
        key: Linear,
    },
    /// A pointer between normalised states, and what an MLP makes of both:
    /// `(K · o) · (Q · q) / √d + w · gelu(A · o + b + B · q)`.
    Segments {
        /// The norm of an option's state.
        option_norm: LayerNorm,
        /// The norm of the question's state.
        query_norm: LayerNorm,
        /// `K`: `[d, H]`.
        key: Linear,
        /// `Q`: `[d, H]`.
        query: Linear,
        /// `A` with its bias: `[d, H]`.
        option_mlp: Linear,
        /// `B`: `[d, H]`.
        query_mlp: Linear,
        /// `w`: `[1, d]`.
        out: Linear,
    },
    /// `w · gelu(W · norm(option) + b) + c` of each option's marker alone.
    Markers {
        /// The norm.
        norm: LayerNorm,
        /// `W`: `[H, H]`.
        up: Linear,
        /// `w`: `[1, H]`.
        out: Linear,
    },
}

impl DecisionHead {
    /// Returns a number for each of `n` options, before the temperature. `states` are the hidden states
    /// that the format reads, `[H]` each: one of each option, if the head reads those, then the
    /// question's, if it reads that.
    ///
    /// # Panics
    /// If these are not as many states, or not as long, or there are more options than codes.
    #[must_use]
    pub fn logits(&self, n: usize, states: &[Vec<f32>]) -> Vec<f32> {
        let query = || &*states[states.len() - 1];
        match self {
            Self::Codes(codes) => {
                let mut logits = codes.apply(query());
                assert!(n <= logits.len(), "a code for each option");
                logits.truncate(n);
                logits
            }
            Self::Pointer { query: of_q, key } => {
                let q = of_q.apply(query());
                let scale = 1.0 / (q.len() as f32).sqrt();
                let logit = |option: &Vec<f32>| dot(&key.apply(option), &q) * scale;
                states[..n].iter().map(logit).collect()
            }
            Self::Segments {
                option_norm,
                query_norm,
                key,
                query: of_q,
                option_mlp,
                query_mlp,
                out,
            } => {
                let q = query_norm.apply(query());
                let (q, of_query) = (of_q.apply(&q), query_mlp.apply(&q));
                let scale = 1.0 / (q.len() as f32).sqrt();
                let logit = |option: &Vec<f32>| {
                    let option = option_norm.apply(option);
                    let inner = option_mlp.apply(&option);
                    let inner = inner.iter().zip(&of_query).map(|(a, b)| gelu(a + b));
                    let inner: Vec<f32> = inner.collect();
                    dot(&key.apply(&option), &q) * scale + out.apply(&inner)[0]
                };
                states[..n].iter().map(logit).collect()
            }
            Self::Markers { norm, up, out } => {
                let logit = |option: &Vec<f32>| {
                    let inner = up.apply(&norm.apply(option));
                    let inner: Vec<f32> = inner.into_iter().map(gelu).collect();
                    out.apply(&inner)[0]
                };
                states[..n].iter().map(logit).collect()
            }
        }
    }

    /// Returns true if a state of each option is read.
    #[must_use]
    pub const fn reads_options(&self) -> bool {
        !matches!(self, Self::Codes(_))
    }

    /// Returns true if the state of the question's last token is read.
    #[must_use]
    pub const fn reads_query(&self) -> bool {
        !matches!(self, Self::Markers { .. })
    }

    /// Returns the head's numbers, tensor by tensor.
    #[must_use]
    pub fn tensors(&self) -> Vec<&[f32]> {
        fn linear(of: &Linear) -> [&[f32]; 2] {
            [&of.weight, &of.bias]
        }
        fn norm(of: &LayerNorm) -> [&[f32]; 2] {
            [&of.weight, &of.bias]
        }
        match self {
            Self::Codes(codes) => linear(codes).to_vec(),
            Self::Pointer { query, key } => [linear(query), linear(key)].concat(),
            Self::Segments {
                option_norm,
                query_norm,
                key,
                query,
                option_mlp,
                query_mlp,
                out,
            } => {
                let norms = [norm(option_norm), norm(query_norm)].concat();
                let products = [key, query, option_mlp, query_mlp, out].map(linear);
                [norms, products.concat()].concat()
            }
            Self::Markers { norm: of, up, out } => [norm(of), linear(up), linear(out)].concat(),
        }
    }

    /// Returns the bytes of the head's numbers.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let tensors = self.tensors().into_iter();
        tensors.map(size_of_val).sum()
    }
}

/// A matrix `[outputs, inputs]` with biases or without, in f32.
#[derive(Debug)]
pub struct Linear {
    inputs: usize,
    weight: Vec<f32>,
    /// As many as outputs, or none.
    bias: Vec<f32>,
}

impl Linear {
    /// Takes `weight` of the shape `[outputs, inputs]`, and `bias` if there is one to take.
    pub(super) fn take(
        tensors: &mut HeadTensors,
        [weight, bias]: [&str; 2],
        [outputs, inputs]: [usize; 2],
    ) -> Result<Self, Error> {
        Ok(Self {
            inputs,
            weight: tensors.take(weight, &[outputs, inputs])?,
            bias: match bias {
                "" => Vec::new(),
                name => tensors.take(name, &[outputs])?,
            },
        })
    }

    fn apply(&self, x: &[f32]) -> Vec<f32> {
        assert_eq!(x.len(), self.inputs, "a state of the model's width");
        let products = self.weight.chunks_exact(self.inputs).map(|row| dot(row, x));
        match &self.bias[..] {
            [] => products.collect(),
            bias => products.zip(bias).map(|(y, b)| y + b).collect(),
        }
    }
}

/// A layer norm, in f32.
#[derive(Debug)]
pub struct LayerNorm {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl LayerNorm {
    /// Takes `NAME.weight` and `NAME.bias` of this width.
    pub(super) fn take(tensors: &mut HeadTensors, name: &str, width: usize) -> Result<Self, Error> {
        let mut part = |of: &str| tensors.take(&format!("{name}.{of}"), &[width]);
        Ok(Self {
            weight: part("weight")?,
            bias: part("bias")?,
        })
    }

    fn apply(&self, x: &[f32]) -> Vec<f32> {
        let n = x.len() as f32;
        let mean = x.iter().sum::<f32>() / n;
        let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / n;
        let scale = 1.0 / (variance + EPS).sqrt();
        let affine = self.weight.iter().zip(&self.bias);
        { x.iter().zip(affine) }
            .map(|(x, (w, b))| (x - mean) * scale * w + b)
            .collect()
    }
}

/// Returns the product of two vectors, summed in an order of its own that depends on their length alone.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a_lanes, a_rest) = a.as_chunks::<LANES>();
    let (b_lanes, b_rest) = b.as_chunks::<LANES>();
    let mut sums = [0.0f32; LANES];
    for (a, b) in a_lanes.iter().zip(b_lanes) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    let rest = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f32>();
    sums.iter().sum::<f32>() + rest
}

/// Returns `x · Φ(x)`.
fn gelu(x: f32) -> f32 {
    let wide = f64::from(x);
    (wide * 0.5 * (1.0 + libm::erf(wide * std::f64::consts::FRAC_1_SQRT_2))) as f32
}
