//! Prompts as trees: what several prompts of one request share is stored, and computed, once.

use std::{fmt, ops::Range};

use thiserror::Error;

use crate::TokenId;

/// Index of a node in a [`PromptTree`]; parents always have smaller indices than children.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIdx(pub u32);

impl NodeIdx {
    /// Returns the index as a position in [`PromptTree::nodes`].
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A node of a tree: a run of tokens that follows the tokens of its parent. `Debug` prints how
/// many, not which.
#[derive(Clone, PartialEq, Eq)]
pub struct PromptNode {
    /// The node whose tokens precede these; `None` for a root.
    pub parent: Option<NodeIdx>,
    /// Tokens of this node alone, never empty.
    pub tokens: Vec<TokenId>,
}

impl fmt::Debug for PromptNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PromptNode")
            .field("parent", &self.parent)
            .field("tokens", &self.tokens.len())
            .finish()
    }
}

/// A forest of token runs. The prompt *of a node* is the concatenation of its ancestors' tokens
/// and its own, so two nodes with a common ancestor are two prompts with a common prefix.
///
/// The result for a node equals that of its whole prompt run alone: sharing is a matter of
/// cost, never of meaning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptTree {
    nodes: Vec<PromptNode>,
    /// `ends[i]`: length of node i's whole prompt, in tokens.
    ends: Vec<u32>,
}

/// The reason why a tree could not be extended.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TreeError {
    /// A node without tokens has no last position and so no result.
    #[error("prompt node {node} has no tokens")]
    EmptyNode {
        /// The index the node would have had.
        node: usize,
    },
    /// The parent is not in the tree.
    #[error("prompt node {node} names parent {parent}, which does not precede it")]
    BadParent {
        /// The index the node would have had.
        node: usize,
        /// The parent that the node named.
        parent: u32,
    },
    /// A prompt longer than `u32` can count.
    #[error("prompt of node {node} is longer than 2^32 - 1 tokens")]
    TooLong {
        /// The index the node would have had.
        node: usize,
    },
}

impl PromptTree {
    /// Returns an empty tree.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a tree of one prompt. `tokens` must not be empty for the tree to be of use;
    /// [`crate::Request::validate`] refuses an empty one.
    #[must_use]
    pub fn single(tokens: Vec<TokenId>) -> Self {
        let mut tree = Self::new();
        // An empty prompt leaves the tree empty, which `validate` reports to the caller.
        let _ = tree.push(None, tokens);
        tree
    }

    /// Adds a node.
    ///
    /// # Errors
    /// [`TreeError`] if the node is empty, its parent unknown, or its prompt too long.
    pub fn push(
        &mut self,
        parent: Option<NodeIdx>,
        tokens: Vec<TokenId>,
    ) -> Result<NodeIdx, TreeError> {
        let node = self.nodes.len();
        if tokens.is_empty() {
            return Err(TreeError::EmptyNode { node });
        }
        let start = match parent {
            None => 0,
            Some(p) if p.index() < node => self.ends[p.index()],
            Some(p) => return Err(TreeError::BadParent { node, parent: p.0 }),
        };
        let end = u32::try_from(tokens.len())
            .ok()
            .and_then(|len| start.checked_add(len))
            .ok_or(TreeError::TooLong { node })?;
        let idx = u32::try_from(node).map_err(|_| TreeError::TooLong { node })?;
        self.nodes.push(PromptNode { parent, tokens });
        self.ends.push(end);
        Ok(NodeIdx(idx))
    }

