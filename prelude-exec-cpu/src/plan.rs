//! One step, laid out: what [`crate::CpuOps`] needs to know of any of the three batch kinds.
//!
//! ```text
//! segments   one-shot forest | prefill chunks | decode rows (one token each)
//! tokens     of all segments, back to back
//! path       of a segment: cached blocks ─ ancestors' tokens of this step ─ own tokens; found by
//!            walking up, so that a deep forest costs no more memory than a flat one
//! outputs    distinct tokens whose hidden states some head reads, in order of first use
//! rows       heads, each with its slice of output indices; one-shot, prefill, decode
//! ```

use prelude_core::{
    BlockId, DecodeBatch, ExecutorError, ForwardBatch, OneShotBatch, OutputHead, Residency,
    SegmentIdx, TokenId, TokenSource,
};

/// "Not kept": see [`StepPlan::slots`].
const NO_SLOT: u32 = u32::MAX;

/// What one step computes. Made by the executor; a model passes it through.
#[derive(Debug, Default)]
pub struct StepPlan {
    /// Token ids.
    pub(crate) tokens: Vec<TokenId>,
    /// Absolute position of each token.
    pub(crate) positions: Vec<u32>,
    /// Where each token's K/V are kept: `block · block_size + offset`.
    slots: Vec<u32>,
    /// Runs of tokens.
    pub(crate) segments: Vec<PlanSegment>,
    blocks: Vec<BlockId>,
    /// Token indices of the output positions.
    pub(crate) outputs: Vec<u32>,
    /// Heads.
    pub(crate) rows: Vec<PlanRow>,
    row_outputs: Vec<u32>,
    /// How many of `rows` are one-shot, prefill, decode.
    pub(crate) row_counts: [usize; 3],
    block_size: u32,
    /// Scratch: output index of each token.
    output_of: Vec<u32>,
}

/// A run of new tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlanSegment {
    /// First token.
    pub(crate) first: usize,
    /// Number of tokens.
    pub(crate) len: usize,
    /// Position of the first token.
    context_len: u32,
    context: Context,
}

/// What precedes a segment.
#[derive(Clone, Copy, Debug)]
enum Context {
    /// Position p is in block `blocks[first + p / block_size]`.
    Blocks { first: usize },
    /// The segment of this index, and what precedes that.
    Segment(usize),
}

/// A run of positions whose K/V lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// First position.
    start: u32,
    /// Position after the last.
    end: u32,
    /// Where the first position's are.
    place: Place,
}

/// Where one position's K/V lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the block pool, at this slot.
    Slot(usize),
    /// In the step buffer, at this token.
    Token(usize),
}

/// A head to run.
#[derive(Debug)]
pub(crate) struct PlanRow {
    pub(crate) head: OutputHead,
    /// Why it has no result: no head may be run for it.
    pub(crate) refused: Option<&'static str>,
    /// Position of the first hidden state it uses.
    pub(crate) first_position: u32,
    outputs: (usize, usize),
}

