//! Builds the one-shot part of a step: prompts in, a forest of segments out, in which every
//! prefix that prompts of the step share is computed once.
//!
//! ```text
//! cached blocks   segments of this step
//! [ 0 .. 64 )──┬─[ 64 .. 90 )──┬─[ 90 .. 97 )   row
//!              │               └─[ 90 .. 99 )   row
//!              └─[ 64 .. 70 )                   row
//! ```
//!
//! It is a radix tree per *root*: a salt and the cached prefix that the segments below attend to.
//! Prompts are grafted node by node of their request's tree, and how far a node agrees with the
//! forest is remembered: so the tokens of a node are compared once, however many rows lie below.
//! A prompt joins wherever it has to compute least: below the root of its own cached prefix, or
//! inside a tree that starts earlier (because some row needs hidden states from further left) if
//! that tree computes more of the prompt than the cache holds. Rows that need more than their
//! last hidden state may come after rows that would have done better to join them; then the
//! forest is built once more, longest computations first.

mod align;
mod emit;
mod radix;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, sync::Arc};

use ahash::{AHashMap, RandomState};
use prelude_core::{Attention, BlockId, NodeIdx};
use prelude_kv::{BlockHash, KvCache};

pub(crate) use self::emit::{After, Kept, push_blocks};
use self::radix::{Cursor, Node, Radix, Source};
use crate::{
    length::length_of,
    prompts::{Prompt, PromptTokens as _},
};

/// Most nodes of a prompt tree for which tables have room before the nodes come.
const MAX_RESERVED: usize = 512;

/// The prompts of a step, merged.
#[derive(Debug)]
pub(crate) struct Forest {
    block_size: u32,
    /// False if each row's prompt is computed in a tree of its own.
    shares: bool,
    radix: Radix,
    /// Cached prefixes of rows. Their blocks are held for the step.
    prefixes: Vec<Prefix>,
    /// The roots by prefix; the map is for lookups only.
    prefix_of: AHashMap<PrefixKey, usize>,
    /// The prefixes that have a root, in the order in which they got it.
    roots: Vec<usize>,
    /// Lengths, in blocks, of the roots' prefixes.
    depths: BTreeSet<usize>,
    /// Index of the tree and the salt of a request, by its serial number. For lookups only.
    tree_of: AHashMap<u64, usize>,
    /// The end of what the forest below a root has of the prompt of a node of a prompt tree, by the
    /// root's prefix, the tree and the node: the forest has all tokens that precede the node. For
    /// lookups only.
    reached: AHashMap<(usize, usize, NodeIdx), Cursor>,
    rows: Vec<Row>,
    tokens: u32,
    /// True if a prompt came too late for others to join it.
    out_of_order: bool,
    /// Prompts that the step has no room for, though it computes the beginning of them.
    wanting: Vec<Wanting>,
    /// Reused between calls.
    path: Vec<NodeIdx>,
}

#[derive(Debug)]
struct Wanting {
    tree: usize,
    node: NodeIdx,
    needed: u32,
    salt: Option<Arc<str>>,
    /// The cached prefix, by which its root is found. Not held: what root it names is.
    cached: Vec<BlockId>,
}

#[derive(Debug)]
struct Row {
    /// The prompt.
    tree: usize,
    node: NodeIdx,
    /// A node of the forest at or below the one that holds the prompt's last position.
    last: usize,
    /// First position whose hidden state the row needs: a cache serves those before it.
    needed: u32,
    /// The row's cached prefix, which may be longer than the one that its root stands for.
    own: usize,
    joined: Joined,
}

/// A cached prefix.
#[derive(Clone, Debug)]
struct Prefix {
    salt: Option<Arc<str>>,
    blocks: Vec<BlockId>,
    hash: BlockHash,
    /// The prefix's root in the forest.
    root: Option<usize>,
}

/// Names a cached prefix: a block in the cache's trie stands for all that precedes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum PrefixKey {
    Empty(Option<Arc<str>>),
    EndsWith(BlockId),
}

impl PrefixKey {
    fn new(salt: Option<&Arc<str>>, last: Option<BlockId>) -> Self {
        last.map_or_else(|| Self::Empty(salt.cloned()), Self::EndsWith)
    }
}

