//! Labels as a trie of tokens behind a prompt.
//!
//! A common beginning of several labels is run once. Each place where labels part is scored once
//! for the tokens that may follow it. The rest of a label that no other label shares is scored as
//! the tokens of a text.

use std::{collections::HashMap, sync::Arc};

use prelude_core::{
    Head, LabelScores, NodeIdx, Normalise, PromptTree, RowSpec, TokenId, TreeError,
};

/// Upper bound of the places of a trie: tokens of all labels, common beginnings counted once.
pub const MAX_PLACES: usize = 1 << 16;

/// A set of labels, each a non-empty sequence of tokens.
///
/// ```text
/// labels  a b $   a c e f $   d $
/// places  0: {a, d}   a: {b, c}   ab: {$}   ac: {e}   ace: {f}   acef: {$}   d: {$}
/// rows    0: {a, d}   a: {b, c}   ab: {$}   ac, ace: e f        acef: {$}   d: {$}
/// ```
///
/// A place is a prefix of some label: the root is the prompt's own end. Only places are run: a
/// label's last token is scored from the place before it and needs no forward pass. Places with
/// one follower each that stand in a line are one row, which scores the tokens of a text.
///
/// So `n` labels have fewer than `4 n` rows, however long they are: one for the root, one for each
/// of at most `n - 1` places with several followers and one for the line before each of these, and
/// two for the rest of each label, its line and its last place.
#[derive(Clone, Debug)]
pub struct LabelTrie {
    nodes: Vec<Node>,
    /// The rows, that of the root first.
    rows: Vec<Row>,
    /// The place of the score of each token of each label.
    paths: Vec<Vec<Step>>,
}

/// Tokens behind the prompt's end or another node.
#[derive(Clone, Debug)]
struct Node {
    parent: Option<usize>,
    tokens: Vec<TokenId>,
}

#[derive(Clone, Debug)]
struct Row {
    /// The node whose end the row reads; `None` is the prompt's end.
    node: Option<usize>,
    scored: Scored,
}

#[derive(Clone, Debug)]
enum Scored {
    /// The tokens that follow in some label, in order of first appearance.
    Followers(Arc<[TokenId]>),
    /// The `len` tokens from the `start`th behind the prompt on.
    Run { start: u32, len: u32 },
}

/// The scores of one row.
#[derive(Clone, Debug)]
pub enum RowScores {
    /// Logits of tokens that may follow.
    Followers(LabelScores),
    /// Log-probabilities of tokens in a line, over the vocabulary.
    Run(Vec<f64>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    row: usize,
    at: usize,
}

impl LabelTrie {
    /// Builds the trie. Returns `None` if it would have more than [`MAX_PLACES`] places, which are
    /// counted on the way: a trie that is too large is never built.
    ///
    /// # Panics
    /// If a label is empty: callers check their labels.
    #[must_use]
    pub fn new<L: AsRef<[TokenId]>>(labels: &[L]) -> Option<Self> {
        let places = Places::new(labels)?;
        let mut trie = Self {
            nodes: Vec::new(),
            rows: Vec::new(),
            paths: Vec::new(),
        };
        // The row of each place, and the number in that row at which the scores of its followers
        // begin.
        let steps = trie.add_rows(&places);
        trie.paths = { places.paths.iter() }
            .map(|path| {
                let step = |&(place, follower): &(usize, usize)| {
                    let Step { row, at } = steps[place];
                    Step {
                        row,
                        at: at + follower,
                    }
                };
                path.iter().map(step).collect()
            })
            .collect();
        Some(trie)
    }

