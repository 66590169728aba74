//! The prompts of one request: a tree, and for each of its nodes the hashes of its blocks and how
//! far they are in the prefix cache.
//!
//! A block belongs to the node in which it ends. So the blocks of a prompt are those of its path,
//! and what prompts share is hashed and looked up once.
//!
//! ```text
//! positions  0 ............ 64 ....... 90 ....... 120
//! nodes      |   root       |   child  |   leaf    |
//! blocks     |__0__|__1__|__2__|__3__|__4__|__5__|__6__|
//! of         root     root  child     leaf      (none yet: not whole)
//! ```

use std::{ops::Range, sync::Arc};

use prelude_core::{BlockId, NodeIdx, PromptTree, TokenId};
use prelude_kv::{BlockHash, KvCache};

use crate::length::length_of;

/// The prompts of a request.
#[derive(Debug)]
pub(crate) struct Prompts {
    /// The request's serial number.
    pub(crate) serial: u64,
    pub(crate) salt: Option<Arc<str>>,
    pub(crate) tree: Arc<PromptTree>,
    block_size: u32,
    /// The blocks of each node of the tree; empty until something is asked of one node.
    nodes: Vec<NodeBlocks>,
    /// The prompt that [`Self::whole`] returned last: choices of a generation share it.
    whole: Option<(NodeIdx, Arc<[TokenId]>)>,
    /// The hashes that [`Self::hashes`] returned last.
    hashes: Option<(NodeIdx, Arc<[BlockHash]>)>,
    /// Reused between calls.
    path: Vec<NodeIdx>,
}

/// The blocks that end in one node.
#[derive(Clone, Debug, Default)]
struct NodeBlocks {
    /// The hash of the prefix that ends with each block, once it was asked for.
    hashes: Option<Arc<[BlockHash]>>,
    /// The first blocks, as far as the cache has them.
    found: Vec<BlockId>,
    /// The number of blocks of the node's whole prompt that the cache has.
    cached: u32,
    /// The [`KvCache::version`] that the two fields above are of.
    version: Option<u64>,
}

/// The beginning of a prompt that was found in the cache last. The next request often begins alike, and
/// comparing the two is faster than finding the blocks one by one.
#[derive(Debug, Default)]
pub(crate) struct Found(Option<Beginning>);

#[derive(Debug)]
struct Beginning {
    salt: Option<Arc<str>>,
    tree: Arc<PromptTree>,
    root: NodeIdx,
    hashes: Arc<[BlockHash]>,
    blocks: Vec<BlockId>,
    /// The [`KvCache::version`] that the blocks are of.
    version: u64,
}

impl Found {
    /// Returns the blocks of a root's tokens that are known without a look at the cache.
    fn of(
        &self,
        prompts: &Prompts,
        root: NodeIdx,
        hashes: &[BlockHash],
        version: u64,
    ) -> &[BlockId] {
        let Some(last) = self.0.as_ref().filter(|last| last.version == version) else {
            return &[];
        };
        let blocks = last.blocks.len();
        let tokens = blocks * prompts.block_size as usize;
        let is_same = last.salt == prompts.salt
            && hashes.get(..blocks) == last.hashes.get(..blocks)
            && prompts.tokens(root).get(..tokens)
                == last.tree.nodes()[last.root.index()].tokens.get(..tokens);
        if is_same { &last.blocks } else { &[] }
    }
}

impl Prompts {
    pub(crate) fn new(
        serial: u64,
        salt: Option<Arc<str>>,
        tree: PromptTree,
        block_size: usize,
    ) -> Self {
        Self {
            serial,
            salt,
            tree: Arc::new(tree),
            block_size: length_of(block_size),
            nodes: Vec::new(),
            whole: None,
            hashes: None,
            path: Vec::new(),
        }
    }

    /// Returns a node's whole prompt in one piece.
    pub(crate) fn whole(&mut self, node: NodeIdx) -> Arc<[TokenId]> {
        match &self.whole {
            Some((of, tokens)) if *of == node => Arc::clone(tokens),
            _ => {
                let own = &self.tree.nodes()[node.index()];
                let tokens: Arc<[TokenId]> = match own.parent {
                    None => own.tokens.as_slice().into(),
                    Some(_) => self.tree.prompt(node).into(),
                };
                self.whole = Some((node, Arc::clone(&tokens)));
                tokens
            }
        }
    }

