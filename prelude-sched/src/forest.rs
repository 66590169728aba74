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
//! A prompt joins wherever it has to compute least: below the root of its own cached prefix, or
//! inside a tree that starts earlier (because some row needs hidden states from further left) if
//! that tree computes more of the prompt than the cache holds. Rows that need more than their
//! last hidden state may come after rows that would have done better to join them; then the
//! forest is built once more, longest computations first.

mod emit;

use std::{collections::BTreeSet, sync::Arc};

use ahash::{AHashMap, RandomState};
use prelude_core::{BlockId, TokenId};
use prelude_kv::{BlockHash, KvCache, PrefixMatch};

pub(crate) use self::emit::{After, KeepRule, Kept, push_blocks};
use crate::length::length_of;

/// The prompts of a step, merged.
#[derive(Debug)]
pub(crate) struct Forest {
    block_size: u32,
    nodes: Vec<Node>,
    roots: Vec<Root>,
    /// Child of a node by its first token. For lookups only.
    edges: AHashMap<(usize, TokenId), usize>,
    /// Root by salt and last cached block. For lookups only: a trie node names its whole prefix.
    root_of: AHashMap<(Option<Arc<str>>, Option<BlockId>), usize>,
    /// Lengths, in blocks, of the roots' cached prefixes.
    depths: BTreeSet<usize>,
    rows: Vec<Row>,
    /// Blocks held for the step.
    pins: Vec<BlockId>,
    tokens: u32,
    /// Whether a prompt came too late for others to join it.
    out_of_order: bool,
    /// Prompts that the step has no room for, though it computes the beginning of them.
    wanting: Vec<Wanting>,
}

#[derive(Debug)]
struct Wanting {
    salt: Option<Arc<str>>,
    tokens: Arc<[TokenId]>,
    needed: u32,
    /// The cached prefix, by which its root is found. Not held: what root it names is.
    cached: Vec<BlockId>,
}

#[derive(Debug)]
struct Row {
    /// A node at or below the one that holds the prompt's last position.
    node: usize,
    tokens: Arc<[TokenId]>,
    /// First position whose hidden state the row needs: a cache serves those before it.
    needed: u32,
    salt: Option<Arc<str>>,
    own: Cached,
    joined: Joined,
}

/// A cached prefix.
#[derive(Clone, Debug)]
struct Cached {
    blocks: Arc<[BlockId]>,
    hash: BlockHash,
}

/// A run of tokens. A node without parent stands for a root and has no tokens.
#[derive(Debug)]
struct Node {
    parent: Option<usize>,
    root: usize,
    /// Positions `start..end` of any prompt that passes here; `source` is one of them.
    start: u32,
    end: u32,
    source: Arc<[TokenId]>,
    /// The row for which it is computed.
    owner: usize,
}

#[derive(Debug)]
struct Root {
    node: usize,
    cached: Cached,
    salt: Option<Arc<str>>,
}

