//! The second tier of the prefix cache: blocks of host memory that hold copies of cached blocks.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ahash::{AHashMap, RandomState};
use prelude_core::{BlockId, HostBlockId, KvCopies, KvLoad, KvStore, TokenId};

use crate::BlockHash;

/// Copies of cached blocks in a bounded number of host blocks, and the copies that the next step
/// has to make.
///
/// A block is stored when the trie evicts it, and stays stored when it is loaded again: an eviction
/// of what is stored already copies nothing. The least recently used host block makes room.
///
/// A stored block belongs behind one prefix. The tier numbers prefixes as they enter the trie or
/// come back to it, and compares the number of the parent, the salt and the tokens on every lookup,
/// as the trie compares the parent's block: a collision of hashes is a miss. A prefix that is in
/// neither tier any more gets a new number when it is computed again.
///
/// The trie evicts leaves first and every lookup of a block comes after one of its parent. So a
/// block that is in this tier alone was used later than the blocks behind it, and the order of use
/// drops leaves first without a tree.
#[derive(Debug)]
pub(crate) struct HostTier {
    block_size: usize,
    /// The entries by host block.
    entries: Vec<Entry>,
    /// `tokens[h * block_size..][..block_size]`: what host block h was computed from.
    tokens: Vec<TokenId>,
    /// Host blocks with nothing in them; the last is taken first.
    free: Vec<HostBlockId>,
    /// Stored prefixes by hash. For lookups alone; its order reaches nothing.
    index: AHashMap<BlockHash, HostBlockId>,
    /// Stored blocks by last use, but for those that the next step loads.
    by_use: BTreeSet<(u64, HostBlockId)>,
    tick: u64,
    /// The number of the prefix that ends with each block of the trie.
    prefixes: Vec<PrefixNumber>,
    next_prefix: PrefixNumber,
    /// The copies that the next step makes, by target.
    stores: BTreeMap<HostBlockId, BlockId>,
    loads: BTreeMap<BlockId, HostBlockId>,
    pub(crate) stored: u64,
    pub(crate) loaded: u64,
}

/// Names a prefix of whole blocks, salt included, for as long as either tier holds it.
type PrefixNumber = u64;

/// The number of the empty prefix.
const EMPTY: PrefixNumber = 0;

#[derive(Clone, Debug, Default)]
struct Entry {
    hash: BlockHash,
    prefix: PrefixNumber,
    parent: PrefixNumber,
    /// The salt of a prompt that starts here, if it has one.
    salt: Option<Arc<str>>,
    last_used: u64,
}

/// A block of a prompt, and the prefix that the block follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    /// The hash of the prefix that ends with the block.
    pub(crate) hash: BlockHash,
    /// The block before it, which is in the trie; `None` where a prompt starts.
    pub(crate) parent: Option<BlockId>,
    /// The salt of the prompt. Blocks with a parent have the salt of their parent.
    pub(crate) salt: Option<&'a Arc<str>>,
    pub(crate) tokens: &'a [TokenId],
}

impl HostTier {
    pub(crate) fn new(num_blocks: u32, block_size: usize, host_blocks: u32) -> Self {
        Self {
            block_size,
            entries: vec![Entry::default(); host_blocks as usize],
            tokens: vec![0; host_blocks as usize * block_size],
            free: (0..host_blocks).rev().map(HostBlockId).collect(),
            index: AHashMap::with_hasher(RandomState::with_seeds(5, 6, 7, 8)),
            by_use: BTreeSet::new(),
            tick: 0,
            prefixes: vec![EMPTY; num_blocks as usize],
            next_prefix: EMPTY + 1,
            stores: BTreeMap::new(),
            loads: BTreeMap::new(),
            stored: 0,
            loaded: 0,
        }
    }

    /// Returns whether some stored prefix has this hash.
    pub(crate) fn has(&self, hash: BlockHash) -> bool {
        self.index.contains_key(&hash)
    }

    /// Returns the number of host blocks that hold something.
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// Finds the host block that holds what belongs at a place.
    pub(crate) fn find(&self, place: Place<'_>) -> Option<HostBlockId> {
        let &host = self.index.get(&place.hash)?;
        let entry = &self.entries[host.index()];
        let is_same = entry.parent == self.number(place.parent)
            && (place.parent.is_some() || entry.salt.as_ref() == place.salt)
            && self.tokens_of(host) == place.tokens;
        is_same.then_some(host)
    }

    /// Notes that a computed block entered the trie.
    pub(crate) fn entered(&mut self, block: BlockId, place: Place<'_>) {
        self.prefixes[block.index()] = match self.find(place) {
            Some(host) => self.entries[host.index()].prefix,
            None => self.new_number(),
        };
    }

    /// Notes that the trie evicted a block, and stores it unless it is stored already, or all host
    /// blocks are being loaded.
    pub(crate) fn evicted(&mut self, block: BlockId, place: Place<'_>) {
        let prefix = self.prefixes[block.index()];
        // If its contents have not come yet, they stay where they are.
        self.loads.remove(&block);
        let known = self.index.get(&place.hash).copied();
        if let Some(host) = known.filter(|h| self.entries[h.index()].prefix == prefix) {
            self.touch(host);
            return;
        }
        // Another prefix with the same hash has no way back once this one takes its place.
        if let Some(other) = known {
            if self.is_loading(other) {
                return;
            }
            self.forget(other);
            self.free.push(other);
        }
        let Some(host) = self.make_room() else {
            return;
        };
        self.entries[host.index()] = Entry {
            hash: place.hash,
            prefix,
            parent: self.number(place.parent),
            salt: place.salt.cloned(),
            last_used: 0,
        };
        let at = host.index() * self.block_size;
        self.tokens[at..at + self.block_size].copy_from_slice(place.tokens);
        self.index.insert(place.hash, host);
        self.touch(host);
        self.stores.insert(host, block);
        self.stored += 1;
    }

