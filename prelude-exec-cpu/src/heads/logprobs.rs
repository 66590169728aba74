//! Log-probabilities of one row of logits.

use std::cmp::Ordering;

use prelude_core::{PositionLogprobs, TokenId, TokenLogprob};

use crate::kernels::{Supported, simd};

/// Most likeliest tokens that are kept sorted by insertion; more are selected and sorted.
const INSERT_MAX: usize = 64;

/// The constants that turn a row's logits into log-probabilities.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogSoftmax {
    /// `ln Σ e^logit`.
    log_sum_exp: f64,
}

impl LogSoftmax {
    /// Takes finite logits and their maximum. Sums in a fixed order.
    pub(crate) fn new(isa: Supported, logits: &[f32], max: f32) -> Self {
        let sum = simd::sum_exp(isa, logits, max);
        Self {
            log_sum_exp: f64::from(max) + sum.ln(),
        }
    }

    /// Returns `ln Σ e^logit`, rounded.
    pub(crate) fn log_sum_exp(self) -> f32 {
        self.log_sum_exp as f32
    }

    /// Returns the log-probability of a token with this logit: the same bits wherever it is
    /// reported.
    pub(crate) fn of(self, logit: f32) -> f32 {
        (f64::from(logit) - self.log_sum_exp) as f32
    }

    /// Returns the `n` likeliest tokens, best first, ties by smaller id.
    pub(crate) fn top(self, logits: &[f32], n: u32) -> Vec<TokenLogprob> {
        largest(logits, n as usize)
            .into_iter()
            .map(|(logit, token)| TokenLogprob {
                token,
                logprob: self.of(logit),
            })
            .collect()
    }
}

/// Log-probabilities of one row of logits for all that read it: what several want is computed
/// once, when it is first asked for.
pub(crate) struct Readings<'a> {
    isa: Supported,
    logits: &'a [f32],
    max: f32,
    /// Most likeliest tokens that anyone asks for.
    top_max: u32,
    softmax: Option<LogSoftmax>,
    top: Option<Vec<TokenLogprob>>,
    /// The last token that was ranked, and its rank.
    ranked: Option<(TokenId, u32)>,
}

impl<'a> Readings<'a> {
    /// Takes finite logits and their maximum, for lists of at most `top_max` likeliest tokens.
    pub(crate) const fn new(isa: Supported, logits: &'a [f32], max: f32, top_max: u32) -> Self {
        Self {
            isa,
            logits,
            max,
            top_max,
            softmax: None,
            top: None,
            ranked: None,
        }
    }

    pub(crate) fn softmax(&mut self) -> LogSoftmax {
        *self
            .softmax
            .get_or_insert_with(|| LogSoftmax::new(self.isa, self.logits, self.max))
    }

    /// Returns the `n` likeliest tokens, best first, ties by smaller id: the head of the longest
    /// list.
    pub(crate) fn top(&mut self, n: u32) -> Vec<TokenLogprob> {
        debug_assert!(n <= self.top_max, "a longer list than was announced");
        let softmax = self.softmax();
        let top = self
            .top
            .get_or_insert_with(|| softmax.top(self.logits, self.top_max));
        top[..top.len().min(n as usize)].to_vec()
    }

    /// Returns the score of one prompt token. Equal tokens asked for one after the other are ranked
    /// once.
    pub(crate) fn score(&mut self, token: TokenId, top: u32) -> PositionLogprobs {
        let logit = self.logits[token as usize];
        let rank = match self.ranked {
            Some((ranked, rank)) if ranked == token => rank,
            _ => 1 + simd::count_above(self.isa, self.logits, logit),
        };
        self.ranked = Some((token, rank));
        PositionLogprobs {
            token,
            logprob: self.softmax().of(logit),
            rank,
            top: self.top(top),
        }
    }
}

/// Orders the best first: larger logits, then smaller ids.
fn order(a: &(f32, u32), b: &(f32, u32)) -> Ordering {
    b.0.partial_cmp(&a.0)
        .expect("logits were checked to be finite")
        .then(a.1.cmp(&b.1))
}

/// Returns the `n` largest logits with their ids, best first.
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
        let mut readings = Readings::new(isa, &logits, max, 64);
        for (token, n) in [(5, 7), (5, 64), (2999, 0), (0, 1), (5, 7)] {
            let score = readings.score(token, n);
            let logit = logits[token as usize];
            let above = logits.iter().filter(|&&x| x > logit).count();
            assert_eq!(score.rank as usize, above + 1);
            assert_eq!(score.logprob.to_bits(), softmax.of(logit).to_bits());
            assert_eq!(score.top, softmax.top(&logits, n));
        }
        let score = readings.score(5, 7);
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