/// Where a prompt would join the forest, and what that costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    /// The node that holds the last shared position; `None`: a new root is needed.
    node: Option<usize>,
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
            nodes: Vec::new(),
            roots: Vec::new(),
            edges: AHashMap::with_hasher(RandomState::with_seeds(5, 6, 7, 8)),
            root_of: AHashMap::with_hasher(RandomState::with_seeds(9, 10, 11, 12)),
            depths: BTreeSet::new(),
            rows: Vec::new(),
            pins: Vec::new(),
            tokens: 0,
            out_of_order: false,
            wanting: Vec::new(),
        }
    }

    /// Tokens that the step computes for the forest.
    pub(crate) const fn num_tokens(&self) -> u32 {
        self.tokens
    }

    pub(crate) fn num_rows(&self) -> usize {
        self.rows.len()
    }

    /// Finds where a prompt with this cached prefix joins most cheaply. Changes nothing.
    pub(crate) fn probe(
        &self,
        salt: Option<&Arc<str>>,
        tokens: &[TokenId],
        cached: &[BlockId],
    ) -> Spot {
        let context = self.context(cached);
        let mut best = Spot {
            node: None,
            depth: context,
            new_tokens: 0,
        };
        if !self.roots.is_empty() {
            let salt = salt.cloned();
            let mut key = (salt, None);
            for &depth in self.depths.range(..=cached.len()).rev() {
                key.1 = depth.checked_sub(1).map(|last| cached[last]);
                let Some(&root) = self.root_of.get(&key) else {
                    continue;
                };
                let found = self.walk(self.roots[root].node, tokens);
                let is_own = depth == cached.len();
                if is_own || found.depth > best.depth {
                    best = found;
                }
            }
        }
        best.new_tokens = length(tokens) - best.depth;
        best
    }

    fn walk(&self, root: usize, tokens: &[TokenId]) -> Spot {
        let mut node = root;
        let mut depth = self.nodes[root].end;
        while let Some(&next) = tokens.get(depth as usize) {
            let Some(&child) = self.edges.get(&(node, next)) else {
                break;
            };
            let here = &self.nodes[child];
            let theirs = &here.source[here.start as usize..here.end as usize];
            let ours = &tokens[here.start as usize..];
            depth += length_of(theirs.iter().zip(ours).take_while(|(a, b)| a == b).count());
            node = child;
            if depth < here.end {
                break;
            }
        }
        Spot {
            node: Some(node),
            depth,
            new_tokens: 0,
        }
    }

    /// Adds a prompt at a spot just probed, and holds its match as long as need be. The row needs
    /// the hidden states from position `needed` on; if those are more than the last, its match may
    /// be shorter than others'.
    pub(crate) fn add(
        &mut self,
        salt: Option<&Arc<str>>,
        tokens: &Arc<[TokenId]>,
        cached: PrefixMatch,
        spot: Spot,
        needed: u32,
        cache: &mut KvCache,
    ) {
        let hash = cached.hash();
        let own_root = self
            .root_of
            .get(&(salt.cloned(), cached.blocks().last().copied()));
        let own = match own_root {
            Some(&root) => {
                // The root holds these very blocks already.
                cache.release_all(cached.into_blocks());
                self.roots[root].cached.clone()
            }
            None => {
                let blocks = cached.into_blocks();
                self.pins.extend(&blocks);
                Cached {
                    blocks: blocks.into(),
                    hash,
                }
            }
        };
        if needed + 1 < length(tokens) {
            let context = own.blocks.len();
            self.out_of_order |= self.roots.iter().any(|r| r.cached.blocks.len() > context);
        }
        self.join(salt, tokens, needed, own, spot);
    }

    /// Notes that a prompt would have joined at a spot just probed, had the step had room: what
    /// it shares counts as shared when it is decided what to keep, or each step would compute it
    /// for one row and forget it again.
    pub(crate) fn want(
        &mut self,
        salt: Option<&Arc<str>>,
        tokens: &Arc<[TokenId]>,
        needed: u32,
        cached: &[BlockId],
        spot: Spot,
    ) {
        if spot.node.is_some() && spot.depth > self.context(cached) {
            self.wanting.push(Wanting {
                salt: salt.cloned(),
                tokens: tokens.clone(),
                needed,
                cached: cached.to_vec(),
            });
        }
    }

    /// The nodes up to which prompts that have no room share the forest, cut where they leave it,
    /// and the first position that each needs.
    fn wanted(&mut self) -> Vec<(usize, u32)> {
        let mut nodes = Vec::new();
        for want in std::mem::take(&mut self.wanting) {
            let spot = self.probe(want.salt.as_ref(), &want.tokens, &want.cached);
            let Some(node) = spot.node else {
                continue;
            };
            let here = &self.nodes[node];
            if here.parent.is_none() || spot.depth <= here.start {
                continue;
            }
            let node = match spot.depth < here.end {
                true => self.split(node, spot.depth),
                false => node,
            };
            nodes.push((node, want.needed));
        }
        nodes
    }

    fn join(
        &mut self,
        salt: Option<&Arc<str>>,
        tokens: &Arc<[TokenId]>,
        needed: u32,
        own: Cached,
        spot: Spot,
    ) {
        let end = length(tokens);
        let at = match spot.node {
            Some(node) if spot.depth < self.nodes[node].end && spot.depth < end => {
                self.split(node, spot.depth)
            }
            Some(node) => node,
            None => self.plant(salt, tokens, own.clone()),
        };
        let mut last = at;
        if spot.depth < end {
            last = self.nodes.len();
            self.nodes.push(Node {
                parent: Some(at),
                root: self.nodes[at].root,
                start: spot.depth,
                end,
                source: tokens.clone(),
                owner: self.rows.len(),
            });
            self.edges.insert((at, tokens[spot.depth as usize]), last);
        }
        let computed = end - spot.depth;
        self.tokens += computed;
        let cached = self.nodes[self.roots[self.nodes[last].root].node].end;
        let joined = Joined {
            cached,
            shared: spot.depth - cached,
            computed,
        };
        let (tokens, salt) = (tokens.clone(), salt.cloned());
        self.rows.push(Row {
            node: last,
            tokens,
            needed,
            salt,
            own,
            joined,
        });
    }

    fn plant(&mut self, salt: Option<&Arc<str>>, tokens: &Arc<[TokenId]>, cached: Cached) -> usize {
        let (root, node) = (self.roots.len(), self.nodes.len());
        let context = self.context(&cached.blocks);
        self.depths.insert(cached.blocks.len());
        self.nodes.push(Node {
            parent: None,
            root,
            start: context,
            end: context,
            source: tokens.clone(),
            owner: self.rows.len(),
        });
        self.root_of
            .insert((salt.cloned(), cached.blocks.last().copied()), root);
        self.roots.push(Root {
            node,
            cached,
            salt: salt.cloned(),
        });
        node
    }

    /// The same rows, those that compute most first, so that the others find them. The order of
    /// rows stays.
    fn in_order(self) -> Self {
        let mut better = Self {
            pins: self.pins,
            wanting: self.wanting,
            ..Self::new(self.block_size)
        };
        let mut order: Vec<usize> = (0..self.rows.len()).collect();
        order.sort_by_key(|&row| self.rows[row].own.blocks.len());
        for &row in &order {
            let row = &self.rows[row];
            let spot = better.probe(row.salt.as_ref(), &row.tokens, &row.own.blocks);
            let own = row.own.clone();
            better.join(row.salt.as_ref(), &row.tokens, row.needed, own, spot);
        }
        for node in &mut better.nodes {
            node.owner = order[node.owner];
        }
        let mut rows: Vec<(usize, Row)> = order.into_iter().zip(better.rows).collect();
        rows.sort_by_key(|(row, _)| *row);
        better.rows = rows.into_iter().map(|(_, row)| row).collect();
        better
    }

    /// Cuts a node at a position and returns the new upper part. The lower part keeps its number,
    /// so that edges and rows below stay as they are; rows that end in the upper part climb when
    /// the forest is emitted.
    fn split(&mut self, lower: usize, at: u32) -> usize {
        let upper = self.nodes.len();
        let node = &mut self.nodes[lower];
        let (parent, root, start, source, owner) = (
            node.parent,
            node.root,
            node.start,
            node.source.clone(),
            node.owner,
        );
        node.start = at;
        node.parent = Some(upper);
        let above = parent.expect("only a root lacks a parent, and it has no inside to cut");
        self.edges.insert((above, source[start as usize]), upper);
        self.edges.insert((upper, source[at as usize]), lower);
        self.nodes.push(Node {
            parent,
            root,
            start,
            end: at,
            source,
            owner,
        });
        upper
    }

    fn context(&self, cached: &[BlockId]) -> u32 {
        length_of(cached.len()) * self.block_size
    }
}

