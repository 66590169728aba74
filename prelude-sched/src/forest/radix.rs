//! A radix tree over prompt trees: each node is a run of tokens within one node of one of them.

use std::sync::Arc;

use ahash::{AHashMap, RandomState};
use prelude_core::{NodeIdx, PromptTree, TokenId};

/// Nodes, the edges between them, and the prompt trees whose tokens they refer to.
#[derive(Debug)]
pub(super) struct Radix {
    pub(super) nodes: Vec<Node>,
    /// Child of a node by its first token. For lookups only.
    edges: AHashMap<(usize, TokenId), usize>,
    pub(super) trees: Vec<Arc<PromptTree>>,
}

/// A run of tokens. A node without parent stands for a cached prefix and has no tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) parent: Option<usize>,
    /// The cached prefix that the node's root stands for.
    pub(super) prefix: usize,
    /// Positions `start..end` of any prompt that passes here.
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) source: Source,
    /// The row for which the tokens are computed.
    pub(super) owner: usize,
    /// True if the node goes on with the row of its parent's last token: the prompt tree, not
    /// another row, separates the two.
    pub(super) continues: bool,
    /// True if a segment has to end here, though a child may continue.
    pub(super) is_cut: bool,
}

/// Tokens within a node of a prompt tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    /// Index of the tree.
    pub(super) tree: usize,
    pub(super) node: NodeIdx,
    /// The index of the first token within the prompt tree's node.
    pub(super) offset: usize,
}

/// A position in the radix tree: the prefix of `depth` tokens that ends in `node`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cursor {
    pub(super) node: usize,
    pub(super) depth: u32,
}

impl Radix {
    pub(super) fn new(trees: Vec<Arc<PromptTree>>) -> Self {
        Self {
            nodes: Vec::new(),
            edges: AHashMap::with_hasher(RandomState::with_seeds(5, 6, 7, 8)),
            trees,
        }
    }

    /// Adds a prompt tree, of which about so many nodes will be added.
    pub(super) fn add_tree(&mut self, tree: Arc<PromptTree>, nodes: usize) {
        self.edges.reserve(nodes);
        self.nodes.reserve(nodes);
        self.trees.push(tree);
    }

    /// Returns the tokens of a node.
    pub(super) fn tokens(&self, node: usize) -> &[TokenId] {
        let Node {
            start, end, source, ..
        } = self.nodes[node];
        let own = &self.trees[source.tree].nodes()[source.node.index()].tokens;
        &own[source.offset..][..(end - start) as usize]
    }

    /// Adds a node and returns its number.
    pub(super) fn push(&mut self, node: Node) -> usize {
        let number = self.nodes.len();
        self.nodes.push(node);
        if let Some(parent) = node.parent {
            let first = self.tokens(number)[0];
            self.edges.insert((parent, first), number);
        }
        number
    }

    /// Goes on from a cursor as far as the tree has `tokens`.
    pub(super) fn walk(&self, from: Cursor, tokens: &[TokenId]) -> Cursor {
        let (
            Cursor {
                mut node,
                mut depth,
            },
            mut tokens,
        ) = (self.settle(from), tokens);
        loop {
            let here = &self.nodes[node];
            if depth < here.end {
                let rest = &self.tokens(node)[(depth - here.start) as usize..];
                let same = common_prefix(rest, tokens);
                depth += crate::length::length_of(same);
                tokens = &tokens[same..];
            }
            let next = tokens.first().filter(|_| depth == here.end);
            match next.and_then(|&next| self.edges.get(&(node, next))) {
                Some(&child) => node = child,
                None => return Cursor { node, depth },
            }
        }
    }

    /// Returns the cursor of the same prefix, after nodes may have been split.
    fn settle(&self, cursor: Cursor) -> Cursor {
        let Cursor { mut node, depth } = cursor;
        while let Some(parent) = self.nodes[node].parent
            && depth <= self.nodes[node].start
        {
            node = parent;
        }
        Cursor { node, depth }
    }

    /// Returns the node that ends where a cursor is, which is cut if need be; a root if the cursor
    /// is at its end.
    pub(super) fn node_at(&mut self, cursor: Cursor) -> usize {
        let Cursor { node, depth } = self.settle(cursor);
        match depth < self.nodes[node].end {
            true => self.split(node, depth),
            false => node,
        }
    }

    /// Returns the node that has the last of a cursor's tokens.
    pub(super) fn node_of(&self, cursor: Cursor) -> usize {
        self.settle(cursor).node
    }

    /// Cuts a node at a position and returns the new upper part. The lower part keeps its number,
    /// so that edges and cursors below stay as they are.
    fn split(&mut self, lower: usize, at: u32) -> usize {
        let upper = self.nodes.len();
        let old = self.nodes[lower];
        let above = old
            .parent
            .expect("only a root lacks a parent, and it has no inside to cut");
        let (first, cut) = (self.tokens(lower)[0], (at - old.start) as usize);
        let next = self.tokens(lower)[cut];
        self.nodes.push(Node {
            end: at,
            is_cut: false,
            ..old
        });
        let node = &mut self.nodes[lower];
        node.start = at;
        node.parent = Some(upper);
        node.source.offset += cut;
        node.continues = false;
        self.edges.insert((above, first), upper);
        self.edges.insert((upper, next), lower);
        upper
    }

    /// Returns the children of each node, older ones first.
    pub(super) fn children(&self) -> Vec<Vec<usize>> {
        let mut children = vec![Vec::new(); self.nodes.len()];
        for (i, node) in self.nodes.iter().enumerate() {
            if let Some(parent) = node.parent {
                children[parent].push(i);
            }
        }
        children
    }
}

/// Returns the number of tokens with which both begin.
fn common_prefix(a: &[TokenId], b: &[TokenId]) -> usize {
    // Compared in pieces, which the compiler does with vectors, and then one by one.
    const PIECE: usize = 32;
    let pieces = a.chunks_exact(PIECE).zip(b.chunks_exact(PIECE));
    let same = pieces.take_while(|(a, b)| a == b).count() * PIECE;
    let rest = a[same..].iter().zip(&b[same..]);
    same + rest.take_while(|(a, b)| a == b).count()
}
