//! The launches of one step: its [`StepLayout`], cut into what attention's kernels work on.
//!
//! ```text
//! segments   those of the layout; each has a list of spans
//! spans      cached blocks ─ ancestors' tokens of this step ─ own tokens: positions 0..end in
//!            order, without gap or overlap
//! chunks     ranges of tokens that a layer works on at once; each has its own tiles and decode rows.
//!            Where attention sees whole prompts, whole segments, whose spans lie in the chunk
//! tiles      up to 64 / G queries of one segment in one chunk, longest context first; twice as
//!            many in chunks of many tokens
//! ```
//!
//! Everything is plain host data: it is packed into one buffer and sent by one copy.

use std::{collections::BTreeSet, ops::Range};

use bytemuck::Zeroable as _;
use prelude_core::{ExecutorError, ForwardBatch, SeqId, StepId};
use prelude_kernels::families::{AttnDecodeParams, DecodeRow, MeanRow, Segment, Span, Tile};
use prelude_models::{
    SliceWork,
    step::{KvSource, KvSpan, SegmentContext, StepLayout, StepSegment},
};

/// A tile without queries.
const NO_TILE: Tile = Tile {
    segment: Tile::NO_SEGMENT,
    q_row: 0,
    q_pos: 0,
    rows: 0,
};

/// Sizes that the plan of a step depends on besides its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlanConfig {
    /// Positions of a KV block.
    pub(crate) block_size: u32,
    /// Tokens that a layer works on at once.
    pub(crate) chunk_tokens: usize,
    /// Query heads that share a key-value head.
    pub(crate) group: usize,
    /// Tokens of a chunk from which on its tiles are wide.
    pub(crate) wide_tokens: usize,
    /// Decode rows as segments of one token: their sums then run in the order of prompts'.
    pub(crate) decode_as_segments: bool,
    /// Steps of up to so many tokens are padded: see [`StepPlan::pad`]. 0: none is.
    pub(crate) pad_tokens: usize,
    /// Upper bound of the splits of all decode rows of one launch.
    pub(crate) splits_max: usize,
    /// True if attention sees whole prompts.
    pub(crate) whole: bool,
}

/// All that a step's launches depend on, up to its heads: steps of one shape differ in the
/// contents of their metadata alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StepShape {
    pub(crate) tokens: usize,
    pub(crate) outputs: usize,
    tiles: usize,
    tile_rows: u32,
    decode: usize,
    /// Splits of each decode row.
    splits: usize,
    segments: usize,
    spans: usize,
}

#[cfg(test)]
impl StepShape {
    /// One among others.
    pub(crate) fn of_tokens(tokens: usize) -> Self {
        Self {
            tokens,
            outputs: 1,
            tiles: 1,
            tile_rows: Tile::ROWS,
            decode: 0,
            splits: 0,
            segments: 1,
            spans: 1,
        }
    }
}

/// Counts of tokens, of rows and of outputs that a step is padded to: every power of two and the
/// middle between two, by eighths from 64 on, where time grows with their number.
fn padded(n: usize) -> usize {
    match n {
        0..=2 => n,
        3..=64 => {
            let power = n.next_power_of_two();
            let middle = power / 4 * 3;
            if n <= middle { middle } else { power }
        }
        _ => n.next_multiple_of(n.next_power_of_two() / 8),
    }
}

/// The launches of one step. The executor makes a plan; a model passes it through.
#[derive(Debug, Default)]
pub struct StepPlan {
    /// The batch's tokens, segments and rows.
    pub(crate) layout: StepLayout,
    /// Spans of each of the layout's segments.
    pub(crate) segments: Vec<Segment>,
    /// Ranges of keys and values that the segments' queries see.
    pub(crate) spans: Vec<Span>,
    /// Ranges of tokens that a layer works on at once.
    pub(crate) chunks: Vec<Chunk>,
    /// Tiles of all chunks, one chunk after the other.
    pub(crate) tiles: Vec<Tile>,
    /// Decode rows of all chunks, one chunk after the other.
    pub(crate) decode: Vec<DecodeRow>,
    /// Splits that decode rows are launched with, if the step is padded.
    pub(crate) splits: Option<usize>,
    /// The part of the step that runs, if it is a slice of a pass. Slices are not padded, so they are
    /// never captured as graphs: each is long beside its launches, and few have a shape in common.
    pub(crate) slice: Option<SlicePart>,
    /// The index of the first segment whose queries go to the decode kernel.
    first_decode: usize,
    /// Scratch: the path of a segment.
    path: Vec<KvSpan>,
}

