//! The work of one step, typed by its contents, so that an executor never infers a lifetime.

use std::{ops::Range, sync::Arc};

use thiserror::Error;

use crate::{
    Attention, BlockId, Capacity, KvCopies, Normalise, PassId, Pooling, SamplingParams, SeqId,
    StepId, TokenHead, TokenId, TokenMask,
};

/// The work of one step.
#[derive(Clone, Debug)]
pub enum ForwardBatch {
    /// The step has one-shot work alone.
    OneShot(OneShotBatch),
    /// Exactly one new token per row: every shape follows from the row count.
    Decode(DecodeBatch),
    /// Anything else: prefill chunks and one-shot work beside decode rows. Each part may be empty.
    Mixed {
        /// The one-shot work, accounted by prompt tokens.
        oneshot: OneShotBatch,
        /// Chunks of Decode prompts: same shape as one-shot work, but every segment is kept.
        prefill: OneShotBatch,
        /// Decode rows, accounted by rows and resident blocks.
        decode: DecodeBatch,
    },
    /// A part of one-shot work that several steps compute, and nothing else.
    Slice(PassSlice),
    /// Copies of KV blocks, and the work that comes after them.
    AfterCopies {
        /// The copies; none where the executor has no host memory for blocks.
        copies: KvCopies,
        /// The work, which is not [`Self::AfterCopies`].
        then: Box<Self>,
    },
}

/// A part of a pass: one-shot work that several steps compute, layer by layer, so that a long
/// prompt keeps no other request waiting for longer than a slice.
///
/// Between two slices a pass holds the hidden states of all of its tokens and the keys and values
/// of one layer, not those of every layer as prompts in chunks do (hybrid prefilling, PrefillOnly
/// §4). Its outputs come with its last slice and are those of the same forest in one step; steps
/// before that have none.
///
/// The work is counted in layer tokens: each token counts once for each layer. A pass runs all
/// tokens through one layer, in order, before it goes on to the next layer.
#[derive(Clone, Debug)]
pub struct PassSlice {
    /// The pass.
    pub pass: PassId,
    /// The whole forest, in the first slice; `None` in the later ones.
    pub begin: Option<OneShotBatch>,
    /// Layer tokens that the slice computes, at least 1. The slice with which the sum over all
    /// slices reaches the pass's work is the last one.
    pub layer_tokens: u32,
    /// False if the pass has lost the blocks of [`Residency::Keep`]: this slice and all later ones
    /// write to none.
    pub keeps: bool,
    /// Passes that are given up: the executor frees what they hold before it runs the slice.
    pub abandoned: Vec<PassId>,
}

impl ForwardBatch {
    /// Returns the one-shot work, the prefill chunks and the decode rows: a part that the batch
    /// lacks is empty, and all parts of a slice are.
    #[must_use]
    pub fn parts(&self) -> (&OneShotBatch, &OneShotBatch, &DecodeBatch) {
        static NO_ONESHOT: OneShotBatch = OneShotBatch::EMPTY;
        static NO_DECODE: DecodeBatch = DecodeBatch::EMPTY;
        match self {
            Self::OneShot(b) => (b, &NO_ONESHOT, &NO_DECODE),
            Self::Decode(b) => (&NO_ONESHOT, &NO_ONESHOT, b),
            Self::Slice(_) => (&NO_ONESHOT, &NO_ONESHOT, &NO_DECODE),
            Self::AfterCopies { then, .. } => then.parts(),
            Self::Mixed {
                oneshot,
                prefill,
                decode,
            } => (oneshot, prefill, decode),
        }
    }

    /// Returns the number of tokens computed by the step: none for a slice, which computes layers
    /// of tokens.
    #[must_use]
    pub fn num_tokens(&self) -> usize {
        let (oneshot, prefill, decode) = self.parts();
        oneshot.tokens.len() + prefill.tokens.len() + decode.rows.len()
    }

    /// Returns the number of output rows of the step, over all of its parts.
    #[must_use]
    pub fn num_rows(&self) -> usize {
        let (oneshot, prefill, decode) = self.parts();
        oneshot.rows.len() + prefill.rows.len() + decode.rows.len()
    }

    /// Returns the same work after `copies`, if there are any.
    #[must_use]
    pub fn after(self, copies: KvCopies) -> Self {
        match copies.is_empty() {
            true => self,
            false => Self::AfterCopies {
                copies,
                then: Box::new(self),
            },
        }
    }