    /// Returns the hashes of the prefixes of a node's prompt that end with its whole blocks.
    pub(crate) fn hashes(&mut self, node: NodeIdx) -> Arc<[BlockHash]> {
        match &self.hashes {
            Some((of, hashes)) if *of == node => Arc::clone(hashes),
            _ => {
                self.hash(node);
                let own = |at: NodeIdx| {
                    let hashes = self.nodes[at.index()].hashes.as_ref();
                    hashes.expect("it was hashed just now")
                };
                let hashes = match self.tree.nodes()[node.index()].parent {
                    None => Arc::clone(own(node)),
                    // Those of the nodes from the root on, one after the other.
                    Some(_) => {
                        let parent = |at: &NodeIdx| self.tree.nodes()[at.index()].parent;
                        let mut path: Vec<_> = std::iter::successors(Some(node), parent).collect();
                        path.reverse();
                        path.into_iter()
                            .flat_map(|at| own(at).iter().copied())
                            .collect()
                    }
                };
                self.hashes = Some((node, Arc::clone(&hashes)));
                hashes
            }
        }
    }

    /// Looks a node's prompt up in the cache, as far as that has changed or was not done before,
    /// and returns the number of blocks of its cached prefix of at most `most` tokens.
    pub(crate) fn find(
        &mut self,
        node: NodeIdx,
        most: u32,
        cache: &KvCache,
        last: &mut Found,
    ) -> u32 {
        let most = self.blocks_to(most);
        if most == 0 {
            return 0;
        }
        self.hash(node);
        let version = cache.version();
        self.open_path(node, |known| known.version == Some(version));
        while let Some(node) = self.path.pop() {
            let parent = self.tree.nodes()[node.index()].parent;
            let cached = parent.map_or(0, |parent| self.nodes[parent.index()].cached);
            let mut known = std::mem::take(&mut self.nodes[node.index()]);
            known.found.clear();
            known.cached = cached;
            if cached == self.blocks_to(self.tree.start(node))
                && let Some(hashes) = &known.hashes
            {
                if parent.is_none() {
                    let begins = last.of(self, node, hashes, version);
                    known.found.extend_from_slice(begins);
                }
                let before = known.found.len();
                self.find_own(node, hashes, cache, &mut known.found);
                known.cached += length_of(known.found.len());
                if parent.is_none() && known.found.len() > before {
                    last.0 = Some(Beginning {
                        salt: self.salt.clone(),
                        tree: Arc::clone(&self.tree),
                        root: node,
                        hashes: Arc::clone(hashes),
                        blocks: known.found.clone(),
                        version,
                    });
                }
            }
            known.version = Some(version);
            self.nodes[node.index()] = known;
        }
        most.min(self.nodes[node.index()].cached)
    }

