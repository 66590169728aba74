//! Attention over paths of a forest, after Dao et al., FlashAttention-2 (2023), §3.1, with two
//! differences: keys come from wherever [`StepLayout::path`] says, and tiles of keys start at
//! absolute multiples of 64 positions whatever the path is made of.
//!
//! The work on a tile depends on the query's position and on the keys in it, never on which other
//! queries are in the step, where a prompt was cut into segments or chunks, or where the keys
//! come from: that is the batch invariance of attention.
//!
//! A task is a block of the chunk's tokens for one key-value head, with all query heads that read
//! it. For each tile it puts up to 64 keys and values into panels, or reads them in blocks of panels,
//! and runs both products, q · kᵀ and p · v, on [`multiply`], six rows at a time; on a matrix unit, `tiles` does the same with
//! sixteen queries in the lanes.

mod locations;
mod panels;
#[cfg(target_arch = "x86_64")]
mod tiles;

use std::ops::Range;

use prelude_core::Attention as VisibleTokens;
use prelude_models::{
    AttnShape,
    step::{KvSpan, StepLayout, StepSegment},
};

use self::{
    locations::KvLocation,
    panels::{InBlocks, TilePanels},
};

use super::{
    Backend, InputForm, Supported,
    elementwise::RowScores,
    kv::{Kv, KvElement},
    panel::{MR, NR, Right, Rows, Tile, multiply, multiply_pieces},
    simd,
};
use crate::{
    pool::{ComputePool, TileMut},
    scratch::PerWorker,
};

/// Rows (tokens times query heads of a group) of a task: enough to repay the packing of keys.
const ROWS: usize = 32 * MR;

/// Rows of a task on tiles, whose products take less time than packing.
const TASK_ROWS_ON_TILES: usize = 128;

/// Buffers of one worker.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    #[cfg(target_arch = "x86_64")]
    tiles: Option<tiles::TileScratch>,
    /// The places of the keys of each segment of a task.
    paths: Vec<Vec<KvSpan>>,
    panels: TilePanels,
    /// Queries, rounded to pairs or as they are.
    pairs: Vec<u32>,
    queries: Vec<f32>,
    /// The first and the last position that each query sees.
    seen: Vec<(u32, u32)>,
    /// Scores of six queries with a tile's keys, then their weights.
    scores: Tile,
    /// Sums of values, weighted by `scores`.
    sums: Tile,
    /// Weights of a tile, rounded to pairs.
    weights: Vec<u32>,
    out: Vec<f32>,
    max: Vec<f32>,
    sum: Vec<f32>,
}

/// Returns about how many bytes [`Scratch`] takes.
pub(crate) fn scratch_bytes(shape: AttnShape, backend: Backend, by_distance: bool) -> usize {
    let rows = rows_of(shape);
    let in_panels =
        (panels::room(shape.head_dim) + 2 * rows * shape.head_dim + 4 * rows + 2 * MR * NR)
            * size_of::<f32>();
    #[cfg(target_arch = "x86_64")]
    if on_tiles(backend).is_some() {
        let in_panels = if by_distance { in_panels } else { 0 };
        return tiles::scratch_bytes(shape.head_dim) + in_panels;
    }
    let _ = (backend, by_distance);
    in_panels
}

/// Returns the instructions, if they are tiles.
fn on_tiles(backend: Backend) -> Option<Supported> {
    (backend.act == InputForm::Tiles).then_some(backend.isa)
}

/// Returns the number of tokens of a task of about `rows` rows.
fn block_of(shape: AttnShape, rows: usize) -> usize {
    (rows * shape.kv_heads / shape.heads).max(1)
}

fn rows_of(shape: AttnShape) -> usize {
    block_of(shape, ROWS) * shape.heads / shape.kv_heads
}

impl Scratch {
    /// Makes attention of a shape, `by_distance` if that of some layers depends on distances.
    pub(crate) fn new(shape: AttnShape, backend: Backend, by_distance: bool) -> Self {
        let mut scratch = Self::default();
        #[cfg(target_arch = "x86_64")]
        if let Some(isa) = on_tiles(backend) {
            scratch.tiles = Some(tiles::TileScratch::new(isa, shape.head_dim));
            if !by_distance {
                return scratch;
            }
        }
        let _ = (backend, by_distance);
        scratch.fit(shape, rows_of(shape));
        scratch
    }