/// The part of a pass that a slice runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlicePart {
    /// True if the pass begins with the slice: its tokens are embedded.
    pub(crate) is_first: bool,
    /// True if the pass ends with the slice: its heads run.
    pub(crate) is_last: bool,
    /// The tokens that the slice's layers work on, and those between them.
    pub(crate) window: Range<usize>,
}

/// Tokens that a layer works on at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) tokens: Range<usize>,
    /// The chunk's part of [`StepPlan::tiles`].
    pub(crate) tiles: Range<usize>,
    /// [`Tile::ROWS`] or [`Tile::ROWS_WIDE`].
    pub(crate) tile_rows: u32,
    /// The chunk's part of [`StepPlan::decode`].
    pub(crate) decode: Range<usize>,
}

impl StepPlan {
    /// Lays out `batch` as [`StepLayout::rebuild`] does, and plans the launches of attention.
    ///
    /// # Errors
    /// [`ExecutorError::Step`] for a token of a step that is not outstanding.
    pub(crate) fn rebuild(
        &mut self,
        batch: ForwardBatch,
        config: PlanConfig,
        sampled: impl Fn(StepId, SeqId) -> Option<usize>,
    ) -> Result<(), ExecutorError> {
        self.clear();
        self.layout.rebuild(batch, config.block_size, sampled)?;
        self.first_decode = match config.decode_as_segments {
            true => self.layout.segments.len(),
            false => self.layout.first_decode_segment(),
        };
        self.add_segments();
        let tokens = self.layout.tokens.len();
        if config.whole {
            let mut start = 0;
            while start < tokens {
                let end = self.layout.whole_segments(start, config.chunk_tokens);
                self.add_whole_chunk(start..end, config);
                start = end;
            }
            return Ok(());
        }
        for start in (0..tokens).step_by(config.chunk_tokens) {
            self.add_chunk(start..tokens.min(start + config.chunk_tokens), config);
        }
        Ok(())
    }

    /// Plans the launches of a slice of the pass that `layout` lays out.
    pub(crate) fn rebuild_slice(
        &mut self,
        layout: StepLayout,
        config: PlanConfig,
        slice: &SliceWork,
    ) {
        self.clear();
        self.layout = layout;
        self.first_decode = self.layout.segments.len();
        self.add_segments();
        // Layers that the slice runs whole have the same chunks.
        let chunks: BTreeSet<_> = slice
            .chunks()
            .map(|(_, rows)| (rows.start, rows.end))
            .collect();
        let window = chunks.first().map_or(0, |chunk| chunk.0)
            ..chunks.iter().map(|chunk| chunk.1).max().unwrap_or(0);
        for (start, end) in chunks {
            self.add_chunk(start..end, config);
        }
        self.slice = Some(SlicePart {
            is_first: slice.is_first(),
            is_last: slice.is_last(),
            window,
        });
    }

    fn clear(&mut self) {
        self.segments.clear();
        self.spans.clear();
        self.chunks.clear();
        self.tiles.clear();
        self.decode.clear();
        self.splits = None;
        self.slice = None;
    }

    /// Adds the spans of every segment whose queries attend as prompts do.
    fn add_segments(&mut self) {
        for index in 0..self.layout.segments.len() {
            let first = self.spans.len();
            if index < self.first_decode {
                self.layout.path(index, &mut self.path);
                self.spans.extend(self.path.iter().map(span));
            }
            self.segments.push(Segment {
                span_first: count(first),
                span_count: count(self.spans.len() - first),
            });
        }
    }

    /// Adds a chunk of whole segments, whose keys and values are the chunk's own rows.
    fn add_whole_chunk(&mut self, tokens: Range<usize>, config: PlanConfig) {
        let first = count(tokens.start);
        let segments = self.segments_in(&tokens);
        for segment in &self.segments[segments] {
            // Validation refuses all but roots without a context.
            let spans = segment.span_first as usize..;
            for span in &mut self.spans[spans][..segment.span_count as usize] {
                span.at -= first;
            }
        }
        self.add_chunk(tokens, config);
    }

    /// Returns the indices of the segments with tokens among these. Segments are in the order of
    /// their tokens, and none is empty.
    fn segments_in(&self, tokens: &Range<usize>) -> Range<usize> {
        let segments = &self.layout.segments;
        let first = segments.partition_point(|segment| segment.end() <= tokens.start);
        let end = segments.partition_point(|segment| segment.first < tokens.end);
        first..end
    }

    /// Returns the tokens of the segment of each output position, for means over them; none if
    /// attention does not see whole prompts.
    pub(crate) fn means(&self, config: PlanConfig) -> Vec<MeanRow> {
        if !config.whole {
            return Vec::new();
        }
        let of_output = |&token: &u32| {
            let segment = self.layout.segment_of(token as usize);
            MeanRow {
                first: count(segment.start),
                count: count(segment.len()),
            }
        };
        self.layout.outputs.iter().map(of_output).collect()
    }