    /// Returns a node's prompt, of which [`Self::find`] found so many blocks.
    pub(crate) const fn prompt(&self, node: NodeIdx, cached: u32) -> Prompt<'_> {
        Prompt {
            prompts: self,
            node,
            cached,
        }
    }

    /// Finds the blocks of one node, behind a prefix that is in the cache; of a root, behind those that
    /// are `found`.
    fn find_own(
        &self,
        node: NodeIdx,
        hashes: &[BlockHash],
        cache: &KvCache,
        found: &mut Vec<BlockId>,
    ) {
        let (salt, start) = (self.salt.as_ref(), self.tree.start(node));
        let before = self.blocks_to(start);
        let mut parent = before.checked_sub(1).map(|last| self.block(node, last));
        let (mut rest, mut hashes) = (self.tokens(node), hashes);
        if !found.is_empty() {
            parent = found.last().copied();
            rest = &rest[found.len() * self.block_size as usize..];
            hashes = &hashes[found.len()..];
        }
        if let Some((&hash, more)) = hashes.split_first()
            && let Some(first) = self.straddling(node)
        {
            cache.find_after(salt, parent, &first, &[hash], found);
            if found.is_empty() {
                return;
            }
            parent = found.last().copied();
            rest = &rest[((before + 1) * self.block_size - start) as usize..];
            hashes = more;
        }
        cache.find_after(salt, parent, rest, hashes, found);
    }

    /// Hashes the blocks of a node's prompt, as far as that was not done before.
    fn hash(&mut self, node: NodeIdx) {
        self.open_path(node, |known| known.hashes.is_some());
        while let Some(node) = self.path.pop() {
            let (start, end) = (self.tree.start(node), self.tree.prompt_len(node));
            let (before, after) = (self.blocks_to(start), self.blocks_to(end));
            let mut hashes = Vec::with_capacity((after - before) as usize);
            if after > before {
                let mut hash = self.hash_after(node, before);
                let mut rest = self.tokens(node);
                if let Some(first) = self.straddling(node) {
                    hash = hash.then(&first);
                    hashes.push(hash);
                    rest = &rest[((before + 1) * self.block_size - start) as usize..];
                }
                hashes.extend(hash.blocks(rest, self.block_size as usize));
            }
            self.nodes[node.index()].hashes = Some(hashes.into());
        }
    }

    /// Returns the tokens of a node without those of its ancestors.
    fn tokens(&self, node: NodeIdx) -> &[TokenId] {
        &self.tree.nodes()[node.index()].tokens
    }

    /// Puts a node and its ancestors into `path`, up to the first that `is_known`.
    fn open_path(&mut self, node: NodeIdx, is_known: impl Fn(&NodeBlocks) -> bool) {
        if self.nodes.is_empty() {
            self.nodes
                .resize(self.tree.nodes().len(), NodeBlocks::default());
        }
        self.path.clear();
        let mut at = Some(node);
        while let Some(node) = at.filter(|node| !is_known(&self.nodes[node.index()])) {
            self.path.push(node);
            at = self.tree.nodes()[node.index()].parent;
        }
    }

    /// Returns the tokens of the block that begins before a node and ends in it, if there is one.
    fn straddling(&self, node: NodeIdx) -> Option<Vec<TokenId>> {
        let (start, end) = (self.tree.start(node), self.tree.prompt_len(node));
        let first = start - start % self.block_size;
        let last = first + self.block_size;
        if first == start || last > end {
            return None;
        }
        let mut tokens = Vec::with_capacity(self.block_size as usize);
        self.tree.copy_tokens(node, first..last, &mut tokens);
        Some(tokens)
    }

    /// Returns the hash of the first `blocks` blocks of a node's prompt; those of its ancestors
    /// have been hashed.
    fn hash_after(&self, node: NodeIdx, blocks: u32) -> BlockHash {
        let Some(last) = blocks.checked_sub(1) else {
            return BlockHash::root(self.salt.as_deref());
        };
        let (node, index) = self.owner(node, last);
        let hashes = self.nodes[node.index()].hashes.as_deref();
        hashes.expect("ancestors are hashed first")[index]
    }

    /// Returns a cached block of a node's prompt.
    fn block(&self, node: NodeIdx, block: u32) -> BlockId {
        let (node, index) = self.owner(node, block);
        self.nodes[node.index()].found[index]
    }

    /// Returns the node, on the path of another, to which a block belongs, and the block's index
    /// there.
    fn owner(&self, node: NodeIdx, block: u32) -> (NodeIdx, usize) {
        let mut node = node;
        loop {
            let before = self.blocks_to(self.tree.start(node));
            if block >= before {
                return (node, (block - before) as usize);
            }
            let parent = self.tree.nodes()[node.index()].parent;
            node = parent.expect("no block is before a root");
        }
    }

    /// Returns the number of blocks that end within so many tokens.
    const fn blocks_to(&self, tokens: u32) -> u32 {
        tokens / self.block_size
    }
}

/// A row's prompt, some of whose first blocks are in the prefix cache. They are not held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prompt<'a> {
    prompts: &'a Prompts,
    node: NodeIdx,
    cached: u32,
}

impl<'a> Prompt<'a> {
    /// Returns the prompts of the whole request.
    pub(crate) const fn all(&self) -> &'a Prompts {
        self.prompts
    }

    pub(crate) const fn node(&self) -> NodeIdx {
        self.node
    }

    /// Returns the number of blocks of the prompt's cached prefix.
    pub(crate) const fn cached_blocks(&self) -> usize {
        self.cached as usize
    }

    /// Returns a block of the prompt's cached prefix.
    pub(crate) fn block(&self, index: usize) -> BlockId {
        self.prompts.block(self.node, length_of(index))
    }

    /// Returns the blocks of the prompt's cached prefix.
    pub(crate) fn blocks(&self) -> Vec<BlockId> {
        (0..self.cached_blocks()).map(|i| self.block(i)).collect()
    }

    /// Returns the hash of the prompt's cached prefix.
    pub(crate) fn hash(&self) -> BlockHash {
        self.prompts.hash_after(self.node, self.cached)
    }

    /// Returns the hash of the prompt's cached prefix and the next block, if that block ends within
    /// `most` tokens.
    pub(crate) fn next_hash(&self, most: u32) -> Option<BlockHash> {
        let is_within = self.cached < self.prompts.blocks_to(most);
        is_within.then(|| self.prompts.hash_after(self.node, self.cached + 1))
    }
}

/// The tokens of a prompt, however they are stored.
pub(crate) trait PromptTokens {
    /// Returns the number of tokens.
    fn count(&self) -> u32;

    /// Returns the tokens at these positions.
    fn copy(&self, positions: Range<u32>) -> Vec<TokenId>;