    /// Builds a tree from whole prompts, sharing every common prefix, and returns the node at
    /// which each prompt ends (equal prompts end at the same node).
    ///
    /// Cost: `O(n log n)` comparisons of prompts plus the total number of tokens.
    ///
    /// # Errors
    /// [`TreeError::EmptyNode`] with the index of an empty prompt; [`TreeError::TooLong`].
    pub fn from_prompts<P: AsRef<[TokenId]>>(
        prompts: &[P],
    ) -> Result<(Self, Vec<NodeIdx>), TreeError> {
        if let Some(node) = prompts.iter().position(|p| p.as_ref().is_empty()) {
            return Err(TreeError::EmptyNode { node });
        }
        let mut order: Vec<usize> = (0..prompts.len()).collect();
        order.sort_by(|&a, &b| prompts[a].as_ref().cmp(prompts[b].as_ref()));
        // After sorting, a prompt shares most with its neighbour; `lcp[i]` is what sorted prompt
        // i shares with i - 1.
        let lcp: Vec<usize> = order
            .iter()
            .enumerate()
            .map(|(i, &p)| {
                let Some(prev) = i.checked_sub(1) else {
                    return 0;
                };
                common_prefix(prompts[order[prev]].as_ref(), prompts[p].as_ref())
            })
            .collect();
        let mut tree = Self::new();
        let mut ends = vec![NodeIdx(0); prompts.len()];
        tree.split_group(prompts, &order, &lcp, &mut ends)?;
        Ok((tree, ends))
    }

    /// Pushes the sorted prompts `order` as a tree, cutting nodes where neighbours diverge.
    ///
    /// Works on an explicit stack (a chain of n prompts, each a prefix of the next, would
    /// recurse n deep). Each open node knows where its prompt ends.
    fn split_group<P: AsRef<[TokenId]>>(
        &mut self,
        prompts: &[P],
        order: &[usize],
        lcp: &[usize],
        ends: &mut [NodeIdx],
    ) -> Result<(), TreeError> {
        // Cut points of sorted prompt i: the depths at which some later or earlier neighbour
        // diverges from it. Walking left to right, the open path's node ends are kept in
        // `path`; a node's end depth must be known when it is pushed, so first find for each
        // prompt the depths where *later* prompts leave it: the running minimum of lcp.
        let mut path: Vec<(NodeIdx, usize)> = Vec::new();
        for (i, &p) in order.iter().enumerate() {
            let tokens = prompts[p].as_ref();
            while path.last().is_some_and(|&(_, end)| end > lcp[i]) {
                path.pop();
            }
            let mut depth = path.last().map_or(0, |&(_, end)| end);
            // Depths in (depth, len) at which a later prompt departs from this one.
            let mut cuts: Vec<usize> = vec![tokens.len()];
            let mut shared = tokens.len();
            for &l in &lcp[i + 1..] {
                shared = shared.min(l);
                if shared <= depth {
                    break;
                }
                if cuts.last() != Some(&shared) {
                    cuts.push(shared);
                }
            }
            for &cut in cuts.iter().rev() {
                if cut > depth {
                    let parent = path.last().map(|&(n, _)| n);
                    let node = self.push(parent, tokens[depth..cut].to_vec())?;
                    path.push((node, cut));
                    depth = cut;
                }
            }
            ends[p] = path
                .last()
                .expect("a prompt is not empty, so a node is open")
                .0;
        }
        Ok(())
    }

    /// Returns the nodes, parents before children.
    #[must_use]
    pub fn nodes(&self) -> &[PromptNode] {
        &self.nodes
    }

    /// Returns the node pushed last.
    ///
    /// # Panics
    /// If the tree is empty.
    #[must_use]
    pub fn last_node(&self) -> NodeIdx {
        let n = u32::try_from(self.nodes.len()).expect("push bounds the number of nodes");
        NodeIdx(n.checked_sub(1).expect("the tree has a node"))
    }

    /// Returns the length of `node`'s whole prompt, in tokens.
    #[must_use]
    pub fn prompt_len(&self, node: NodeIdx) -> u32 {
        self.ends[node.index()]
    }

    /// Returns the position at which `node`'s own tokens start: the length of its parent's prompt.
    #[must_use]
    pub fn start(&self, node: NodeIdx) -> u32 {
        self.nodes[node.index()]
            .parent
            .map_or(0, |p| self.ends[p.index()])
    }