    fn add_rows(&mut self, places: &Places) -> Vec<Step> {
        const UNSET: Step = Step {
            row: usize::MAX,
            at: 0,
        };
        let mut steps = vec![UNSET; places.next.len()];
        // The node that ends at each place. A place's parent comes before it.
        let mut node_at: Vec<Option<usize>> = vec![None; places.next.len()];
        for place in 0..places.next.len() {
            if steps[place] != UNSET {
                continue;
            }
            let row = self.rows.len();
            let line = places.line_from(place);
            if line.len() > 1 {
                for (at, &of_line) in line.iter().enumerate() {
                    steps[of_line] = Step { row, at };
                }
                let node = self.add_line(places, &node_at, &line);
                let end = places.only_child(line[line.len() - 1]);
                node_at[end.expect("a line ends before a place")] = Some(node);
                continue;
            }
            steps[place] = Step { row, at: 0 };
            if let Some((parent, token)) = places.from[place]
                && node_at[place].is_none()
            {
                self.nodes.push(Node {
                    parent: node_at[parent],
                    tokens: vec![token],
                });
                node_at[place] = Some(self.nodes.len() - 1);
            }
            self.rows.push(Row {
                node: node_at[place],
                scored: Scored::Followers(places.next[place].as_slice().into()),
            });
        }
        steps
    }

    /// Adds a line's node and its row, and returns the node.
    fn add_line(&mut self, places: &Places, node_at: &[Option<usize>], line: &[usize]) -> usize {
        let first = line[0];
        let (parent, token) = places.from[first].expect("a line does not begin at the root");
        let scored = line.iter().map(|&place| places.next[place][0]);
        self.nodes.push(Node {
            parent: node_at[parent],
            tokens: [token].into_iter().chain(scored).collect(),
        });
        let node = self.nodes.len() - 1;
        self.rows.push(Row {
            node: Some(node),
            scored: Scored::Run {
                start: places.depth[first],
                len: u32::try_from(line.len()).expect("a line has at most MAX_PLACES places"),
            },
        });
        node
    }

    /// Returns the number of rows that one prompt needs.
    #[must_use]
    pub fn num_rows(&self) -> usize {
        self.rows.len()
    }

    /// Returns the number of tokens that the trie adds to one prompt.
    #[must_use]
    pub fn num_tokens(&self) -> usize {
        self.nodes.iter().map(|node| node.tokens.len()).sum()
    }

    /// Returns the largest number of tokens that one label puts behind a prompt.
    #[must_use]
    pub fn depth(&self) -> usize {
        let mut depths: Vec<usize> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let before = node.parent.map_or(0, |parent| depths[parent]);
            depths.push(before + node.tokens.len());
        }
        depths.into_iter().max().unwrap_or(0)
    }

    /// Hangs the trie under `prompt_end` and asks for the scores of every row: pushes
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
        let prompt_len = tree.prompt_len(prompt_end);
        let mut nodes = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let parent = node.parent.map_or(prompt_end, |parent| nodes[parent]);
            nodes.push(tree.push(Some(parent), node.tokens.clone())?);
        }
        for row in &self.rows {
            let head = match &row.scored {
                Scored::Followers(labels) => Head::LabelScores {
                    labels: Arc::clone(labels),
                    normalise,
                },
                Scored::Run { start, len } => {
                    let start = prompt_len + start;
                    Head::PromptLogprobs {
                        positions: start..start + len,
                        top: 0,
                    }
                }
            };
            rows.push(RowSpec {
                node: row.node.map_or(prompt_end, |node| nodes[node]),
                head,
            });
        }
        Ok(())
    }

    /// Returns the log-probability of each label over everything that the model could say, from the
    /// scores of [`Self::graft`]'s rows under [`Normalise::OverVocab`].
    #[must_use]
    pub fn log_probabilities(&self, scores: &[RowScores]) -> Vec<f64> {
        self.sum_along(scores, |scores| match scores {
            RowScores::Followers(scores) => {
                let norm = f64::from(scores.log_sum_exp.unwrap_or(f32::NAN));
                scores.logits.iter().map(|&l| f64::from(l) - norm).collect()
            }
            RowScores::Run(log) => log.clone(),
        })
    }

    /// Returns the probability of each label given that the model says one of them. At every place
    /// the followers share all of the probability, and the probability of a label is the product
    /// along its path. All of them sum to 1.
    #[must_use]
    pub fn probabilities(&self, scores: &[RowScores], temperature: f64) -> Vec<f64> {
        let log = self.sum_along(scores, |scores| match scores {
            RowScores::Followers(scores) => log_softmax(&scores.logits, temperature),
            // Only one token follows each token of a run, so its probability is 1.
            RowScores::Run(log) => vec![0.0; log.len()],
        });
        log.into_iter().map(f64::exp).collect()
    }

    /// Returns the probability that the model says the first token of one of these labels. Needs
    /// [`Normalise::OverVocab`].
    #[must_use]
    pub fn mass(&self, scores: &[RowScores]) -> Option<f64> {
        match scores.first()? {
            RowScores::Followers(root) => label_mass(root),
            RowScores::Run(_) => None,
        }
    }

    fn sum_along(
        &self,
        scores: &[RowScores],
        log_probability: impl Fn(&RowScores) -> Vec<f64>,
    ) -> Vec<f64> {
        let of_row: Vec<Vec<f64>> = scores.iter().map(log_probability).collect();
        let along = |path: &Vec<Step>| path.iter().map(|s| of_row[s.row][s.at]).sum();
        self.paths.iter().map(along).collect()
    }
}