    /// Grows to `rows` rows; a no-op after [`Self::new`] for the same shape.
    fn fit(&mut self, shape: AttnShape, rows: usize) {
        fn grow<T: Default + Clone>(v: &mut Vec<T>, len: usize) {
            if v.len() < len {
                v.resize(len, T::default());
            }
        }
        let dim = shape.head_dim;
        self.panels.fit(dim);
        grow(&mut self.pairs, rows * dim.div_ceil(2));
        grow(&mut self.queries, rows * dim);
        grow(&mut self.seen, rows);
        grow(&mut self.weights, MR * NR / 2);
        grow(&mut self.out, rows * dim);
        grow(&mut self.max, rows);
        grow(&mut self.sum, rows);
    }
}

/// The blocks of a tile, and those of the next tile, which are fetched meanwhile.
type BlocksAndNext<'a> = (&'a InBlocks<'a>, Option<&'a InBlocks<'a>>);

/// The positions that the tokens of a segment see.
#[derive(Clone, Copy)]
struct Sight {
    /// The last position of the segment, if tokens see later ones.
    whole_end: Option<u32>,
    /// Positions on either side that a token sees, if not all.
    window: Option<u32>,
}

impl Sight {
    fn first_seen(self, position: u32) -> u32 {
        self.window
            .map_or(0, |window| position.saturating_sub(window))
    }

    fn last_seen(self, position: u32) -> u32 {
        let last = self.whole_end.unwrap_or(position);
        self.window
            .map_or(last, |window| last.min(position.saturating_add(window)))
    }
}

/// Queries of a task, and the keys that they see: `group` rows for each token. They lie in one segment,
/// or in several that share their first keys.
#[derive(Clone)]
struct Queries<'a> {
    tokens: Range<usize>,
    /// The positions of the tokens.
    positions: &'a [u32],
    /// The places of the keys of all positions up to the end of the (first) segment.
    path: &'a [KvSpan],
    sight: Sight,
    kv_head: usize,
    /// Query heads that read the key-value head.
    group: usize,
}

impl Queries<'_> {
    /// Returns the number of rows.
    fn rows(&self) -> usize {
        self.tokens.len() * self.group
    }

    /// Returns the token of a row.
    const fn token(&self, row: usize) -> usize {
        self.tokens.start + row / self.group
    }

    /// Returns the query head of a row.
    const fn head(&self, row: usize) -> usize {
        self.kv_head * self.group + row % self.group
    }

    /// Returns the position of a row's token.
    const fn position(&self, row: usize) -> u32 {
        self.positions[row / self.group]
    }

    /// Returns the first position that a row's token sees.
    fn first_seen(&self, row: usize) -> u32 {
        self.sight.first_seen(self.position(row))
    }

    /// Returns the last position that a row's token sees.
    fn last_seen(&self, row: usize) -> u32 {
        self.sight.last_seen(self.position(row))
    }
}

/// The attention of one layer for a chunk of the step's tokens.
pub(crate) struct Attention<'a, E> {
    pub(crate) layout: &'a StepLayout,
    pub(crate) kv: &'a Kv<E>,
    pub(crate) layer: usize,
    pub(crate) shape: AttnShape,
    /// Positions on either side that a token sees, if not all.
    pub(crate) window: Option<u32>,
    /// Numbers added to scores: see [`prelude_models::Distances::bias`].
    pub(crate) bias: Option<&'a [f32]>,
    /// Tokens of the chunk.
    pub(crate) rows: Range<usize>,
    /// `[chunk, qkv_width]`, q normalised and rotated.
    pub(crate) qkv: &'a [f32],
}