impl StepPlan {
    /// Lays out `batch`, which has been validated, in place of what was planned before.
    ///
    /// # Errors
    /// [`ExecutorError::Step`] for a token that an uncollected step should provide: this
    /// executor has none.
    pub(crate) fn rebuild(
        &mut self,
        batch: ForwardBatch,
        block_size: u32,
    ) -> Result<(), ExecutorError> {
        self.clear(block_size);
        match batch {
            ForwardBatch::OneShot(oneshot) => self.add_forest(oneshot, 0),
            ForwardBatch::Decode(decode) => self.add_decode(decode)?,
            ForwardBatch::Mixed {
                oneshot,
                prefill,
                decode,
            } => {
                self.add_forest(oneshot, 0);
                self.add_forest(prefill, 1);
                self.add_decode(decode)?;
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
        let first_block = self.blocks.len();
        self.blocks.extend_from_slice(&batch.block_ids);
        for segment in &batch.segments {
            let first = first_token + segment.tokens.start as usize;
            let context = match segment.parent {
                None => Context::Blocks {
                    first: first_block + segment.cached.start as usize,
                },
                Some(parent) => Context::Segment(first_segment + parent.index()),
            };
            self.push_segment(first, segment.context_len, segment.len(), context);
            let kept = match segment.residency {
                Residency::Transient => &[],
                Residency::Keep(span) => span.of(&batch.block_ids),
            };
            let first_kept = segment.context_len / self.block_size;
            for position in segment.context_len..segment.end() {
                let block = kept.get((position / self.block_size - first_kept) as usize);
                let slot = block.map_or(NO_SLOT, |b| {
                    b.0 * self.block_size + position % self.block_size
                });
                self.slots.push(slot);
            }
        }
        self.tokens.extend_from_slice(&batch.tokens);
        self.output_of.resize(self.tokens.len(), NO_SLOT);
        self.row_counts[part] = batch.rows.len();
        for row in batch.rows {
            let SegmentIdx(index) = row.segment;
            let segment = first_segment + index as usize;
            self.push_row(segment, row.positions, row.head);
        }
    }

    fn add_decode(&mut self, batch: DecodeBatch) -> Result<(), ExecutorError> {
        let first_block = self.blocks.len();
        self.blocks.extend_from_slice(&batch.block_ids);
        self.row_counts[2] = batch.rows.len();
        for row in batch.rows {
            let TokenSource::Known(token) = row.token else {
                return Err(ExecutorError::Step(format!(
                    "the token of {:?} comes from an uncollected step, but steps run one at a time",
                    row.seq
                )));
            };
            let first = self.tokens.len();
            let blocks = first_block + row.blocks.start as usize;
            let context = Context::Blocks { first: blocks };
            self.push_segment(first, row.context_len, 1, context);
            let last = self.blocks[blocks + row.blocks.len as usize - 1];
            self.slots
                .push(last.0 * self.block_size + row.context_len % self.block_size);
            self.tokens.push(token);
            self.output_of.push(NO_SLOT);
            let position = row.context_len..row.context_len + 1;
            let segment = self.segments.len() - 1;
            self.push_row(segment, position, OutputHead::Sample(row.sample));
        }
        Ok(())
    }

    fn push_segment(&mut self, first: usize, context_len: u32, len: u32, context: Context) {
        self.positions.extend(context_len..context_len + len);
        self.segments.push(PlanSegment {
            first,
            len: len as usize,
            context_len,
            context,
        });
    }

    fn push_row(&mut self, segment: usize, positions: std::ops::Range<u32>, head: OutputHead) {
        let start = self.row_outputs.len();
        let first_position = positions.start;
        for position in positions {
            let token = self.token_at(segment, position);
            if self.output_of[token] == NO_SLOT {
                self.output_of[token] =
                    u32::try_from(self.outputs.len()).expect("a step's tokens fit u32");
                self.outputs
                    .push(u32::try_from(token).expect("a step's tokens fit u32"));
            }
            self.row_outputs.push(self.output_of[token]);
        }
        self.rows.push(PlanRow {
            head,
            refused: None,
            first_position,
            outputs: (start, self.row_outputs.len()),
        });
    }

    /// The token at a position that this step computes on the path of a segment.
    fn token_at(&self, segment: usize, position: u32) -> usize {
        let mut at = &self.segments[segment];
        while position < at.context_len {
            let Context::Segment(parent) = at.context else {
                unreachable!("validation refuses output positions that are not computed");
            };
            at = &self.segments[parent];
        }
        at.first + (position - at.context_len) as usize
    }

    /// Lays out where the K/V of all positions up to the end of `segment` lie, in order of
    /// position, in `path`.
    pub(crate) fn path(&self, segment: &PlanSegment, path: &mut Vec<Span>) {
        path.clear();
        let mut at = segment;
        loop {
            path.push(Span {
                start: at.context_len,
                end: at.context_len + u32::try_from(at.len).expect("a step's tokens fit u32"),
                place: Place::Token(at.first),
            });
            match at.context {
                Context::Segment(parent) => at = &self.segments[parent],
                Context::Blocks { first } => {
                    self.push_blocks(first, at.context_len, path);
                    break;
                }
            }
        }
        path.reverse();
    }

    /// Pushes the spans of cached blocks for positions `0..end`, last first.
    fn push_blocks(&self, first: usize, end: u32, path: &mut Vec<Span>) {
        let size = self.block_size;
        for i in (0..end.div_ceil(size)).rev() {
            let block = self.blocks[first + i as usize];
            path.push(Span {
                start: i * size,
                end: end.min((i + 1) * size),
                place: Place::Slot((block.0 * size) as usize),
            });
        }
    }

    /// Position after the last token of `segment`.
    pub(crate) fn end_of(&self, segment: &PlanSegment) -> u32 {
        self.positions[segment.first + segment.len - 1] + 1
    }

    /// The slot in which `token`'s K/V are kept, if they are.
    pub(crate) fn slot(&self, token: usize) -> Option<usize> {
        let slot = self.slots[token];
        (slot != NO_SLOT).then_some(slot as usize)
    }

    /// Output indices of a row, in order of position.
    pub(crate) fn outputs_of(&self, row: &PlanRow) -> &[u32] {
        &self.row_outputs[row.outputs.0..row.outputs.1]
    }
}

/// Calls `f(position, place)` for positions in `range` of a path, in order. `cursor` is the span
/// at which to start looking; it moves forward, so that ranges must be visited in order.
pub(crate) fn for_places(
    path: &[Span],
    cursor: &mut usize,
    range: std::ops::Range<u32>,
    mut f: impl FnMut(u32, Place),
) {
    for position in range {
        while position >= path[*cursor].end {
            *cursor += 1;
        }
        let span = path[*cursor];
        let offset = (position - span.start) as usize;
        let place = match span.place {
            Place::Slot(slot) => Place::Slot(slot + offset),
            Place::Token(token) => Place::Token(token + offset),
        };
        f(position, place);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prelude_core::{
        BlockSpan, DecodeRow, OutputRow, SampleHead, SamplingParams, Segment, SeqId, StepId,
    };

    use super::*;

    fn sample() -> SampleHead {
        SampleHead {
            sampling: Arc::new(SamplingParams::default()),
            choice: 0,
            draws: 1,
            output_position: 0,
            top_logprobs: None,
            history: None,
            mask: None,
        }
    }

    fn decode(token: TokenSource) -> DecodeBatch {
        DecodeBatch {
            rows: vec![DecodeRow {
                seq: SeqId(0),
                token,
                context_len: 5,
                blocks: BlockSpan { start: 0, len: 2 },
                sample: sample(),
            }],
            block_ids: vec![BlockId(9), BlockId(7)],
        }
    }

    /// A root with 5 cached positions and 3 kept tokens, two children, and a decode row.
    fn mixed() -> ForwardBatch {
        let segment = |tokens, parent: Option<u32>, context_len, cached, residency| Segment {
            tokens,
            parent: parent.map(SegmentIdx),
            context_len,
            cached,
            residency,
        };
        let span = |start, len| BlockSpan { start, len };
        let row = |segment, positions| OutputRow {
            segment: SegmentIdx(segment),
            positions,
            head: OutputHead::Classify,
        };
        ForwardBatch::Mixed {
            oneshot: OneShotBatch {
                tokens: vec![10, 11, 12, 13, 14],
                segments: vec![
                    segment(0..3, None, 5, span(0, 2), Residency::Keep(span(1, 1))),
                    segment(3..4, Some(0), 8, span(0, 0), Residency::Transient),
                    segment(4..5, Some(0), 8, span(0, 0), Residency::Transient),
                ],
                rows: vec![row(2, 7..9), row(1, 7..8)],
                block_ids: vec![BlockId(3), BlockId(1)],
            },
            prefill: OneShotBatch::EMPTY,
            decode: decode(TokenSource::Known(99)),
        }
    }

    #[test]
    fn lays_out_all_parts() {
        let mut plan = StepPlan::default();
        plan.rebuild(mixed(), 4).unwrap();
        assert_eq!(plan.tokens, [10, 11, 12, 13, 14, 99]);
        assert_eq!(plan.positions, [5, 6, 7, 8, 8, 5]);
        let slots: Vec<_> = (0..6).map(|t| plan.slot(t)).collect();
        let kept = [Some(5), Some(6), Some(7), None, None, Some(7 * 4 + 1)];
        assert_eq!(slots, kept);
        // Positions of the second child: block 3, block 1, the root's tokens, its own.
        let (mut path, mut places) = (Vec::new(), Vec::new());
        plan.path(&plan.segments[2], &mut path);
        for_places(&path, &mut 0, 0..9, |_, place| places.push(place));
        let slots = [12, 13, 14, 15, 4].map(Place::Slot);
        let tokens = [0, 1, 2, 4].map(Place::Token);
        assert_eq!(places, [&slots[..], &tokens].concat());
        plan.path(&plan.segments[3], &mut path);
        for_places(&path, &mut 0, 4..6, |position, place| {
            let expected = [Place::Slot(28), Place::Token(5)];
            assert_eq!(place, expected[position as usize - 4]);
        });
        // Position 7 is read twice and computed once.
        assert_eq!(plan.outputs, [2, 4, 5]);
        assert_eq!(plan.outputs_of(&plan.rows[0]), [0, 1]);
        assert_eq!(plan.outputs_of(&plan.rows[1]), [0]);
        assert_eq!(plan.row_counts, [2, 0, 1]);
    }

    #[test]
    fn refuses_tokens_of_uncollected_steps() {
        let batch = ForwardBatch::Decode(decode(TokenSource::Sampled(StepId(1))));
        let result = StepPlan::default().rebuild(batch, 4);
        assert!(matches!(result, Err(ExecutorError::Step(_))));
    }
}
