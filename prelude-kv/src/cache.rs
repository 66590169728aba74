//! The KV cache: block pool and prefix trie together.

use std::sync::Arc;

use prelude_core::{BlockId, KvCopies, KvEvent, TokenId};

use crate::{
    BlockHash, BlockPool, PrefixTrie, Released,
    event_log::EventLog,
    host_tier::{HostTier, Place},
    uses::UseCounts,
};

/// The blocks of one executor's KV cache: their holders and the tokens whose keys and values they
/// store.
///
/// Every block handed out by [`allocate`](Self::allocate) and every block of a [`PrefixMatch`] is
/// held by the caller until it is released, exactly once. Holders of a block hold the blocks of
/// its whole prefix; release them in one go.
#[derive(Debug)]
pub struct KvCache {
    pool: BlockPool,
    trie: PrefixTrie,
    block_size: usize,
    evicted: u64,
    published: u64,
    uses: UseCounts,
    /// Prefixes that came or went since they were asked for, if anybody asks.
    changes: Option<Vec<BlockHash>>,
    /// Blocks stored and removed, once [`KvCache::record_events`] was called.
    events: Option<EventLog>,
    /// Copies of evicted blocks in host memory, where the executor has any.
    host: Option<HostTier>,
}

/// The blocks that an allocation may use: free blocks only, or cached ones too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaim {
    /// Free blocks only.
    Never,
    /// Evict the least recently used leaf when nothing is free.
    Evict,
}

/// The longest cached prefix of a prompt, in whole blocks. Its blocks are held, and cannot be
/// evicted, until they are given to [`KvCache::release_all`].
#[derive(Debug)]
#[must_use = "the blocks stay held until they are released"]
pub struct PrefixMatch {
    blocks: Vec<BlockId>,
    hash: BlockHash,
}

impl PrefixMatch {
    /// Returns the blocks, first positions first.
    #[must_use]
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Returns the hash of the matched prefix.
    #[must_use]
    pub const fn hash(&self) -> BlockHash {
        self.hash
    }

    /// Returns the blocks, to be kept or released by the caller.
    #[must_use]
    pub fn into_blocks(self) -> Vec<BlockId> {
        self.blocks
    }
}

impl KvCache {
    /// Returns a cache of blocks `0..num_blocks` of `block_size` tokens, all free.
    ///
    /// # Panics
    /// If `block_size` is 0.
    #[must_use]
    pub fn new(num_blocks: u32, block_size: u32) -> Self {
        Self {
            pool: BlockPool::new(num_blocks),
            trie: PrefixTrie::new(num_blocks, block_size),
            block_size: block_size as usize,
            evicted: 0,
            published: 0,
            uses: UseCounts::new(num_blocks),
            changes: None,
            events: None,
            host: None,
        }
    }

    /// Stores evicted blocks from now on in up to `host_blocks` blocks of host memory, for
    /// [`Self::load_behind`]. The caller has to have the copies of [`Self::take_copies`] made
    /// before anything is computed into blocks that it was handed since they were last taken.
    pub fn use_host_memory(&mut self, host_blocks: u32) {
        let tier = || HostTier::new(self.pool.num_blocks(), self.block_size, host_blocks);
        self.host = (host_blocks > 0).then(tier);
    }

    /// Returns the copies that the executor has to make before the next step, and forgets them.
    pub fn take_copies(&mut self) -> KvCopies {
        let taken = self.host.as_mut().map(HostTier::take_copies);
        taken.unwrap_or_default()
    }

    /// Returns whether host memory holds a prefix with this hash. Two prefixes with one hash count
    /// as the same.
    #[must_use]
    pub fn is_stored(&self, hash: BlockHash) -> bool {
        self.host.as_ref().is_some_and(|host| host.has(hash))
    }

