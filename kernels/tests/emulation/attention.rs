//! Tools for tests of both attention families: heads whose values follow from a text's name
//! and a position, and attention over them in f64.

use half::bf16;

use crate::support::{U16, Values, wide};

/// Heads and their size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) dim: usize,
}

/// A token: which text it is of, and where in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Token {
    pub(crate) text: usize,
    pub(crate) position: usize,
}

/// A text whose first query head weighs all tokens alike, and whose values cancel: what is left
/// of their sum depends on its order in the leading bits, which rounding to bf16 does not hide.
/// For tests of equal bits; no reference bounds it.
pub(crate) const DELICATE: usize = 999;

/// q, k and v of a token.
#[derive(Debug)]
pub(crate) struct Heads {
    pub(crate) q: Vec<bf16>,
    pub(crate) k: Vec<bf16>,
    pub(crate) v: Vec<bf16>,
}

/// The parameters that only kernels of the near form have.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Near {
    /// Positions before its own that a query sees, if not all.
    pub(crate) window: Option<u32>,
    /// Bound of the scores, or 0.
    pub(crate) cap: f32,
}

impl Near {
    /// Returns the window as kernels take it.
    pub(crate) fn window(&self) -> u32 {
        self.window.unwrap_or(prelude_kernels::families::NO_WINDOW)
    }

    fn bounded(&self, score: f64) -> f64 {
        match f64::from(self.cap) {
            0.0 => score,
            cap => cap * (score / cap).tanh(),
        }
    }
}

pub(crate) const fn shape(heads: usize, kv_heads: usize, dim: usize) -> Shape {
    Shape {
        heads,
        kv_heads,
        dim,
    }
}

impl Shape {
    pub(crate) fn group(self) -> usize {
        self.heads / self.kv_heads
    }

    pub(crate) fn q_width(self) -> usize {
        self.heads * self.dim
    }

    pub(crate) fn kv_width(self) -> usize {
        self.kv_heads * self.dim
    }

    pub(crate) fn scale(self) -> f32 {
        (self.dim as f32).powf(-0.5)
    }

    /// Large enough for weights that differ by some e^5: a key too many or too few shows.
    pub(crate) fn token(self, token: Token) -> Heads {
        let Token { text, position } = token;
        let mut values = Values::new((text * 1_000_003 + position) as u64);
        let mut heads = Heads {
            q: values.bf16s(self.q_width(), -3.0, 3.0),
            k: values.bf16s(self.kv_width(), -2.0, 2.0),
            v: values.bf16s(self.kv_width(), -4.0, 4.0),
        };
        if text == DELICATE {
            heads.q[..self.dim].fill(bf16::ZERO);
            // a, b, -(a + b), small, small, a, …: a and b are multiples of 2^16 below 2^22, so
            // that their sum has 7 bits. 5 divides no tile: parts of sums are large.
            let mut of_five = Values::new(position as u64 / 5);
            for v in &mut heads.v {
                let a = (1 + of_five.below(63)) as f32 * 65536.0;
                let b = (1 + of_five.below(63)) as f32 * -65536.0;
                *v = match position % 5 {
                    0 => bf16::from_f32(a),
                    1 => bf16::from_f32(b),
                    2 => bf16::from_f32(-a - b),
                    _ => *v,
                };
            }
        }
        heads
    }

    /// Computes the output of one token over what it sees of `context`, which ends with the token
    /// itself: each value with its bound.
    pub(crate) fn reference(self, query: Token, context: &[Token], near: &Near) -> Vec<(f64, f64)> {
        let before = context.len() - 1;
        let seen = near
            .window
            .map_or(before, |window| before.min(window as usize));
        let context = &context[before - seen..];
        let q = wide(&self.token(query).q);
        let context: Vec<Heads> = context.iter().map(|&t| self.token(t)).collect();
        let mut out = Vec::new();
        for head in 0..self.heads {
            let at = head / self.group() * self.dim;
            let q = &q[head * self.dim..][..self.dim];
            let dot = |k: &[bf16]| -> f64 { k.iter().zip(q).map(|(k, q)| k.to_f64() * q).sum() };
            let scores: Vec<f64> = context
                .iter()
                .map(|t| dot(&t.k[at..at + self.dim]) * f64::from(self.scale()))
                .map(|score| near.bounded(score))
                .collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for i in 0..self.dim {
                let mut value = 0.0;
                let mut magnitude = 0.0;
                for (weight, t) in weights.iter().zip(&context) {
                    value += weight / sum * t.v[at + i].to_f64();
                    magnitude += weight / sum * t.v[at + i].to_f64().abs();
                }
                // The result and each weight are rounded to bf16. Scores of up to 30 are off by
                // some 1e-6 of them in f32, and so is a weight.
                let bound = 1.001 * U16 * (value.abs() + magnitude) + 1e-4 * magnitude;
                out.push((value, bound));
            }
        }
        out
    }
}

/// K or V in blocks `[block][kv_head][block_size][dim]`; elements that are not written are NaN.
#[derive(Debug)]
pub(crate) struct Pages {
    pub(crate) shape: Shape,
    pub(crate) block_size: usize,
    pub(crate) k: Vec<bf16>,
    pub(crate) v: Vec<bf16>,
    pub(crate) tables: Vec<i32>,
    blocks_left: Vec<usize>,
}

impl Pages {
    pub(crate) fn new(shape: Shape, block_size: usize, blocks: usize) -> Self {
        let elements = blocks * shape.kv_heads * block_size * shape.dim;
        // Handed out in no order.
        let mut blocks_left: Vec<usize> = (0..blocks).collect();
        blocks_left.sort_by_key(|b| b * 7 % 11);
        Self {
            shape,
            block_size,
            k: vec![bf16::NAN; elements],
            v: vec![bf16::NAN; elements],
            // Tables do not start at 0.
            tables: vec![i32::MAX; 3],
            blocks_left,
        }
    }

    /// Puts tokens in blocks of their own; says where their table begins.
    pub(crate) fn add(&mut self, tokens: &[Token]) -> usize {
        let first = self.tables.len();
        for tokens in tokens.chunks(self.block_size) {
            self.push_block(tokens);
        }
        first
    }

    /// Puts tokens in a block, which is the next of the table.
    pub(crate) fn push_block(&mut self, tokens: &[Token]) {
        let block = self.blocks_left.pop().expect("enough blocks");
        self.tables.push(block as i32);
        let Shape { kv_heads, dim, .. } = self.shape;
        for (at, &token) in tokens.iter().enumerate() {
            let heads = self.shape.token(token);
            for head in 0..kv_heads {
                let row = (block * kv_heads + head) * self.block_size + at;
                let part = head * dim..(head + 1) * dim;
                self.k[row * dim..][..dim].copy_from_slice(&heads.k[part.clone()]);
                self.v[row * dim..][..dim].copy_from_slice(&heads.v[part]);
            }
        }
    }
}
