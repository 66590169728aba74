//! Labels as a trie of tokens behind a prompt: what several labels begin with is run once, and
//! each distinct place is asked once for the tokens that may follow it.

use std::sync::Arc;

use prelude_core::{
    Head, LabelScores, NodeIdx, Normalise, PromptTree, RowSpec, TokenId, TreeError,
};

/// A set of labels, each a non-empty sequence of tokens.
///
/// ```text
/// labels  a b $   a c $   d $        places  0: {a, d}   a: {b, c}   ab: {$}   ac: {$}   d: {$}
/// ```
///
/// A place is a prefix of some label: the root is the prompt's own end. Only places are run: a
/// label's last token is scored from the place before it and never needs a forward pass.
#[derive(Clone, Debug)]
pub struct LabelTrie {
    places: Vec<Place>,
    /// Per label, the places along it and which of the place's followers comes next.
    paths: Vec<Vec<Step>>,
}

#[derive(Clone, Debug)]
struct Place {
    /// How the place is reached; `None` for the root.
    from: Option<(usize, TokenId)>,
    /// The tokens that follow in some label, in order of first appearance.
    next: Arc<[TokenId]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    place: usize,
    follower: usize,
}

impl LabelTrie {
    /// Builds the trie.
    ///
    /// # Panics
    /// If a label is empty: callers check what they were given.
    #[must_use]
    pub fn new<L: AsRef<[TokenId]>>(labels: &[L]) -> Self {
        Self::within(labels, usize::MAX).expect("no trie has more places")
    }

    /// Builds the trie unless it has more than `max_places` places, which are counted on the way:
    /// a trie that is too large is never built.
    ///
    /// # Panics
    /// If a label is empty: callers check what they were given.
    #[must_use]
    pub fn within<L: AsRef<[TokenId]>>(labels: &[L], max_places: usize) -> Option<Self> {
        let mut from = vec![None];
        let mut next: Vec<Vec<TokenId>> = vec![Vec::new()];
        let mut child: std::collections::HashMap<(usize, TokenId), usize> = Default::default();
        let mut paths = Vec::with_capacity(labels.len());
        for label in labels {
            let tokens = label.as_ref();
            assert!(!tokens.is_empty(), "a label has at least one token");
            let mut path = Vec::with_capacity(tokens.len());
            let mut place = 0;
            for (i, &token) in tokens.iter().enumerate() {
                let follower = position_or_push(&mut next[place], token);
                path.push(Step { place, follower });
                if i + 1 < tokens.len() {
                    if from.len() >= max_places && !child.contains_key(&(place, token)) {
                        return None;
                    }
                    place = *child.entry((place, token)).or_insert_with(|| {
                        from.push(Some((place, token)));
                        next.push(Vec::new());
                        from.len() - 1
                    });
                }
            }
            paths.push(path);
        }
        let places = from
            .into_iter()
            .zip(next)
            .map(|(from, next)| Place {
                from,
                next: next.into(),
            })
            .collect();
        Some(Self { places, paths })
    }

    /// Rows that one prompt needs: the number of places.
    #[must_use]
    pub fn num_rows(&self) -> usize {
        self.places.len()
    }

    /// Tokens that one prompt needs beside its own.
    #[must_use]
    pub fn num_tokens(&self) -> usize {
        self.places.len() - 1
    }

    /// Most tokens that any label puts behind a prompt.
    #[must_use]
    pub fn depth(&self) -> usize {
        let longest = self.paths.iter().map(Vec::len).max().unwrap_or(1);
        longest - 1
    }

    /// Hangs the trie under `prompt_end` and asks for the scores of every place: pushes
    /// [`Self::num_rows`] rows, the root's first.
    ///
    /// # Errors
    /// [`TreeError::TooLong`].
    pub fn graft(
        &self,
        tree: &mut PromptTree,
        prompt_end: NodeIdx,
        normalise: Normalise,
        rows: &mut Vec<RowSpec>,
    ) -> Result<(), TreeError> {
        let mut nodes = Vec::with_capacity(self.places.len());
        for place in &self.places {
            let node = match place.from {
                None => prompt_end,
                Some((parent, token)) => tree.push(Some(nodes[parent]), vec![token])?,
            };
            nodes.push(node);
            rows.push(RowSpec {
                node,
                head: Head::LabelScores {
                    labels: Arc::clone(&place.next),
                    normalise,
                },
            });
        }
        Ok(())
    }