    /// Adds a chunk, its queries cut into tiles.
    fn add_chunk(&mut self, tokens: Range<usize>, config: PlanConfig) {
        let (first_tile, first_decode) = (self.tiles.len(), self.decode.len());
        // A row's bits are the same in either.
        let tile_rows = match tokens.len() >= config.wide_tokens {
            true => Tile::ROWS_WIDE,
            false => Tile::ROWS,
        };
        let tile_tokens = Tile::tokens_max(count(config.group), tile_rows);
        let tile_tokens = tile_tokens.map_or(1, |n| n as usize);
        for index in self.segments_in(&tokens) {
            let segment = self.layout.segments[index];
            self.add_tiles(index, segment, tokens.clone(), tile_tokens);
        }
        // Longest first, so that the last to finish are short. Stable: equal batches give
        // equal plans.
        let segments = &self.layout.segments;
        let keys = |tile: &Tile| match config.whole {
            true => segments[tile.segment as usize].end_position(),
            false => tile.q_pos + tile.rows,
        };
        self.tiles[first_tile..].sort_by_key(|tile| std::cmp::Reverse(keys(tile)));
        self.chunks.push(Chunk {
            tokens,
            tiles: first_tile..self.tiles.len(),
            tile_rows,
            decode: first_decode..self.decode.len(),
        });
    }

    /// Adds the tiles, or the decode row, of a segment's tokens in a chunk.
    fn add_tiles(
        &mut self,
        index: usize,
        segment: StepSegment,
        chunk: Range<usize>,
        tile_tokens: usize,
    ) {
        if let SegmentContext::Blocks { first } = segment.context
            && index >= self.first_decode
        {
            self.decode.push(DecodeRow {
                q_row: count(segment.first - chunk.start),
                context_len: segment.context_len + 1,
                block_first: count(first),
                reserved: 0,
            });
            return;
        }
        let tokens = segment.first.max(chunk.start)..segment.end().min(chunk.end);
        for first in tokens.clone().step_by(tile_tokens) {
            self.tiles.push(Tile {
                segment: count(index),
                q_row: count(first - chunk.start),
                q_pos: segment.context_len + count(first - segment.first),
                rows: count(tile_tokens.min(tokens.end - first)),
            });
        }
    }

    /// Rounds the step's counts up, so that many steps have one shape: the shape, if the step is
    /// small enough to be padded. `tokens_max`: what the buffers hold.
    ///
    /// Padding tokens are kept nowhere and seen by no query; padding tiles and decode rows are empty;
    /// padding outputs are read by no head.
    pub(crate) fn pad(&mut self, config: PlanConfig, tokens_max: usize) -> Option<StepShape> {
        let [chunk] = &mut self.chunks[..] else {
            return None;
        };
        let tokens = padded(self.layout.tokens.len());
        let decode = padded(self.decode.len());
        // In powers of two: few contexts differ in it.
        let keys = self.decode.iter().map(|row| row.context_len).max();
        let splits = keys.map_or(0, |keys| {
            (keys.div_ceil(AttnDecodeParams::SPLIT_KEYS) as usize).next_power_of_two()
        });
        let room = tokens_max.min(config.chunk_tokens).min(config.pad_tokens);
        if tokens > room || decode * splits > config.splits_max {
            return None;
        }
        let shape = StepShape {
            tokens,
            outputs: padded(self.layout.outputs.len()).min(tokens),
            tiles: padded(self.tiles.len()),
            tile_rows: chunk.tile_rows,
            decode,
            splits,
            segments: padded(self.segments.len()),
            spans: padded(self.spans.len()),
        };
        self.layout.pad(tokens, shape.outputs);
        self.tiles.resize(shape.tiles, NO_TILE);
        self.decode.resize(decode, DecodeRow::zeroed());
        self.segments.resize(shape.segments, Segment::zeroed());
        self.spans.resize(shape.spans, Span::zeroed());
        chunk.tokens = 0..tokens;
        chunk.tiles = 0..shape.tiles;
        chunk.decode = 0..decode;
        self.splits = Some(splits);
        Some(shape)
    }
}

/// A span as kernels take it.
fn span(span: &KvSpan) -> Span {
    let (kind, at) = match span.source {
        KvSource::Tokens { first } => (Span::STEP, first),
        KvSource::Blocks { first } => (Span::PAGES, first),
    };
    Span {
        kv_start: span.start,
        len: span.end - span.start,
        at: count(at),
        kind,
    }
}

/// A count of a step's things. Validation keeps them far below 2³¹.
fn count(n: usize) -> u32 {
    u32::try_from(n).expect("a step's counts fit u32")
}

#[cfg(test)]
mod tests;