fn length(tokens: &[TokenId]) -> u32 {
    length_of(tokens.len())
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use prelude_core::{Capacity, ForwardBatch, OneShotBatch, OutputHead, OutputRow, SegmentIdx};
    use prelude_kv::Reclaim;
    use proptest::prelude::*;

    use super::{emit::Emitted, *};

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
    type Prompt = (Vec<TokenId>, Option<Arc<str>>, usize);

    fn build(rows: &[Prompt], cache: &mut KvCache, rule: KeepRule) -> (OneShotBatch, Emitted, u32) {
        let mut forest = Forest::new(CAPACITY.block_size);
        for (tokens, salt, limit) in rows {
            let tokens: Arc<[TokenId]> = tokens.clone().into();
            let found = cache.match_prefix(salt.as_ref(), &tokens, *limit);
            let before = forest.num_tokens();
            let spot = forest.probe(salt.as_ref(), &tokens, found.blocks());
            let needed = u32::try_from(*limit).unwrap();
            forest.add(salt.as_ref(), &tokens, found, spot, needed, cache);
            assert_eq!(forest.num_tokens() - before, spot.new_tokens);
        }
        let promised = forest.num_tokens();
        let mut batch = OneShotBatch::default();
        let emitted = forest.emit(&mut batch, cache, rule);
        let tokens = length(&batch.tokens);
        assert!(tokens <= promised);
        let computed: u32 = emitted.rows.iter().map(|(_, joined)| joined.computed).sum();
        assert_eq!(computed, tokens);
        for ((prompt, ..), &(segment, joined)) in rows.iter().zip(&emitted.rows) {
            let end = length(prompt);
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
        for kept in emitted.kept {
            cache.release_all(kept.blocks);
        }
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
        let rows: Vec<Prompt> = (0..64).map(|id| (suffixed(id), None, 30)).collect();
        let (batch, emitted, tokens) = build(&rows, &mut cache, KEEP);
        assert_eq!(tokens, 30 + 64);
        assert_eq!(batch.segments.len(), 65);
        // Seven whole blocks of the 30 shared tokens; the suffixes start inside the eighth.
        assert_eq!(emitted.kept.len(), 1);
        assert_eq!(emitted.kept[0].blocks.len(), 7);
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
        let kept = |rows: &[Prompt], cache: &mut KvCache, rule| {
            let (_, emitted, _) = build(rows, cache, rule);
            let n: usize = emitted.kept.iter().map(|k| k.blocks.len()).sum();
            release(cache, emitted);
            n
        };
        let alone: Prompt = (prompt(8, 8, 1), None, 15);
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

    fn rows() -> impl Strategy<Value = Vec<Prompt>> {
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
        /// distinct prefixes of its prompts, with one they are no more than that.
        #[test]
        fn is_the_trie_of_its_prompts(steps in prop::collection::vec(rows(), 1..5)) {
            let mut cache = KvCache::new(64, 4);
            // Block to what is in it.
            let mut contents: BTreeMap<BlockId, (Option<Arc<str>>, Vec<TokenId>)> = BTreeMap::new();
            for (i, rows) in steps.iter().enumerate() {
                let (batch, emitted, tokens) = build(rows, &mut cache, KEEP);
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
                for i in 0..kept.len() {
                    let parent = match kept[i].after {
                        After::Cached(block) => block,
                        After::Kept(above) => kept[above].blocks.last().copied(),
                    };
                    let k = &mut kept[i];
                    let tokens = &k.source[k.positions.clone()];
                    let n = cache.publish(k.salt.as_ref(), parent, tokens, &mut k.blocks);
                    prop_assert_eq!(n, k.blocks.len());
                    for (b, &block) in k.blocks.iter().enumerate() {
                        let prefix = k.source[..k.positions.start + (b + 1) * 4].to_vec();
                        contents.insert(block, (k.salt.clone(), prefix));
                    }
                }
                release(&mut cache, Emitted { kept, ..emitted });
            }
        }
    }
}
