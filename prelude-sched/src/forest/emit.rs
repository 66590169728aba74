//! The forest as segments of a batch, and which of them are kept in KV blocks.

use std::{ops::Range, sync::Arc};

use prelude_core::{BlockId, BlockSpan, OneShotBatch, Residency, Segment, SegmentIdx, TokenId};
use prelude_kv::{BlockHash, KvCache, Reclaim};

use super::{Cursor, Forest, Joined, Row, align};
use crate::length::length_of;

/// The blocks that a step fills for later requests, published when it has completed.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Parents come first.
    pub(crate) segments: Vec<KeptSegment>,
    /// The blocks of all segments, one segment after the other.
    pub(crate) blocks: Vec<BlockId>,
    /// The hash of the prefix that ends with each block.
    pub(crate) hashes: Vec<BlockHash>,
    /// The tokens of all blocks.
    pub(crate) tokens: Vec<TokenId>,
}

/// A segment with whole blocks that a step keeps.
#[derive(Clone, Debug)]
pub(crate) struct KeptSegment {
    /// The row for which the segment is computed, in the order of [`Forest::add`].
    pub(crate) row: usize,
    pub(crate) salt: Option<Arc<str>>,
    pub(crate) after: After,
    /// The number of blocks of the segment's prompt before the segment's own.
    pub(crate) before: usize,
    /// The segment's blocks: a range of [`Kept::blocks`].
    pub(crate) blocks: Range<usize>,
}

impl Kept {
    /// Takes blocks for `tokens`, which follow a prefix of this hash, as far as there are any. Without
    /// `may_evict`, a cached block is evicted for a prefix alone that was used more often.
    fn take(
        &mut self,
        tokens: &[TokenId],
        hash: BlockHash,
        may_evict: bool,
        cache: &mut KvCache,
    ) -> Range<usize> {
        let first = self.blocks.len();
        let mut has_room = true;
        for (tokens, hash) in tokens
            .chunks_exact(cache.block_size())
            .zip(hash.blocks(tokens, cache.block_size()))
        {
            let block = match may_evict {
                _ if !has_room => None,
                true => cache.allocate(Reclaim::Evict),
                false => cache.allocate_for(hash),
            };
            let Some(block) = block else {
                if may_evict {
                    break;
                }
                has_room = false;
                cache.count_unkept(hash);
                continue;
            };
            self.hashes.push(hash);
            self.blocks.push(block);
            self.tokens.extend_from_slice(tokens);
        }
        first..self.blocks.len()
    }
}

/// The predecessor of kept blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// The predecessor is a cached block, held by the step; `None`: there is no predecessor.
    Cached(Option<BlockId>),
    /// The last block of this earlier segment, an index of [`Kept::segments`].
    Segment(usize),
}

/// The rows that would find the beginning of a segment in the cache if it were kept.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Readers {
    /// The number of rows of this step, or waiting for room, whose prompts begin with the segment's.
    pub(super) rows: u32,
    /// The position before which the segment serves one of these rows.
    pub(super) until: u32,
}

/// The forest as a batch.
#[derive(Debug, Default)]
pub(crate) struct Emitted {
    /// The end of each row's prompt and its cost, in the order of [`Forest::add`].
    pub(crate) rows: Vec<(SegmentIdx, Joined)>,
    pub(crate) kept: Kept,
    /// Blocks of the roots, held until the step has completed.
    pub(crate) pins: Vec<BlockId>,
}

/// A run of the forest's nodes that nothing but their prompt trees separates: a segment.
#[derive(Debug)]
pub(super) struct Piece {
    /// The piece above; `None` for one that follows a cached prefix.
    pub(super) parent: Option<usize>,
    /// The cached prefix at the piece's root.
    pub(super) prefix: usize,
    /// Positions `start..end` of a prompt.
    pub(super) start: u32,
    pub(super) end: u32,
    /// The piece's tokens, a range of the batch's.
    pub(super) tokens: Range<u32>,
    /// The row for which the piece is computed.
    pub(super) owner: usize,
}