    /// Returns the whole prompt of `node`.
    #[must_use]
    pub fn prompt(&self, node: NodeIdx) -> Vec<TokenId> {
        let mut tokens = Vec::new();
        self.copy_tokens(node, 0..self.prompt_len(node), &mut tokens);
        tokens
    }

    /// Appends the tokens at `positions` of the prompt of `node` to `tokens`. Visits the ancestors
    /// of `node` as far up as `positions` begins.
    ///
    /// # Panics
    /// If `positions` goes beyond the prompt.
    pub fn copy_tokens(&self, node: NodeIdx, positions: Range<u32>, tokens: &mut Vec<TokenId>) {
        assert!(
            positions.end <= self.prompt_len(node),
            "positions beyond the prompt"
        );
        let base = tokens.len();
        tokens.resize(base + positions.len(), 0);
        let mut at = Some(node);
        while let Some(node) = at {
            let (start, end) = (self.start(node), self.prompt_len(node));
            let from = positions.start.max(start);
            let to = positions.end.min(end);
            if from < to {
                let own = &self.nodes[node.index()].tokens;
                let place = base + (from - positions.start) as usize;
                tokens[place..][..(to - from) as usize]
                    .copy_from_slice(&own[(from - start) as usize..(to - start) as usize]);
            }
            at = self.nodes[node.index()]
                .parent
                .filter(|_| positions.start < start);
        }
    }

    /// Returns the number of tokens stored in the tree: what a forward pass computes when nothing
    /// is cached.
    #[must_use]
    pub fn distinct_tokens(&self) -> usize {
        self.nodes.iter().map(|n| n.tokens.len()).sum()
    }

    /// Returns whether the tree has no nodes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
}

fn common_prefix(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn shares_prefixes_once() {
        let (tree, ends) =
            PromptTree::from_prompts(&[vec![1, 2, 3], vec![1, 2, 4], vec![1, 2], vec![9]]).unwrap();
        assert_eq!(tree.distinct_tokens(), 5);
        assert_eq!(tree.prompt(ends[0]), [1, 2, 3]);
        assert_eq!(tree.prompt(ends[2]), [1, 2]);
        assert_eq!(tree.start(ends[1]), 2);
        let copied = |positions| {
            let mut tokens = vec![7];
            tree.copy_tokens(ends[0], positions, &mut tokens);
            tokens
        };
        assert_eq!(copied(1..3), [7, 2, 3]);
        assert_eq!(copied(2..3), [7, 3]);
        assert_eq!(copied(0..2), [7, 1, 2]);
        assert_eq!(copied(1..1), [7]);
    }

    #[test]
    fn refuses_bad_nodes() {
        let mut tree = PromptTree::new();
        assert_eq!(
            tree.push(None, vec![]),
            Err(TreeError::EmptyNode { node: 0 })
        );
        assert_eq!(
            tree.push(Some(NodeIdx(0)), vec![1]),
            Err(TreeError::BadParent { node: 0, parent: 0 })
        );
        assert_eq!(
            PromptTree::from_prompts(&[vec![1], vec![]]),
            Err(TreeError::EmptyNode { node: 1 })
        );
    }

    proptest! {
        /// Every prompt comes back whole, equal prompts meet, and the number of stored tokens is
        /// that of a character trie: the least possible.
        #[test]
        fn from_prompts_is_a_trie(
            prompts in prop::collection::vec(prop::collection::vec(0u32..3, 1..12), 1..24)
        ) {
            let (tree, ends) = PromptTree::from_prompts(&prompts).unwrap();
            let mut prefixes = std::collections::BTreeSet::new();
            for (p, &end) in prompts.iter().zip(&ends) {
                prop_assert_eq!(&tree.prompt(end), p);
                prop_assert_eq!(tree.prompt_len(end) as usize, p.len());
                for n in 1..=p.len() {
                    prefixes.insert(&p[..n]);
                }
            }
            prop_assert_eq!(tree.distinct_tokens(), prefixes.len());
        }
    }
}