impl<E: KvElement> Attention<'_, E> {
    /// Writes `out`: `[chunk, out_width]`.
    pub(crate) fn run(
        &self,
        pool: &ComputePool,
        backend: Backend,
        scratch: &PerWorker<Scratch>,
        out: &mut [f32],
    ) {
        let shape = self.shape;
        let group_width = shape.heads / shape.kv_heads * shape.head_dim;
        // Decode rows share no keys: spread them over all workers. Prompts do: whole blocks.
        let count = self.rows.len();
        let segments = self.segments(self.rows.clone()).count();
        let (rows, per_ns) = match on_tiles(backend) {
            Some(_) => (TASK_ROWS_ON_TILES, 64),
            None => (ROWS, 16),
        };
        let block = block_of(shape, rows);
        let block = if segments * 2 > count {
            count.div_ceil(2 * pool.threads()).min(block)
        } else {
            block
        };
        let context: usize = self
            .segments(self.rows.clone())
            .map(|(_, s)| {
                let window = self.window.map_or(usize::MAX, |w| 2 * w as usize + NR);
                (s.end_position() as usize).min(window) * s.len.min(count)
            })
            .sum();
        let cost_ns = context * shape.out_width() / per_ns;
        pool.tiles(
            out,
            shape.out_width(),
            (block, group_width),
            cost_ns,
            |worker, mut tile| {
                let mut scratch = scratch.get(worker);
                self.run_task(backend, &mut scratch, &mut tile);
            },
        );
    }

    /// Returns the segments that have some of these tokens, with their numbers.
    fn segments(
        &self,
        tokens: Range<usize>,
    ) -> impl Iterator<Item = (usize, &StepSegment)> + Clone {
        let all = &self.layout.segments;
        let first = all.partition_point(|s| s.end() <= tokens.start);
        let last = tokens.end;
        let segments = all.iter().enumerate().skip(first);
        segments.take_while(move |(_, s)| s.first < last)
    }

    fn run_task(&self, backend: Backend, scratch: &mut Scratch, tile: &mut TileMut<'_, f32>) {
        let first = self.rows.start + tile.first_row;
        let last = first + tile.rows;
        let mut paths = std::mem::take(&mut scratch.paths);
        let segments = self.segments(first..last);
        let count = segments.clone().count();
        paths.resize(paths.len().max(count), Vec::new());
        for ((i, _), path) in segments.clone().zip(&mut paths) {
            self.layout.path(i, path);
        }
        let first_segment = segments.clone().next().map_or(0, |(i, _)| i);
        let kv_head = tile.first_col * self.shape.kv_heads / self.shape.out_width();
        let part = |at: usize| {
            let segment = &self.layout.segments[first_segment + at];
            let tokens = first.max(segment.first)..last.min(segment.end());
            self.queries(segment, tokens, &paths[at], kv_head)
        };
        // Tiles know neither windows nor biases nor caps.
        #[cfg(target_arch = "x86_64")]
        let on_tiles = on_tiles(backend).filter(|_| self.is_plain());
        let mut at = 0;
        while at < count {
            #[cfg(target_arch = "x86_64")]
            if let Some(isa) = on_tiles {
                self.run_on_tiles(isa, &part(at), scratch, tile);
                at += 1;
                continue;
            }
            // Those behind the first that share its first keys go with it.
            let (begin, mut shared) = (at, u32::MAX);
            at += 1;
            while at < count {
                let both = self.shared_keys(&part(at - 1), &part(at)).min(shared);
                if both == 0 {
                    break;
                }
                (at, shared) = (at + 1, both);
            }
            self.run_in_panels(backend, (begin..at).map(&part), shared, scratch, tile);
        }
        scratch.paths = paths;
    }

    /// Returns the queries of some tokens of a segment.
    fn queries<'q>(
        &'q self,
        segment: &StepSegment,
        tokens: Range<usize>,
        path: &'q [KvSpan],
        kv_head: usize,
    ) -> Queries<'q> {
        let is_whole = self.shape.attention == VisibleTokens::Full;
        Queries {
            positions: &self.layout.positions[tokens.clone()],
            tokens,
            path,
            sight: Sight {
                whole_end: is_whole.then(|| segment.end_position() - 1),
                window: self.window,
            },
            kv_head,
            group: self.shape.heads / self.shape.kv_heads,
        }
    }

    /// Returns how many of the first positions, in whole tiles, have the same keys for both, all of which
    /// both see.
    fn shared_keys(&self, a: &Queries<'_>, b: &Queries<'_>) -> u32 {
        if self.window.is_some() || a.sight.whole_end.is_some() {
            return 0;
        }
        let shared = locations::shared(self.layout, a.path, b.path);
        let shared = shared.min(a.positions[0]).min(b.positions[0]);
        shared / NR as u32 * NR as u32
    }

    /// Returns true if scores do not depend on distances and are not bounded.
    #[cfg(target_arch = "x86_64")]
    fn is_plain(&self) -> bool {
        self.window.is_none() && self.bias.is_none() && self.shape.soft_cap.is_none()
    }

    /// Returns the key and the value of a head, `i` positions behind a location that has rows.
    fn head(&self, location: KvLocation, i: usize, kv_head: usize) -> (&[E], &[E]) {
        let row = match location {
            KvLocation::Slot(slot) => self.kv.slot(self.layer, slot + i),
            KvLocation::Token(token) => self.kv.token(token + i),
        };
        let (keys, values) = row.split_at(self.kv.half);
        let dim = self.shape.head_dim;
        let head = kv_head * dim..(kv_head + 1) * dim;
        (&keys[head.clone()], &values[head])
    }

    /// Returns the query of a row.
    fn query(&self, queries: &Queries<'_>, row: usize) -> &[f32] {
        let (width, dim) = (self.shape.qkv_width(), self.shape.head_dim);
        let (token, head) = (queries.token(row), queries.head(row));
        &self.qkv[(token - self.rows.start) * width + head * dim..][..dim]
    }

    /// Returns the place of a row's output.
    fn out<'t>(
        &self,
        queries: &Queries<'_>,
        row: usize,
        tile: &'t mut TileMut<'_, f32>,
    ) -> &'t mut [f32] {
        let dim = self.shape.head_dim;
        let out = tile.row(queries.token(row) - self.rows.start - tile.first_row);
        &mut out[row % queries.group * dim..][..dim]
    }

    /// Returns the positions of the keys that queries see, in tiles.
    fn tiles(&self, queries: &Queries<'_>) -> impl Iterator<Item = Range<u32>> + use<E> {
        let begin = queries.first_seen(0) / NR as u32 * NR as u32;
        let end = queries.last_seen(queries.rows() - 1) + 1;
        let starts = (begin..end).step_by(NR);
        starts.map(move |start| start..end.min(start + NR as u32))
    }

    /// Attends by products of panels, [`MR`] queries at a time: all of `parts`
    /// to the keys of the first `shared` positions, if they are several, and then each part to the keys
    /// behind them.
    fn run_in_panels<'q>(
        &self,
        backend: Backend,
        parts: impl Iterator<Item = Queries<'q>> + Clone,
        shared: u32,
        scratch: &mut Scratch,
        tile: &mut TileMut<'_, f32>,
    ) {
        let dim = self.shape.head_dim;
        let (Some(first), Some(last)) = (parts.clone().next(), parts.clone().last()) else {
            return;
        };
        let tokens = first.tokens.start..last.tokens.end;
        let all = Queries {
            positions: &self.layout.positions[tokens.clone()],
            tokens,
            ..first.clone()
        };
        let rows = all.rows();
        scratch.fit(self.shape, rows);
        self.put_queries(backend, &all, scratch);
        let mut behind = 0;
        if all.tokens.end > first.tokens.end {
            behind = shared;
            let tiles = self.tiles(&first).take_while(|tile| tile.end <= shared);
            self.attend_tiles(backend, tiles, &all, 0..rows, scratch);
        }
        for part in parts {
            let before = (part.tokens.start - all.tokens.start) * all.group;
            let rows = before..before + part.rows();
            let tiles = self.tiles(&part).skip_while(|tile| tile.start < behind);
            let of_part = Queries {
                path: part.path,
                ..all.clone()
            };
            self.attend_tiles(backend, tiles, &of_part, rows, scratch);
        }
        for r in 0..rows {
            let out = self.out(&all, r, tile);
            simd::divide(
                backend.isa,
                &scratch.out[r * dim..][..dim],
                scratch.sum[r],
                out,
            );
        }
    }

    /// Attends to tiles of keys, which are on the path of `queries`, for some of the rows.
    fn attend_tiles(
        &self,
        Backend { isa, act }: Backend,
        tiles: impl Iterator<Item = Range<u32>>,
        queries: &Queries<'_>,
        rows: Range<usize>,
        scratch: &mut Scratch,
    ) {
        let mut cursor = 0;
        let mut tiles = tiles.peekable();
        let mut next = None;
        while let Some(positions) = tiles.next() {
            let keys = (positions.start, positions.len());
            let in_blocks = |positions| match rows.len() <= MR {
                true => self.in_blocks((isa, act), queries, cursor, positions),
                false => None,
            };
            let blocks = match next {
                Some(blocks) => Some(blocks),
                None => in_blocks(positions.clone()),
            };
            next = tiles.peek().cloned().and_then(in_blocks);
            if blocks.is_none() {
                let at = (self.layout, &mut cursor);
                self.fill(isa, queries, at, positions, &mut scratch.panels);
            }
            let blocks = blocks.as_ref().map(|blocks| (blocks, next.as_ref()));
            self.attend_keys((isa, act), keys, blocks, (queries, rows.clone()), scratch);
        }
    }

    /// Puts queries in place, and clears what keys are summed to.
    #[inline]
    fn put_queries(
        &self,
        Backend { isa, act }: Backend,
        queries: &Queries<'_>,
        scratch: &mut Scratch,
    ) {
        let dim = self.shape.head_dim;
        let rows = queries.rows();
        for r in 0..rows {
            let q = self.query(queries, r);
            scratch.seen[r] = (queries.first_seen(r), queries.last_seen(r));
            match act {
                InputForm::F32 | InputForm::Tiles => {
                    scratch.queries[r * dim..][..dim].copy_from_slice(q);
                }
                InputForm::Bf16 => {
                    let pairs = &mut scratch.pairs[r * dim / 2..][..dim / 2];
                    simd::bf16_pairs(isa, q, pairs);
                }
            }
        }
        scratch.out[..rows * dim].fill(0.0);
        scratch.max[..rows].fill(f32::NEG_INFINITY);
        scratch.sum[..rows].fill(0.0);
    }

    /// Takes the keys and values of positions `start..start + keys` into account, which are packed if
    /// they are not in `blocks`, for [`MR`] queries at a time.
    #[inline]
    fn attend_keys(
        &self,
        (isa, act): (Supported, InputForm),
        (start, keys): (u32, usize),
        blocks: Option<BlocksAndNext<'_>>,
        (queries, rows): (&Queries<'_>, Range<usize>),
        scratch: &mut Scratch,
    ) {
        let dim = self.shape.head_dim;
        let panel = dim / E::PER_DWORD * NR;
        let begin = rows.start;
        for first in rows.clone().step_by(MR) {
            let count = MR.min(rows.end - first);
            let all = first..first + count;
            let seen = &scratch.seen[all.clone()];
            if seen[count - 1].1 < start || seen[0].0 >= start + NR as u32 {
                continue;
            }
            let (rows, stride) = match act {
                InputForm::F32 | InputForm::Tiles => {
                    (Rows::F32(&scratch.queries[first * dim..]), dim)
                }
                InputForm::Bf16 => (Rows::Bf16(&scratch.pairs[first * dim / 2..]), dim / 2),
            };
            let scores = &mut scratch.scores;
            match (blocks, rows) {
                (Some((blocks, next)), Rows::Bf16(rows)) => {
                    let keys = blocks.keys(next.filter(|_| first == begin));
                    multiply_pieces(isa, rows, stride, count, keys, scores);
                }
                _ => {
                    let panel = E::panel(&scratch.panels.keys[..panel]);
                    multiply(isa, rows, stride, count, Right::new(panel, keys), scores);
                }
            }
            let scores = &mut scores.0[..count];
            let mut softened = [RowScores::default(); MR];
            for (i, (scores, &(first_seen, last_seen))) in scores.iter_mut().zip(seen).enumerate() {
                // A row whose last key lies before this tile is finished, and one whose first key
                // lies behind it has not begun: leave it alone.
                if last_seen >= start && first_seen < start + NR as u32 {
                    let unseen = first_seen.saturating_sub(start) as usize;
                    softened[i] = RowScores {
                        scale: self.weigh_distances(
                            isa,
                            scores,
                            (start, unseen),
                            queries,
                            first + i,
                        ),
                        visible: ((last_seen - start) as usize + 1).min(NR),
                    };
                }
            }
            let (max, sum) = (&mut scratch.max[all.clone()], &mut scratch.sum[all]);
            let factors = simd::softmax_tile(isa, scores, &softened, max, sum);
            if act == InputForm::Bf16 {
                let weights = &mut scratch.weights[..count * NR / 2];
                simd::bf16_pairs(isa, scores.as_flattened(), weights);
            }
            let blocks = blocks.map(|(of, next)| (of, next.filter(|_| first == begin)));
            let keys = (keys, blocks);
            self.add_values((isa, act), keys, (first, count), factors, scratch);
        }
    }

    /// Takes windows, biases and caps into account in the scores of a row with the keys of positions
    /// from `start` on, the first `unseen` of which it does not see. Returns the factor that the scores still lack.
    #[inline]
    fn weigh_distances(
        &self,
        isa: Supported,
        scores: &mut [f32; NR],
        (start, unseen): (u32, usize),
        queries: &Queries<'_>,
        row: usize,
    ) -> f32 {
        let mut scale = self.shape.scale;
        if let Some(cap) = self.shape.soft_cap {
            simd::soft_cap(isa, scores, scale, cap);
            scale = 1.0;
        }
        let scale = match self.bias {
            None => scale,
            Some(bias) => {
                let bias = HeadBias::new(bias, self.shape.heads, queries.head(row));
                let position = queries.position(row);
                for (key, score) in (start..).zip(scores.iter_mut()) {
                    *score = *score * scale + bias.at(position, key);
                }
                1.0
            }
        };
        scores[..unseen].fill(f32::NEG_INFINITY);
        scale
    }

    /// Adds the values, weighted by `scores`, to the sums of queries `first..first + count`.
    #[inline]
    fn add_values(
        &self,
        (isa, act): (Supported, InputForm),
        (keys, blocks): (usize, Option<BlocksAndNext<'_>>),
        (first, count): (usize, usize),
        factors: [Option<f32>; MR],
        scratch: &mut Scratch,
    ) {
        let dim = self.shape.head_dim;
        let (weights, stride) = match act {
            InputForm::F32 | InputForm::Tiles => (Rows::F32(scratch.scores.0.as_flattened()), NR),
            InputForm::Bf16 => (Rows::Bf16(&scratch.weights), NR / 2),
        };
        let depth = keys.div_ceil(E::PER_DWORD) * NR;
        for (j, first_col) in (0..dim).step_by(NR).enumerate() {
            let cols = NR.min(dim - first_col);
            match (blocks, weights) {
                (Some((blocks, next)), Rows::Bf16(weights)) => {
                    let parts = blocks.parts(first_col);
                    let next = next.map(|next| next.parts(first_col));
                    let right = blocks.values(first_col, &parts, next.as_ref());
                    multiply_pieces(isa, weights, stride, count, right, &mut scratch.sums);
                }
                _ => {
                    let panel = &scratch.panels.values[j * NR / E::PER_DWORD * NR..][..depth];
                    let right = Right::new(E::panel(panel), cols);
                    multiply(isa, weights, stride, count, right, &mut scratch.sums);
                }
            }
            for (i, sums) in scratch.sums.0.iter().enumerate().take(count) {
                if let Some(factor) = factors[i] {
                    let out = &mut scratch.out[(first + i) * dim + first_col..][..cols];
                    simd::scale_add(isa, out, factor, &sums[..cols]);
                }
            }
        }
    }
}

/// The numbers that one head adds to scores, by distance.
#[derive(Clone, Copy)]
struct HeadBias<'a> {
    by_distance: &'a [f32],
}

impl<'a> HeadBias<'a> {
    fn new(bias: &'a [f32], heads: usize, head: usize) -> Self {
        let count = bias.len() / heads;
        Self {
            by_distance: &bias[head * count..][..count],
        }
    }

    /// Returns the number for a query and a key at these positions.
    fn at(self, query: u32, key: u32) -> f32 {
        let reach = self.by_distance.len() as i64 / 2;
        let distance = (i64::from(key) - i64::from(query)).clamp(-reach, reach);
        self.by_distance[(distance + reach) as usize]
    }
}