impl Forest {
    /// Appends the forest to a batch, taking blocks for what is to be kept, if anything may be. It
    /// may compute up to `room` tokens twice, so that more can be kept.
    pub(crate) fn emit(
        mut self,
        batch: &mut OneShotBatch,
        cache: &mut KvCache,
        may_keep: bool,
        room: u32,
    ) -> Emitted {
        if self.out_of_order {
            self = self.in_order();
        }
        let wanted = self.wanted();
        let first_segment = length_of(batch.segments.len());
        let first_token = batch.tokens.len();
        let (mut pieces, piece_of) = self.pieces(batch);
        let segment_of = |piece: usize| SegmentIdx(first_segment + length_of(piece));
        let mut ends = self.ends(&piece_of);
        let mut wanted: Vec<(usize, u32)> = wanted
            .iter()
            .map(|&(node, needed)| (piece_of[node], needed))
            .collect();
        let mut readers = self.readers(&ends, &wanted, &pieces);
        if may_keep && let Some(lifts) = align::choose(&pieces, &readers, room, cache) {
            let aligned = align::apply(&lifts, &pieces, &ends, &mut batch.tokens, first_token);
            for (piece, last) in ends.iter_mut().chain(&mut wanted) {
                *piece = aligned.piece_with(*piece, *last);
            }
            pieces = aligned.pieces;
            readers = self.readers(&ends, &wanted, &pieces);
            self.count_again(&pieces);
        }
        for prefix in &self.prefixes {
            cache.count_use(&prefix.blocks);
        }
        let mut spans = vec![BlockSpan::EMPTY; self.prefixes.len()];
        for &root in &self.roots {
            spans[root] = push_blocks(batch, &self.prefixes[root].blocks);
        }
        let mut kept = Kept::default();
        let mut kept_of: Vec<Option<usize>> = vec![None; pieces.len()];
        for (i, piece) in pieces.iter().enumerate() {
            let above = piece.parent.map(|parent| kept_of[parent]);
            let mut residency = Residency::Transient;
            if may_keep
                && let Some(span) = self.keep(piece, readers[i], above, batch, &mut kept, cache)
            {
                residency = Residency::Keep(span);
                kept_of[i] = Some(kept.segments.len() - 1);
            }
            batch.segments.push(Segment {
                tokens: piece.tokens.clone(),
                parent: piece.parent.map(segment_of),
                context_len: piece.start,
                cached: match piece.parent {
                    None => spans[piece.prefix],
                    Some(_) => BlockSpan::EMPTY,
                },
                residency,
            });
        }
        let rows = ends.iter().zip(&self.rows);
        Emitted {
            rows: rows
                .map(|(&(piece, _), row)| (segment_of(piece), row.joined))
                .collect(),
            kept,
            pins: self.prefixes.into_iter().flat_map(|p| p.blocks).collect(),
        }
    }

    /// Takes blocks for a piece if it is worth keeping and there are any. `above` is the kept segment of
    /// the piece above, if there is such a piece.
    fn keep(
        &self,
        piece: &Piece,
        readers: Readers,
        above: Option<Option<usize>>,
        batch: &mut OneShotBatch,
        kept: &mut Kept,
        cache: &mut KvCache,
    ) -> Option<BlockSpan> {
        if readers.rows == 0 || !piece.start.is_multiple_of(self.block_size) {
            return None;
        }
        let (after, hash) = self.follows(piece, above, kept)?;
        let served = piece.end.min(readers.until).max(piece.start) - piece.start;
        let own = &batch.tokens[piece.tokens.start as usize..][..served as usize];
        // A prefix that rows share may evict older ones, since it is likely to return. What one row has
        // may do so if it returns more often than they do: a suffix seen once must not push out a prefix
        // that returns (PrefillOnly §5.1).
        let may_evict = readers.rows > 1;
        let blocks = kept.take(own, hash, may_evict, cache);
        if blocks.is_empty() {
            return None;
        }
        let span = push_blocks(batch, &kept.blocks[blocks.clone()]);
        kept.segments.push(KeptSegment {
            row: piece.owner,
            salt: self.prefixes[piece.prefix].salt.clone(),
            after,
            before: (piece.start / self.block_size) as usize,
            blocks,
        });
        Some(span)
    }

