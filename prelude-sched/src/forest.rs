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

mod emit;
mod radix;

use std::{collections::BTreeSet, sync::Arc};

use ahash::{AHashMap, RandomState};
use prelude_core::{BlockId, NodeIdx};
use prelude_kv::{BlockHash, KvCache};

pub(crate) use self::emit::{After, KeepRule, Kept, push_blocks};
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
    radix: Radix,
    /// Cached prefixes of rows. Their blocks are held for the step.
    prefixes: Vec<Prefix>,
    /// For lookups only.
    prefix_of: AHashMap<PrefixKey, usize>,
    /// The prefixes that have a root, in the order in which they got it.
    roots: Vec<usize>,
    /// Lengths, in blocks, of the roots' prefixes.
    depths: BTreeSet<usize>,
    /// Index of the tree and the salt of a request, by its serial number. For lookups only.
    tree_of: AHashMap<u64, usize>,
    /// By root's prefix and node of a prompt tree: the end of what the forest below that root has of
    /// the node's prompt, of which it has all that precedes the node. For lookups only.
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
    /// Its cached prefix, which may be longer than the one that its root stands for.
    own: usize,
    joined: Joined,
}

/// A cached prefix.
#[derive(Clone, Debug)]
struct Prefix {
    salt: Option<Arc<str>>,
    blocks: Vec<BlockId>,
    hash: BlockHash,
    /// Its root in the forest.
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

/// Where a prompt would join the forest, and what that costs.
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

/// How the tokens of a row's prompt came about.
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
    pub(crate) fn new(block_size: u32) -> Self {
        Self {
            block_size,
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

    /// Tokens that the step computes for the forest.
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
        let mut beyond = cached + 1;
        while let Some(&depth) = self.depths.range(..beyond).next_back() {
            beyond = depth;
            let key = PrefixKey::new(salt, depth.checked_sub(1).map(&block));
            let prefix = self.prefix_of.get(&key).copied();
            let Some((prefix, root)) = prefix.and_then(|p| Some((p, self.prefixes[p].root?)))
            else {
                continue;
            };
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
                // What was added since may agree with more of it.
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
            ..Self::new(self.block_size)
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

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use prelude_core::{
        Capacity, ForwardBatch, OneShotBatch, OutputHead, OutputRow, PromptTree, SegmentIdx,
        TokenId,
    };
    use prelude_kv::Reclaim;
    use proptest::prelude::*;

    use super::{emit::Emitted, *};
    use crate::prompts::Prompts;

    const CAPACITY: Capacity = Capacity {
        block_size: 4,
        num_blocks: 64,
        max_step_tokens: 4096,
        max_context_len: 1024,
        vocab_size: 100,
        pipeline_depth: 1,
    };
    const KEEP: KeepRule = KeepRule {
        enabled: true,
        suffixes: true,
        shared_min_rows: 2,
    };

    /// A prompt, its salt, and how much of it may be read from the cache.
    type Row = (Vec<TokenId>, Option<Arc<str>>, usize);

    /// Builds the step of rows that are requests of one prompt each.
    fn build(rows: &[Row], cache: &mut KvCache, rule: KeepRule) -> (OneShotBatch, Emitted, u32) {
        let requests = rows.iter().map(|(tokens, salt, limit)| {
            let tree = PromptTree::single(tokens.clone());
            (salt.clone(), vec![(tree.last_node(), *limit)], tree)
        });
        build_trees(requests.collect(), cache, rule)
    }

    /// A request: its salt, its rows with how much of each may be read from the cache, its prompts.
    type Trees = Vec<(Option<Arc<str>>, Vec<(NodeIdx, usize)>, PromptTree)>;

    /// Builds the step of all rows of some requests, one request after the other.
    fn build_trees(
        requests: Trees,
        cache: &mut KvCache,
        rule: KeepRule,
    ) -> (OneShotBatch, Emitted, u32) {
        let mut forest = Forest::new(CAPACITY.block_size);
        let mut ends = Vec::new();
        for (serial, (salt, rows, tree)) in (0..).zip(requests) {
            let block_size = cache.block_size();
            let mut prompts = Prompts::new(serial, salt, tree, block_size);
            for (node, limit) in rows {
                let needed = u32::try_from(limit).unwrap();
                let cached = prompts.find(node, needed, cache);
                let prompt = prompts.prompt(node, cached);
                let before = forest.num_tokens();
                let spot = forest.probe(prompt);
                forest.add(prompt, spot, needed, cache);
                assert_eq!(forest.num_tokens() - before, spot.new_tokens);
                ends.push(prompt.count());
            }
        }
        let promised = forest.num_tokens();
        let mut batch = OneShotBatch::default();
        let emitted = forest.emit(&mut batch, cache, rule);
        let tokens = length_of(batch.tokens.len());
        assert!(tokens <= promised);
        let computed: u32 = emitted.rows.iter().map(|(_, joined)| joined.computed).sum();
        assert_eq!(computed, tokens);
        for (&end, &(segment, joined)) in ends.iter().zip(&emitted.rows) {
            assert_eq!(joined.cached + joined.shared + joined.computed, end);
            let head = OutputHead::Classify;
            batch.rows.push(OutputRow {
                segment,
                positions: end - 1..end,
                head,
            });
        }
        ForwardBatch::OneShot(batch.clone())
            .validate(&CAPACITY)
            .unwrap();
        (batch, emitted, tokens)
    }

    /// The tokens along the path of a segment and the position where they start.
    fn spell(batch: &OneShotBatch, segment: SegmentIdx) -> (u32, Vec<TokenId>, Vec<BlockId>) {
        let here = &batch.segments[segment.index()];
        let own = &batch.tokens[here.tokens.start as usize..here.tokens.end as usize];
        match here.parent {
            None => (
                here.context_len,
                own.to_vec(),
                here.cached.of(&batch.block_ids).to_vec(),
            ),
            Some(parent) => {
                let (start, mut tokens, blocks) = spell(batch, parent);
                tokens.extend_from_slice(own);
                (start, tokens, blocks)
            }
        }
    }

    fn release(cache: &mut KvCache, emitted: Emitted) {
        cache.release_all(emitted.kept.blocks);
        cache.release_all(emitted.pins);
        cache.check();
    }

    fn prompt(shared: u32, own: u32, id: u32) -> Vec<TokenId> {
        (0..shared)
            .map(|t| t % 50)
            .chain((0..own).map(|t| 50 + (t * 7 + id) % 50))
            .collect()
    }

    #[test]
    fn a_shared_prompt_with_64_suffixes_is_computed_once() {
        let mut cache = KvCache::new(64, 4);
        let suffixed = |id: u32| [prompt(30, 0, 0), vec![36 + id]].concat();
        let rows: Vec<Row> = (0..64).map(|id| (suffixed(id), None, 30)).collect();
        let (batch, emitted, tokens) = build(&rows, &mut cache, KEEP);
        assert_eq!(tokens, 30 + 64);
        assert_eq!(batch.segments.len(), 65);
        // Seven whole blocks of the 30 shared tokens; the suffixes start inside the eighth.
        assert_eq!(emitted.kept.segments.len(), 1);
        assert_eq!(emitted.kept.blocks.len(), 7);
        release(&mut cache, emitted);
    }

    #[test]
    fn suffixes_never_evict_and_shared_segments_may() {
        let mut cache = KvCache::new(3, 4);
        // Fill the pool with cached blocks.
        let mut blocks: Vec<BlockId> = (0..3)
            .map(|_| cache.allocate(Reclaim::Never).unwrap())
            .collect();
        cache.publish(None, None, &[9; 12], &mut blocks);
        cache.release_all(blocks);
        let kept = |rows: &[Row], cache: &mut KvCache, rule| {
            let (_, emitted, _) = build(rows, cache, rule);
            let n = emitted.kept.blocks.len();
            release(cache, emitted);
            n
        };
        let alone: Row = (prompt(8, 8, 1), None, 15);
        assert_eq!(kept(std::slice::from_ref(&alone), &mut cache, KEEP), 0);
        let shared = [alone.clone(), (prompt(8, 8, 2), None, 15)];
        // Two shared blocks by eviction; then nothing is free for the suffixes.
        assert_eq!(kept(&shared, &mut cache, KEEP), 2);
        // What was evicted is free now, and a suffix may use it, unless that is turned off.
        assert_eq!(
            kept(
                std::slice::from_ref(&alone),
                &mut cache,
                KeepRule {
                    suffixes: false,
                    ..KEEP
                }
            ),
            0
        );
        assert_eq!(kept(std::slice::from_ref(&alone), &mut cache, KEEP), 2);
    }

    #[test]
    fn a_row_that_needs_the_whole_prompt_computes_it_and_others_join() {
        let mut cache = KvCache::new(64, 4);
        let long = prompt(20, 0, 0);
        let mut blocks: Vec<BlockId> = (0..4)
            .map(|_| cache.allocate(Reclaim::Never).unwrap())
            .collect();
        cache.publish(None, None, &long[..16], &mut blocks);
        cache.release_all(blocks);
        // The first must compute from 0; the second finds 16 tokens cached, but 20 computed.
        let rows = [(long.clone(), None, 0), (prompt(20, 2, 1), None, 21)];
        let (_, emitted, tokens) = build(&rows, &mut cache, KEEP);
        assert_eq!(tokens, 22);
        release(&mut cache, emitted);
        let rows = [(prompt(20, 2, 1), None, 21), (long.clone(), None, 0)];
        let (_, emitted, tokens) = build(&rows, &mut cache, KEEP);
        assert_eq!(tokens, 22, "in any order");
        release(&mut cache, emitted);
        // Also if its root is there already, thanks to an unrelated prompt (found by proptest).
        let other = (vec![99], None, 0);
        let rows = [(prompt(20, 2, 1), None, 21), other, (long.clone(), None, 0)];
        let (_, emitted, tokens) = build(&rows, &mut cache, KEEP);
        assert_eq!(tokens, 23);
        release(&mut cache, emitted);
        // Where the cache holds more than the step computes, the cache is used.
        let rows = [(long[..10].to_vec(), None, 0), (prompt(20, 2, 1), None, 21)];
        let (batch, emitted, tokens) = build(&rows, &mut cache, KEEP);
        assert_eq!(tokens, 10 + 6);
        assert_eq!(batch.segments[1].context_len, 16);
        release(&mut cache, emitted);
    }

    /// Makes one request of rows with one salt.
    fn shared(rows: &[Row]) -> (Option<Arc<str>>, Vec<(NodeIdx, usize)>, PromptTree) {
        let prompts: Vec<_> = rows.iter().map(|(tokens, ..)| tokens).collect();
        let (tree, ends) = PromptTree::from_prompts(&prompts).unwrap();
        let limits = rows.iter().map(|(_, _, limit)| *limit);
        (
            rows[0].1.clone(),
            ends.into_iter().zip(limits).collect(),
            tree,
        )
    }

    /// A request whose tree has a chain of nodes is laid out like one whose tree has one node.
    #[test]
    fn prompt_trees_cut_no_segment() {
        let whole = prompt(30, 10, 1);
        let mut tree = PromptTree::new();
        let mut parent = None;
        for piece in whole.chunks(7) {
            parent = Some(tree.push(parent, piece.to_vec()).unwrap());
        }
        let chain = (None, vec![(tree.last_node(), 39)], tree);
        let single: Row = (whole, None, 39);
        let mut cache = KvCache::new(64, 4);
        let (batch, emitted, _) = build_trees(vec![chain], &mut cache, KEEP);
        assert_eq!(batch.segments.len(), 1);
        release(&mut cache, emitted);
        let (other, emitted, _) = build(&[single], &mut cache, KEEP);
        assert_eq!(
            (other.segments, other.tokens),
            (batch.segments, batch.tokens)
        );
        release(&mut cache, emitted);
    }

    fn rows() -> impl Strategy<Value = Vec<Row>> {
        let row = (prop::collection::vec(0u32..2, 1..20), 0..3usize, 0..20usize);
        let salts = [None, Some(Arc::from("a")), Some(Arc::from("b"))];
        let row = row.prop_map(move |(tokens, salt, limit)| {
            let limit = limit.min(tokens.len() - 1);
            (tokens, salts[salt].clone(), limit)
        });
        prop::collection::vec(row, 1..24)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]
        /// Every row's path spells its prompt after a cached prefix whose blocks are the right
        /// ones, and nothing is computed twice: without a cache the tokens of the step are the
        /// distinct prefixes of its prompts, with one they are no more than that. Some steps come
        /// as a request for each prompt, some as one request whose tree shares what it can.
        #[test]
        fn is_the_trie_of_its_prompts(
            steps in prop::collection::vec((rows(), any::<bool>()), 1..5)
        ) {
            let mut cache = KvCache::new(64, 4);
            // Block to what is in it.
            let mut contents: BTreeMap<BlockId, (Option<Arc<str>>, Vec<TokenId>)> = BTreeMap::new();
            for (i, (rows, in_trees)) in steps.iter().enumerate() {
                let mut rows = rows.clone();
                let (batch, emitted, tokens) = if *in_trees {
                    rows.sort_by(|a, b| a.1.cmp(&b.1));
                    let by_salt = rows.chunk_by(|a, b| a.1 == b.1);
                    build_trees(by_salt.map(shared).collect(), &mut cache, KEEP)
                } else {
                    build(&rows, &mut cache, KEEP)
                };
                let prefixes: BTreeSet<_> = rows
                    .iter()
                    .flat_map(|(p, salt, _)| (1..=p.len()).map(move |n| (salt, &p[..n])))
                    .collect();
                if i == 0 {
                    prop_assert_eq!(tokens as usize, prefixes.len());
                }
                prop_assert!(tokens as usize <= prefixes.len());
                for ((prompt, salt, limit), &(segment, _)) in rows.iter().zip(&emitted.rows) {
                    let (start, path, blocks) = spell(&batch, segment);
                    let own = prompt.len() - start as usize;
                    prop_assert_eq!(&path[..own], &prompt[start as usize..]);
                    prop_assert!(start as usize <= *limit);
                    for (b, block) in blocks.iter().enumerate() {
                        let (of, prefix) = &contents[block];
                        prop_assert_eq!(of, salt);
                        prop_assert_eq!(&prefix[..], &prompt[..(b + 1) * 4]);
                    }
                }
                // What a completed step does.
                let mut kept = emitted.kept;
                for segment in &kept.segments {
                    let parent = match segment.after {
                        After::Cached(block) => block,
                        After::Segment(above) => {
                            Some(kept.blocks[kept.segments[above].blocks.end - 1])
                        }
                    };
                    let (salt, span) = (segment.salt.as_ref(), segment.blocks.clone());
                    let tokens = &kept.tokens[span.start * 4..span.end * 4];
                    let (owner, ..) = &rows[segment.row];
                    prop_assert_eq!(tokens, &owner[segment.before * 4..][..tokens.len()]);
                    let n = cache.publish(salt, parent, tokens, &mut kept.blocks[span.clone()]);
                    prop_assert_eq!(n, span.len());
                    for (b, &block) in kept.blocks[span].iter().enumerate() {
                        let prefix = owner[..(segment.before + b + 1) * 4].to_vec();
                        contents.insert(block, (segment.salt.clone(), prefix));
                    }
                }
                release(&mut cache, Emitted { kept, ..emitted });
            }
        }
    }
}