    /// Extends a match by the blocks of at most `max_tokens` tokens that host memory has behind it,
    /// as far as there are blocks to load them into. Evicts what was used less recently. Returns
    /// how many blocks were added; they are cached and held as those of the match are, and hold
    /// their contents once the copies of [`Self::take_copies`] are made.
    pub fn load_behind(
        &mut self,
        found: &mut PrefixMatch,
        salt: Option<&Arc<str>>,
        tokens: &[TokenId],
        max_tokens: usize,
    ) -> usize {
        let known = found.blocks.len();
        let tokens = &tokens[..max_tokens.min(tokens.len())];
        let rest = tokens.get(known * self.block_size..).unwrap_or_default();
        for tokens in rest.chunks_exact(self.block_size) {
            let place = Place {
                hash: found.hash.then(tokens),
                parent: found.blocks.last().copied(),
                salt,
                tokens,
            };
            let Some(block) = self.load(place) else {
                break;
            };
            if let Some(events) = &mut self.events {
                let before = place.parent.map(|_| found.hash);
                events.stored(salt, before, tokens, place.hash);
            }
            found.blocks.push(block);
            found.hash = place.hash;
        }
        found.blocks.len() - known
    }

    /// Loads one block from host memory into a block that the caller then holds.
    fn load(&mut self, place: Place<'_>) -> Option<BlockId> {
        let host = self.host.as_mut()?.find(place)?;
        // Pinned: blocks that the allocation evicts must not take the room of this block in host
        // memory.
        self.host.as_mut()?.pin(host);
        let block = self.allocate(Reclaim::Evict);
        let entered = block.filter(|&block| {
            let (hash, tokens) = (place.hash, place.tokens);
            self.trie
                .insert(place.salt, place.parent, hash, tokens, block)
        });
        let Some(entered) = entered else {
            self.host.as_mut()?.unpin(host);
            block.inspect(|&block| self.release(block));
            return None;
        };
        self.pool.enter_trie(entered);
        self.host.as_mut()?.load(host, entered);
        if let Some(changes) = &mut self.changes {
            changes.push(place.hash);
        }
        Some(entered)
    }

    /// Finds and holds the longest cached prefix of `tokens` under `salt`, of at most
    /// `max_tokens` tokens. O(tokens matched).
    pub fn match_prefix(
        &mut self,
        salt: Option<&Arc<str>>,
        tokens: &[TokenId],
        max_tokens: usize,
    ) -> PrefixMatch {
        let tokens = &tokens[..max_tokens.min(tokens.len())];
        let hashes = self.root(salt).blocks(tokens, self.block_size);
        let mut blocks = Vec::new();
        self.trie
            .walk(salt, None, tokens, hashes, |block| blocks.push(block));
        self.hold_all(&blocks);
        let hash = self.trie.hash(salt, blocks.last().copied());
        PrefixMatch { blocks, hash }
    }

    /// Appends to `found` the cached blocks of the longest run of `tokens` behind the prefix that
    /// ends with block `parent` (or starts a prompt under `salt`); holds and touches nothing.
    ///
    /// `hashes[i]` is the hash of the prefix that ends with the i-th block of `tokens`: a caller
    /// that keeps them saves most of the time of a match. The blocks stay cached as long as
    /// [`Self::version`] stays the same or somebody holds them.
    pub fn find_after(
        &self,
        salt: Option<&Arc<str>>,
        parent: Option<BlockId>,
        tokens: &[TokenId],
        hashes: &[BlockHash],
        found: &mut Vec<BlockId>,
    ) {
        let hashes = &hashes[..hashes.len().min(tokens.len() / self.block_size)];
        self.trie
            .walk(salt, parent, tokens, hashes.iter().copied(), |block| {
                found.push(block);
            });
    }

    /// Holds cached blocks, all of a prefix, until they are given to [`Self::release_all`].
    ///
    /// # Panics
    /// If one of them is free.
    pub fn hold_all(&mut self, blocks: &[BlockId]) {
        blocks.iter().for_each(|&block| self.hold(block));
    }