    /// Appends the tokens of all nodes to a batch: parents before children, trees one after the
    /// other, older children first. Returns the pieces in this order, and the piece of each node.
    fn pieces(&self, batch: &mut OneShotBatch) -> (Vec<Piece>, Vec<usize>) {
        let children = self.radix.children();
        let is_root = |&node: &usize| self.radix.nodes[node].parent.is_none();
        let mut open: Vec<usize> = (0..self.radix.nodes.len()).rev().filter(is_root).collect();
        let mut pieces: Vec<Piece> = Vec::with_capacity(self.radix.nodes.len());
        let mut piece_of = vec![0; self.radix.nodes.len()];
        while let Some(node) = open.pop() {
            open.extend(children[node].iter().rev());
            let here = &self.radix.nodes[node];
            let Some(parent) = here.parent else {
                continue;
            };
            let above = &self.radix.nodes[parent];
            let is_alone = children[parent].len() == 1 && !above.is_cut;
            batch.tokens.extend_from_slice(self.radix.tokens(node));
            let end = length_of(batch.tokens.len());
            if here.continues && is_alone {
                piece_of[node] = piece_of[parent];
                let piece = &mut pieces[piece_of[parent]];
                piece.end = here.end;
                piece.tokens.end = end;
            } else {
                piece_of[node] = pieces.len();
                pieces.push(Piece {
                    parent: above.parent.map(|_| piece_of[parent]),
                    prefix: here.prefix,
                    start: here.start,
                    end: here.end,
                    tokens: end - (here.end - here.start)..end,
                    owner: here.owner,
                });
            }
        }
        (pieces, piece_of)
    }

    /// Returns what the blocks of a piece would follow without a gap, and the hash of the prefix up
    /// to there. `above` is the kept segment of the piece above, if there is such a piece.
    fn follows(
        &self,
        piece: &Piece,
        above: Option<Option<usize>>,
        kept: &Kept,
    ) -> Option<(After, BlockHash)> {
        let Some(segment) = above else {
            let prefix = &self.prefixes[piece.prefix];
            let last = prefix.blocks.last().copied();
            return Some((After::Cached(last), prefix.hash));
        };
        let above = segment?;
        let KeptSegment { before, blocks, .. } = &kept.segments[above];
        let end = (before + blocks.len()) * self.block_size as usize;
        let is_gapless = end == piece.start as usize;
        is_gapless.then(|| (After::Segment(above), kept.hashes[blocks.end - 1]))
    }

    /// Returns the piece and the position of each row's last token.
    fn ends(&self, piece_of: &[usize]) -> Vec<(usize, u32)> {
        let end_of = |row: &Row| {
            let depth = self.radix.trees[row.tree].prompt_len(row.node);
            let node = row.last;
            let node = self.radix.node_of(Cursor { node, depth });
            (piece_of[node], depth - 1)
        };
        self.rows.iter().map(end_of).collect()
    }

    /// Notes anew what rows share and what is computed for each, after pieces were moved.
    fn count_again(&mut self, pieces: &[Piece]) {
        let mut computed = vec![0; self.rows.len()];
        for piece in pieces {
            computed[piece.owner] += piece.end - piece.start;
        }
        for (row, computed) in self.rows.iter_mut().zip(computed) {
            let Joined {
                shared,
                computed: before,
                ..
            } = row.joined;
            row.joined.shared = shared + before - computed;
            row.joined.computed = computed;
        }
    }

    /// Returns, of each piece, the rows of which it is a prefix and which could have read a block
    /// of it from the cache. `ends` has the piece of each row's last token, `wanted` those of rows
    /// without room, each with the first position that it needs.
    ///
    /// The last token is always computed, but a prompt that goes on behind it reads it: so the
    /// block that ends with it counts.
    fn readers(
        &self,
        ends: &[(usize, u32)],
        wanted: &[(usize, u32)],
        pieces: &[Piece],
    ) -> Vec<Readers> {
        let mut readers = vec![Readers::default(); pieces.len()];
        let rows = ends.iter().zip(&self.rows);
        let rows = rows.map(|(&(piece, _), row)| (piece, row.needed));
        for (piece, needed) in rows.chain(wanted.iter().copied()) {
            let until = needed + 1;
            let mut at = Some(piece);
            while let Some(piece) = at.filter(|&p| pieces[p].start + self.block_size > until) {
                at = pieces[piece].parent;
            }
            if let Some(piece) = at {
                readers[piece].rows += 1;
                readers[piece].until = readers[piece].until.max(until);
            }
        }
        for (i, piece) in pieces.iter().enumerate().rev() {
            if let Some(parent) = piece.parent {
                let Readers { rows, until } = readers[i];
                readers[parent].rows += rows;
                readers[parent].until = readers[parent].until.max(until);
            }
        }
        readers
    }
}

/// Appends blocks to a batch's list.
pub(crate) fn push_blocks(batch: &mut OneShotBatch, blocks: &[BlockId]) -> BlockSpan {
    let start = length_of(batch.block_ids.len());
    batch.block_ids.extend_from_slice(blocks);
    BlockSpan {
        start,
        len: length_of(blocks.len()),
    }
}