    /// Splits the copies off the work that comes after them.
    #[must_use]
    pub fn split_copies(self) -> (KvCopies, Self) {
        match self {
            Self::AfterCopies { copies, then } => (copies, *then),
            work => (KvCopies::default(), work),
        }
    }

    /// Checks that the batch is well formed and fits `capacity`.
    ///
    /// # Errors
    /// The first defect found. A scheduler never builds such a batch; a foreign caller may.
    pub fn validate(&self, capacity: &Capacity) -> Result<(), BatchError> {
        match self {
            Self::Slice(slice) => return slice.validate(capacity),
            Self::AfterCopies { copies, then } => {
                if matches!(**then, Self::AfterCopies { .. }) {
                    let what = "copies within copies";
                    return Err(BatchError::Copies { what });
                }
                let checked = copies.validate(capacity);
                checked.map_err(|what| BatchError::Copies { what })?;
                return then.validate(capacity);
            }
            Self::OneShot(_) | Self::Decode(_) | Self::Mixed { .. } => {}
        }
        let (oneshot, prefill, decode) = self.parts();
        if self.num_tokens() > capacity.max_step_tokens as usize {
            return Err(BatchError::TooManyTokens {
                tokens: self.num_tokens(),
                max: capacity.max_step_tokens,
            });
        }
        oneshot.validate(capacity)?;
        prefill.validate(capacity)?;
        decode.validate(capacity)
    }
}

impl PassSlice {
    fn validate(&self, capacity: &Capacity) -> Result<(), BatchError> {
        let invalid = |what| Err(BatchError::Slice { what });
        let Some(room) = capacity.passes else {
            return invalid("the executor computes no passes in slices");
        };
        if self.layer_tokens == 0 {
            return invalid("a slice without work");
        }
        let Some(batch) = &self.begin else {
            return Ok(());
        };
        if batch.tokens.is_empty() || batch.tokens.len() > room.tokens as usize {
            return invalid("a pass without tokens, or of more than the executor has room for");
        }
        let outputs: usize = batch.rows.iter().map(OutputRow::num_outputs).sum();
        if outputs > room.outputs as usize {
            return invalid("more output positions than the executor has room for");
        }
        batch.validate(capacity)
    }
}

/// A forest of token runs and the rows to read off it. Every shared run is computed once.
#[derive(Clone, Debug, Default)]
pub struct OneShotBatch {
    /// Tokens of all segments, back to back in segment order.
    pub tokens: Vec<TokenId>,
    /// The forest; parents precede children.
    pub segments: Vec<Segment>,
    /// The output rows.
    pub rows: Vec<OutputRow>,
    /// Block ids that [`BlockSpan`]s of this batch refer to.
    pub block_ids: Vec<BlockId>,
}

/// Index of a segment in [`OneShotBatch::segments`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentIdx(pub u32);

impl SegmentIdx {
    /// Returns the index as a position in [`OneShotBatch::segments`].
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A run of new tokens. It attends to its own tokens causally and to its ancestors' (and the
/// root's cached blocks) wholly.
///
/// ```text
/// positions   0 ........ context_len ........ context_len + len
///             | cached (root) or ancestors  | own tokens       |
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Own tokens, a range of [`OneShotBatch::tokens`], not empty.
    pub tokens: Range<u32>,
    /// The segment whose tokens precede these in this step; `None` for a root.
    pub parent: Option<SegmentIdx>,
    /// Positions before the first own token. For a child, where its parent ends.
    pub context_len: u32,
    /// The block table of positions `0..context_len` of a root (the last block may be partly used).
    /// Empty for a child.
    pub cached: BlockSpan,
    /// The place of the own tokens' keys and values.
    pub residency: Residency,
}

impl Segment {
    /// Returns the number of own tokens.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.tokens.end - self.tokens.start
    }

    /// Returns whether there are no own tokens (never so in a valid batch).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Returns the position after the last own token.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.context_len + self.len()
    }
}

/// The place of a segment's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residency {
    /// K and V live for one layer and are overwritten by the next: no KV memory at all.
    Transient,
    /// K and V of every layer are written to these blocks, for later steps.
    ///
    /// The first block holds position `context_len`: either `context_len` is a multiple of the
    /// block size, or the segment is a root whose last cached block is that same block. Tokens
    /// beyond what the blocks cover are transient.
    Keep(BlockSpan),
}

/// A range of a batch's `block_ids`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockSpan {
    /// First index.
    pub start: u32,
    /// Number of blocks.
    pub len: u32,
}

