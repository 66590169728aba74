//! The prefix blocks that are being computed, so that other requests can wait for them instead of
//! computing them again (Prelude §3: leader and peers).

use ahash::{AHashMap, RandomState};
use prelude_core::StepId;
use prelude_kv::BlockHash;

/// Blocks that steps in flight and unfinished prompts will publish, counted per computation.
#[derive(Debug)]
pub(crate) struct Leaders {
    /// The number of computations of each block, by hash; the map is for lookups only. Two prefixes
    /// with one hash merely make a waiter wait in vain, and that is bounded.
    computing: AHashMap<BlockHash, u32>,
}

impl Leaders {
    pub(crate) fn new() -> Self {
        Self {
            computing: AHashMap::with_hasher(RandomState::with_seeds(13, 14, 15, 16)),
        }
    }

    pub(crate) fn add(&mut self, hash: BlockHash) {
        *self.computing.entry(hash).or_default() += 1;
    }

    pub(crate) fn add_all(&mut self, hashes: &[BlockHash]) {
        self.computing.reserve(hashes.len());
        hashes.iter().for_each(|&hash| self.add(hash));
    }

    /// # Panics
    /// If no computation of the block was added.
    pub(crate) fn remove(&mut self, hash: BlockHash) {
        let count = self
            .computing
            .get_mut(&hash)
            .expect("every leader was added before");
        *count -= 1;
        if *count == 0 {
            self.computing.remove(&hash);
        }
    }

    pub(crate) fn contains(&self, hash: BlockHash) -> bool {
        self.computing.contains_key(&hash)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.computing.is_empty()
    }
}

/// The number of steps for which a waiter has been held back for one block.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    block: Option<BlockHash>,
    steps: u32,
    last: Option<StepId>,
}

impl Held {
    /// Returns whether to hold the waiter back in this step too, because somebody computes `block`.
    /// A new block means that the leader got on, and counts anew.
    pub(crate) fn hold(&mut self, block: BlockHash, step: StepId, max: u32) -> bool {
        if self.block != Some(block) {
            *self = Self {
                block: Some(block),
                steps: 0,
                last: None,
            };
        }
        if self.last != Some(step) {
            self.steps = self.steps.saturating_add(1);
            self.last = Some(step);
        }
        self.steps <= max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_is_held_at_most_so_many_steps_per_block() {
        let mut held = Held::default();
        let mut check = |block, step, expected| {
            assert_eq!(held.hold(BlockHash(block), StepId(step), 2), expected);
        };
        check(1, 0, true);
        check(1, 0, true);
        check(1, 1, true);
        check(1, 2, false);
        check(2, 3, true);
        check(2, 4, true);
        check(2, 5, false);
    }

    #[test]
    fn leaders_are_counted() {
        let mut leaders = Leaders::new();
        leaders.add(BlockHash(1));
        leaders.add(BlockHash(1));
        leaders.remove(BlockHash(1));
        assert!(leaders.contains(BlockHash(1)));
        leaders.remove(BlockHash(1));
        assert!(leaders.is_empty());
    }
}
