//! Which tokens each cached block was computed from.

use std::{collections::BTreeSet, sync::Arc};

use ahash::{AHashMap, RandomState};
use prelude_core::{BlockId, TokenId};

use crate::BlockHash;

/// A trie whose nodes are whole blocks: the path to a node spells the prefix whose keys and
/// values are in its block. A block is in the trie at most once, so a node *is* its block id.
///
/// Children are found by the chained hash of the prefix, and then parent, salt and tokens are
/// compared: a collision is a miss. Eviction takes leaves first, by least recent use, measured by
/// a counter of operations, and only nodes that nobody references.
///
/// The trie relies on one rule of its callers, which [`crate::KvCache`] keeps: who references a
/// node references its ancestors too. So unreferenced nodes have unreferenced children only, and
/// every one of them can be evicted sooner or later.
#[derive(Debug)]
pub struct PrefixTrie {
    block_size: usize,
    /// By block id.
    nodes: Vec<Node>,
    /// `tokens[b * block_size..][..block_size]`: what block b was computed from.
    tokens: Vec<TokenId>,
    /// For lookups only; its order reaches nothing.
    index: AHashMap<BlockHash, BlockId>,
    /// Unreferenced leaves by last use.
    evictable: BTreeSet<(u64, BlockId)>,
    /// Counts operations.
    tick: u64,
    /// Bits of the hash that are used. All, except in tests of collisions.
    hash_mask: u64,
}

#[derive(Clone, Debug, Default)]
struct Node {
    present: bool,
    referenced: bool,
    parent: Option<BlockId>,
    /// Of a node without parent.
    salt: Option<Arc<str>>,
    hash: Option<BlockHash>,
    children: u32,
    last_used: u64,
}

impl PrefixTrie {
    /// An empty trie over blocks `0..num_blocks` of `block_size` tokens.
    ///
    /// # Panics
    /// If `block_size` is 0.
    #[must_use]
    pub fn new(num_blocks: u32, block_size: u32) -> Self {
        assert!(block_size > 0, "a block holds at least one token");
        let block_size = block_size as usize;
        Self {
            block_size,
            nodes: vec![Node::default(); num_blocks as usize],
            tokens: vec![0; num_blocks as usize * block_size],
            index: AHashMap::with_hasher(RandomState::with_seeds(1, 2, 3, 4)),
            evictable: BTreeSet::new(),
            tick: 0,
            hash_mask: u64::MAX,
        }
    }

    /// Hash of the prefix that ends with `parent`, or of the empty prefix under `salt`.
    ///
    /// # Panics
    /// If `parent` is not in the trie.
    #[must_use]
    pub fn hash(&self, salt: Option<&Arc<str>>, parent: Option<BlockId>) -> BlockHash {
        match parent {
            None => BlockHash::root(salt.map(|s| &**s)),
            Some(p) => self.nodes[p.index()]
                .hash
                .expect("the parent is in the trie"),
        }
    }

    /// The node that continues `parent` (or the empty prefix under `salt`) with one block of
    /// `tokens`, whose chained hash is `hash`.
    #[must_use]
    pub fn child(
        &self,
        salt: Option<&Arc<str>>,
        parent: Option<BlockId>,
        hash: BlockHash,
        tokens: &[TokenId],
    ) -> Option<BlockId> {
        let block = *self.index.get(&self.masked(hash))?;
        let node = &self.nodes[block.index()];
        let same = node.parent == parent
            && (parent.is_some() || node.salt.as_ref() == salt)
            && self.tokens_of(block) == tokens;
        same.then_some(block)
    }