impl BlockSpan {
    /// The span of no blocks.
    pub const EMPTY: Self = Self { start: 0, len: 0 };

    /// Returns the blocks of this span.
    ///
    /// # Panics
    /// If the span is not within `block_ids`.
    #[must_use]
    pub fn of(self, block_ids: &[BlockId]) -> &[BlockId] {
        &block_ids[self.start as usize..][..self.len as usize]
    }

    fn is_within(self, block_ids: &[BlockId]) -> bool {
        self.start as usize + self.len as usize <= block_ids.len()
    }
}

/// Something to compute from the hidden states along one segment's path.
#[derive(Clone, Debug)]
pub struct OutputRow {
    /// The path ends with this segment.
    pub segment: SegmentIdx,
    /// Absolute positions whose hidden states are used; all computed in this step, in this
    /// segment or its ancestors. One position, except for log-probabilities, mean pooling and
    /// what is wanted of each token.
    pub positions: Range<u32>,
    /// The output to compute.
    pub head: OutputHead,
}

impl OutputRow {
    /// Returns the number of hidden states that the row reads.
    #[must_use]
    pub fn num_outputs(&self) -> usize {
        match &self.head {
            OutputHead::States(at) => at.len(),
            _ => self.positions.len(),
        }
    }
}

/// The output of an [`OutputRow`].
#[derive(Clone, Debug)]
pub enum OutputHead {
    /// Choose tokens.
    Sample(SampleHead),
    /// Logits of given tokens.
    LabelScores {
        /// The tokens.
        labels: Arc<[TokenId]>,
        /// True if the log-sum-exp is wanted too.
        normalise: Normalise,
    },
    /// Score `targets[i]` by the hidden state at `positions.start + i`.
    Logprobs {
        /// The tokens to score, one for each position.
        targets: Vec<TokenId>,
        /// The number of likeliest tokens to report beside each.
        top: u32,
    },
    /// A vector.
    Embed {
        /// The rule that combines the positions.
        pooling: Pooling,
        /// True to scale to length 1.
        normalise: bool,
        /// Leading components to keep, before normalising.
        dimensions: Option<u32>,
    },
    /// Logits of the classification head.
    Classify,
    /// Something of each of the positions.
    Tokens(TokenHead),
    /// The hidden states at these of the positions, in ascending order, behind the last norm.
    States(Arc<[u32]>),
}

/// The rules by which tokens are chosen for one row.
#[derive(Clone, Debug)]
pub struct SampleHead {
    /// The rules.
    pub sampling: Arc<SamplingParams>,
    /// The first draw's number among the request's choices: part of the generator's counter.
    pub choice: u32,
    /// Draws from this row: choices `choice..choice + draws`, at least 1.
    pub draws: u32,
    /// Tokens generated before this one: part of the generator's counter.
    pub output_position: u32,
    /// The number of likeliest tokens to report, if log-probabilities are wanted at all.
    pub top_logprobs: Option<u32>,
    /// Tokens seen so far, present exactly if [`SamplingParams::needs_history`].
    pub history: Option<PenaltyHistory>,
    /// The tokens that a constraint lets come here, if there is one: all others are masked. An
    /// executor waits for them as late as it can.
    pub mask: Option<Arc<dyn TokenMask>>,
}

impl SampleHead {
    /// Returns whether stop ids are masked at this position.
    #[must_use]
    pub fn masks_stops(&self) -> bool {
        self.output_position < self.sampling.min_tokens
    }
}

/// Tokens that penalties look at.
#[derive(Clone, Debug, Default)]
pub struct PenaltyHistory {
    /// The whole prompt.
    pub prompt: Arc<[TokenId]>,
    /// Tokens generated so far.
    pub output: Vec<TokenId>,
}

/// A batch that computes one new token for each of many sequences.
#[derive(Clone, Debug, Default)]
pub struct DecodeBatch {
    /// The rows.
    pub rows: Vec<DecodeRow>,
    /// Block ids that the rows' spans refer to.
    pub block_ids: Vec<BlockId>,
}

/// A row of a batch that computes one sequence's next token.
#[derive(Clone, Debug)]
pub struct DecodeRow {
    /// The sequence, for executors that keep state for it.
    pub seq: SeqId,
    /// The token to run.
    pub token: TokenSource,
    /// The token's position, which is the number of tokens before it.
    pub context_len: u32,
    /// Block table of positions `0..=context_len`; the new token's K/V go to the last.
    pub blocks: BlockSpan,
    /// The rules by which the next token is chosen.
    pub sample: SampleHead,
}