    /// Returns all tokens.
    fn to_whole(&self) -> Arc<[TokenId]>;
}

impl PromptTokens for Prompt<'_> {
    fn count(&self) -> u32 {
        self.prompts.tree.prompt_len(self.node)
    }

    fn copy(&self, positions: Range<u32>) -> Vec<TokenId> {
        let mut tokens = Vec::new();
        let tree = &self.prompts.tree;
        tree.copy_tokens(self.node, positions, &mut tokens);
        tokens
    }

    fn to_whole(&self) -> Arc<[TokenId]> {
        self.prompts.tree.prompt(self.node).into()
    }
}

impl PromptTokens for Arc<[TokenId]> {
    fn count(&self) -> u32 {
        length_of(self.len())
    }

    fn copy(&self, positions: Range<u32>) -> Vec<TokenId> {
        self[positions.start as usize..positions.end as usize].to_vec()
    }

    fn to_whole(&self) -> Arc<[TokenId]> {
        Self::clone(self)
    }
}

#[cfg(test)]
mod tests {
    use prelude_kv::Reclaim;
    use proptest::prelude::*;

    use super::*;

    const BLOCK: u32 = 3;

    /// Trees in which each node's parent is any earlier node, or none.
    fn trees() -> impl Strategy<Value = PromptTree> {
        let node = (
            any::<prop::sample::Index>(),
            prop_oneof![
                prop::collection::vec(0u32..2, 1..9),
                (1u32..20).prop_map(|tokens| (0..tokens).collect()),
            ],
        );
        prop::collection::vec(node, 1..12).prop_map(|nodes| {
            let mut tree = PromptTree::new();
            for (at, (parent, tokens)) in (0..).zip(nodes) {
                let parent = parent.index(at + 1).checked_sub(1);
                let parent = parent.map(|parent| NodeIdx(length_of(parent)));
                tree.push(parent, tokens).unwrap();
            }
            tree
        })
    }

    proptest! {
        /// Node by node, a prompt has the hashes and the cached blocks that its tokens in one piece
        /// have, in whatever order nodes of two requests are asked for and the cache changes.
        #[test]
        fn agree_with_whole_prompts(
            requests in [(trees(), any::<bool>()), (trees(), any::<bool>())],
            steps in prop::collection::vec(
                (any::<prop::sample::Index>(), 0u32..40, any::<bool>(), 0usize..2), 1..30),
        ) {
            let mut cache = KvCache::new(8, BLOCK);
            let mut last = Found::default();
            let mut requests = requests.map(|(tree, is_salted)| {
                let salt = is_salted.then(|| Arc::from("salt"));
                Prompts::new(0, salt, tree, BLOCK as usize)
            });
            for (node, most, publishes, request) in steps {
                let prompts = &mut requests[request];
                let (salt, tree) = (prompts.salt.clone(), Arc::clone(&prompts.tree));
                let node = NodeIdx(length_of(node.index(tree.nodes().len())));
                let whole = tree.prompt(node);
                prop_assert_eq!(&prompts.whole(node)[..], &whole[..]);
                let root = BlockHash::root(salt.as_deref());
                let hashes: Vec<_> = root.blocks(&whole, BLOCK as usize).collect();
                prop_assert_eq!(&prompts.hashes(node)[..], &hashes[..]);
                let most = most.min(length_of(whole.len()));
                let expected = cache.match_prefix(salt.as_ref(), &whole, most as usize);
                let cached = prompts.find(node, most, &cache, &mut last);
                let found = prompts.prompt(node, cached);
                prop_assert_eq!(found.blocks(), expected.blocks());
                prop_assert_eq!(found.hash(), expected.hash());
                let next = hashes.get(expected.blocks().len()).copied();
                let next = next.filter(|_| (expected.blocks().len() as u32 + 1) * BLOCK <= most);
                prop_assert_eq!(found.next_hash(most), next);
                let middle = most / 2..most;
                let copied = whole[middle.start as usize..middle.end as usize].to_vec();
                prop_assert_eq!(found.copy(middle), copied);
                let mut held = expected.into_blocks();
                let known = held.len();
                while publishes && (held.len() + 1) * BLOCK as usize <= whole.len() {
                    let Some(block) = cache.allocate(Reclaim::Evict) else { break };
                    held.push(block);
                }
                let parent = known.checked_sub(1).map(|last| held[last]);
                let span = known * BLOCK as usize..held.len() * BLOCK as usize;
                cache.publish(salt.as_ref(), parent, &whole[span], &mut held[known..]);
                cache.release_all(held);
            }
        }
    }
}