/// The trie with every place for itself.
struct Places {
    /// The place before each place and the token between them; `None` for the root.
    from: Vec<Option<(usize, TokenId)>>,
    /// The number of tokens between the prompt and each place.
    depth: Vec<u32>,
    /// The tokens that follow in some label, in order of first appearance.
    next: Vec<Vec<TokenId>>,
    child: HashMap<(usize, TokenId), usize>,
    /// The places along each label, and the number of the follower that comes next.
    paths: Vec<Vec<(usize, usize)>>,
}

impl Places {
    fn new<L: AsRef<[TokenId]>>(labels: &[L]) -> Option<Self> {
        let mut places = Self {
            from: vec![None],
            depth: vec![0],
            next: vec![Vec::new()],
            child: HashMap::new(),
            paths: Vec::with_capacity(labels.len()),
        };
        for label in labels {
            let path = places.add(label.as_ref())?;
            places.paths.push(path);
        }
        Some(places)
    }

    fn add(&mut self, tokens: &[TokenId]) -> Option<Vec<(usize, usize)>> {
        assert!(!tokens.is_empty(), "a label has at least one token");
        let mut path = Vec::with_capacity(tokens.len());
        let mut place = 0;
        for (&token, depth) in tokens.iter().zip(1..) {
            path.push((place, position_or_push(&mut self.next[place], token)));
            if path.len() < tokens.len() {
                place = match self.child.get(&(place, token)) {
                    Some(&child) => child,
                    None => {
                        let child = self.from.len();
                        if child == MAX_PLACES {
                            return None;
                        }
                        self.child.insert((place, token), child);
                        self.from.push(Some((place, token)));
                        self.depth.push(depth);
                        self.next.push(Vec::new());
                        child
                    }
                };
            }
        }
        Some(path)
    }

    /// Returns the place behind a place with one follower, or `None` where a label ends.
    fn only_child(&self, place: usize) -> Option<usize> {
        self.child.get(&(place, self.next[place][0])).copied()
    }

    /// Returns the places that follow each other from `place` on and have one follower each that is
    /// a place as well. Returns `place` alone if `place` is not such a place, or is the root.
    fn line_from(&self, place: usize) -> Vec<usize> {
        let mut line = vec![place];
        let is_single = |place: usize| {
            place != 0 && self.next[place].len() == 1 && self.only_child(place).is_some()
        };
        let mut last = place;
        while is_single(last)
            && let Some(child) = self.only_child(last)
            && is_single(child)
        {
            line.push(child);
            last = child;
        }
        line
    }
}

/// Returns a guess of the rows that `labels` labels of `bytes` bytes in all need behind a prompt.
pub const fn rows_behind(labels: usize, bytes: usize) -> u64 {
    // A label has two rows at most, nearly always; and a row is of one token at least.
    let by_labels = (labels as u64).saturating_mul(2);
    let by_tokens = (bytes as u64).div_ceil(BYTES_PER_TOKEN);
    (if by_labels < by_tokens {
        by_labels
    } else {
        by_tokens
    }) + 1
}

/// The number of bytes of a token, for guesses.
const BYTES_PER_TOKEN: u64 = 3;

fn position_or_push(list: &mut Vec<TokenId>, token: TokenId) -> usize {
    list.iter().position(|&t| t == token).unwrap_or_else(|| {
        list.push(token);
        list.len() - 1
    })
}