/// The place at which a prompt would join the forest, and the cost of joining there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    tree: usize,
    /// The end of what the forest has of the prompt; `None`: a new root is needed.
    at: Option<Cursor>,
    /// Positions before this one are cached or computed by the step already.
    depth: u32,
    /// Tokens that the prompt adds to the step.
    pub(crate) new_tokens: u32,
}

/// The number of a prompt's tokens by their source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Joined {
    /// Tokens read from the cache.
    pub(crate) cached: u32,
    /// Tokens that other rows of the step compute.
    pub(crate) shared: u32,
    /// Tokens that the step computes for this row.
    pub(crate) computed: u32,
}

impl Forest {
    pub(crate) fn new(block_size: u32, attention: Attention) -> Self {
        Self {
            block_size,
            shares: attention == Attention::Causal,
            radix: Radix::new(Vec::new()),
            prefixes: Vec::new(),
            prefix_of: AHashMap::with_hasher(RandomState::with_seeds(9, 10, 11, 12)),
            roots: Vec::new(),
            depths: BTreeSet::new(),
            tree_of: AHashMap::with_hasher(RandomState::with_seeds(37, 38, 39, 40)),
            reached: AHashMap::with_hasher(RandomState::with_seeds(41, 42, 43, 44)),
            rows: Vec::new(),
            tokens: 0,
            out_of_order: false,
            wanting: Vec::new(),
            path: Vec::new(),
        }
    }

    /// Returns the number of tokens that the step computes for the forest.
    pub(crate) const fn num_tokens(&self) -> u32 {
        self.tokens
    }

    pub(crate) fn num_rows(&self) -> usize {
        self.rows.len()
    }

    /// Returns true if the step holds the prompt's cached prefix already.
    pub(crate) fn holds(&self, prompt: Prompt<'_>) -> bool {
        self.prefix_of.contains_key(&key_of(prompt))
    }

    /// Finds where a prompt joins most cheaply. Changes nothing of the forest.
    pub(crate) fn probe(&mut self, prompt: Prompt<'_>) -> Spot {
        let tree = self.tree_index(prompt);
        let salt = prompt.all().salt.as_ref();
        let (cached, block) = (prompt.cached_blocks(), |i| prompt.block(i));
        self.best_spot(tree, prompt.node(), salt, cached, block)
    }

    /// Finds the cheapest spot for a node's prompt, whose cached prefix has `cached` blocks.
    fn best_spot(
        &mut self,
        tree: usize,
        node: NodeIdx,
        salt: Option<&Arc<str>>,
        cached: usize,
        block: impl Fn(usize) -> BlockId,
    ) -> Spot {
        let mut best = Spot {
            tree,
            at: None,
            depth: self.context(cached),
            new_tokens: 0,
        };
        let mut beyond = if self.shares { cached + 1 } else { 0 };
        while let Some(&depth) = self.depths.range(..beyond).next_back() {
            beyond = depth;
            let key = PrefixKey::new(salt, depth.checked_sub(1).map(&block));
            let prefix = self.prefix_of.get(&key).copied();
            let Some((prefix, root)) = prefix.and_then(|p| Some((p, self.prefixes[p].root?)))
            else {
                continue;
            };
            // A prompt that was left behind does not hold its blocks: one may be another prompt's by
            // now, which was loaded from host memory for this step, and lie deeper.
            if self.radix.nodes[root].end != self.context(depth) {
                continue;
            }
            let found = self.reach(prefix, root, tree, node);
            let is_own = depth == cached;
            if is_own || found.depth > best.depth {
                (best.at, best.depth) = (Some(found), found.depth);
            }
        }
        best.new_tokens = self.radix.trees[tree].prompt_len(node) - best.depth;
        best
    }