    /// Adds `block`, referenced, as the child of `parent` (or of the empty prefix under `salt`).
    /// Returns false, and changes nothing, if another prefix with the same hash is in the way.
    ///
    /// # Panics
    /// If the block or the very same prefix is in the trie already, or the parent is not.
    pub fn insert(
        &mut self,
        salt: Option<&Arc<str>>,
        parent: Option<BlockId>,
        hash: BlockHash,
        tokens: &[TokenId],
        block: BlockId,
    ) -> bool {
        assert_eq!(tokens.len(), self.block_size, "whole blocks only");
        assert!(
            !self.nodes[block.index()].present,
            "block {block} is in the trie twice"
        );
        assert!(
            self.child(salt, parent, hash, tokens).is_none(),
            "the prefix of block {block} is in the trie already"
        );
        let key = self.masked(hash);
        if self.index.contains_key(&key) {
            return false;
        }
        if let Some(p) = parent {
            let node = &mut self.nodes[p.index()];
            assert!(node.present && node.referenced, "parent {p} is not held");
            node.children += 1;
        }
        self.index.insert(key, block);
        self.nodes[block.index()] = Node {
            present: true,
            referenced: true,
            parent,
            salt: if parent.is_none() {
                salt.cloned()
            } else {
                None
            },
            hash: Some(hash),
            children: 0,
            last_used: 0,
        };
        self.tokens[block.index() * self.block_size..][..self.block_size].copy_from_slice(tokens);
        true
    }

    /// Somebody references the node again: it is not to be evicted.
    pub fn reference(&mut self, block: BlockId) {
        let node = &mut self.nodes[block.index()];
        assert!(
            node.present && !node.referenced,
            "block {block} is not a cached node"
        );
        node.referenced = true;
        self.evictable.remove(&(node.last_used, block));
    }

    /// Nobody references the node any more; this is its last use.
    pub fn unreference(&mut self, block: BlockId) {
        self.tick += 1;
        let node = &mut self.nodes[block.index()];
        assert!(
            node.present && node.referenced,
            "block {block} is not a referenced node"
        );
        node.referenced = false;
        node.last_used = self.tick;
        if node.children == 0 {
            self.evictable.insert((node.last_used, block));
        }
    }

    /// Forgets the least recently used unreferenced leaf and returns its block, and the hash of the
    /// prefix that ended with it.
    pub fn evict(&mut self) -> Option<(BlockId, BlockHash)> {
        let (_, block) = self.evictable.pop_first()?;
        let node = std::mem::take(&mut self.nodes[block.index()]);
        let hash = node.hash.expect("a node in the trie has a hash");
        self.index.remove(&self.masked(hash));
        if let Some(p) = node.parent {
            let parent = &mut self.nodes[p.index()];
            parent.children -= 1;
            if parent.children == 0 && !parent.referenced {
                self.evictable.insert((parent.last_used, p));
            }
        }
        Some((block, hash))
    }

    /// Whether the block is in the trie.
    #[must_use]
    pub fn contains(&self, block: BlockId) -> bool {
        self.nodes[block.index()].present
    }

    /// Number of nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there are no nodes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    pub(crate) fn tokens_of(&self, block: BlockId) -> &[TokenId] {
        &self.tokens[block.index() * self.block_size..][..self.block_size]
    }

    const fn masked(&self, hash: BlockHash) -> BlockHash {
        BlockHash(hash.0 & self.hash_mask)
    }

    #[cfg(test)]
    pub(crate) const fn weaken_hash(&mut self, mask: u64) {
        self.hash_mask = mask;
    }

    /// Checks the links and the eviction order against a recount. O(blocks); for tests and
    /// simulations.
    ///
    /// # Panics
    /// If they disagree.
    pub fn check(&self) {
        let mut children = vec![0; self.nodes.len()];
        let mut present = 0;
        for (i, node) in self.nodes.iter().enumerate().filter(|(_, n)| n.present) {
            present += 1;
            if let Some(p) = node.parent {
                let parent = &self.nodes[p.index()];
                assert!(
                    parent.present,
                    "the parent of block {i} was evicted before it"
                );
                assert!(
                    parent.referenced || !node.referenced,
                    "block {i} is held without its parent"
                );
                children[p.index()] += 1;
            }
        }
        assert_eq!(present, self.index.len(), "nodes and index");
        let mut leaves = 0;
        for (i, node) in self.nodes.iter().enumerate().filter(|(_, n)| n.present) {
            assert_eq!(node.children, children[i], "children of block {i}");
            if node.children == 0 && !node.referenced {
                let block = BlockId(u32::try_from(i).expect("block ids are u32"));
                assert!(
                    self.evictable.contains(&(node.last_used, block)),
                    "block {i} is lost"
                );
                leaves += 1;
            }
        }
        assert_eq!(leaves, self.evictable.len(), "evictable leaves");
    }
}
