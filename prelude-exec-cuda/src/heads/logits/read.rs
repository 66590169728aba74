//! Reading what sampling and scoring left.

use prelude_core::{PositionLogprobs, RowOutput, SampledToken, TokenId, TokenLogprob};

use prelude_kernels::families::SampleStatus;

use super::{
    super::{NOT_FINITE, results::Results, word},
    Sampled, Scored,
};

pub(super) fn read_sampled(at: &Sampled, results: &Results) -> RowOutput {
    let status = results.words(at.status).next();
    match status.and_then(SampleStatus::from_code) {
        Some(SampleStatus::Sampled) => {}
        Some(SampleStatus::NothingAllowed) => return RowOutput::NoToken,
        _ => return RowOutput::Failed(NOT_FINITE),
    }
    let ids = results.words(at.ids);
    let Some(scores) = &at.scores else {
        let plain = |token| SampledToken {
            token,
            logprob: None,
            top: Vec::new(),
        };
        return RowOutput::Sampled(ids.map(plain).collect());
    };
    if let Some((part, top)) = scores.whole {
        let row = Whole::new(results.floats(part).collect());
        let top = row.top(top);
        let tokens = ids.map(|token| SampledToken {
            token,
            logprob: Some(row.logprob(token)),
            top: top.clone(),
        });
        return RowOutput::Sampled(tokens.collect());
    }
    let top = read_top(scores, results);
    let tokens = ids
        .zip(results.floats(scores.lp))
        .map(|(token, lp)| SampledToken {
            token,
            logprob: Some(lp),
            top: top.clone(),
        });
    RowOutput::Sampled(tokens.collect())
}

/// A whole row of finite logits, for lists longer than the kernel's.
struct Whole {
    logits: Vec<f32>,
    log_sum_exp: f64,
}

impl Whole {
    fn new(logits: Vec<f32>) -> Self {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let max = f64::from(max);
        let sum: f64 = logits.iter().map(|&x| (f64::from(x) - max).exp()).sum();
        Self {
            logits,
            log_sum_exp: max + sum.ln(),
        }
    }

    fn logprob(&self, token: TokenId) -> f32 {
        (f64::from(self.logits[token as usize]) - self.log_sum_exp) as f32
    }

    /// Returns the `n` largest, best first, ties by smaller id.
    fn top(&self, n: usize) -> Vec<TokenLogprob> {
        let mut ids: Vec<TokenId> = (0..word(self.logits.len())).collect();
        ids.sort_by(|&a, &b| {
            let logit = |id: TokenId| self.logits[id as usize];
            logit(b).total_cmp(&logit(a)).then(a.cmp(&b))
        });
        let best = ids.into_iter().take(n);
        best.map(|token| TokenLogprob {
            token,
            logprob: self.logprob(token),
        })
        .collect()
    }
}

/// Reads a token's score; `None` if the row's numbers are not finite.
pub(super) fn read_score(
    at: &Scored,
    token: TokenId,
    results: &Results,
) -> Option<PositionLogprobs> {
    let rank = results.words(at.rank).next().filter(|&rank| rank > 0)?;
    if let Some((part, top)) = at.whole {
        let row = Whole::new(results.floats(part).collect());
        return Some(PositionLogprobs {
            token,
            logprob: row.logprob(token),
            rank,
            top: row.top(top),
        });
    }
    Some(PositionLogprobs {
        token,
        logprob: results.floats(at.lp).next()?,
        rank,
        top: read_top(at, results),
    })
}

fn read_top(at: &Scored, results: &Results) -> Vec<TokenLogprob> {
    let entries = results.words(at.top_id).zip(results.floats(at.top_lp));
    entries
        .map(|(token, logprob)| TokenLogprob { token, logprob })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_rows_are_ranked_like_the_kernel_does() {
        let row = Whole::new(vec![1.0, 3.0, -2.0, 3.0]);
        let ids: Vec<_> = row.top(3).iter().map(|t| t.token).collect();
        assert_eq!(ids, [1, 3, 0]);
        let total: f64 = row.top(9).iter().map(|t| f64::from(t.logprob).exp()).sum();
        assert!((total - 1.0).abs() < 1e-6);
        assert_eq!(row.top(1)[0].logprob.to_bits(), row.logprob(1).to_bits());
    }
}
