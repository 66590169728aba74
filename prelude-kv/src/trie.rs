//! The trie of cached prefixes: the tokens that each cached block was computed from.

use std::{collections::BTreeSet, sync::Arc};

use ahash::{AHashMap, RandomState};
use hashbrown::HashTable;
use prelude_core::{BlockId, TokenId};

use crate::BlockHash;

mod contents;

/// A trie whose nodes are whole blocks: the path to a node spells the prefix whose keys and
/// values are in its block. A block is in the trie at most once, so a node *is* its block id.
///
/// Children are found by the chained hash of the prefix, and then parent, salt and tokens are
/// compared: a collision is a miss. Eviction takes leaves first, by least recent use, measured by
/// a counter of operations, and only nodes without references.
///
/// The trie relies on one rule of its callers, which [`crate::KvCache`] keeps: who references a
/// node references its ancestors too. So unreferenced nodes have unreferenced children only, and
/// every one of them can be evicted sooner or later.
///
/// The cost of a long match is that of memory: each block of it lies elsewhere. So the index holds
/// block ids alone (4 bytes, and one of the hash), all else that a match reads of a block but its
/// tokens is in half a cache line, and a match looks up [`GROUP`] blocks before it compares the
/// first of them, so that their cache misses overlap.
#[derive(Debug)]
pub struct PrefixTrie {
    block_size: usize,
    /// The nodes by block id.
    nodes: Vec<Node>,
    /// `tokens[start + b * block_size..][..block_size]`: what block b was computed from. The first
    /// block starts a cache line, so that one of 16 tokens is in one line.
    tokens: Vec<TokenId>,
    start: usize,
    /// Nodes by hash. For lookups only; its order reaches nothing.
    index: HashTable<BlockId>,
    /// The salts of nodes without a parent, as far as they have one. For lookups only.
    salts: AHashMap<BlockId, Arc<str>>,
    /// Unreferenced leaves by last use.
    evictable: BTreeSet<(u64, BlockId)>,
    /// Counts operations.
    tick: u64,
    /// Bits of the hash that are used. All, except in tests of collisions.
    hash_mask: u64,
}

/// A node that the trie has forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// The evicted block.
    pub block: BlockId,
    /// The hash of the prefix that ended with the block.
    pub hash: BlockHash,
    /// The block before it, which is in the trie; `None` where a prompt starts.
    pub parent: Option<BlockId>,
    /// The salt of the prompt, if `parent` is `None` and the prompt has one.
    pub salt: Option<Arc<str>>,
}

/// Most blocks that a match looks up together.
const GROUP: usize = 64;

/// The parent of a node that starts a prompt. No pool has so many blocks.
const NO_PARENT: BlockId = BlockId(u32::MAX);

// Two nodes fill a cache line, and none lies in two lines.
#[derive(Clone, Debug)]
#[repr(align(32))]
struct Node {
    hash: BlockHash,
    last_used: u64,
    parent: BlockId,
    children: u32,
    present: bool,
    referenced: bool,
}

impl Node {
    const ABSENT: Self = Self {
        hash: BlockHash(0),
        last_used: 0,
        parent: NO_PARENT,
        children: 0,
        present: false,
        referenced: false,
    };
}

impl PrefixTrie {
    /// Returns an empty trie over blocks `0..num_blocks` of `block_size` tokens.
    ///
    /// # Panics
    /// If `block_size` is 0.
    #[must_use]
    pub fn new(num_blocks: u32, block_size: u32) -> Self {
        assert!(block_size > 0, "a block holds at least one token");
        let block_size = block_size as usize;
        let line = 64 / size_of::<TokenId>();
        let tokens = vec![0; num_blocks as usize * block_size + line];
        Self {
            block_size,
            start: tokens.as_ptr().align_offset(64).min(line),
            tokens,
            nodes: vec![Node::ABSENT; num_blocks as usize],
            index: HashTable::new(),
            salts: AHashMap::with_hasher(RandomState::with_seeds(1, 2, 3, 4)),
            evictable: BTreeSet::new(),
            tick: 0,
            hash_mask: u64::MAX,
        }
    }

    /// Returns the hash of the prefix that ends with `parent`, or of the empty prefix under `salt`.
    ///
    /// # Panics
    /// If `parent` is not in the trie.
    #[must_use]
    pub fn hash(&self, salt: Option<&Arc<str>>, parent: Option<BlockId>) -> BlockHash {
        match parent {
            None => BlockHash::root(salt.map(|s| &**s)),
            Some(p) => {
                let node = &self.nodes[p.index()];
                assert!(node.present, "parent {p} is not in the trie");
                node.hash
            }
        }
    }

