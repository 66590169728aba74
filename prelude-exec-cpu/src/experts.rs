//! The choice of experts for each token of a chunk.

use prelude_models::Routing;

/// The tokens of each expert, with the expert's share in each.
#[derive(Debug)]
pub(crate) struct Shares {
    /// Token and share, by expert and then by token.
    tokens: Vec<(usize, f32)>,
    /// Index of each expert's first token, and the number of all.
    first: Vec<usize>,
}

impl Shares {
    /// Chooses by `logits`, `[n, experts]`. The choice for a token depends on its own logits alone.
    pub(crate) fn of(logits: &[f32], experts: usize, routing: Routing) -> Self {
        let mut chosen: Vec<(usize, usize, f32)> = Vec::new();
        let mut order: Vec<usize> = Vec::with_capacity(experts);
        for (token, logits) in logits.chunks_exact(experts).enumerate() {
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weight = |e: usize| (logits[e] - max).exp();
            order.clear();
            order.extend(0..experts);
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
            let best = &order[..routing.per_token];
            let over = match routing.normalise {
                true => best.iter().map(|&e| weight(e)).sum::<f32>(),
                false => (0..experts).map(weight).sum(),
            };
            chosen.extend(best.iter().map(|&e| (e, token, weight(e) / over)));
        }
        chosen.sort_by_key(|&(expert, token, _)| (expert, token));
        let first = (0..=experts).map(|e| chosen.partition_point(|&(of, ..)| of < e));
        Self {
            first: first.collect(),
            tokens: chosen.into_iter().map(|(_, token, p)| (token, p)).collect(),
        }
    }

    /// Returns the tokens of an expert in order, and its share in each.
    pub(crate) fn of_expert(&self, expert: usize) -> &[(usize, f32)] {
        &self.tokens[self.first[expert]..self.first[expert + 1]]
    }
}

/// Copies the rows of an expert's tokens from `x` to the beginning of `gathered`.
pub(crate) fn gather_tokens(
    tokens: &[(usize, f32)],
    x: &[f32],
    width: usize,
    gathered: &mut [f32],
) {
    for (row, &(token, _)) in gathered.chunks_exact_mut(width).zip(tokens) {
        row.copy_from_slice(&x[token * width..][..width]);
    }
}

/// Adds an expert's outputs to its tokens' rows of `sum`, each by the expert's share in it.
pub(crate) fn add_shares(tokens: &[(usize, f32)], out: &[f32], width: usize, sum: &mut [f32]) {
    for (out, &(token, share)) in out.chunks_exact(width).zip(tokens) {
        let sum = &mut sum[token * width..][..width];
        for (sum, y) in sum.iter_mut().zip(out) {
            *sum += share * y;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_logits_choose() {
        let logits = [0.0, 2.0, 1.0, 2.0, 5.0, 0.0, 0.0, 0.0];
        let of = |normalise| {
            let per_token = 2;
            let routing = Routing {
                per_token,
                normalise,
            };
            Shares::of(&logits, 4, routing)
        };
        let shares = of(true);
        let tokens = |e: usize| shares.of_expert(e).iter().map(|s| s.0).collect::<Vec<_>>();
        // Of equal ones the first.
        assert_eq!(
            [0, 1, 2, 3].map(tokens),
            [vec![1], vec![0, 1], vec![], vec![0]]
        );
        assert_eq!(shares.of_expert(3)[0].1, 0.5);
        let whole = of(false).of_expert(0)[0].1;
        let expected = 5f32.exp() / (5f32.exp() + 3.0);
        assert!((whole - expected).abs() < 1e-6);
        // A row that is not finite has experts too: its numbers fail where they are read.
        let shares = Shares::of(
            &[f32::NAN; 4],
            4,
            Routing {
                per_token: 2,
                normalise: true,
            },
        );
        assert!(shares.of_expert(0)[0].1.is_nan());
    }
}