    /// Returns the end of what the forest below a root has of a node's prompt. Compares the tokens
    /// of each node of a prompt tree once, but for those behind the first difference.
    fn reach(&mut self, prefix: usize, root: usize, tree: usize, node: NodeIdx) -> Cursor {
        let prompts = &self.radix.trees[tree];
        let context = self.radix.nodes[root].end;
        let mut cursor = Cursor {
            node: root,
            depth: context,
        };
        self.path.clear();
        let mut at = Some(node);
        while let Some(node) = at {
            if let Some(&known) = self.reached.get(&(prefix, tree, node)) {
                cursor = known;
                // Nodes that were added since may agree with more of the prompt.
                if known.depth < prompts.prompt_len(node) {
                    self.path.push(node);
                }
                break;
            }
            self.path.push(node);
            let parent = prompts.nodes()[node.index()].parent;
            at = parent.filter(|_| prompts.start(node) > context);
        }
        while let Some(node) = self.path.pop() {
            let end = prompts.prompt_len(node);
            let own = &prompts.nodes()[node.index()].tokens;
            let before = cursor.depth;
            let skip = before - prompts.start(node);
            cursor = self.radix.walk(cursor, &own[skip as usize..]);
            if cursor.depth > before {
                self.reached.insert((prefix, tree, node), cursor);
            }
            if cursor.depth < end {
                break;
            }
        }
        cursor
    }

    /// Adds a prompt at a spot just probed, and holds its cached prefix. The row needs the hidden
    /// states from position `needed` on; if those are more than the last, its cached prefix may be
    /// shorter than others'.
    pub(crate) fn add(&mut self, prompt: Prompt<'_>, spot: Spot, needed: u32, cache: &mut KvCache) {
        let own = self.hold(prompt, cache);
        if needed + 1 < prompt.count() {
            let context = prompt.cached_blocks();
            let is_longer = |&root: &usize| self.prefixes[root].blocks.len() > context;
            self.out_of_order |= self.roots.iter().any(is_longer);
        }
        self.join(prompt.node(), needed, own, spot);
    }

    /// Notes that a prompt would have joined at a spot just probed, had the step had room: what
    /// it shares counts as shared when it is decided what to keep, or each step would compute it
    /// for one row and forget it again.
    pub(crate) fn want(&mut self, prompt: Prompt<'_>, needed: u32, spot: Spot) {
        if spot.at.is_some() && spot.depth > self.context(prompt.cached_blocks()) {
            self.wanting.push(Wanting {
                tree: spot.tree,
                node: prompt.node(),
                needed,
                salt: prompt.all().salt.clone(),
                cached: prompt.blocks(),
            });
        }
    }

    /// Returns the nodes up to which prompts that have no room share the forest, cut where they
    /// leave it, and the first position that each needs.
    fn wanted(&mut self) -> Vec<(usize, u32)> {
        let mut nodes = Vec::new();
        for want in std::mem::take(&mut self.wanting) {
            let cached = want.cached.len();
            let salt = want.salt.as_ref();
            let spot = self.best_spot(want.tree, want.node, salt, cached, |i| want.cached[i]);
            let Some(cursor) = spot.at else {
                continue;
            };
            if self.radix.nodes[self.radix.node_of(cursor)]
                .parent
                .is_some()
            {
                let node = self.radix.node_at(cursor);
                self.radix.nodes[node].is_cut = true;
                nodes.push((node, want.needed));
            }
        }
        nodes
    }

    fn join(&mut self, node: NodeIdx, needed: u32, own: usize, spot: Spot) {
        let tree = spot.tree;
        let prompts = Arc::clone(&self.radix.trees[tree]);
        let end = prompts.prompt_len(node);
        let mut last = match spot.at {
            Some(cursor) if cursor.depth < end => self.radix.node_at(cursor),
            Some(cursor) => self.radix.node_of(cursor),
            None => self.plant(own, tree, node),
        };
        let prefix = self.radix.nodes[last].prefix;
        self.path.clear();
        let mut at = Some(node).filter(|_| spot.depth < end);
        while let Some(node) = at {
            self.path.push(node);
            let parent = prompts.nodes()[node.index()].parent;
            at = parent.filter(|_| prompts.start(node) > spot.depth);
        }
        let mut continues = false;
        while let Some(node) = self.path.pop() {
            let start = prompts.start(node);
            let from = start.max(spot.depth);
            let source = Source {
                tree,
                node,
                offset: (from - start) as usize,
            };
            let end = prompts.prompt_len(node);
            last = self.radix.push(Node {
                parent: Some(last),
                prefix,
                start: from,
                end,
                source,
                owner: self.rows.len(),
                continues,
                is_cut: false,
            });
            continues = true;
            let cursor = Cursor {
                node: last,
                depth: end,
            };
            self.reached.insert((prefix, tree, node), cursor);
        }
        let computed = end - spot.depth;
        self.tokens += computed;
        let cached = self.context(self.prefixes[prefix].blocks.len());
        let joined = Joined {
            cached,
            shared: spot.depth - cached,
            computed,
        };
        self.rows.push(Row {
            tree,
            node,
            last,
            needed,
            own,
            joined,
        });
    }