    /// Returns a number that changes whenever a prefix is published, loaded or evicted.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.published + self.evicted + self.loaded_blocks()
    }

    /// Returns the length in tokens of the prefix that [`Self::match_prefix`] would find; holds and
    /// touches nothing. O(tokens matched).
    #[must_use]
    pub fn cached_prefix(
        &self,
        salt: Option<&Arc<str>>,
        tokens: &[TokenId],
        max_tokens: usize,
    ) -> usize {
        let tokens = &tokens[..max_tokens.min(tokens.len())];
        let hashes = self.root(salt).blocks(tokens, self.block_size);
        let mut blocks = 0;
        self.trie.walk(salt, None, tokens, hashes, |_| blocks += 1);
        blocks * self.block_size
    }

    /// Returns how many blocks of a prompt are cached whose prefixes have these hashes, as
    /// [`Self::cached_prefix`] does without comparing a token: two prefixes with one hash count as
    /// the same, so it is for estimates.
    ///
    /// O(log of the distance from `guess`), since what is cached of a prompt has no gaps: the
    /// blocks of a prefix are published before those behind it and evicted after them.
    #[must_use]
    pub fn cached_blocks_near(&self, hashes: &[BlockHash], guess: usize) -> usize {
        let is_cached = |blocks: usize| blocks == 0 || self.trie.has(hashes[blocks - 1]);
        let guess = guess.min(hashes.len());
        // At least `yes` blocks are cached, and fewer than `no`.
        let (mut yes, mut no) = (0, hashes.len() + 1);
        let mut step = 1;
        if is_cached(guess) {
            yes = guess;
            while yes + step < no {
                match is_cached(yes + step) {
                    true => yes += step,
                    false => no = yes + step,
                }
                step *= 2;
            }
        } else {
            no = guess;
            while no > yes + step {
                match is_cached(no - step) {
                    true => yes = no - step,
                    false => no -= step,
                }
                step *= 2;
            }
        }
        while no - yes > 1 {
            let middle = yes.midpoint(no);
            match is_cached(middle) {
                true => yes = middle,
                false => no = middle,
            }
        }
        yes
    }

    fn root(&self, salt: Option<&Arc<str>>) -> BlockHash {
        self.trie.hash(salt, None)
    }

    /// Notes from now on which prefixes come and go, for [`Self::take_changes`]. The caller has to
    /// take them regularly: they are as many as blocks were published and evicted.
    pub fn note_changes(&mut self) {
        self.changes.get_or_insert_default();
    }

    /// Returns the hashes of the prefixes that came or went since the last call, in order.
    pub fn take_changes(&mut self) -> Vec<BlockHash> {
        self.changes
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Returns the hashes of the prefixes that came or went since [`Self::take_changes`] was last
    /// called.
    #[must_use]
    pub fn changes(&self) -> &[BlockHash] {
        self.changes.as_deref().unwrap_or_default()
    }

    /// Records from now on which blocks are stored and removed, for [`Self::take_events`]. The
    /// cache keeps events of at most `max_blocks` blocks: of more it remembers only that there were
    /// more.
    pub fn record_events(&mut self, max_blocks: usize) {
        self.events = Some(EventLog::new(max_blocks));
    }

    /// Returns the events since the last call, in order. If they named more blocks than the cache
    /// keeps events of, the events are those of [`Self::contents`] instead: they lead to the same
    /// set of blocks. Empty unless [`Self::record_events`] was called.
    pub fn take_events(&mut self) -> Vec<KvEvent> {
        let Some(log) = &mut self.events else {
            return Vec::new();
        };
        let recorded = log.take();
        recorded.unwrap_or_else(|| self.contents())
    }

    /// Returns events that lead from any cache to this one: `Cleared`, and `Stored` for each block,
    /// parents first. O(blocks).
    #[must_use]
    pub fn contents(&self) -> Vec<KvEvent> {
        std::iter::once(KvEvent::Cleared)
            .chain(self.trie.contents())
            .collect()
    }

    /// Allocates a block with undefined contents, held by the caller; returns `None` if there is no
    /// free or cached block.
    pub fn allocate(&mut self, reclaim: Reclaim) -> Option<BlockId> {
        if let Some(block) = self.pool.allocate() {
            return Some(block);
        }
        if reclaim == Reclaim::Never {
            return None;
        }
        let evicted = self.trie.evict()?;
        self.pool.evict(evicted.block);
        self.uses.leave(evicted.block, evicted.hash);
        if let Some(host) = &mut self.host {
            host.evicted(
                evicted.block,
                Place {
                    hash: evicted.hash,
                    parent: evicted.parent,
                    salt: evicted.salt.as_ref(),
                    tokens: self.trie.tokens_of(evicted.block),
                },
            );
        }
        self.evicted += 1;
        if let Some(changes) = &mut self.changes {
            changes.push(evicted.hash);
        }
        if let Some(events) = &mut self.events {
            events.removed(evicted.hash);
        }
        self.pool.allocate()
    }

    /// Returns a block for the prefix with this hash, held by the caller: a free one or, if the prefix
    /// was used more often than the least recently used leaf, that leaf's.
    pub fn allocate_for(&mut self, hash: BlockHash) -> Option<BlockId> {
        let victim = self.trie.oldest();
        let is_worth_it = victim.is_some_and(|victim| self.uses.is_above(hash, victim));
        self.allocate(match is_worth_it {
            true => Reclaim::Evict,
            false => Reclaim::Never,
        })
    }

    /// Counts a use of cached blocks, by which [`Self::allocate_for`] compares.
    pub fn count_use(&mut self, blocks: &[BlockId]) {
        for &block in blocks {
            self.uses.use_cached(block);
        }
    }

    /// Counts a use of the prefix with this hash, which is computed and not kept.
    pub fn count_unkept(&mut self, hash: BlockHash) {
        self.uses.use_missing(hash);
    }

    /// Makes whole computed blocks findable: `blocks[i]` holds the keys and values of the i-th
    /// block of `tokens`, which follow the prefix that ends with block `parent` (or start a
    /// prompt under `salt`). The caller holds `parent` and `blocks`.
    ///
    /// If the trie knows the prefix already, its block wins: the caller then holds that one,
    /// found in `blocks`, instead of its own, which is released. (Keys and values of equal
    /// prefixes are equal.) Returns how many of `blocks` are in the trie now; fewer than all only
    /// if hashes collide, and then the rest is as it was.
    ///
    /// # Panics
    /// If `tokens` is not one whole block per block.
    pub fn publish(
        &mut self,
        salt: Option<&Arc<str>>,
        parent: Option<BlockId>,
        tokens: &[TokenId],
        blocks: &mut [BlockId],
    ) -> usize {
        assert_eq!(
            tokens.len(),
            blocks.len() * self.block_size,
            "whole blocks only"
        );
        let mut parent = parent;
        let mut hash = self.trie.hash(salt, parent);
        for (i, own) in blocks.iter_mut().enumerate() {
            let tokens = &tokens[i * self.block_size..][..self.block_size];
            let before = parent.map(|_| hash);
            hash = hash.then(tokens);
            match self.trie.child(salt, parent, hash, tokens) {
                Some(known) if known == *own => {}
                Some(known) => {
                    self.hold(known);
                    self.release(*own);
                    *own = known;
                }
                None => {
                    if !self.trie.insert(salt, parent, hash, tokens, *own) {
                        return i;
                    }
                    self.pool.enter_trie(*own);
                    self.uses.enter(*own, hash);
                    self.published += 1;
                    if let Some(host) = &mut self.host {
                        let place = Place {
                            hash,
                            parent,
                            salt,
                            tokens,
                        };
                        host.entered(*own, place);
                    }
                    if let Some(changes) = &mut self.changes {
                        changes.push(hash);
                    }
                    if let Some(events) = &mut self.events {
                        events.stored(salt, before, tokens, hash);
                    }
                }
            }
            parent = Some(*own);
        }
        blocks.len()
    }

    /// Returns the number of blocks that [`Self::publish`] has made findable so far and that were not
    /// so before.
    #[must_use]
    pub const fn published_blocks(&self) -> u64 {
        self.published
    }

    /// Gives one block back.
    pub fn release(&mut self, block: BlockId) {
        if self.pool.release(block) == Released::Cached {
            self.trie.unreference(block);
        }
    }

    /// Gives blocks back, the last first, so that the end of a prefix counts as older than its
    /// start.
    pub fn release_all(&mut self, blocks: Vec<BlockId>) {
        for block in blocks.into_iter().rev() {
            self.release(block);
        }
    }

    /// Returns the token positions per block.
    #[must_use]
    pub const fn block_size(&self) -> usize {
        self.block_size
    }

    /// Returns the number of blocks in the pool.
    #[must_use]
    pub fn num_blocks(&self) -> u32 {
        self.pool.num_blocks()
    }

    /// Returns the number of blocks that [`Self::allocate`] can hand out: free and cached ones.
    #[must_use]
    pub fn available_blocks(&self) -> u32 {
        self.pool.free_blocks() + self.pool.cached_blocks()
    }

    /// Returns the number of free blocks.
    #[must_use]
    pub fn free_blocks(&self) -> u32 {
        self.pool.free_blocks()
    }

    /// Returns the number of blocks that only the trie keeps.
    #[must_use]
    pub const fn cached_blocks(&self) -> u32 {
        self.pool.cached_blocks()
    }

    /// Returns the number of blocks that have a holder.
    #[must_use]
    pub fn used_blocks(&self) -> u32 {
        self.pool.used_blocks()
    }

    /// Returns the number of holders of a block.
    #[must_use]
    pub fn refs(&self, block: BlockId) -> u32 {
        self.pool.refs(block)
    }

    /// Returns the number of blocks evicted so far.
    #[must_use]
    pub const fn evicted_blocks(&self) -> u64 {
        self.evicted
    }

    /// Returns the number of blocks of host memory that hold something.
    #[must_use]
    pub fn host_blocks(&self) -> u64 {
        self.host.as_ref().map_or(0, |host| host.len() as u64)
    }

    /// Returns the number of blocks copied to host memory so far.
    #[must_use]
    pub fn stored_blocks(&self) -> u64 {
        self.host.as_ref().map_or(0, |host| host.stored)
    }

    /// Returns the number of blocks loaded from host memory so far.
    #[must_use]
    pub fn loaded_blocks(&self) -> u64 {
        self.host.as_ref().map_or(0, |host| host.loaded)
    }

    /// Checks every invariant by recounting. O(blocks); for tests and simulations.
    ///
    /// # Panics
    /// If one is broken.
    pub fn check(&self) {
        self.pool.check();
        self.trie.check();
        self.host.iter().for_each(HostTier::check);
        let held = (0..self.num_blocks())
            .map(BlockId)
            .filter(|&b| self.refs(b) > 0);
        let held_in_trie = held.filter(|&b| self.trie.contains(b)).count();
        let cached = self.cached_blocks() as usize;
        assert_eq!(self.trie.len(), held_in_trie + cached, "blocks in the trie");
    }

    /// Counts the stored blocks behind a prefix that is cached nowhere.
    #[cfg(test)]
    pub(crate) fn orphans(&self) -> usize {
        let host = self.host.as_ref();
        host.map_or(0, |host| host.orphans(|block| self.trie.contains(block)))
    }

    fn hold(&mut self, block: BlockId) {
        if self.pool.retain(block) {
            self.trie.reference(block);
        }
    }
}

#[cfg(test)]
mod tests;
