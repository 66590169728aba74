//! The layout of one step, which every executor builds from its batch: see [`StepLayout`].
//!
//! ```text
//! tokens     one-shot forest | prefill chunks | decode rows, back to back
//! segments   runs of tokens of the forest or the chunks; one token for each decode row
//! path       of a segment: cached blocks ─ ancestors' tokens of this step ─ own tokens; found by
//!            walking up, so that a deep forest costs no more memory than a flat one
//! outputs    distinct tokens whose hidden states some row reads, in order of first use
//! rows       results to compute, each with its slice of output indices; one-shot, prefill, decode
//! ```

mod arena;
mod passes;
mod rows;

use std::ops::Range;

use prelude_core::{
    BlockId, BlockSpan, DecodeBatch, ExecutorError, ForwardBatch, OneShotBatch, OutputHead,
    Residency, SeqId, StepId, TokenHead, TokenId, TokenSource,
};

pub use self::{
    arena::{ArenaCursor, ArenaFull, ArenaTensor, activation_room, kept_room, slice_room},
    passes::{Pass, Passes, pass_capacity, passes_room},
    rows::{StepRow, VectorSizes},
};

/// The slot of a token whose K/V are not kept; its bits are those of the `i32` -1.
pub const NO_SLOT: u32 = u32::MAX;

/// The tokens, K/V locations and outputs of one step, for any of the three batch kinds.
///
/// A layout is rebuilt in place for each step, so that a step takes little memory from the system.
#[derive(Debug, Default)]
pub struct StepLayout {
    /// Token ids. A decode row's token that an outstanding step samples is `!index` instead, where
    /// `index` is the token's index among those that stay on the device.
    pub tokens: Vec<TokenId>,
    /// Absolute position of each token.
    pub positions: Vec<u32>,
    /// Slot in which each token's K/V are kept, `block · block_size + offset`, or [`NO_SLOT`].
    pub slots: Vec<u32>,
    /// Runs of new tokens in the order of their first tokens, those of decode rows last.
    pub segments: Vec<StepSegment>,
    /// Block tables of all parts, one after the other: numbers of [`BlockId`]s.
    pub blocks: Vec<u32>,
    /// Token indices of the output positions.
    pub outputs: Vec<u32>,
    /// Results to compute.
    pub rows: Vec<StepRow>,
    /// Numbers of one-shot, prefill and decode rows among `rows`.
    row_counts: [usize; 3],
    row_outputs: Vec<u32>,
    block_size: u32,
    /// Scratch: output index of each token, or [`NO_OUTPUT`].
    output_of: Vec<u32>,
}

/// The output index of a token that no row reads.
const NO_OUTPUT: u32 = u32::MAX;

/// A run of new tokens at consecutive positions.
#[derive(Clone, Copy, Debug)]
pub struct StepSegment {
    /// Index of the first token.
    pub first: usize,
    /// Number of tokens.
    pub len: usize,
    /// Position of the first token.
    pub context_len: u32,
    /// The tokens that precede the first one.
    pub context: SegmentContext,
}

impl StepSegment {
    /// Returns the index after the last token.
    #[must_use]
    pub const fn end(&self) -> usize {
        self.first + self.len
    }

    /// Returns the position after the last token.
    ///
    /// # Panics
    /// If the segment has 2³² tokens, which validation refuses.
    #[must_use]
    pub fn end_position(&self) -> u32 {
        self.context_len + count(self.len)
    }
}

/// The tokens that precede a segment.
#[derive(Clone, Copy, Debug)]
pub enum SegmentContext {
    /// Position `p` is in block `blocks[first + p / block_size]` of [`StepLayout::blocks`].
    Blocks {
        /// Index of the first block.
        first: usize,
    },
    /// The segment of this index precedes, with all that precedes that segment.
    Parent(usize),
}

/// A range of positions whose K/V are stored in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvSpan {
    /// First position.
    pub start: u32,
    /// Position after the last.
    pub end: u32,
    /// Storage of these positions.
    pub source: KvSource,
}

/// The storage of a [`KvSpan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvSource {
    /// Cached blocks: position `p` is in block `blocks[first + p / block_size]`.
    Blocks {
        /// Index of the block of position 0 in [`StepLayout::blocks`].
        first: usize,
    },
    /// Tokens of this step, one for each position.
    Tokens {
        /// Token index of the first position.
        first: usize,
    },
}

