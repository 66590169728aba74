//! The number of times that prefixes were used lately, by which a full cache chooses what it keeps.
//!
//! A prefix evicts another one if it was used more often: `TinyLFU` (Einziger, Friedman and Manes,
//! ACM Transactions on Storage, 2017). So what is seen once pushes nothing out, what comes back does,
//! and prompts that return in turn, more of them than there is room for, do not push each other out
//! each time. Counts are halved at regular intervals, so that what was popular makes room.

use ahash::AHashMap;
use prelude_core::BlockId;

use crate::BlockHash;

/// Prefixes without a block whose counts are remembered, for each block of the cache: some 25 bytes
/// each.
const MISSING_PER_BLOCK: usize = 4;
/// Uses after which counts are halved, for each block of the cache. Less follows a change of what is
/// popular sooner, more keeps apart what is used rarely from what is used more rarely.
const USES_PER_BLOCK: usize = 3;

/// The counts of cached prefixes and of some that are not cached, one for each block.
#[derive(Debug)]
pub(crate) struct UseCounts {
    /// The count of the prefix that ends with a block, by block.
    cached: Vec<Count>,
    missing: AHashMap<BlockHash, Count>,
    /// Counts that were last changed before those of `missing`.
    older: AHashMap<BlockHash, Count>,
    num_blocks: usize,
    /// The number of times that counts were halved.
    epoch: u32,
    uses: usize,
}

/// A count as it was in an epoch.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    uses: u8,
    epoch: u32,
}

impl Count {
    /// Returns the count in a later epoch.
    fn now(self, epoch: u32) -> u8 {
        self.uses.checked_shr(epoch - self.epoch).unwrap_or(0)
    }
}

impl UseCounts {
    pub(crate) fn new(num_blocks: u32) -> Self {
        Self {
            cached: vec![Count::default(); num_blocks as usize],
            missing: AHashMap::new(),
            older: AHashMap::new(),
            num_blocks: num_blocks as usize,
            epoch: 0,
            uses: 0,
        }
    }

    /// Counts a use of a cached block.
    pub(crate) fn use_cached(&mut self, block: BlockId) {
        let uses = self.cached[block.index()].now(self.epoch);
        self.cached[block.index()] = self.count(uses);
    }

    /// Counts a use of a prefix that is computed and gets no block.
    pub(crate) fn use_missing(&mut self, hash: BlockHash) {
        let uses = self.take(hash);
        let count = self.count(uses);
        self.remember(hash, count);
    }

    /// Counts a use of a prefix that is cached in `block` from now on.
    pub(crate) fn enter(&mut self, block: BlockId, hash: BlockHash) {
        let uses = self.take(hash);
        self.cached[block.index()] = self.count(uses);
    }

    /// Notes that a prefix is not cached any more.
    pub(crate) fn leave(&mut self, block: BlockId, hash: BlockHash) {
        let count = std::mem::take(&mut self.cached[block.index()]);
        self.remember(hash, count);
    }

    /// Returns true if a prefix that is used now was used before more often than the one in `block`. The
    /// use of now does not count: of prompts that return in turn, the one in `block` is about to be used
    /// too.
    pub(crate) fn is_above(&self, hash: BlockHash, block: BlockId) -> bool {
        let known = self.missing.get(&hash).or_else(|| self.older.get(&hash));
        let uses = known.map_or(0, |count| count.now(self.epoch));
        uses > self.cached[block.index()].now(self.epoch)
    }

    /// Returns a count of one use more, and begins an epoch if that is due.
    fn count(&mut self, uses: u8) -> Count {
        let epoch = self.epoch;
        self.uses += 1;
        if self.uses >= self.num_blocks * USES_PER_BLOCK {
            self.uses = 0;
            self.epoch += 1;
        }
        Count {
            uses: uses.saturating_add(1),
            epoch,
        }
    }

    fn take(&mut self, hash: BlockHash) -> u8 {
        // Both maps stay empty as long as there is room for everything.
        if self.missing.is_empty() && self.older.is_empty() {
            return 0;
        }
        let known = self.missing.remove(&hash);
        let known = known.or_else(|| self.older.remove(&hash));
        known.map_or(0, |count| count.now(self.epoch))
    }

    fn remember(&mut self, hash: BlockHash, count: Count) {
        self.missing.insert(hash, count);
        if 2 * self.missing.len() > self.num_blocks * MISSING_PER_BLOCK {
            std::mem::swap(&mut self.missing, &mut self.older);
            self.missing.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn counts_outlive_eviction_and_fade() {
        let mut counts = UseCounts::new(2);
        let [a, b] = [BlockHash(1), BlockHash(2)];
        let block = BlockId(0);
        counts.enter(block, a);
        counts.use_cached(block);
        // Two uses: the third one of the other prefix before now is more.
        for is_above in [false, false, false, true] {
            assert_eq!(counts.is_above(b, block), is_above);
            counts.use_missing(b);
        }
        counts.leave(block, a);
        counts.enter(BlockId(1), b);
        assert!(!counts.is_above(a, BlockId(1)), "2 and 5");
        // Six uses make an epoch: ten of them leave nothing of the five, and something of the latest.
        for _ in 0..60 {
            counts.use_missing(a);
        }
        assert!(counts.is_above(a, BlockId(1)), "all have faded");
    }

    proptest! {
        #[test]
        fn the_latest_are_remembered_and_no_more_than_their_bound(
            hashes in prop::collection::vec(0..60u64, 0..200),
            blocks in 1..6u32,
        ) {
            let mut counts = UseCounts::new(blocks);
            let most = blocks as usize * MISSING_PER_BLOCK;
            for (i, &hash) in hashes.iter().enumerate() {
                counts.use_missing(BlockHash(hash));
                prop_assert!(counts.missing.len() + counts.older.len() <= most + 1);
                for late in &hashes[(i + 1).saturating_sub(most / 2)..=i] {
                    let late = BlockHash(*late);
                    let is_known =
                        counts.missing.contains_key(&late) || counts.older.contains_key(&late);
                    prop_assert!(is_known);
                }
            }
        }
    }
}
