//! One step, laid out: what the kernels need to know of any of the three batch kinds.
//!
//! ```text
//! tokens     one-shot forest | prefill chunks | decode rows, back to back
//! segments   runs of tokens that see the same earlier positions; each has a list of spans
//! spans      cached blocks ─ ancestors' tokens of this step ─ own tokens: positions 0..end in
//!            order, without gap or overlap
//! chunks     ranges of tokens that a layer works on at once; each has its own tiles and decode rows
//! tiles      up to 64 / G queries of one segment in one chunk, longest context first; twice as
//!            many in chunks of many tokens
//! outputs    distinct tokens whose hidden states some head reads, in order of first use
//! rows       heads, each with its slice of output indices; one-shot, prefill, decode
//! ```
//!
//! Everything is plain host data: it is packed into one buffer and sent by one copy.

use std::ops::Range;

use bytemuck::Zeroable as _;
use prelude_core::{
    BlockId, BlockSpan, DecodeBatch, ExecutorError, ForwardBatch, OneShotBatch, OutputHead,
    Residency, SeqId, StepId, TokenSource,
};
use prelude_kernels::families::{AttnDecodeParams, DecodeRow, Segment, Span, Tile};

/// "Transient": see [`StepPlan::slots`].
pub(crate) const NO_SLOT: i32 = -1;

/// A tile without queries.
const NO_TILE: Tile = Tile {
    segment: Tile::NO_SEGMENT,
    q_row: 0,
    q_pos: 0,
    rows: 0,
};

/// What the plan of a step depends on besides its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
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
    /// Splits of all decode rows together that one launch has room for.
    pub(crate) splits_max: usize,
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
    /// Of each decode row.
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

/// What one step computes. Made by the executor; a model passes it through.
#[derive(Debug, Default)]
pub struct StepPlan {
    /// Token ids.
    pub(crate) tokens: Vec<i32>,
    /// Absolute position of each token.
    pub(crate) positions: Vec<i32>,
    /// Where each token's K/V are kept, `block · block_size + offset`, or [`NO_SLOT`].
    pub(crate) slots: Vec<i32>,
    /// Runs of tokens.
    pub(crate) segments: Vec<Segment>,
    /// What the segments' queries see.
    pub(crate) spans: Vec<Span>,
    /// Block tables.
    pub(crate) blocks: Vec<i32>,
    /// Ranges of tokens that a layer works on at once.
    pub(crate) chunks: Vec<Chunk>,
    /// Of all chunks.
    pub(crate) tiles: Vec<Tile>,
    /// Of all chunks.
    pub(crate) decode: Vec<DecodeRow>,
    /// Token indices of the output positions.
    pub(crate) outputs: Vec<i32>,
    /// Heads.
    pub(crate) rows: Vec<PlanRow>,
    row_outputs: Vec<u32>,
    /// How many of `rows` are one-shot, prefill, decode.
    pub(crate) row_counts: [usize; 3],
    /// Splits that decode rows are launched with, if the step is padded.
    pub(crate) splits: Option<usize>,
    runs: Vec<Run>,
    /// Scratch: output index of each token, or -1.
    output_of: Vec<i32>,
}

/// Tokens that a layer works on at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) tokens: Range<usize>,
    /// Of [`StepPlan::tiles`].
    pub(crate) tiles: Range<usize>,
    /// [`Tile::ROWS`] or [`Tile::ROWS_WIDE`].
    pub(crate) tile_rows: u32,
    /// Of [`StepPlan::decode`].
    pub(crate) decode: Range<usize>,
}

/// A run of new tokens, as the batch has it.
#[derive(Clone, Copy, Debug)]
struct Run {
    first: usize,
    len: usize,
    context_len: u32,
    context: Context,
    /// Whether its query goes to the decode kernel.
    is_decode: bool,
}

