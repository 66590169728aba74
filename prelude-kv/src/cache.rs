//! The KV cache: block pool and prefix trie together.

use std::sync::Arc;

use prelude_core::{BlockId, KvEvent, TokenId};

use crate::{BlockHash, BlockPool, PrefixTrie, Released, event_log::EventLog};

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
    /// Prefixes that came or went since they were asked for, if anybody asks.
    changes: Option<Vec<BlockHash>>,
    /// Blocks stored and removed, once [`KvCache::record_events`] was called.
    events: Option<EventLog>,
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
    /// The blocks, first positions first.
    #[must_use]
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Hash of the matched prefix.
    #[must_use]
    pub const fn hash(&self) -> BlockHash {
        self.hash
    }

    /// The blocks, to be kept or released by the caller.
    #[must_use]
    pub fn into_blocks(self) -> Vec<BlockId> {
        self.blocks
    }
}

impl KvCache {
    /// Blocks `0..num_blocks` of `block_size` tokens, all free.
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
            changes: None,
            events: None,
        }
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

    /// Returns a number that changes whenever a prefix is published or evicted.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.published + self.evicted
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
        // So many are cached, and so many are not or there are no more.
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

    /// Hashes of the prefixes that came or went since the last call, in order.
    pub fn take_changes(&mut self) -> Vec<BlockHash> {
        self.changes
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Hashes of the prefixes that came or went since [`Self::take_changes`] was last called.
    #[must_use]
    pub fn changes(&self) -> &[BlockHash] {
        self.changes.as_deref().unwrap_or_default()
    }

    /// Records from now on which blocks are stored and removed, for [`Self::take_events`]. The cache
    /// keeps events of at most `max_blocks` blocks: of more it remembers only that there were more.
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

    /// A block with undefined contents, held by the caller; `None` if there is none to have.
    pub fn allocate(&mut self, reclaim: Reclaim) -> Option<BlockId> {
        if let Some(block) = self.pool.allocate() {
            return Some(block);
        }
        if reclaim == Reclaim::Never {
            return None;
        }
        let (victim, hash) = self.trie.evict()?;
        self.pool.evict(victim);
        self.evicted += 1;
        if let Some(changes) = &mut self.changes {
            changes.push(hash);
        }
        if let Some(events) = &mut self.events {
            events.removed(hash);
        }
        self.pool.allocate()
    }

    /// Makes whole computed blocks findable: `blocks[i]` holds the keys and values of the i-th
    /// block of `tokens`, which follow the prefix that ends with block `parent` (or start a
    /// prompt under `salt`). The caller holds `parent` and `blocks`.
    ///
    /// Where the trie knows the prefix already, its block wins: the caller then holds that one,
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
                    self.published += 1;
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

    /// Blocks that [`Self::publish`] has made findable so far and that were not so before.
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

    /// Token positions per block.
    #[must_use]
    pub const fn block_size(&self) -> usize {
        self.block_size
    }

    /// Blocks in the pool.
    #[must_use]
    pub fn num_blocks(&self) -> u32 {
        self.pool.num_blocks()
    }

    /// Blocks that [`Self::allocate`] can hand out: free and cached ones.
    #[must_use]
    pub fn available_blocks(&self) -> u32 {
        self.pool.free_blocks() + self.pool.cached_blocks()
    }

    /// Free blocks.
    #[must_use]
    pub fn free_blocks(&self) -> u32 {
        self.pool.free_blocks()
    }

    /// Blocks that only the trie keeps.
    #[must_use]
    pub const fn cached_blocks(&self) -> u32 {
        self.pool.cached_blocks()
    }

    /// Blocks that somebody holds.
    #[must_use]
    pub fn used_blocks(&self) -> u32 {
        self.pool.used_blocks()
    }

    /// Number of holders of a block.
    #[must_use]
    pub fn refs(&self, block: BlockId) -> u32 {
        self.pool.refs(block)
    }

    /// Blocks evicted so far.
    #[must_use]
    pub const fn evicted_blocks(&self) -> u64 {
        self.evicted
    }

    /// Checks every invariant by recounting. O(blocks); for tests and simulations.
    ///
    /// # Panics
    /// If one is broken.
    pub fn check(&self) {
        self.pool.check();
        self.trie.check();
        let held = (0..self.num_blocks())
            .map(BlockId)
            .filter(|&b| self.refs(b) > 0);
        let held_in_trie = held.filter(|&b| self.trie.contains(b)).count();
        let cached = self.cached_blocks() as usize;
        assert_eq!(self.trie.len(), held_in_trie + cached, "blocks in the trie");
    }

    fn hold(&mut self, block: BlockId) {
        if self.pool.retain(block) {
            self.trie.reference(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BLOCK: usize = 2;

    fn salt(name: &str) -> Option<Arc<str>> {
        (!name.is_empty()).then(|| Arc::from(name))
    }

    /// Publishes whole blocks of `tokens` as a request that computed them alone, and lets go.
    fn compute(cache: &mut KvCache, salt: Option<&Arc<str>>, tokens: &[TokenId]) -> Vec<BlockId> {
        let mut blocks = cache.match_prefix(salt, tokens, tokens.len()).into_blocks();
        let known = blocks.len();
        while (blocks.len() + 1) * BLOCK <= tokens.len() {
            let Some(block) = cache.allocate(Reclaim::Evict) else {
                break;
            };
            blocks.push(block);
        }
        let parent = known.checked_sub(1).map(|p| blocks[p]);
        let span = &tokens[known * BLOCK..blocks.len() * BLOCK];
        cache.publish(salt, parent, span, &mut blocks[known..]);
        cache.release_all(blocks.clone());
        cache.check();
        blocks
    }

    fn found(
        cache: &mut KvCache,
        salt: Option<&Arc<str>>,
        tokens: &[TokenId],
        max: usize,
    ) -> usize {
        let peeked = cache.cached_prefix(salt, tokens, max);
        let found = cache.match_prefix(salt, tokens, max);
        let len = found.blocks().len();
        assert_eq!(peeked, len * BLOCK);
        let hashes: Vec<_> = cache.root(salt).blocks(tokens, BLOCK).collect();
        let whole = max.min(tokens.len()) / BLOCK;
        // In two pieces, as a caller does whose prompts are trees.
        for cut in 0..=whole.min(len) {
            let mut again = found.blocks()[..cut].to_vec();
            let (parent, rest) = (again.last().copied(), &tokens[cut * BLOCK..]);
            cache.find_after(salt, parent, rest, &hashes[cut..whole], &mut again);
            assert_eq!(again, found.blocks(), "cut at {cut}");
        }
        let last = len.checked_sub(1);
        let expected = last.map_or_else(|| cache.root(salt), |i| hashes[i]);
        assert_eq!(found.hash(), expected);
        cache.release_all(found.into_blocks());
        len
    }

    #[test]
    fn matches_whole_blocks_up_to_the_limit() {
        let mut cache = KvCache::new(8, 2);
        compute(&mut cache, None, &[1, 2, 3, 4, 5]);
        let mut check = |tokens: &[TokenId], max, expected| {
            assert_eq!(
                found(&mut cache, None, tokens, max),
                expected,
                "{tokens:?} to {max}"
            );
        };
        check(&[1, 2, 3, 4, 5], 5, 2);
        check(&[1, 2, 3, 4], 3, 1);
        check(&[1, 2, 9, 9], 4, 1);
        check(&[3, 4], 2, 0);
        check(&[1], 1, 0);
        check(&[], 9, 0);
    }

    #[test]
    fn finds_prompts_longer_than_what_it_looks_up_together() {
        let mut cache = KvCache::new(1_000, 2);
        let prompt: Vec<TokenId> = (0..1_000).collect();
        compute(&mut cache, None, &prompt);
        for max in [
            0, 1, 2, 3, 4, 11, 12, 13, 127, 251, 252, 253, 254, 999, 1_000,
        ] {
            assert_eq!(found(&mut cache, None, &prompt, max), max / 2);
            let mut other = prompt[..max].to_vec();
            other.extend([9, 9, 9]);
            assert_eq!(found(&mut cache, None, &other, max + 3), max / 2, "{max}");
        }
    }

    #[test]
    fn salts_share_nothing() {
        let mut cache = KvCache::new(8, 2);
        let (a, b) = (salt("a"), salt("b"));
        compute(&mut cache, a.as_ref(), &[1, 2, 3, 4]);
        assert_eq!(found(&mut cache, a.as_ref(), &[1, 2, 3, 4], 4), 2);
        assert_eq!(found(&mut cache, b.as_ref(), &[1, 2, 3, 4], 4), 0);
        assert_eq!(found(&mut cache, None, &[1, 2, 3, 4], 4), 0);
    }

    #[test]
    fn colliding_hashes_never_mix_prefixes() {
        let mut cache = KvCache::new(16, 2);
        cache.trie.weaken_hash(0);
        let (a, b) = (salt("a"), salt("b"));
        compute(&mut cache, a.as_ref(), &[1, 2, 3, 4]);
        // Every hash is the same, so only the first block of all is in the trie.
        assert_eq!(found(&mut cache, a.as_ref(), &[1, 2, 3, 4], 4), 1);
        assert_eq!(found(&mut cache, b.as_ref(), &[1, 2, 3, 4], 4), 0);
        assert_eq!(found(&mut cache, a.as_ref(), &[3, 4], 2), 0);
        assert_eq!((cache.cached_blocks(), cache.free_blocks()), (1, 15));
    }

    /// Requests with and without a salt have the same tokens, and all hashes are the same: only
    /// the salt that the trie remembers keeps one from the other's block.
    #[test]
    fn colliding_hashes_never_cross_from_a_salt_to_none_or_back() {
        let salts = [salt("a"), salt("b"), None];
        for owner in &salts {
            let mut cache = KvCache::new(16, 2);
            cache.trie.weaken_hash(0);
            compute(&mut cache, owner.as_ref(), &[1, 2]);
            for reader in &salts {
                let expected = usize::from(owner == reader);
                let blocks = found(&mut cache, reader.as_ref(), &[1, 2], 2);
                assert_eq!(blocks, expected, "{reader:?} reads what {owner:?} computed");
            }
        }
    }

    #[test]
    fn an_equal_block_published_twice_is_kept_once() {
        let mut cache = KvCache::new(4, 2);
        let first = cache.allocate(Reclaim::Never).unwrap();
        let second = cache.allocate(Reclaim::Never).unwrap();
        assert_eq!(cache.publish(None, None, &[1, 2], &mut [first]), 1);
        let mut twice = [second];
        assert_eq!(cache.publish(None, None, &[1, 2], &mut twice), 1);
        assert_eq!(twice, [first]);
        assert_eq!((cache.refs(first), cache.refs(second)), (2, 0));
        cache.release_all(vec![first, first]);
        cache.check();
        assert_eq!((cache.cached_blocks(), cache.free_blocks()), (1, 3));
    }

    #[test]
    fn evicts_leaves_first_by_last_use_and_never_a_held_block() {
        let mut cache = KvCache::new(4, 2);
        compute(&mut cache, None, &[1, 2, 3, 4]);
        compute(&mut cache, None, &[5, 6, 7, 8]);
        let held = cache.match_prefix(None, &[1, 2, 3, 4], 2);
        // Oldest leaf: [1, 2, 3, 4]'s second block; its first is held.
        let mut taken = Vec::new();
        let mut sizes = Vec::new();
        while let Some(block) = cache.allocate(Reclaim::Evict) {
            taken.push(block);
            sizes.push((
                found(&mut cache, None, &[1, 2, 3, 4], 4),
                found(&mut cache, None, &[5, 6, 7, 8], 4),
            ));
        }
        assert_eq!(sizes, [(1, 2), (1, 1), (1, 0)]);
        assert_eq!(cache.allocate(Reclaim::Evict), None);
        cache.release_all(held.into_blocks());
        cache.release_all(taken);
        cache.check();
        assert_eq!((cache.cached_blocks(), cache.free_blocks()), (1, 3));
    }

    /// The naive twin: a list of prefixes with their last use and holders, scanned every time.
    #[derive(Default)]
    struct Naive {
        /// (salt, prefix), last use, holders.
        entries: Vec<((usize, Vec<TokenId>), u64, u32)>,
        tick: u64,
        capacity: usize,
        /// Blocks held that are in no entry.
        loose: usize,
    }

    impl Naive {
        fn position(&self, salt: usize, prefix: &[TokenId]) -> Option<usize> {
            self.entries
                .iter()
                .position(|(key, ..)| key.0 == salt && key.1 == prefix)
        }

        fn matched(&self, salt: usize, tokens: &[TokenId], max: usize) -> usize {
            let whole = max.min(tokens.len()) / BLOCK;
            (1..=whole)
                .take_while(|n| self.position(salt, &tokens[..n * BLOCK]).is_some())
                .count()
        }

        fn hold(&mut self, salt: usize, tokens: &[TokenId], n: usize) {
            for i in 1..=n {
                let at = self.position(salt, &tokens[..i * BLOCK]).unwrap();
                self.entries[at].2 += 1;
            }
        }

        fn release(&mut self, salt: usize, tokens: &[TokenId], n: usize) {
            for i in (1..=n).rev() {
                let at = self.position(salt, &tokens[..i * BLOCK]).unwrap();
                self.entries[at].2 -= 1;
                if self.entries[at].2 == 0 {
                    self.tick += 1;
                    self.entries[at].1 = self.tick;
                }
            }
        }

        fn allocate(&mut self) -> bool {
            if self.entries.len() + self.loose == self.capacity {
                let is_leaf = |(salt, prefix): &(usize, Vec<TokenId>)| {
                    !self.entries.iter().any(|((s, p), ..)| {
                        s == salt && p.len() > prefix.len() && p.starts_with(prefix)
                    })
                };
                let victim = (0..self.entries.len())
                    .filter(|&i| self.entries[i].2 == 0 && is_leaf(&self.entries[i].0))
                    .min_by_key(|&i| self.entries[i].1);
                let Some(victim) = victim else {
                    return false;
                };
                self.entries.remove(victim);
            }
            self.loose += 1;
            true
        }

        fn publish(&mut self, salt: usize, tokens: &[TokenId], from: usize, to: usize) {
            for i in from + 1..=to {
                self.loose -= 1;
                match self.position(salt, &tokens[..i * BLOCK]) {
                    Some(at) => self.entries[at].2 += 1,
                    None => self
                        .entries
                        .push(((salt, tokens[..i * BLOCK].to_vec()), 0, 1)),
                }
            }
        }
    }

    /// A request in progress: salt, tokens, blocks held, blocks matched.
    type Running = (usize, Vec<TokenId>, Vec<BlockId>, usize);

    #[derive(Clone, Debug)]
    enum Op {
        /// Match and allocate the rest.
        Start {
            salt: usize,
            tokens: Vec<TokenId>,
            max: usize,
        },
        /// Publish and release.
        Finish(usize),
        /// Release without publishing.
        Abort(usize),
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let start = (0..2usize, prop::collection::vec(0u32..2, 0..10), 0..10usize)
            .prop_map(|(salt, tokens, max)| Op::Start { salt, tokens, max });
        let op = prop_oneof![
            3 => start,
            2 => (0..8usize).prop_map(Op::Finish),
            1 => (0..8usize).prop_map(Op::Abort),
        ];
        prop::collection::vec(op, 1..80)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        /// Matches, evictions and block counts are those of the naive twin, whatever happens,
        /// with good hashes and with colliding ones (which may only miss).
        #[test]
        fn agrees_with_a_list_of_prefixes(ops in ops(), blocks in 1..12u32) {
            let salts = [salt(""), salt("x")];
            let mut cache = KvCache::new(blocks, BLOCK as u32);
            let mut naive = Naive { capacity: blocks as usize, ..Naive::default() };
            let mut running: Vec<Running> = Vec::new();
            for op in ops {
                match op {
                    Op::Start { salt, tokens, max } => {
                        let expected = naive.matched(salt, &tokens, max);
                        naive.hold(salt, &tokens, expected);
                        let found = cache.match_prefix(salts[salt].as_ref(), &tokens, max);
                        prop_assert_eq!(found.blocks().len(), expected);
                        let mut held = found.into_blocks();
                        while (held.len() + 1) * BLOCK <= tokens.len() {
                            let block = cache.allocate(Reclaim::Evict);
                            prop_assert_eq!(block.is_some(), naive.allocate());
                            let Some(block) = block else { break };
                            held.push(block);
                        }
                        running.push((salt, tokens, held, expected));
                    }
                    Op::Finish(i) if i < running.len() => {
                        let (salt, tokens, mut held, matched) = running.remove(i);
                        let parent = matched.checked_sub(1).map(|p| held[p]);
                        let span = &tokens[matched * BLOCK..held.len() * BLOCK];
                        let n = held.len() - matched;
                        let salt_arc = salts[salt].as_ref();
                        prop_assert_eq!(cache.publish(salt_arc, parent, span, &mut held[matched..]), n);
                        naive.publish(salt, &tokens, matched, held.len());
                        naive.release(salt, &tokens, held.len());
                        cache.release_all(held);
                    }
                    Op::Abort(i) if i < running.len() => {
                        let (salt, tokens, held, matched) = running.remove(i);
                        naive.loose -= held.len() - matched;
                        naive.release(salt, &tokens, matched);
                        cache.release_all(held);
                    }
                    Op::Finish(_) | Op::Abort(_) => {}
                }
                cache.check();
                // Whatever the guess, the depth by hashes is that by tokens.
                for (salt, tokens, ..) in &running {
                    let salt = salts[*salt].as_ref();
                    let hashes: Vec<_> = cache.root(salt).blocks(tokens, BLOCK).collect();
                    let depth = cache.cached_prefix(salt, tokens, tokens.len()) / BLOCK;
                    for guess in 0..=hashes.len() + 1 {
                        prop_assert_eq!(cache.cached_blocks_near(&hashes, guess), depth);
                    }
                }
                let unheld = naive.entries.iter().filter(|e| e.2 == 0).count();
                prop_assert_eq!(cache.cached_blocks() as usize, unheld);
                let in_use = naive.loose + naive.entries.len() - unheld;
                prop_assert_eq!(cache.used_blocks() as usize, in_use);
            }
        }

        #[test]
        fn weak_hashes_only_miss(prompts in prop::collection::vec(prop::collection::vec(0u32..2, 2..10), 1..20)) {
            let mut weak = KvCache::new(64, BLOCK as u32);
            weak.trie.weaken_hash(3);
            let mut strong = KvCache::new(64, BLOCK as u32);
            for prompt in &prompts {
                compute(&mut weak, None, prompt);
                compute(&mut strong, None, prompt);
                let n = found(&mut weak, None, prompt, prompt.len());
                prop_assert!(n <= found(&mut strong, None, prompt, prompt.len()));
                let m = weak.match_prefix(None, prompt, prompt.len());
                let spelled: Vec<TokenId> =
                    m.blocks().iter().flat_map(|&b| weak.trie.tokens_of(b).to_vec()).collect();
                prop_assert_eq!(&spelled[..], &prompt[..n * BLOCK]);
                weak.release_all(m.into_blocks());
            }
        }
    }
}
