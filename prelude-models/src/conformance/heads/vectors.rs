//! Heads that pool and classify, of texts and of tokens.

use prelude_core::{OutputHead, Pooling, RowOutput, TokenHead};

use super::{HIDDEN, Heads, id, idx, row};
use crate::{
    conformance::{
        ConformanceDevice, SUM, Spec,
        values::{abs, assert_within, linear, wide},
    },
    naive,
};

impl Heads {
    pub(super) fn pooling<D: ConformanceDevice>(&self, open: &impl Fn(&Spec) -> D) {
        // Longer than the 256 positions that are summed at a time.
        const TOKENS: usize = 300;
        let h = self.hidden(TOKENS);
        let mut cases = Vec::new();
        for (pooling, positions) in [
            (Pooling::Last, TOKENS - 1..TOKENS),
            (Pooling::Last, 0..1),
            (Pooling::Mean, 0..1),
            (Pooling::Mean, 0..17),
            (Pooling::Mean, 0..TOKENS),
            (Pooling::Mean, 250..260),
        ] {
            for normalise in [false, true] {
                for dimensions in [None, Some(1), Some(17), Some(id(HIDDEN))] {
                    cases.push((pooling, positions.clone(), normalise, dimensions));
                }
            }
        }
        let rows = cases.iter().map(|(pooling, positions, normalise, dims)| {
            row(
                positions.clone(),
                OutputHead::Embed {
                    pooling: *pooling,
                    normalise: *normalise,
                    dimensions: *dims,
                },
            )
        });
        let got = self.rows(open, &h, rows.collect());
        for (got, (pooling, positions, normalise, dims)) in got.iter().zip(cases) {
            let RowOutput::Embedding(got) = got else {
                panic!("a vector, not {got:?}");
            };
            let n = positions.len() as f64;
            let kept = dims.map_or(HIDDEN, idx);
            let at = |t: usize, i: usize| f64::from(h[t * HIDDEN + i]);
            let mean = |f: fn(f64) -> f64| -> Vec<f64> {
                let sum = |i| positions.clone().map(|t| f(at(t, i))).sum::<f64>();
                (0..kept).map(|i| sum(i) / n).collect()
            };
            let (mut vector, mut bounds) = (mean(|v| v), mean(f64::abs));
            let norm = naive::dot(&vector, &vector).sqrt();
            let largest = bounds.iter().copied().fold(0.0, f64::max);
            for (v, b) in vector.iter_mut().zip(&mut bounds) {
                *b *= SUM;
                if normalise {
                    // The error of the norm, itself a sum, is spread over all components.
                    *b = (*b + SUM * (v.abs() + largest)) / norm;
                    *v /= norm;
                }
            }
            assert_within(
                || {
                    format!(
                        "pooling {pooling:?} of {positions:?}, normalised {normalise}, {dims:?} dimensions"
                    )
                },
                got,
                vector.into_iter().zip(bounds),
            );
        }
    }

    pub(super) fn classes<D: ConformanceDevice>(&self, open: &impl Fn(&Spec) -> D) {
        for tokens in [1, 3, 17, 65] {
            let h = self.hidden(tokens);
            let rows = (0..tokens).map(|t| row(t..t + 1, OutputHead::Classify));
            let got = self.rows(open, &h, rows.collect());
            for (t, got) in got.iter().enumerate() {
                let RowOutput::Classes(got) = got else {
                    panic!("class logits, not {got:?}");
                };
                let x = wide(&h[t * HIDDEN..][..HIDDEN]);
                let what = || format!("classes of {tokens} rows, row {t}");
                assert_within(what, got, self.of_token(&x, TokenHead::Classify));
            }
        }
    }

    /// Checks a vector, or logits, of each token of a row, in rows that overlap. A step asks for
    /// one kind of result of each token: a device need not have room for several.
    pub(super) fn each_token<D: ConformanceDevice>(&self, open: &impl Fn(&Spec) -> D) {
        const TOKENS: usize = 40;
        let h = self.hidden(TOKENS);
        let mut heads = vec![TokenHead::Classify];
        for normalise in [false, true] {
            for dimensions in [None, Some(1), Some(17), Some(id(HIDDEN))] {
                heads.push(TokenHead::Embed {
                    normalise,
                    dimensions,
                });
            }
        }
        for head in heads {
            let all = [0..TOKENS, 0..1, 7..24, TOKENS - 1..TOKENS];
            let rows = all.clone().map(|at| row(at, OutputHead::Tokens(head)));
            let got = self.rows(open, &h, rows.into());
            for (got, positions) in got.iter().zip(all) {
                let RowOutput::Tokens {
                    first_position,
                    rows,
                } = got
                else {
                    panic!("a row for each token, not {got:?}");
                };
                assert_eq!(idx(*first_position), positions.start, "{head:?}");
                assert_eq!(rows.len(), positions.len(), "{head:?}");
                for (t, got) in positions.zip(rows) {
                    let state = wide(&h[t * HIDDEN..][..HIDDEN]);
                    let what = || format!("{head:?} of token {t}");
                    assert_within(what, got, self.of_token(&state, head));
                }
            }
        }
    }

    /// Returns the numbers that a token's state gives, with bounds.
    fn of_token(&self, state: &[f64], head: TokenHead) -> Vec<(f64, f64)> {
        match head {
            TokenHead::Classify => {
                let sums = linear(state, &wide(&self.score), &[]).into_iter();
                sums.map(|(z, m)| (z, SUM * m)).collect()
            }
            TokenHead::Embed {
                normalise,
                dimensions,
            } => {
                let kept = &state[..dimensions.map_or(HIDDEN, idx)];
                let norm = naive::dot(kept, kept).sqrt();
                let largest = abs(kept).into_iter().fold(0.0, f64::max);
                let scaled = |v: &f64| match normalise {
                    false => (*v, SUM * v.abs()),
                    // The error of the norm, a sum, is spread over all components.
                    true => (v / norm, (2.0 * SUM * v.abs() + SUM * largest) / norm),
                };
                kept.iter().map(scaled).collect()
            }
        }
    }
}