    /// The log-probability of each label over everything the model might have said, from the
    /// scores of [`Self::graft`]'s rows under [`Normalise::OverVocab`].
    #[must_use]
    pub fn log_probabilities(&self, scores: &[LabelScores]) -> Vec<f64> {
        self.sum_along(scores, |scores| {
            let norm = f64::from(scores.log_sum_exp.unwrap_or(f32::NAN));
            scores.logits.iter().map(|&l| f64::from(l) - norm).collect()
        })
    }

    /// The probability of each label given that one of them is said: at every place the followers
    /// share all of the probability, and a label's is the product along it. Sums to 1.
    #[must_use]
    pub fn probabilities(&self, scores: &[LabelScores], temperature: f64) -> Vec<f64> {
        let log = self.sum_along(scores, |scores| log_softmax(&scores.logits, temperature));
        log.into_iter().map(f64::exp).collect()
    }

    fn sum_along(
        &self,
        scores: &[LabelScores],
        log_probability: impl Fn(&LabelScores) -> Vec<f64>,
    ) -> Vec<f64> {
        let of_place: Vec<Vec<f64>> = scores.iter().map(log_probability).collect();
        let along = |path: &Vec<Step>| path.iter().map(|s| of_place[s.place][s.follower]).sum();
        self.paths.iter().map(along).collect()
    }
}

fn position_or_push(list: &mut Vec<TokenId>, token: TokenId) -> usize {
    list.iter().position(|&t| t == token).unwrap_or_else(|| {
        list.push(token);
        list.len() - 1
    })
}

/// Natural logarithm of the softmax of `logits / temperature`, computed in f64. A temperature
/// near 0 makes it 0 for a single largest logit and -∞ for the others, never NaN.
#[must_use]
pub fn log_softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let logits: Vec<f64> = logits.iter().copied().map(f64::from).collect();
    let scaled = below_max(&logits, temperature);
    let norm = scaled.iter().map(|l| l.exp()).sum::<f64>().ln();
    scaled.into_iter().map(|l| l - norm).collect()
}

/// `(x - max) / temperature` of each: subtracting first leaves nothing that overflows but to -∞.
pub(crate) fn below_max(values: &[f64], temperature: f64) -> Vec<f64> {
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    values.iter().map(|x| (x - max) / temperature).collect()
}

/// Softmax of `logits`, computed in f64.
#[must_use]
pub fn softmax(logits: &[f32]) -> Vec<f64> {
    let logits: Vec<f64> = logits.iter().copied().map(f64::from).collect();
    let mut parts = below_max(&logits, 1.0);
    parts.iter_mut().for_each(|part| *part = part.exp());
    let sum: f64 = parts.iter().sum();
    parts.into_iter().map(|part| part / sum).collect()
}

