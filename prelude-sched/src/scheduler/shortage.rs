//! Work that waits for blocks, and the steps in flight that hold them.
//!
//! While a step runs, the next one is planned, and one-shot rows over a shared prefix would hold
//! its blocks in one of them at any time: a sequence that needs most of the pool could never be
//! admitted. So a sequence that has a right to blocks lets the pipeline drain.
//!
//! ```text
//! step 6  in flight, holds blocks    sequence S lacks blocks that steps 6 and 7 hold
//! step 7  in flight, holds blocks    draining until 7: no one-shot rows
//! step 8  decode rows only           6 and 7 end: S is asked again, before any one-shot row
//! ```
//!
//! A right to blocks have sequences that were admitted before, and requests that are
//! [overdue](Turn::Overdue). An overdue request that lacks blocks also keeps younger requests from
//! admitting sequences, until its own is admitted.

use prelude_core::BlockId;

use super::Scheduler;
use crate::{
    Turn,
    queue::QueueKey,
    sequence::Sequence,
    step::{Draft, Step},
};

/// The use that a waiting request has for blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockUse {
    /// A generation's prompt and answer.
    Generation,
    /// A one-shot prompt in chunks.
    Chunks,
    /// The cached prefix that a pass reads until its end.
    Pass,
}

/// The reason why a waiting request may take no blocks in the step being planned, though there may
/// be some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoBlocks {
    /// A sequence that was admitted before lacks blocks.
    Starved,
    /// A sequence that was preempted is to resume first.
    BehindPreempted,
    /// A generation that is ahead lacks blocks.
    BehindGeneration,
    /// A one-shot prompt in chunks that is ahead lacks blocks.
    BehindChunks,
    /// An older request that is overdue lacks blocks.
    BehindOverdue,
}

/// The first waiting request of each use that found too few blocks: requests of the other use that
/// are behind it take none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FirstBlocked {
    /// The first blocked generation of the step being planned.
    pub(super) generation: Option<QueueKey>,
    /// The first blocked chunked row of the last step that looked at one-shot rows.
    pub(super) chunks: Option<QueueKey>,
}

impl Scheduler {
    /// Returns why a waiting request may take no blocks in this step, if it may not; then it is
    /// noted as one that waits for them.
    pub(super) fn refuse_blocks(
        &mut self,
        draft: &Draft,
        key: QueueKey,
        use_of: BlockUse,
    ) -> Option<NoBlocks> {
        let is_behind = |first: Option<QueueKey>| first.is_some_and(|first| first < key);
        let FirstBlocked { generation, chunks } = self.first_blocked;
        // Generations are admitted only if none that was preempted is left over.
        let reason = match use_of {
            BlockUse::Chunks if draft.starved => Some(NoBlocks::Starved),
            BlockUse::Chunks if is_behind(generation) => Some(NoBlocks::BehindGeneration),
            BlockUse::Generation if is_behind(chunks) => Some(NoBlocks::BehindChunks),
            _ if self.is_behind_overdue(&key) => Some(NoBlocks::BehindOverdue),
            BlockUse::Chunks if !self.preempted.is_empty() => Some(NoBlocks::BehindPreempted),
            BlockUse::Generation | BlockUse::Chunks | BlockUse::Pass => None,
        };
        if reason.is_some() {
            self.wait_for_blocks(key, use_of, reason);
        }
        reason
    }

    /// Notes that a waiting request gets no blocks in this step: there are too few, or `reason`.
    pub(super) fn wait_for_blocks(
        &mut self,
        key: QueueKey,
        use_of: BlockUse,
        reason: Option<NoBlocks>,
    ) {
        if key.turn == Turn::Overdue {
            self.short_of_blocks.insert(key.age());
        }
        let first = &mut self.first_blocked;
        match (use_of, reason) {
            (BlockUse::Generation, _) => first.generation = Some(key),
            (BlockUse::Chunks, None) => {
                first.chunks = Some(first.chunks.map_or(key, |other| other.min(key)));
            }
            (BlockUse::Chunks, Some(_)) | (BlockUse::Pass, _) => {}
        }
        if reason.is_none() {
            self.take_kept_from_passes();
        }
    }

    /// Returns whether a sequence that is to be admitted belongs to a request that is overdue.
    pub(super) fn is_overdue(&self, seq: &Sequence) -> bool {
        let queue = if seq.is_decode() {
            &self.decode
        } else {
            &self.oneshot
        };
        queue.placed(self.requests[&seq.request].key).turn == Turn::Overdue
    }

    /// Notes that a sequence that runs cannot go on for want of a block: nothing else in the step
    /// takes one.
    pub(super) fn starve(&mut self, draft: &mut Draft) {
        draft.starved = true;
        self.lacks_blocks(1);
    }

    /// Notes that work with a right to blocks lacks some of the `needed` ones. If steps in flight
    /// hold enough of them, the pipeline drains.
    pub(super) fn lacks_blocks(&mut self, needed: usize) {
        let mut available = self.cache.available_blocks() as usize;
        if needed > available {
            self.take_kept_from_passes();
            available = self.cache.available_blocks() as usize;
        }
        if needed > available
            && needed <= available + self.blocks_held_by_steps()
            && let Some(last) = self.in_flight.back()
        {
            self.drain_until = Some(last.id);
        }
    }

    /// Returns whether an older, overdue request waits for blocks.
    fn is_behind_overdue(&self, key: &QueueKey) -> bool {
        let oldest = self.short_of_blocks.first();
        oldest.is_some_and(|oldest| key.turn == Turn::Usual || *oldest < key.age())
    }

    /// Returns whether steps in flight have to end before one-shot rows are taken up.
    pub(super) fn is_draining(&self) -> bool {
        let oldest = self.in_flight.front().map(|step| step.id);
        oldest.is_some_and(|oldest| self.drain_until.is_some_and(|last| oldest <= last))
    }

    /// Forgets a drain that is over: the step being planned asks again before any one-shot row.
    pub(super) fn end_drain(&mut self) {
        if !self.is_draining() {
            self.drain_until = None;
        }
    }

    /// Counts blocks that nothing but steps in flight holds. O(blocks of their one-shot rows).
    fn blocks_held_by_steps(&self) -> usize {
        let of_step = |step: &Step| {
            step.pins
                .iter()
                .chain(&step.kept.blocks)
                .copied()
                .collect::<Vec<BlockId>>()
        };
        let mut held: Vec<BlockId> = self.in_flight.iter().flat_map(of_step).collect();
        held.sort_unstable();
        let is_theirs = |same: &&[BlockId]| self.cache.refs(same[0]) as usize == same.len();
        held.chunk_by(|a, b| a == b).filter(is_theirs).count()
    }
}