/// The source of a decode row's input token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenSource {
    /// The scheduler knows the token.
    Known(TokenId),
    /// The token was sampled for the same sequence in an earlier step that has not been collected.
    Sampled(StepId),
}

/// The reason why a batch is malformed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BatchError {
    /// More tokens than the executor's arena holds.
    #[error("batch of {tokens} tokens exceeds the step limit of {max}")]
    TooManyTokens {
        /// Tokens in the batch.
        tokens: usize,
        /// The limit.
        max: u32,
    },
    /// A slice of a pass breaks a rule.
    #[error("slice of a pass: {what}")]
    Slice {
        /// The rule.
        what: &'static str,
    },
    /// Copies of KV blocks break a rule.
    #[error("copies: {what}")]
    Copies {
        /// The rule.
        what: &'static str,
    },
    /// A segment breaks a rule.
    #[error("segment {segment}: {what}")]
    Segment {
        /// The segment's index.
        segment: usize,
        /// The rule.
        what: &'static str,
    },
    /// An output row breaks a rule.
    #[error("output row {row}: {what}")]
    Row {
        /// The row's index.
        row: usize,
        /// The rule.
        what: &'static str,
    },
    /// A decode row breaks a rule.
    #[error("decode row {row}: {what}")]
    DecodeRow {
        /// The row's index.
        row: usize,
        /// The rule.
        what: &'static str,
    },
}

impl OneShotBatch {
    /// A batch of nothing.
    pub const EMPTY: Self = Self {
        tokens: Vec::new(),
        segments: Vec::new(),
        rows: Vec::new(),
        block_ids: Vec::new(),
    };

    /// Returns whether there is nothing to run.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Returns the first position computed in this step on the path of `segment`: the `context_len`
    /// of the path's root.
    #[must_use]
    pub fn first_computed(&self, segment: SegmentIdx) -> u32 {
        let mut at = &self.segments[segment.index()];
        while let Some(parent) = at.parent {
            at = &self.segments[parent.index()];
        }
        at.context_len
    }

    fn validate(&self, capacity: &Capacity) -> Result<(), BatchError> {
        if self.tokens.iter().any(|&id| id >= capacity.vocab_size) {
            return Err(BatchError::Segment {
                segment: 0,
                what: "token id outside the vocabulary",
            });
        }
        let mut next_token = 0;
        for (i, segment) in self.segments.iter().enumerate() {
            self.check_segment(i, segment, next_token, capacity)
                .map_err(|what| BatchError::Segment { segment: i, what })?;
            next_token = segment.tokens.end;
        }
        if next_token as usize != self.tokens.len() {
            let segment = self.segments.len();
            return Err(BatchError::Segment {
                segment,
                what: "tokens that belong to no segment",
            });
        }
        for (i, row) in self.rows.iter().enumerate() {
            self.check_row(row)
                .map_err(|what| BatchError::Row { row: i, what })?;
        }
        Ok(())
    }