/// Probability that the model says one of these labels first, whatever follows: needs
/// [`Normalise::OverVocab`].
#[must_use]
pub fn label_mass(scores: &LabelScores) -> Option<f64> {
    let norm = f64::from(scores.log_sum_exp?);
    let sum: f64 = scores
        .logits
        .iter()
        .map(|&l| (f64::from(l) - norm).exp())
        .sum();
    // Rounding of the norm can leave a sum just over 1.
    Some(sum.min(1.0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Scores of each row of a grafted trie under a made-up model over `vocab` tokens.
    fn score(tree: &PromptTree, rows: &[RowSpec], vocab: u32) -> Vec<LabelScores> {
        rows.iter()
            .map(|row| {
                let prompt = tree.prompt(row.node);
                let all: Vec<f32> = (0..vocab).map(|t| logit(&prompt, t)).collect();
                let Head::LabelScores { labels, .. } = &row.head else {
                    panic!("only label scores are asked for")
                };
                LabelScores {
                    logits: labels.iter().map(|&t| all[t as usize]).collect(),
                    log_sum_exp: Some(all.iter().map(|l| l.exp()).sum::<f32>().ln()),
                }
            })
            .collect()
    }

    fn logit(prompt: &[TokenId], token: TokenId) -> f32 {
        let mix = prompt.iter().fold(token.wrapping_mul(7919), |h, &t| {
            h.wrapping_mul(31) ^ (t + 1)
        });
        (mix % 1000) as f32 / 250.0
    }

    fn graft(labels: &[Vec<TokenId>]) -> (LabelTrie, PromptTree, Vec<RowSpec>) {
        let trie = LabelTrie::new(labels);
        let mut tree = PromptTree::single(vec![1, 2]);
        let mut rows = Vec::new();
        let end = tree.last_node();
        trie.graft(&mut tree, end, Normalise::OverVocab, &mut rows)
            .unwrap();
        (trie, tree, rows)
    }

    #[test]
    fn shared_beginnings_are_run_once() {
        let (trie, tree, rows) = graft(&[vec![5, 6, 9], vec![5, 7, 9], vec![8, 9]]);
        assert_eq!(rows.len(), 5);
        assert_eq!(trie.num_tokens(), 4);
        assert_eq!(trie.depth(), 2);
        assert_eq!(tree.distinct_tokens(), 2 + 4);
        assert_eq!(tree.prompt(rows[0].node), [1, 2]);
    }

    #[test]
    fn any_temperature_gives_probabilities() {
        let check = |temperature: f64, expected: [f64; 3]| {
            let log = log_softmax(&[3.0, -2.0, 3.0], temperature);
            let got: Vec<f64> = log.into_iter().map(f64::exp).collect();
            let close = got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9);
            assert!(close, "{temperature}: {got:?}");
        };
        check(f64::MIN_POSITIVE, [0.5, 0.0, 0.5]);
        check(5e-324, [0.5, 0.0, 0.5]);
        check(1e-308, [0.5, 0.0, 0.5]);
        check(1e308, [1.0 / 3.0; 3]);
    }

    #[test]
    fn a_trie_within_bounds_is_the_trie() {
        let labels = [vec![5, 6, 9], vec![5, 7, 9], vec![8, 9]];
        let check = |max, expected| {
            let found = LabelTrie::within(&labels, max);
            assert_eq!(found.map(|t| t.num_rows()), expected, "{max}");
        };
        check(4, None);
        check(5, Some(5));
        check(6, Some(5));
    }

    #[test]
    fn mass_is_a_probability() {
        let scores = LabelScores {
            logits: vec![0.0, 0.0],
            log_sum_exp: Some(4f32.ln()),
        };
        assert!((label_mass(&scores).unwrap() - 0.5).abs() < 1e-6);
    }

    proptest! {
        /// Against the plain way: every label scored token by token on its own.
        #[test]
        fn equals_scoring_label_by_label(
            labels in prop::collection::btree_set(prop::collection::vec(0u32..6, 1..5), 1..20)
        ) {
            // An end token makes no label a prefix of another.
            let labels: Vec<Vec<u32>> =
                labels.into_iter().map(|mut l| { l.push(6); l }).collect();
            let (trie, tree, rows) = graft(&labels);
            let scores = score(&tree, &rows, 7);
            let got = trie.log_probabilities(&scores);
            for (label, got) in labels.iter().zip(got) {
                let mut prompt = vec![1, 2];
                let mut expected = 0.0;
                for &token in label {
                    let all: Vec<f32> = (0..7).map(|t| logit(&prompt, t)).collect();
                    expected += log_softmax(&all, 1.0)[token as usize];
                    prompt.push(token);
                }
                prop_assert!((got - expected).abs() < 1e-5, "{} {}", got, expected);
            }
            let sum: f64 = trie.probabilities(&scores, 1.7).iter().sum();
            prop_assert!((sum - 1.0).abs() < 1e-12);
        }
    }
}