/// What precedes a run.
#[derive(Clone, Copy, Debug)]
enum Context {
    /// Position p is in block `blocks[first + p / block_size]`.
    Blocks { first: usize },
    /// The run of this index, and what precedes that.
    Run(usize),
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
    /// Lays out `batch`, which has been validated, in place of what was planned before. `drawn`:
    /// where on the device the token is that a step draws for a sequence, if it is outstanding.
    ///
    /// # Errors
    /// [`ExecutorError::Step`] for a token of a step that is not outstanding.
    pub(crate) fn rebuild(
        &mut self,
        batch: ForwardBatch,
        layout: Layout,
        drawn: impl Fn(StepId, SeqId) -> Option<usize>,
    ) -> Result<(), ExecutorError> {
        self.clear();
        match batch {
            ForwardBatch::OneShot(oneshot) => self.add_forest(oneshot, 0, layout),
            ForwardBatch::Decode(decode) => self.add_decode(decode, layout, drawn)?,
            ForwardBatch::Mixed {
                oneshot,
                prefill,
                decode,
            } => {
                self.add_forest(oneshot, 0, layout);
                self.add_forest(prefill, 1, layout);
                self.add_decode(decode, layout, drawn)?;
            }
        }
        self.add_segments();
        self.add_chunks(layout);
        Ok(())
    }

    fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.slots.clear();
        self.segments.clear();
        self.spans.clear();
        self.blocks.clear();
        self.chunks.clear();
        self.tiles.clear();
        self.decode.clear();
        self.outputs.clear();
        self.rows.clear();
        self.row_outputs.clear();
        self.row_counts = [0; 3];
        self.splits = None;
        self.runs.clear();
        self.output_of.clear();
    }

    fn add_forest(&mut self, batch: OneShotBatch, part: usize, layout: Layout) {
        let first_run = self.runs.len();
        let first_token = self.tokens.len();
        let first_block = self.add_blocks(&batch.block_ids);
        for segment in &batch.segments {
            let context = match segment.parent {
                None => Context::Blocks {
                    first: first_block + segment.cached.start as usize,
                },
                Some(parent) => Context::Run(first_run + parent.index()),
            };
            self.push_run(Run {
                first: first_token + segment.tokens.start as usize,
                len: segment.len() as usize,
                context_len: segment.context_len,
                context,
                is_decode: false,
            });
            let kept = match segment.residency {
                Residency::Transient => BlockSpan::EMPTY,
                Residency::Keep(span) => span,
            };
            let kept = kept.of(&batch.block_ids);
            let first_kept = segment.context_len / layout.block_size;
            for position in segment.context_len..segment.end() {
                let block = kept.get((position / layout.block_size - first_kept) as usize);
                self.slots
                    .push(block.map_or(NO_SLOT, |b| slot(*b, position, layout.block_size)));
            }
        }
        self.tokens.extend(batch.tokens.iter().map(|&id| int(id)));
        self.output_of.resize(self.tokens.len(), -1);
        self.row_counts[part] = batch.rows.len();
        for row in batch.rows {
            let run = first_run + row.segment.index();
            self.push_row(run, row.positions, row.head);
        }
    }

    fn add_decode(
        &mut self,
        batch: DecodeBatch,
        layout: Layout,
        drawn: impl Fn(StepId, SeqId) -> Option<usize>,
    ) -> Result<(), ExecutorError> {
        let first_block = self.add_blocks(&batch.block_ids);
        self.row_counts[2] = batch.rows.len();
        for row in batch.rows {
            let token = match row.token {
                TokenSource::Known(token) => int(token),
                TokenSource::Sampled(step) => match drawn(step, row.seq) {
                    Some(at) => -int(count(at)) - 1,
                    None => {
                        return Err(ExecutorError::Step(format!(
                            "the token of {:?} comes from step {step}, which is not outstanding or \
                             does not draw it",
                            row.seq
                        )));
                    }
                },
            };
            let blocks = first_block + row.blocks.start as usize;
            self.push_run(Run {
                first: self.tokens.len(),
                len: 1,
                context_len: row.context_len,
                context: Context::Blocks { first: blocks },
                is_decode: !layout.decode_as_segments,
            });
            let last = row.blocks.of(&batch.block_ids)[row.blocks.len as usize - 1];
            self.slots
                .push(slot(last, row.context_len, layout.block_size));
            self.tokens.push(token);
            self.output_of.push(-1);
            let position = row.context_len..row.context_len + 1;
            let run = self.runs.len() - 1;
            self.push_row(run, position, OutputHead::Sample(row.sample));
        }
        Ok(())
    }

    fn add_blocks(&mut self, ids: &[BlockId]) -> usize {
        let first = self.blocks.len();
        self.blocks.extend(ids.iter().map(|id| int(id.0)));
        first
    }

    fn push_run(&mut self, run: Run) {
        let positions = run.context_len..run.context_len + count(run.len);
        self.positions.extend(positions.map(int));
        self.runs.push(run);
    }

    fn push_row(&mut self, run: usize, positions: Range<u32>, head: OutputHead) {
        let start = self.row_outputs.len();
        let first_position = positions.start;
        for position in positions {
            let token = self.token_at(run, position);
            if self.output_of[token] < 0 {
                self.output_of[token] = int(count(self.outputs.len()));
                self.outputs.push(int(count(token)));
            }
            self.row_outputs.push(self.output_of[token].unsigned_abs());
        }
        self.rows.push(PlanRow {
            head,
            refused: None,
            first_position,
            outputs: (start, self.row_outputs.len()),
        });
    }

    /// The token at a position that this step computes on the path of a run.
    fn token_at(&self, run: usize, position: u32) -> usize {
        let mut at = &self.runs[run];
        while position < at.context_len {
            let Context::Run(parent) = at.context else {
                unreachable!("validation refuses output positions that are not computed");
            };
            at = &self.runs[parent];
        }
        at.first + (position - at.context_len) as usize
    }

    /// One segment per run that attends as prompts do, with the spans that its queries see.
    fn add_segments(&mut self) {
        let mut path = Vec::new();
        for index in 0..self.runs.len() {
            let first = self.spans.len();
            if !self.runs[index].is_decode {
                self.path(index, &mut path);
                self.spans.extend(path.iter().rev());
            }
            self.segments.push(Segment {
                span_first: count(first),
                span_count: count(self.spans.len() - first),
            });
        }
    }

    /// Where the K/V of all positions up to the end of a run lie, last first. Ancestors that lie
    /// together become one span.
    fn path(&self, index: usize, path: &mut Vec<Span>) {
        path.clear();
        let mut at = &self.runs[index];
        loop {
            let (start, len) = (at.context_len, count(at.len));
            let own = Span {
                kv_start: start,
                len,
                at: count(at.first),
                kind: Span::STEP,
            };
            match path.last_mut() {
                Some(next) if next.at == own.at + own.len => {
                    (next.kv_start, next.at) = (own.kv_start, own.at);
                    next.len += own.len;
                }
                _ => path.push(own),
            }
            match at.context {
                Context::Run(parent) => at = &self.runs[parent],
                Context::Blocks { first } => {
                    if at.context_len > 0 {
                        path.push(Span {
                            kv_start: 0,
                            len: at.context_len,
                            at: count(first),
                            kind: Span::PAGES,
                        });
                    }
                    break;
                }
            }
        }
    }

    /// Cuts the step into chunks, and each chunk's queries into tiles.
    fn add_chunks(&mut self, layout: Layout) {
        let mut run = 0;
        for start in (0..self.tokens.len()).step_by(layout.chunk_tokens) {
            let end = self.tokens.len().min(start + layout.chunk_tokens);
            let (first_tile, first_decode) = (self.tiles.len(), self.decode.len());
            // A row's bits are the same in either.
            let tile_rows = match end - start >= layout.wide_tokens {
                true => Tile::ROWS_WIDE,
                false => Tile::ROWS,
            };
            let tile_tokens = Tile::tokens_max(count(layout.group), tile_rows);
            let tile_tokens = tile_tokens.map_or(1, |n| n as usize);
            while run < self.runs.len() && self.runs[run].first < end {
                self.add_tiles(run, start..end, tile_tokens);
                if self.runs[run].first + self.runs[run].len > end {
                    break; // Goes on in the next chunk.
                }
                run += 1;
            }
            // Longest first, so that the last to finish are short. Stable: equal batches give
            // equal plans.
            self.tiles[first_tile..].sort_by_key(|t| std::cmp::Reverse(t.q_pos + t.rows));
            self.chunks.push(Chunk {
                tokens: start..end,
                tiles: first_tile..self.tiles.len(),
                tile_rows,
                decode: first_decode..self.decode.len(),
            });
        }
    }

    /// The tiles, or the decode row, of a run's tokens in a chunk.
    fn add_tiles(&mut self, index: usize, chunk: Range<usize>, tile_tokens: usize) {
        let run = self.runs[index];
        let tokens = run.first.max(chunk.start)..(run.first + run.len).min(chunk.end);
        if let (true, Context::Blocks { first }) = (run.is_decode, run.context) {
            self.decode.push(DecodeRow {
                q_row: count(run.first - chunk.start),
                context_len: run.context_len + 1,
                block_first: count(first),
                reserved: 0,
            });
            return;
        }
        for first in tokens.clone().step_by(tile_tokens) {
            self.tiles.push(Tile {
                segment: count(index),
                q_row: count(first - chunk.start),
                q_pos: run.context_len + count(first - run.first),
                rows: count(tile_tokens.min(tokens.end - first)),
            });
        }
    }

    /// Rounds the step's counts up, so that many steps have one shape: the shape, if the step is
    /// small enough to be padded. `tokens_max`: what the buffers hold.
    ///
    /// Padding tokens are kept nowhere and seen by nobody; padding tiles and decode rows are empty;
    /// padding outputs are read by no head.
    pub(crate) fn pad(&mut self, layout: Layout, tokens_max: usize) -> Option<StepShape> {
        let [chunk] = &mut self.chunks[..] else {
            return None;
        };
        let tokens = padded(self.tokens.len());
        let decode = padded(self.decode.len());
        // In powers of two: few contexts differ in it.
        let keys = self.decode.iter().map(|row| row.context_len).max();
        let splits = keys.map_or(0, |keys| {
            (keys.div_ceil(AttnDecodeParams::SPLIT_KEYS) as usize).next_power_of_two()
        });
        let room = tokens_max.min(layout.chunk_tokens).min(layout.pad_tokens);
        if tokens > room || decode * splits > layout.splits_max {
            return None;
        }
        let shape = StepShape {
            tokens,
            outputs: padded(self.outputs.len()).min(tokens),
            tiles: padded(self.tiles.len()),
            tile_rows: chunk.tile_rows,
            decode,
            splits,
            segments: padded(self.segments.len()),
            spans: padded(self.spans.len()),
        };
        self.tokens.resize(tokens, 0);
        self.positions.resize(tokens, 0);
        self.slots.resize(tokens, NO_SLOT);
        self.outputs.resize(shape.outputs, 0);
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

    /// Output indices of a row, in order of position.
    pub(crate) fn outputs_of(&self, row: &PlanRow) -> &[u32] {
        &self.row_outputs[row.outputs.0..row.outputs.1]
    }
}

fn slot(block: BlockId, position: u32, block_size: u32) -> i32 {
    int(block.0 * block_size + position % block_size)
}

/// A count of a step's things. Validation keeps them far below 2³¹.
fn count(n: usize) -> u32 {
    u32::try_from(n).expect("a step's counts fit u32")
}

fn int(n: u32) -> i32 {
    i32::try_from(n).expect("a step's numbers fit i32")
}

#[cfg(test)]
mod tests;
