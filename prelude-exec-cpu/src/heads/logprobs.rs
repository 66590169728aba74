//! Log-probabilities of one row of logits.

use std::cmp::Ordering;

use prelude_core::{PositionLogprobs, TokenId, TokenLogprob};

use crate::kernels::{Supported, simd};

/// Up to this many likeliest tokens are kept sorted by insertion; more are selected and sorted.
const INSERT_MAX: usize = 64;

/// What turns a row's logits into log-probabilities.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogSoftmax {
    /// `ln Σ e^logit`.
    log_sum_exp: f64,
}

impl LogSoftmax {
    /// Of finite logits with the given maximum. Sums in a fixed order.
    pub(crate) fn new(isa: Supported, logits: &[f32], max: f32) -> Self {
        let sum = simd::sum_exp(isa, logits, max);
        Self {
            log_sum_exp: f64::from(max) + sum.ln(),
        }
    }

    /// `ln Σ e^logit`, rounded.
    pub(crate) fn log_sum_exp(self) -> f32 {
        self.log_sum_exp as f32
    }

    /// The log-probability of a token with this logit: the same bits wherever it is reported.
    pub(crate) fn of(self, logit: f32) -> f32 {
        (f64::from(logit) - self.log_sum_exp) as f32
    }

    /// The `n` likeliest tokens, best first, ties by smaller id.
    pub(crate) fn top(self, logits: &[f32], n: u32) -> Vec<TokenLogprob> {
        largest(logits, n as usize)
            .into_iter()
            .map(|(logit, token)| TokenLogprob {
                token,
                logprob: self.of(logit),
            })
            .collect()
    }

    /// The score of one prompt token.
    pub(crate) fn score(
        self,
        isa: Supported,
        logits: &[f32],
        token: TokenId,
        top: u32,
    ) -> PositionLogprobs {
        let logit = logits[token as usize];
        PositionLogprobs {
            token,
            logprob: self.of(logit),
            rank: 1 + simd::count_above(isa, logits, logit),
            top: self.top(logits, top),
        }
    }
}

/// Best first: larger logits, then smaller ids.
fn order(a: &(f32, u32), b: &(f32, u32)) -> Ordering {
    b.0.partial_cmp(&a.0)
        .expect("logits were checked to be finite")
        .then(a.1.cmp(&b.1))
}

/// The `n` largest logits with their ids, best first.
fn largest(logits: &[f32], n: usize) -> Vec<(f32, u32)> {
    let n = n.min(logits.len());
    if n == 0 {
        return Vec::new();
    }
    let ids = logits.iter().copied().zip(0u32..);
    if n > INSERT_MAX {
        let mut all: Vec<_> = ids.collect();
        if n < all.len() {
            all.select_nth_unstable_by(n - 1, order);
            all.truncate(n);
        }
        all.sort_unstable_by(order);
        return all;
    }
    let mut best: Vec<(f32, u32)> = Vec::with_capacity(n + 1);
    let mut bound = f32::NEG_INFINITY;
    for (logit, id) in ids {
        // Ids rise, so an equal logit never displaces an earlier one.
        if best.len() == n && logit <= bound {
            continue;
        }
        let at = best.partition_point(|&(other, _)| other >= logit);
        best.insert(at, (logit, id));
        best.truncate(n);
        bound = best[best.len() - 1].0;
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    #[test]
    fn scores_are_those_of_the_definition() {
        let isa = Supported::new(Isa::best()).unwrap();
        let logits: Vec<f32> = (0..3000)
            .map(|i| ((i * 7919 % 613) as f32 - 300.0) / 40.0)
            .collect();
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let softmax = LogSoftmax::new(isa, &logits, max);
        let exact: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
        assert!((f64::from(softmax.log_sum_exp()) - exact).abs() < 1e-6);
        let score = softmax.score(isa, &logits, 5, 7);
        let above = logits.iter().filter(|&&x| x > logits[5]).count();
        assert_eq!(score.rank as usize, above + 1);
        let mut sorted: Vec<_> = logits.iter().copied().zip(0u32..).collect();
        sorted.sort_by(order);
        for n in [1, 7, 64, 65, 2999, 5000] {
            assert_eq!(largest(&logits, n), sorted[..n.min(3000)]);
        }
        // The same float in both places.
        let top = softmax.top(&logits, 3000);
        let same = top.iter().find(|t| t.token == 5).unwrap();
        assert_eq!(same.logprob.to_bits(), score.logprob.to_bits());
    }
}