    /// Keeps a stored block from being dropped until it is loaded or released again.
    pub(crate) fn pin(&mut self, host: HostBlockId) {
        let entry = &mut self.entries[host.index()];
        self.by_use.remove(&(entry.last_used, host));
    }

    /// Ends [`Self::pin`] without a load.
    pub(crate) fn unpin(&mut self, host: HostBlockId) {
        self.touch(host);
    }

    /// Notes that a pinned block is loaded into `block`, which is in the trie now.
    pub(crate) fn load(&mut self, host: HostBlockId, block: BlockId) {
        self.prefixes[block.index()] = self.entries[host.index()].prefix;
        self.loads.insert(block, host);
        self.loaded += 1;
    }

    /// Takes the copies that are due before the next step.
    pub(crate) fn take_copies(&mut self) -> KvCopies {
        let stores = std::mem::take(&mut self.stores);
        let loads = std::mem::take(&mut self.loads);
        // Prompts' ends were loaded last and count as older than their starts.
        let mut hosts: Vec<HostBlockId> = loads.values().copied().collect();
        hosts.sort_unstable_by_key(|h| std::cmp::Reverse(self.entries[h.index()].prefix));
        for host in hosts {
            self.touch(host);
        }
        KvCopies {
            stores: { stores.into_iter() }
                .map(|(to, from)| KvStore { from, to })
                .collect(),
            loads: { loads.into_iter() }
                .map(|(to, from)| KvLoad { from, to })
                .collect(),
        }
    }

    /// Returns the host blocks behind a prefix that is in neither tier.
    #[cfg(test)]
    pub(crate) fn orphans(&self, in_trie: impl Fn(BlockId) -> bool) -> usize {
        let blocks = (0..).map(BlockId).zip(&self.prefixes);
        let mut known: BTreeSet<PrefixNumber> = blocks
            .filter(|(block, _)| in_trie(*block))
            .map(|(_, &prefix)| prefix)
            .collect();
        let stored = || self.index.values().map(|h| &self.entries[h.index()]);
        known.insert(EMPTY);
        known.extend(stored().map(|entry| entry.prefix));
        stored().filter(|e| !known.contains(&e.parent)).count()
    }

    fn is_loading(&self, host: HostBlockId) -> bool {
        let last_used = self.entries[host.index()].last_used;
        !self.by_use.contains(&(last_used, host))
    }

    fn number(&self, block: Option<BlockId>) -> PrefixNumber {
        block.map_or(EMPTY, |block| self.prefixes[block.index()])
    }

    const fn new_number(&mut self) -> PrefixNumber {
        self.next_prefix += 1;
        self.next_prefix - 1
    }

    fn tokens_of(&self, host: HostBlockId) -> &[TokenId] {
        &self.tokens[host.index() * self.block_size..][..self.block_size]
    }

    /// Makes a host block the most recently used one.
    fn touch(&mut self, host: HostBlockId) {
        self.tick += 1;
        let entry = &mut self.entries[host.index()];
        self.by_use.remove(&(entry.last_used, host));
        entry.last_used = self.tick;
        self.by_use.insert((self.tick, host));
    }

    fn make_room(&mut self) -> Option<HostBlockId> {
        if let Some(host) = self.free.pop() {
            return Some(host);
        }
        let &(_, oldest) = self.by_use.first()?;
        self.forget(oldest);
        Some(oldest)
    }

    /// Checks the bookkeeping by recounting. O(host blocks); for tests and simulations.
    ///
    /// # Panics
    /// If it is wrong.
    pub(crate) fn check(&self) {
        assert_eq!(
            self.free.len() + self.index.len(),
            self.entries.len(),
            "host blocks are free or hold something"
        );
        assert_eq!(
            self.by_use.len() + self.loads.len(),
            self.index.len(),
            "host blocks are being loaded or may be dropped"
        );
        for (hash, host) in &self.index {
            let entry = &self.entries[host.index()];
            assert_eq!(entry.hash, *hash, "index of host block {host}");
            assert!(entry.prefix > entry.parent, "parents are numbered first");
        }
        for (block, host) in &self.loads {
            let entry = &self.entries[host.index()];
            assert_eq!(self.prefixes[block.index()], entry.prefix, "load of {host}");
            assert!(self.is_loading(*host), "host block {host} may be dropped");
        }
        for host in self.stores.keys() {
            let holds = self.index.get(&self.entries[host.index()].hash);
            assert_eq!(holds, Some(host), "store into {host} is of no use");
        }
    }

    /// Forgets what a host block holds. A store into it that is due is not needed any more.
    fn forget(&mut self, host: HostBlockId) {
        let entry = std::mem::take(&mut self.entries[host.index()]);
        self.by_use.remove(&(entry.last_used, host));
        self.index.remove(&entry.hash);
        self.stores.remove(&host);
    }
}

#[cfg(test)]
mod tests;