impl StepLayout {
    /// Lays out `batch`, which has been validated, in place of the step before. `sampled` returns
    /// the index of the token that an outstanding step samples for a sequence, if there is one.
    ///
    /// # Errors
    /// [`ExecutorError::Step`] if `sampled` returns `None` for a decode row's token, or for a slice
    /// of a pass, whose forest is laid out as a batch of one-shot work, or for copies.
    pub fn rebuild(
        &mut self,
        batch: ForwardBatch,
        block_size: u32,
        sampled: impl Fn(StepId, SeqId) -> Option<usize>,
    ) -> Result<(), ExecutorError> {
        self.clear(block_size);
        match batch {
            ForwardBatch::OneShot(oneshot) => self.add_forest(oneshot, 0),
            ForwardBatch::Slice(_) => {
                let what = "a slice continues the layout of its pass and has none of its own";
                return Err(ExecutorError::Step(what.to_owned()));
            }
            ForwardBatch::AfterCopies { .. } => {
                let what = "copies of KV blocks are the executor's and have no layout";
                return Err(ExecutorError::Step(what.to_owned()));
            }
            ForwardBatch::Decode(decode) => self.add_decode(decode, sampled)?,
            ForwardBatch::Mixed {
                oneshot,
                prefill,
                decode,
            } => {
                self.add_forest(oneshot, 0);
                self.add_forest(prefill, 1);
                self.add_decode(decode, sampled)?;
            }
        }
        Ok(())
    }

    fn clear(&mut self, block_size: u32) {
        self.tokens.clear();
        self.positions.clear();
        self.slots.clear();
        self.segments.clear();
        self.blocks.clear();
        self.outputs.clear();
        self.rows.clear();
        self.row_outputs.clear();
        self.output_of.clear();
        self.row_counts = [0; 3];
        self.block_size = block_size;
    }

    fn add_forest(&mut self, batch: OneShotBatch, part: usize) {
        let first_segment = self.segments.len();
        let first_token = self.tokens.len();
        let first_block = self.add_blocks(&batch.block_ids);
        for segment in &batch.segments {
            let context = match segment.parent {
                None => SegmentContext::Blocks {
                    first: first_block + segment.cached.start as usize,
                },
                Some(parent) => SegmentContext::Parent(first_segment + parent.index()),
            };
            self.push_segment(StepSegment {
                first: first_token + segment.tokens.start as usize,
                len: segment.len() as usize,
                context_len: segment.context_len,
                context,
            });
            let kept = match segment.residency {
                Residency::Transient => BlockSpan::EMPTY,
                Residency::Keep(span) => span,
            };
            let kept = kept.of(&batch.block_ids);
            let first_kept = segment.context_len / self.block_size;
            for position in segment.context_len..segment.end() {
                let block = kept.get((position / self.block_size - first_kept) as usize);
                let slot = block.map_or(NO_SLOT, |block| self.slot(*block, position));
                self.slots.push(slot);
            }
        }
        self.tokens.extend_from_slice(&batch.tokens);
        self.output_of.resize(self.tokens.len(), NO_OUTPUT);
        self.row_counts[part] = batch.rows.len();
        for row in batch.rows {
            let segment = first_segment + row.segment.index();
            self.push_row(segment, row.positions, row.head);
        }
    }

    fn add_decode(
        &mut self,
        batch: DecodeBatch,
        sampled: impl Fn(StepId, SeqId) -> Option<usize>,
    ) -> Result<(), ExecutorError> {
        let first_block = self.add_blocks(&batch.block_ids);
        self.row_counts[2] = batch.rows.len();
        for row in batch.rows {
            let token = match row.token {
                TokenSource::Known(token) => token,
                TokenSource::Sampled(step) => match sampled(step, row.seq) {
                    Some(index) => !count(index),
                    None => {
                        return Err(ExecutorError::Step(format!(
                            "the token of {:?} comes from step {step}, which is not outstanding \
                             or does not sample it",
                            row.seq
                        )));
                    }
                },
            };
            self.push_segment(StepSegment {
                first: self.tokens.len(),
                len: 1,
                context_len: row.context_len,
                context: SegmentContext::Blocks {
                    first: first_block + row.blocks.start as usize,
                },
            });
            let last = row.blocks.of(&batch.block_ids)[row.blocks.len as usize - 1];
            self.slots.push(self.slot(last, row.context_len));
            self.tokens.push(token);
            self.output_of.push(NO_OUTPUT);
            let position = row.context_len..row.context_len + 1;
            let segment = self.segments.len() - 1;
            self.push_row(segment, position, OutputHead::Sample(row.sample));
        }
        Ok(())
    }

    fn add_blocks(&mut self, ids: &[BlockId]) -> usize {
        let first = self.blocks.len();
        self.blocks.extend(ids.iter().map(|id| id.0));
        first
    }

    const fn slot(&self, block: BlockId, position: u32) -> u32 {
        block.0 * self.block_size + position % self.block_size
    }