    /// Returns the node that continues `parent` (or the empty prefix under `salt`) with one block
    /// of `tokens`, whose chained hash is `hash`.
    #[must_use]
    pub fn child(
        &self,
        salt: Option<&Arc<str>>,
        parent: Option<BlockId>,
        hash: BlockHash,
        tokens: &[TokenId],
    ) -> Option<BlockId> {
        let block = self.find(hash)?;
        let parent = parent.unwrap_or(NO_PARENT);
        self.continues(block, salt, parent, tokens).then_some(block)
    }

    /// Calls `found` with each block, first positions first, of the longest run of `tokens` behind
    /// `parent` (or the empty prefix under `salt`) that is in the trie. `hashes` are those of the
    /// prefixes that end with each block of `tokens`; the walk goes no further than they do.
    pub(crate) fn walk(
        &self,
        salt: Option<&Arc<str>>,
        parent: Option<BlockId>,
        tokens: &[TokenId],
        mut hashes: impl Iterator<Item = BlockHash>,
        mut found: impl FnMut(BlockId),
    ) {
        let mut rest = tokens;
        let mut parent = parent.unwrap_or(NO_PARENT);
        // Small at first: little is looked up in vain for a prompt of which nothing is cached.
        let mut size = 2;
        loop {
            let mut ahead = [BlockHash(0); GROUP];
            let mut asked = 0;
            for (slot, next) in ahead.iter_mut().zip(hashes.by_ref().take(size)) {
                *slot = next;
                asked += 1;
            }
            let mut known = [NO_PARENT; GROUP];
            let likely = self.look_up(&ahead[..asked], rest, &mut known);
            for (i, &block) in known[..asked].iter().enumerate() {
                let tokens = &rest[i * self.block_size..][..self.block_size];
                if i == likely || !self.continues(block, salt, parent, tokens) {
                    return;
                }
                found(block);
                parent = block;
            }
            if asked < size {
                return;
            }
            rest = &rest[asked * self.block_size..];
            size = (2 * size).min(GROUP);
        }
    }

    /// Finds the nodes with these hashes, up to the first that is not there or whose first token is
    /// not that of its block of `tokens`, and returns how many that are. It reads each kind of
    /// memory for all of them before it reads the next, since the processor waits for several cache
    /// misses at once only if few instructions lie between them.
    fn look_up(&self, hashes: &[BlockHash], tokens: &[TokenId], known: &mut [BlockId]) -> usize {
        let mut count = 0;
        for (slot, &hash) in known.iter_mut().zip(hashes) {
            // Seven bits of the hash agree, so the node is the wrong one only once in a hundred
            // times.
            let Some(&block) = self.index.find(self.masked(hash).0, |_| true) else {
                break;
            };
            *slot = block;
            count += 1;
        }
        let known = &mut known[..count];
        for (i, (block, &hash)) in known.iter_mut().zip(hashes).enumerate() {
            if self.masked(self.nodes[block.index()].hash) != self.masked(hash) {
                let Some(right) = self.find(hash) else {
                    count = i;
                    break;
                };
                *block = right;
            }
        }
        let pairs = known[..count]
            .iter()
            .zip(tokens.chunks_exact(self.block_size));
        let same = |(block, tokens): &(&BlockId, &[TokenId])| {
            self.tokens_of(**block).first() == tokens.first()
        };
        pairs.take_while(same).count()
    }

    /// Returns whether some prefix in the trie has this hash.
    pub(crate) fn has(&self, hash: BlockHash) -> bool {
        self.find(hash).is_some()
    }

    /// Returns the node whose prefix has this hash.
    fn find(&self, hash: BlockHash) -> Option<BlockId> {
        let key = self.masked(hash);
        let same = |block: &BlockId| self.masked(self.nodes[block.index()].hash) == key;
        self.index.find(key.0, same).copied()
    }

