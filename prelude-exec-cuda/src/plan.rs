//! The launches of one step: its [`StepLayout`], cut into what attention's kernels work on.
//!
//! ```text
//! segments   those of the layout; each has a list of spans
//! spans      cached blocks ─ ancestors' tokens of this step ─ own tokens: positions 0..end in
//!            order, without gap or overlap
//! chunks     ranges of tokens that a layer works on at once; each has its own tiles and decode rows.
//!            Where attention sees whole prompts, whole segments, whose spans lie in the chunk
//! launches   runs of decode rows whose splits fit into the buffer for them; each has items, where
//!            rows share pages (`plan/shared.rs`)
//! tiles      up to 64 / G queries of one segment in one chunk, longest context first; twice as
//!            many in chunks of many tokens
//! ```
//!
//! Everything is plain host data: it is packed into one buffer and sent by one copy.

mod shape;
mod shared;

use std::{collections::BTreeSet, ops::Range};

use bytemuck::Zeroable as _;
use prelude_core::{ExecutorError, ForwardBatch, SeqId, StepId};
use prelude_kernels::families::{
    AttnDecodeParams, DecodeItem, DecodeRow, MeanRow, Segment, Span, Tile,
};
use prelude_models::{
    SliceWork,
    step::{KvSource, KvSpan, SegmentContext, StepLayout, StepSegment},
};
use shape::tile_tokens;
use shared::Sharing;

pub(crate) use shape::{StepCounts, StepShape, padded};

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
    /// Decode rows that can be read together; 1 if none can.
    pub(crate) rows_shared: usize,
    /// True if attention sees whole prompts.
    pub(crate) whole: bool,
}

