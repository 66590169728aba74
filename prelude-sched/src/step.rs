//! A step while it is planned, and what is remembered of it while it is in flight.

use std::{collections::BTreeSet, ops::Range, time::Duration};

use prelude_core::{
    BlockId, DecodeBatch, ForwardBatch, OneShotBatch, OutputHead, PassId, PassSlice, RequestId,
    SampleHead, SeqId, StepId, Timestamp,
};

use crate::{
    forest::{Forest, Kept},
    length::length_of,
    sequence::SeqTag,
    shares::ClassWork,
    slice::SliceSize,
};

/// A step being planned.
pub(crate) struct Draft {
    pub(crate) id: StepId,
    pub(crate) now: Timestamp,
    /// True if waiters may be held back for leaders. Not if there is nothing else to do.
    pub(crate) may_defer: bool,
    /// Tokens for all but decode rows.
    pub(crate) tokens: u32,
    /// Tokens of the longest prompt that the step takes up beside others.
    pub(crate) room: u32,
    pub(crate) oneshot: OneShotBatch,
    pub(crate) prefill: OneShotBatch,
    pub(crate) decode: DecodeBatch,
    /// A slice of a pass, which runs alone.
    pub(crate) slice: Option<PassSlice>,
    pub(crate) forest: Forest,
    pub(crate) forest_rows: Vec<ForestRow>,
    pub(crate) record: Step,
    /// True if a running sequence could not go on for want of blocks: no other work is to take any.
    pub(crate) starved: bool,
    /// True if running work is in the step with less than it could have, or not at all.
    pub(crate) left_over: bool,
    /// The number of one-shot tokens from which on no one-shot work joins: its class has had its
    /// time, or the policy wants no more.
    pub(crate) enough_tokens: u32,
    /// Unfinished prompts that stand still in this step.
    pub(crate) paused: BTreeSet<SeqId>,
    /// A prompt of more tokens is computed in chunks, as the policy has it.
    pub(crate) split_tokens: u32,
    /// Most tokens of a chunk.
    pub(crate) chunk_tokens: u32,
    /// The time until which the policy waits if the step is empty.
    pub(crate) wait_until: Option<Timestamp>,
    /// The number of one-shot tokens when the first row was passed over because the step had no
    /// room for it.
    pub(crate) passed_over_at: Option<u32>,
}

/// A one-shot row in a draft.
pub(crate) struct ForestRow {
    pub(crate) tag: RowTag,
    pub(crate) positions: Range<u32>,
    pub(crate) head: OutputHead,
}

/// A step in flight.
#[derive(Debug, Default)]
pub(crate) struct Step {
    pub(crate) id: StepId,
    pub(crate) planned: Timestamp,
    /// The time from then on until the last of its token masks is there, about.
    pub(crate) mask_wait: Duration,
    /// The rows and tokens by which its time is attributed to classes; none of a slice.
    pub(crate) work: ClassWork,
    /// The tags of one-shot output rows, one for each.
    pub(crate) oneshot: Vec<RowTag>,
    /// The number of one-shot rows that this step alone answers.
    pub(crate) whole_rows: u64,
    /// The tags of prefill output rows, one for each.
    pub(crate) prefill: Vec<SeqTag>,
    /// The tags of decode rows, one for each.
    pub(crate) decode: Vec<SeqTag>,
    /// Prompts that get on, and to which position.
    pub(crate) chunks: Vec<(SeqTag, u32)>,
    /// Blocks to be published, and the row for which each of their segments was computed.
    pub(crate) kept: Kept,
    pub(crate) owners: Vec<RowTag>,
    /// Cached blocks that the step reads.
    pub(crate) pins: Vec<BlockId>,
    /// The slice of a pass that the step is. What it keeps and reads is the pass's until its last.
    pub(crate) slice: Option<SliceRecord>,
}

/// A slice in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SliceRecord {
    pub(crate) pass: PassId,
    /// The slice's size, if its time tells that of other slices.
    pub(crate) size: Option<SliceSize>,
}

/// The row or the chunk that a one-shot output row answers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RowTag {
    /// A row answered by this step alone.
    Row {
        request: RequestId,
        serial: u64,
        row: u32,
        /// The tokens of the row's prompt that were found in the cache.
        cached: u32,
        /// The tokens that the step computes for the row.
        computed: u32,
    },
    /// A chunk of a row.
    Chunk(SeqTag),
}

impl Draft {
    pub(crate) fn new(
        id: StepId,
        now: Timestamp,
        forest: Forest,
        (tokens, room): (u32, u32),
        may_defer: bool,
    ) -> Self {
        Self {
            id,
            now,
            may_defer,
            tokens,
            room,
            oneshot: OneShotBatch::default(),
            prefill: OneShotBatch::default(),
            decode: DecodeBatch::default(),
            slice: None,
            forest,
            forest_rows: Vec::new(),
            record: Step {
                id,
                planned: now,
                ..Step::default()
            },
            starved: false,
            left_over: false,
            enough_tokens: u32::MAX,
            paused: BTreeSet::new(),
            split_tokens: u32::MAX,
            chunk_tokens: u32::MAX,
            wait_until: None,
            passed_over_at: None,
        }
    }

    pub(crate) fn oneshot_tokens(&self) -> u32 {
        length_of(self.oneshot.tokens.len()) + self.forest.num_tokens()
    }

    /// Returns whether the step answers one-shot rows.
    pub(crate) fn has_oneshot_rows(&self) -> bool {
        self.forest.num_rows() > 0 || !self.oneshot.rows.is_empty()
    }

    pub(crate) fn prefill_tokens(&self) -> u32 {
        length_of(self.prefill.tokens.len())
    }

    /// Returns the number of tokens left for anything but decode rows.
    pub(crate) fn left(&self) -> u32 {
        self.tokens
            .saturating_sub(self.oneshot_tokens() + self.prefill_tokens())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.oneshot_tokens() == 0
            && self.prefill_tokens() == 0
            && self.decode.is_empty()
            && self.slice.is_none()
    }

    pub(crate) fn into_batch(self) -> (ForwardBatch, Step) {
        let Self {
            oneshot,
            prefill,
            decode,
            slice,
            mut record,
            ..
        } = self;
        if let Some(slice) = slice {
            return (ForwardBatch::Slice(slice), record);
        }
        record.work = ClassWork {
            decode_rows: decode.rows.len() as u64,
            prefill_tokens: prefill.tokens.len() as u64,
            oneshot_tokens: oneshot.tokens.len() as u64,
        };
        let of_prompts = [&oneshot.rows, &prefill.rows].into_iter().flatten();
        record.mask_wait = of_prompts
            .filter_map(|row| match &row.head {
                OutputHead::Sample(head) => Some(head),
                _ => None,
            })
            .chain(decode.rows.iter().map(|row| &row.sample))
            .filter_map(|head: &SampleHead| head.mask.as_ref())
            .map(|mask| mask.due_in())
            .max()
            .unwrap_or_default();
        let batch = match (oneshot.is_empty(), prefill.is_empty(), decode.is_empty()) {
            (false, true, true) => ForwardBatch::OneShot(oneshot),
            (true, true, false) => ForwardBatch::Decode(decode),
            _ => ForwardBatch::Mixed {
                oneshot,
                prefill,
                decode,
            },
        };
        (batch, record)
    }
}
