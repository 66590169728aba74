//! Reference counts of blocks.

use prelude_core::BlockId;

/// Reference counts and the free list. Every block is exactly one of
///
/// - *free*: it has no holder and no meaning;
/// - *used*: at least one holder has it;
/// - *cached*: it has no holder, but the prefix trie knows its contents.
///
/// All operations are O(1). The order in which blocks are handed out follows from the order of
/// calls alone: last freed, first reused; a fresh pool counts up from 0.
#[derive(Debug)]
pub struct BlockPool {
    /// The blocks by id.
    blocks: Vec<Block>,
    free: Vec<BlockId>,
    /// Blocks with `refs == 0` and `in_trie`.
    cached: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    refs: u32,
    /// True if the prefix trie knows the block, held or not.
    in_trie: bool,
}

/// The state of a block after a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// Another holder still has the block.
    Used,
    /// The block has no holder, and the trie keeps it.
    Cached,
    /// The block is free.
    Free,
}

impl BlockPool {
    /// Returns a pool of blocks `0..num_blocks`, all free.
    #[must_use]
    pub fn new(num_blocks: u32) -> Self {
        Self {
            blocks: vec![Block::default(); num_blocks as usize],
            free: (0..num_blocks).rev().map(BlockId).collect(),
            cached: 0,
        }
    }

    /// Takes a free block; the caller holds it.
    pub fn allocate(&mut self) -> Option<BlockId> {
        let block = self.free.pop()?;
        self.blocks[block.index()].refs = 1;
        Some(block)
    }

    /// Adds one holder to a used or cached block. Returns whether it was merely cached before.
    ///
    /// # Panics
    /// If the block is free: its contents mean nothing.
    pub fn retain(&mut self, block: BlockId) -> bool {
        let Block { refs, in_trie } = &mut self.blocks[block.index()];
        let was_cached = *refs == 0;
        if was_cached {
            assert!(*in_trie, "block {block} is free and cannot be held");
            self.cached -= 1;
        }
        *refs += 1;
        was_cached
    }

    /// Removes one holder of a block.
    ///
    /// # Panics
    /// If the block has no holder.
    pub fn release(&mut self, block: BlockId) -> Released {
        let Block { refs, in_trie } = &mut self.blocks[block.index()];
        assert!(*refs > 0, "block {block} is released more often than held");
        *refs -= 1;
        if *refs > 0 {
            Released::Used
        } else if *in_trie {
            self.cached += 1;
            Released::Cached
        } else {
            self.free.push(block);
            Released::Free
        }
    }

    /// Notes that the trie knows a block.
    ///
    /// # Panics
    /// If the block has no holder, or the trie knew it already.
    pub fn enter_trie(&mut self, block: BlockId) {
        let Block { refs, in_trie } = &mut self.blocks[block.index()];
        assert!(*refs > 0, "block {block} is published but not held");
        assert!(!*in_trie, "block {block} is published twice");
        *in_trie = true;
    }

    /// Frees a cached block that the trie has forgotten.
    ///
    /// # Panics
    /// If the block is not cached.
    pub fn evict(&mut self, block: BlockId) {
        let Block { refs, in_trie } = &mut self.blocks[block.index()];
        let cached = *refs == 0 && *in_trie;
        assert!(cached, "block {block} is evicted but not cached");
        *in_trie = false;
        self.cached -= 1;
        self.free.push(block);
    }

    /// Returns the number of holders.
    #[must_use]
    pub fn refs(&self, block: BlockId) -> u32 {
        self.blocks[block.index()].refs
    }

    /// Returns the number of blocks in the pool.
    #[must_use]
    pub fn num_blocks(&self) -> u32 {
        count(self.blocks.len())
    }

    /// Returns the number of free blocks.
    #[must_use]
    pub fn free_blocks(&self) -> u32 {
        count(self.free.len())
    }

    /// Returns the number of cached blocks without a holder.
    #[must_use]
    pub const fn cached_blocks(&self) -> u32 {
        self.cached
    }

    /// Returns the number of blocks that have a holder.
    #[must_use]
    pub fn used_blocks(&self) -> u32 {
        self.num_blocks() - self.free_blocks() - self.cached
    }

    /// Checks that every block is free, used or cached exactly once. O(blocks); for tests and
    /// simulations.
    ///
    /// # Panics
    /// If that is not so.
    pub fn check(&self) {
        let mut is_free = vec![false; self.blocks.len()];
        for block in &self.free {
            assert!(!is_free[block.index()], "block {block} is free twice");
            is_free[block.index()] = true;
        }
        let mut cached = 0;
        for (i, &free) in is_free.iter().enumerate() {
            let Block { refs, in_trie } = self.blocks[i];
            let used = refs > 0;
            let is_cached = !used && in_trie;
            let states = u32::from(free) + u32::from(used) + u32::from(is_cached);
            assert_eq!(
                states, 1,
                "block {i}: free {free}, used {used}, cached {is_cached}"
            );
            cached += u32::from(is_cached);
        }
        assert_eq!(cached, self.cached, "the number of cached blocks");
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).expect("block ids are u32")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_goes_round() {
        let mut pool = BlockPool::new(2);
        let a = pool.allocate().unwrap();
        assert_eq!(a, BlockId(0));
        pool.enter_trie(a);
        assert!(!pool.retain(a));
        assert_eq!(pool.release(a), Released::Used);
        assert_eq!(pool.release(a), Released::Cached);
        assert!(pool.retain(a));
        assert_eq!(pool.release(a), Released::Cached);
        pool.evict(a);
        assert_eq!((pool.free_blocks(), pool.cached_blocks()), (2, 0));
        assert_eq!(pool.allocate(), Some(a));
        assert_eq!(pool.release(a), Released::Free);
        pool.check();
    }

    #[test]
    fn an_empty_pool_has_nothing() {
        let mut pool = BlockPool::new(1);
        assert!(pool.allocate().is_some());
        assert_eq!(pool.allocate(), None);
    }

    #[test]
    #[should_panic(expected = "released more often than held")]
    fn a_double_free_is_our_fault() {
        let mut pool = BlockPool::new(1);
        let a = pool.allocate().unwrap();
        pool.release(a);
        pool.release(a);
    }
}