    fn check_segment(
        &self,
        index: usize,
        segment: &Segment,
        next_token: u32,
        capacity: &Capacity,
    ) -> Result<(), &'static str> {
        let ensure = |ok: bool, what| if ok { Ok(()) } else { Err(what) };
        let block_size = capacity.block_size;
        ensure(!segment.tokens.is_empty(), "no tokens")?;
        ensure(
            segment.tokens.start == next_token,
            "tokens are not back to back",
        )?;
        ensure(
            segment.tokens.end as usize <= self.tokens.len(),
            "tokens beyond the batch",
        )?;
        let end = segment
            .context_len
            .checked_add(segment.len())
            .ok_or("position overflow")?;
        ensure(
            end <= capacity.max_context_len,
            "longer than the model's context",
        )?;
        ensure(
            segment.cached.is_within(&self.block_ids),
            "cached blocks beyond block_ids",
        )?;
        let in_pool = |span: BlockSpan| {
            span.of(&self.block_ids)
                .iter()
                .all(|b| b.0 < capacity.num_blocks)
        };
        ensure(in_pool(segment.cached), "cached block outside the pool")?;
        match segment.parent {
            None => ensure(
                segment.cached.len == segment.context_len.div_ceil(block_size),
                "cached blocks do not cover the context",
            )?,
            Some(parent) => {
                ensure(parent.index() < index, "parent does not precede it")?;
                ensure(
                    self.segments[parent.index()].end() == segment.context_len,
                    "does not start where its parent ends",
                )?;
                ensure(segment.cached.len == 0, "a child cannot have cached blocks")?;
            }
        }
        if capacity.attention == Attention::Full {
            let is_alone = segment.parent.is_none() && segment.context_len == 0;
            ensure(
                is_alone && segment.residency == Residency::Transient,
                "shares tokens with others, though attention sees whole prompts",
            )?;
        }
        if let Residency::Keep(span) = segment.residency {
            ensure(
                span.is_within(&self.block_ids),
                "kept blocks beyond block_ids",
            )?;
            ensure(in_pool(span), "kept block outside the pool")?;
            let first = segment.context_len / block_size;
            ensure(span.len > 0, "keeps no block")?;
            ensure(
                u64::from(first + span.len) * u64::from(block_size)
                    < u64::from(end) + u64::from(block_size),
                "keeps a block beyond its tokens",
            )?;
            if !segment.context_len.is_multiple_of(block_size) {
                let last = segment.cached.of(&self.block_ids).last();
                ensure(
                    last == span.of(&self.block_ids).first(),
                    "keeps from the middle of a block it does not own",
                )?;
            }
        }
        Ok(())
    }

    fn check_row(&self, row: &OutputRow) -> Result<(), &'static str> {
        let ensure = |ok: bool, what| if ok { Ok(()) } else { Err(what) };
        ensure(row.segment.index() < self.segments.len(), "no such segment")?;
        let segment = &self.segments[row.segment.index()];
        ensure(!row.positions.is_empty(), "no positions")?;
        ensure(
            row.positions.end <= segment.end(),
            "positions beyond its segment",
        )?;
        ensure(
            row.positions.start >= self.first_computed(row.segment),
            "positions that this step does not compute",
        )?;
        let single = row.positions.end - row.positions.start == 1;
        match &row.head {
            OutputHead::Sample(sample) => {
                ensure(single, "sampling wants one position")?;
                sample.check()
            }
            OutputHead::LabelScores { labels, .. } => ensure(
                single && !labels.is_empty(),
                "label scores want one position and labels",
            ),
            OutputHead::Logprobs { targets, .. } => ensure(
                targets.len() == row.positions.len(),
                "log-probabilities want one target per position",
            ),
            OutputHead::Embed {
                pooling: Pooling::Mean,
                ..
            }
            | OutputHead::Tokens(_) => Ok(()),
            OutputHead::States(at) => ensure(
                !at.is_empty()
                    && at.is_sorted_by(|a, b| a < b)
                    && at.iter().all(|position| row.positions.contains(position)),
                "states want an ascending list of the row's positions",
            ),
            OutputHead::Embed { .. } | OutputHead::Classify => {
                ensure(single, "a last-token head wants one position")
            }
        }
    }
}

impl SampleHead {
    fn check(&self) -> Result<(), &'static str> {
        if self.draws == 0 {
            return Err("no draws");
        }
        if self.history.is_some() != self.sampling.needs_history() {
            return Err("history must be present exactly if penalties need it");
        }
        Ok(())
    }
}

impl DecodeBatch {
    /// A batch of nothing.
    pub const EMPTY: Self = Self {
        rows: Vec::new(),
        block_ids: Vec::new(),
    };

    /// Returns whether there is nothing to run.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn validate(&self, capacity: &Capacity) -> Result<(), BatchError> {
        for (i, row) in self.rows.iter().enumerate() {
            self.check_row(row, capacity)
                .map_err(|what| BatchError::DecodeRow { row: i, what })?;
        }
        Ok(())
    }

    fn check_row(&self, row: &DecodeRow, capacity: &Capacity) -> Result<(), &'static str> {
        let ensure = |ok: bool, what| if ok { Ok(()) } else { Err(what) };
        if let TokenSource::Known(id) = row.token {
            ensure(id < capacity.vocab_size, "token id outside the vocabulary")?;
        }
        ensure(
            row.context_len < capacity.max_context_len,
            "longer than the model's context",
        )?;
        ensure(
            row.blocks.is_within(&self.block_ids),
            "blocks beyond block_ids",
        )?;
        ensure(
            row.blocks.len == row.context_len / capacity.block_size + 1,
            "blocks do not cover the context and the new token",
        )?;
        ensure(
            row.blocks
                .of(&self.block_ids)
                .iter()
                .all(|b| b.0 < capacity.num_blocks),
            "block outside the pool",
        )?;
        ensure(row.sample.draws == 1, "a decode row draws one token")?;
        row.sample.check()
    }
}

#[cfg(test)]
mod tests;