    /// Gives a cached prefix a root; the source of the root is never read.
    fn plant(&mut self, prefix: usize, tree: usize, node: NodeIdx) -> usize {
        let depth = self.prefixes[prefix].blocks.len();
        let context = self.context(depth);
        let root = self.radix.push(Node {
            parent: None,
            prefix,
            start: context,
            end: context,
            source: Source {
                tree,
                node,
                offset: 0,
            },
            owner: self.rows.len(),
            continues: false,
            is_cut: false,
        });
        self.depths.insert(depth);
        self.roots.push(prefix);
        self.prefixes[prefix].root = Some(root);
        root
    }

    /// Holds a prompt's cached prefix for the step and returns its index.
    fn hold(&mut self, prompt: Prompt<'_>, cache: &mut KvCache) -> usize {
        let key = key_of(prompt);
        if let Some(&known) = self.prefix_of.get(&key) {
            return known;
        }
        let index = self.prefixes.len();
        let blocks = prompt.blocks();
        cache.hold_all(&blocks);
        self.prefixes.push(Prefix {
            salt: prompt.all().salt.clone(),
            blocks,
            hash: prompt.hash(),
            root: None,
        });
        self.prefix_of.insert(key, index);
        index
    }

    /// Returns the index of the tree that a prompt belongs to.
    fn tree_index(&mut self, prompt: Prompt<'_>) -> usize {
        let next = self.radix.trees.len();
        let index = *self.tree_of.entry(prompt.all().serial).or_insert(next);
        if index == next {
            let tree = &prompt.all().tree;
            let nodes = tree.nodes().len().min(MAX_RESERVED);
            self.reached.reserve(nodes);
            self.radix.add_tree(Arc::clone(tree), nodes);
        }
        index
    }

    /// Returns a forest of the same rows, in which those that compute most come first, so that the
    /// others find them. The order of rows stays.
    fn in_order(self) -> Self {
        let unplanted = |prefix| Prefix {
            root: None,
            ..prefix
        };
        let mut better = Self {
            radix: Radix::new(self.radix.trees),
            prefixes: self.prefixes.into_iter().map(unplanted).collect(),
            prefix_of: self.prefix_of,
            tree_of: self.tree_of,
            wanting: self.wanting,
            ..Self::new(self.block_size, Attention::Causal)
        };
        let mut order: Vec<usize> = (0..self.rows.len()).collect();
        order.sort_by_key(|&row| better.prefixes[self.rows[row].own].blocks.len());
        for &row in &order {
            let row = &self.rows[row];
            let own = better.prefixes[row.own].clone();
            let (salt, cached) = (own.salt.as_ref(), own.blocks.len());
            let spot = better.best_spot(row.tree, row.node, salt, cached, |i| own.blocks[i]);
            better.join(row.node, row.needed, row.own, spot);
        }
        for node in &mut better.radix.nodes {
            node.owner = order[node.owner];
        }
        let mut rows: Vec<(usize, Row)> = order.into_iter().zip(better.rows).collect();
        rows.sort_by_key(|(row, _)| *row);
        better.rows = rows.into_iter().map(|(_, row)| row).collect();
        better
    }

    fn context(&self, blocks: usize) -> u32 {
        length_of(blocks) * self.block_size
    }
}

/// Returns the name of a prompt's cached prefix.
fn key_of(prompt: Prompt<'_>) -> PrefixKey {
    let last = prompt.cached_blocks().checked_sub(1);
    PrefixKey::new(prompt.all().salt.as_ref(), last.map(|i| prompt.block(i)))
}