impl PlanConfig {
    /// Returns the number of rows of the tiles of a chunk of so many tokens. A row's bits are the same
    /// in either.
    pub(crate) const fn tile_rows(&self, tokens: usize) -> u32 {
        if tokens >= self.wide_tokens {
            Tile::ROWS_WIDE
        } else {
            Tile::ROWS
        }
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
    /// Launches of the decode rows of all chunks.
    pub(crate) launches: Vec<DecodeLaunch>,
    /// Items of all launches, one launch after the other.
    pub(crate) items: Vec<DecodeItem>,
    /// The shape that the step is padded to, if it is.
    pub(crate) shape: Option<StepShape>,
    /// The part of the step that runs, if it is a slice of a pass. Slices are not padded, so they are
    /// never captured as graphs: each is long beside its launches, and few have a shape in common.
    pub(crate) slice: Option<SlicePart>,
    /// The index of the first segment whose queries go to the decode kernel.
    first_decode: usize,
    /// Scratch: the path of a segment.
    path: Vec<KvSpan>,
    /// Scratch.
    sharing: Sharing,
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
    /// The chunk's part of [`StepPlan::launches`].
    pub(crate) launches: Range<usize>,
}

/// Decode rows of one launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DecodeLaunch {
    /// The launch's part of [`StepPlan::decode`].
    pub(crate) rows: Range<usize>,
    /// Splits of the longest context.
    pub(crate) splits: usize,
    /// The launch's part of [`StepPlan::items`]: all splits of all rows, or nothing if each row reads
    /// for itself.
    pub(crate) items: Range<usize>,
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
        self.launches.clear();
        self.items.clear();
        self.shape = None;
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
            // Of a step without contents there is nothing to read.
            if self.layout.segments.is_empty() {
                return MeanRow::zeroed();
            }
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
        let first_launch = self.launches.len();
        let tile_rows = config.tile_rows(tokens.len());
        let tile_tokens = tile_tokens(config.group, tile_rows);
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
        self.add_launches(first_decode, config);
        self.chunks.push(Chunk {
            tokens,
            tiles: first_tile..self.tiles.len(),
            tile_rows,
            decode: first_decode..self.decode.len(),
            launches: first_launch..self.launches.len(),
        });
    }

    /// Adds the launches of the decode rows from `start` on, each of as many rows as fit; one always
    /// does.
    fn add_launches(&mut self, mut start: usize, config: PlanConfig) {
        while start < self.decode.len() {
            let (mut end, mut splits) = (start, 0);
            for row in &self.decode[start..] {
                let wider = splits.max(splits_of(row));
                if end > start && (end + 1 - start) * wider > config.splits_max {
                    break;
                }
                (end, splits) = (end + 1, wider);
            }
            let first = self.items.len();
            self.sharing.plan(
                &mut self.decode[start..end],
                &self.layout,
                config.rows_shared,
                &mut self.items,
            );
            self.launches.push(DecodeLaunch {
                rows: start..end,
                splits,
                items: first..self.items.len(),
            });
            start = end;
        }
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

    /// Returns the shape of the step, if it is small enough to be padded. `tokens_max`: what the
    /// buffers hold.
    pub(crate) fn own_shape(&self, config: PlanConfig, tokens_max: usize) -> Option<StepShape> {
        let [chunk] = &self.chunks[..] else {
            return None;
        };
        let keys = self.decode.iter().map(|row| row.context_len).max();
        let counts = StepCounts {
            tokens: self.layout.tokens.len(),
            outputs: self.layout.outputs.len(),
            tile_rows: chunk.tile_rows,
            tiles: self.tiles.len(),
            decode: self.decode.len(),
            keys: keys.unwrap_or(0),
            items: self.items.len(),
            spans: self.spans.len(),
        };
        let shape = StepShape::of(&counts, config.group);
        let fits = config.holds(&shape, tokens_max) && self.segments.len() <= shape.tokens;
        fits.then_some(shape)
    }

    /// Fills the step up to a shape that holds it.
    ///
    /// Padding tokens are kept nowhere and seen by no query; padding tiles, decode rows and items are empty;
    /// padding outputs are read by no head.
    pub(crate) fn pad(&mut self, shape: StepShape) {
        let [chunk] = &mut self.chunks[..] else {
            return;
        };
        self.layout.pad(shape.tokens, shape.outputs);
        self.tiles.resize(shape.tiles, NO_TILE);
        self.decode.resize(shape.decode, DecodeRow::zeroed());
        self.items.resize(shape.items, DecodeItem::zeroed());
        self.launches.clear();
        if shape.decode > 0 {
            self.launches.push(DecodeLaunch {
                rows: 0..shape.decode,
                splits: shape.splits,
                items: 0..shape.items,
            });
        }
        chunk.tokens = 0..shape.tokens;
        chunk.tiles = 0..shape.tiles;
        chunk.decode = 0..shape.decode;
        chunk.launches = 0..self.launches.len();
        self.shape = Some(shape);
    }

    /// Plans a step of a shape that has nothing in it.
    pub(crate) fn rebuild_empty(&mut self, shape: StepShape) {
        self.clear();
        self.layout = StepLayout::default();
        self.first_decode = 0;
        self.chunks.push(Chunk {
            tokens: 0..0,
            tiles: 0..0,
            tile_rows: shape.tile_rows,
            decode: 0..0,
            launches: 0..0,
        });
        self.pad(shape);
    }
}

impl PlanConfig {
    /// Returns whether steps of a shape are small enough to be padded and captured.
    pub(crate) fn holds(&self, shape: &StepShape, tokens_max: usize) -> bool {
        let room = tokens_max.min(self.chunk_tokens).min(self.pad_tokens);
        shape.tokens <= room && shape.decode * shape.splits <= self.splits_max
    }
}

/// Returns the number of splits of a decode row.
const fn splits_of(row: &DecodeRow) -> usize {
    row.context_len.div_ceil(AttnDecodeParams::SPLIT_KEYS) as usize
}

/// Returns a span as kernels take it.
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

/// Returns a count of a step's things. Validation keeps them far below 2³¹.
fn count(n: usize) -> u32 {
    u32::try_from(n).expect("a step's counts fit u32")
}

#[cfg(test)]
mod tests;