/// Returns the natural logarithm of the softmax of `logits / temperature`, computed in f64. A temperature
/// near 0 gives 0 for a single largest logit and -∞ for the others, never NaN.
#[must_use]
pub fn log_softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let logits: Vec<f64> = logits.iter().copied().map(f64::from).collect();
    let scaled = below_max(&logits, temperature);
    let norm = scaled.iter().map(|l| l.exp()).sum::<f64>().ln();
    scaled.into_iter().map(|l| l - norm).collect()
}

/// Returns `(x - max) / temperature` of each value. Subtracting first leaves nothing that overflows
/// but to -∞.
pub fn below_max(values: &[f64], temperature: f64) -> Vec<f64> {
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    values.iter().map(|x| (x - max) / temperature).collect()
}

/// Returns the softmax of `logits`, computed in f64.
#[must_use]
pub fn softmax(logits: &[f32]) -> Vec<f64> {
    let logits: Vec<f64> = logits.iter().copied().map(f64::from).collect();
    let mut parts = below_max(&logits, 1.0);
    parts.iter_mut().for_each(|part| *part = part.exp());
    let sum: f64 = parts.iter().sum();
    parts.into_iter().map(|part| part / sum).collect()
}

/// Returns the probability that the model says one of these labels first, whatever follows. Needs
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
    fn score(tree: &PromptTree, rows: &[RowSpec], vocab: u32) -> Vec<RowScores> {
        rows.iter()
            .map(|row| {
                let prompt = tree.prompt(row.node);
                let all = |prompt: &[TokenId]| -> Vec<f32> {
                    (0..vocab).map(|t| logit(prompt, t)).collect()
                };
                match &row.head {
                    Head::LabelScores { labels, .. } => {
                        let all = all(&prompt);
                        RowScores::Followers(LabelScores {
                            logits: labels.iter().map(|&t| all[t as usize]).collect(),
                            log_sum_exp: Some(all.iter().map(|l| l.exp()).sum::<f32>().ln()),
                        })
                    }
                    Head::PromptLogprobs { positions, .. } => {
                        let score = |at: u32| {
                            let at = at as usize;
                            let log = log_softmax(&all(&prompt[..at]), 1.0);
                            log[prompt[at] as usize]
                        };
                        RowScores::Run(positions.clone().map(score).collect())
                    }
                    _ => panic!("nothing else is asked for"),
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
        let trie = LabelTrie::new(labels).unwrap();
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
    fn tokens_of_one_label_alone_are_one_row() {
        let (trie, tree, rows) = graft(&[vec![5, 6, 9], vec![5, 7, 3, 4, 9], vec![8, 9]]);
        assert_eq!(rows.len(), 6);
        assert_eq!((trie.depth(), trie.num_tokens()), (4, 6));
        let run = rows.iter().find_map(|row| match &row.head {
            Head::PromptLogprobs { positions, .. } => Some((positions.clone(), row.node)),
            _ => None,
        });
        let (positions, node) = run.unwrap();
        assert_eq!(tree.prompt(node), [1, 2, 5, 7, 3, 4]);
        assert_eq!(positions, 4..6);
        // The root stays a row of its own: it tells how likely any label is.
        let (trie, _, rows) = graft(&[vec![5, 6, 7, 3, 9], vec![5, 6, 7, 4, 9]]);
        assert!(matches!(rows[0].head, Head::LabelScores { .. }));
        assert_eq!((trie.num_rows(), trie.num_tokens()), (5, 5));
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
    fn a_trie_that_is_too_large_is_not_built() {
        let label = |len: usize| vec![1; len];
        assert!(LabelTrie::new(&[label(MAX_PLACES)]).is_some());
        assert!(LabelTrie::new(&[label(MAX_PLACES + 1)]).is_none());
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
            labels in prop::collection::btree_set(prop::collection::vec(0u32..6, 1..8), 1..20)
        ) {
            // An end token makes no label a prefix of another.
            let labels: Vec<Vec<u32>> =
                labels.into_iter().map(|mut l| { l.push(6); l }).collect();
            let (trie, tree, rows) = graft(&labels);
            prop_assert!(rows.len() < 4 * labels.len());
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