    fn push_segment(&mut self, segment: StepSegment) {
        self.positions
            .extend(segment.context_len..segment.end_position());
        self.segments.push(segment);
    }

    fn push_row(&mut self, segment: usize, positions: Range<u32>, head: OutputHead) {
        let start = self.row_outputs.len();
        let first_position = positions.start;
        let head = match head {
            // From here on, the vectors of the tokens that the row reads.
            OutputHead::States(at) => {
                at.iter().for_each(|at| self.push_output(segment, *at));
                OutputHead::Tokens(TokenHead::STATE)
            }
            head => {
                positions.for_each(|position| self.push_output(segment, position));
                head
            }
        };
        let outputs = start..self.row_outputs.len();
        self.rows.push(StepRow::new(head, first_position, outputs));
    }

    fn push_output(&mut self, segment: usize, position: u32) {
        let token = self.token_at(segment, position);
        if self.output_of[token] == NO_OUTPUT {
            self.output_of[token] = count(self.outputs.len());
            self.outputs.push(count(token));
        }
        self.row_outputs.push(self.output_of[token]);
    }

    /// Returns the token at a position that this step computes on the path of a segment.
    fn token_at(&self, segment: usize, position: u32) -> usize {
        let mut at = &self.segments[segment];
        while position < at.context_len {
            let SegmentContext::Parent(parent) = at.context else {
                unreachable!("validation refuses output positions that are not computed");
            };
            at = &self.segments[parent];
        }
        at.first + (position - at.context_len) as usize
    }

    /// Writes to `path` where the K/V of all positions up to the end of a segment are stored, in
    /// order of position. Ancestors whose tokens are adjacent become one span.
    pub fn path(&self, segment: usize, path: &mut Vec<KvSpan>) {
        path.clear();
        let mut at = &self.segments[segment];
        loop {
            let own = KvSpan {
                start: at.context_len,
                end: at.end_position(),
                source: KvSource::Tokens { first: at.first },
            };
            match path.last_mut() {
                Some(next) if next.source == (KvSource::Tokens { first: at.end() }) => {
                    (next.start, next.source) = (own.start, own.source);
                }
                _ => path.push(own),
            }
            match at.context {
                SegmentContext::Parent(parent) => at = &self.segments[parent],
                SegmentContext::Blocks { first } => {
                    if at.context_len > 0 {
                        path.push(KvSpan {
                            start: 0,
                            end: at.context_len,
                            source: KvSource::Blocks { first },
                        });
                    }
                    break;
                }
            }
        }
        path.reverse();
    }

    /// Takes away the blocks that the step keeps: its K/V are written to none from here on.
    pub fn keep_nothing(&mut self) {
        self.slots.fill(NO_SLOT);
    }

    /// Returns the number of positions of a KV block.
    #[must_use]
    pub const fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Returns the index of the first decode row's segment.
    #[must_use]
    pub fn first_decode_segment(&self) -> usize {
        self.segments.len() - self.row_counts[2]
    }

    /// Returns the end of the longest run of whole segments that begins with the token `start` and
    /// has at most `room` tokens; of the first segment if that alone is longer.
    #[must_use]
    pub fn whole_segments(&self, start: usize, room: usize) -> usize {
        let first = self.segments.partition_point(|s| s.end() <= start);
        let ends = self.segments[first..].iter().map(StepSegment::end);
        let mut fitting = ends
            .enumerate()
            .take_while(|&(i, end)| i == 0 || end - start <= room);
        fitting.by_ref().last().map_or(start, |(_, end)| end)
    }

    /// Returns the tokens of the segment that a token lies in.
    ///
    /// # Panics
    /// If the step has no such token.
    #[must_use]
    pub fn segment_of(&self, token: usize) -> Range<usize> {
        let at = self.segments.partition_point(|s| s.end() <= token);
        self.segments[at].first..self.segments[at].end()
    }

    /// Returns true if some output position is among these tokens.
    #[must_use]
    pub fn has_outputs(&self, tokens: Range<usize>) -> bool {
        let mut outputs = self.outputs.iter();
        outputs.any(|&token| tokens.contains(&(token as usize)))
    }

    /// Appends tokens and output positions that no row reads, up to the given numbers of them.
    /// Padding tokens have id 0 and position 0, and their K/V are not kept.
    pub fn pad(&mut self, tokens: usize, outputs: usize) {
        self.tokens.resize(tokens, 0);
        self.positions.resize(tokens, 0);
        self.slots.resize(tokens, NO_SLOT);
        self.outputs.resize(outputs, 0);
    }
}

/// Returns a count of a step's things, which validation keeps far below 2³¹.
fn count(n: usize) -> u32 {
    u32::try_from(n).expect("a step's counts fit u32")
}

#[cfg(test)]
mod tests;
