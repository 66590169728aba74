//! Events of the KV cache, for readers outside.

use prelude_core::KvEvent;

use super::Scheduler;

impl Scheduler {
    /// Records from now on which blocks the KV cache stores and drops, for
    /// [`Self::take_kv_events`]. Events of more than `max_blocks` blocks are replaced by those of
    /// [`Self::kv_contents`]. Call it before the first step, while the cache is empty.
    pub fn record_kv_events(&mut self, max_blocks: usize) {
        self.cache.record_events(max_blocks);
    }

    /// Returns the events since the last call, in order: steps store blocks as they complete, and
    /// drop blocks as they are planned. Empty unless they are recorded.
    pub fn take_kv_events(&mut self) -> Vec<KvEvent> {
        self.cache.take_events()
    }

    /// Returns events that lead from any set of blocks to what the cache holds now: `Cleared`, and
    /// `Stored` for each block, parents first. O(blocks).
    #[must_use]
    pub fn kv_contents(&self) -> Vec<KvEvent> {
        self.cache.contents()
    }
}
