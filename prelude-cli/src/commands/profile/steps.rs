//! Steps by their shape, for an executor: prompts behind cached tokens, and generations.

use std::{ops::Range, sync::Arc};

use prelude_core::{
    BlockId, BlockSpan, Capacity, DecodeBatch, DecodeRow, ForwardBatch, OneShotBatch, OutputHead,
    OutputRow, Pooling, Residency, SampleHead, SamplingParams, Segment, SegmentIdx, SeqId,
    TokenHead, TokenId, TokenSource,
};
use prelude_models::ModelKind;

/// Makes steps for one model within the limits of its executor.
///
/// The first blocks hold the cached prefix that all prompts and generations of a step read, as they
/// do where traffic shares prefixes. Each generation writes its token to a block of its own behind
/// them.
#[derive(Debug)]
pub(super) struct Steps {
    pub(super) capacity: Capacity,
    head: OutputHead,
}

/// Returns the first choice of a generation, drawn greedily.
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

impl Steps {
    /// Returns a maker of steps whose prompts get the output that the model is made for.
    pub(super) fn new(capacity: Capacity, kind: &ModelKind) -> Self {
        let head = match kind {
            ModelKind::CausalLm => OutputHead::Sample(sample()),
            ModelKind::SequenceClassification { .. } => OutputHead::Classify,
            ModelKind::TokenClassification { .. } => OutputHead::Tokens(TokenHead::Classify),
            // The last token's vector: a mean would be over what one step computes, and none of
            // these steps computes a whole prompt.
            ModelKind::Embedding { normalise, .. } => OutputHead::Embed {
                pooling: Pooling::Last,
                normalise: *normalise,
                dimensions: None,
            },
        };
        Self { capacity, head }
    }

    /// Returns whether the model generates.
    pub(super) const fn generates(&self) -> bool {
        matches!(self.head, OutputHead::Sample(_))
    }

    /// Returns the blocks of the first `tokens`, which are whole blocks.
    fn blocks(&self, tokens: u32) -> Range<u32> {
        0..tokens / self.capacity.block_size
    }

    /// Returns a token for each position: any will do, but not all the same.
    fn token(&self, at: u32) -> TokenId {
        at.wrapping_mul(2_654_435_761) % self.capacity.vocab_size
    }

    /// Returns a step that fills the blocks of the prefix from one position to another, both at
    /// the edges of blocks.
    pub(super) fn fill(&self, positions: Range<u32>) -> ForwardBatch {
        let (start, end) = (
            self.blocks(positions.start).end,
            self.blocks(positions.end).end,
        );
        let segment = Segment {
            tokens: 0..positions.end - positions.start,
            parent: None,
            context_len: positions.start,
            cached: BlockSpan {
                start: 0,
                len: start,
            },
            residency: Residency::Keep(BlockSpan {
                start,
                len: end - start,
            }),
        };
        ForwardBatch::Mixed {
            oneshot: OneShotBatch::EMPTY,
            prefill: OneShotBatch {
                tokens: positions.map(|at| self.token(at)).collect(),
                segments: vec![segment],
                rows: Vec::new(),
                block_ids: (0..end).map(BlockId).collect(),
            },
            decode: DecodeBatch::EMPTY,
        }
    }

    /// Returns a step with `batch` prompts of `computed` tokens behind `cached` ones each.
    pub(super) fn prompts(&self, batch: u32, computed: u32, cached: u32) -> ForwardBatch {
        let blocks = self.blocks(cached);
        let segment = |at: u32| Segment {
            tokens: at * computed..(at + 1) * computed,
            parent: None,
            context_len: cached,
            cached: BlockSpan {
                start: 0,
                len: blocks.end,
            },
            residency: Residency::Transient,
        };
        let row = |at: u32| OutputRow {
            segment: SegmentIdx(at),
            positions: cached + computed - 1..cached + computed,
            head: self.head.clone(),
        };
        ForwardBatch::OneShot(OneShotBatch {
            tokens: (0..batch * computed).map(|at| self.token(at)).collect(),
            segments: (0..batch).map(segment).collect(),
            rows: (0..batch).map(row).collect(),
            block_ids: blocks.map(BlockId).collect(),
        })
    }

    /// Returns a step in which `batch` generations behind `cached` tokens advance.
    pub(super) fn generations(&self, batch: u32, cached: u32) -> ForwardBatch {
        let shared = self.blocks(cached);
        let len = shared.end + 1;
        let mut block_ids = Vec::new();
        let mut rows = Vec::new();
        for at in 0..batch {
            let own = shared.end + at;
            block_ids.extend(shared.clone().chain([own]).map(BlockId));
            rows.push(DecodeRow {
                seq: SeqId(u64::from(at)),
                token: TokenSource::Known(self.token(at)),
                context_len: cached,
                blocks: BlockSpan {
                    start: at * len,
                    len,
                },
                sample: sample(),
            });
        }
        ForwardBatch::Decode(DecodeBatch { rows, block_ids })
    }
}