    /// Returns whether a node continues `parent` (or the empty prefix under `salt`) with `tokens`.
    fn continues(
        &self,
        block: BlockId,
        salt: Option<&Arc<str>>,
        parent: BlockId,
        tokens: &[TokenId],
    ) -> bool {
        self.nodes[block.index()].parent == parent
            && (parent != NO_PARENT || self.salts.get(&block) == salt)
            && self.tokens_of(block) == tokens
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
        if self.find(hash).is_some() {
            return false;
        }
        if let Some(p) = parent {
            let node = &mut self.nodes[p.index()];
            assert!(node.present && node.referenced, "parent {p} is not held");
            node.children += 1;
        }
        self.nodes[block.index()] = Node {
            hash,
            last_used: 0,
            parent: parent.unwrap_or(NO_PARENT),
            children: 0,
            present: true,
            referenced: true,
        };
        let key = self.masked(hash);
        let (nodes, mask) = (&self.nodes, self.hash_mask);
        let key_of = |block: &BlockId| nodes[block.index()].hash.0 & mask;
        self.index.insert_unique(key.0, block, key_of);
        if let (None, Some(salt)) = (parent, salt) {
            self.salts.insert(block, salt.clone());
        }
        let at = self.start + block.index() * self.block_size;
        self.tokens[at..at + self.block_size].copy_from_slice(tokens);
        true
    }

    /// Notes that the node is referenced again: it is not to be evicted.
    pub fn reference(&mut self, block: BlockId) {
        let node = &mut self.nodes[block.index()];
        assert!(
            node.present && !node.referenced,
            "block {block} is not a cached node"
        );
        node.referenced = true;
        // Of the blocks of a prompt, the last alone can be there.
        if node.children == 0 {
            self.evictable.remove(&(node.last_used, block));
        }
    }

    /// Notes that the node has no references any more; this is its last use.
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

    /// Returns the block that [`Self::evict`] would return.
    #[must_use]
    pub fn oldest(&self) -> Option<BlockId> {
        self.evictable.first().map(|&(_, block)| block)
    }

    /// Forgets the least recently used unreferenced leaf and returns its block and its place.
    pub fn evict(&mut self) -> Option<Evicted> {
        let (_, block) = self.evictable.pop_first()?;
        let node = std::mem::replace(&mut self.nodes[block.index()], Node::ABSENT);
        let key = self.masked(node.hash);
        if let Ok(entry) = self.index.find_entry(key.0, |&other| other == block) {
            entry.remove();
        }
        let mut salt = None;
        if node.parent == NO_PARENT {
            salt = self.salts.remove(&block);
        } else {
            let parent = &mut self.nodes[node.parent.index()];
            parent.children -= 1;
            if parent.children == 0 && !parent.referenced {
                self.evictable.insert((parent.last_used, node.parent));
            }
        }
        Some(Evicted {
            block,
            hash: node.hash,
            parent: Some(node.parent).filter(|&parent| parent != NO_PARENT),
            salt,
        })
    }

    /// Returns whether the block is in the trie.
    #[must_use]
    pub fn contains(&self, block: BlockId) -> bool {
        self.nodes[block.index()].present
    }

    /// Returns the number of nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns whether there are no nodes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    pub(crate) fn tokens_of(&self, block: BlockId) -> &[TokenId] {
        &self.tokens[self.start + block.index() * self.block_size..][..self.block_size]
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
        let (mut present, mut salted) = (0, 0);
        let block_id = |i| BlockId(u32::try_from(i).expect("block ids are u32"));
        for (i, node) in self.nodes.iter().enumerate().filter(|(_, n)| n.present) {
            present += 1;
            if node.parent == NO_PARENT {
                salted += usize::from(self.salts.contains_key(&block_id(i)));
            } else {
                let parent = &self.nodes[node.parent.index()];
                assert!(
                    parent.present,
                    "the parent of block {i} was evicted before it"
                );
                assert!(
                    parent.referenced || !node.referenced,
                    "block {i} is held without its parent"
                );
                children[node.parent.index()] += 1;
            }
        }
        assert_eq!(present, self.index.len(), "nodes and index");
        assert_eq!(
            salted,
            self.salts.len(),
            "salts of nodes that start a prompt"
        );
        let mut leaves = 0;
        for (i, node) in self.nodes.iter().enumerate().filter(|(_, n)| n.present) {
            assert_eq!(node.children, children[i], "children of block {i}");
            assert_eq!(self.find(node.hash), Some(block_id(i)), "index");
            if node.children == 0 && !node.referenced {
                assert!(
                    self.evictable.contains(&(node.last_used, block_id(i))),
                    "block {i} is lost"
                );
                leaves += 1;
            }
        }
        assert_eq!(leaves, self.evictable.len(), "evictable leaves");
    }
}
