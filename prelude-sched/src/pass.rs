//! Long one-shot prompts that are computed in slices.
//!
//! A pass runs layer by layer, so between two slices it needs the hidden states of its tokens and
//! one layer's keys and values, and no blocks (hybrid prefilling, PrefillOnly §4). Other steps run
//! between its slices: a long prompt delays them by a slice, not by its whole pass.

use std::time::Duration;

use prelude_core::{BlockId, PassId, RequestId, Timestamp};

use crate::{
    forest::Kept,
    slice::{SliceSize, SliceTimes, Work},
    step::RowTag,
};

/// A pass that has begun and whose last slice has not been planned.
#[derive(Debug)]
pub(crate) struct Pass {
    pub(crate) id: PassId,
    pub(crate) request: RequestId,
    pub(crate) priority: i64,
    pub(crate) begun: Timestamp,
    /// Rows that the pass's last slice answers.
    pub(crate) rows: Vec<RowTag>,
    /// Blocks to be published at the end, and the row for which each of their segments is computed.
    pub(crate) kept: Kept,
    pub(crate) owners: Vec<RowTag>,
    /// Cached blocks that the pass reads.
    pub(crate) pins: Vec<BlockId>,
    /// False once the blocks that the pass fills have been taken away.
    pub(crate) keeps: bool,
    pub(crate) work: Work,
}

impl Pass {
    /// Plans the next slice of the pass. Returns its layer tokens, and its size if its time tells
    /// that of others.
    pub(crate) fn plan(&mut self, times: &SliceTimes, time: Duration) -> (u64, Option<SliceSize>) {
        let layer_tokens = times.choose(&self.work, time);
        let size = self.work.next_usual(layer_tokens);
        self.work.planned += layer_tokens;
        (layer_tokens, size)
    }
}
