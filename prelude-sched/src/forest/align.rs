//! Moves the start of a segment back to the edge of a block, so that its blocks can be kept.
//!
//! ```text
//! before                          after (blocks of 16)
//! [ 0 .. 20 )──┬─[ 20 .. 90 )     [ 0 .. 16 )──┬─[ 16 .. 90 )
//!              └─[ 20 .. 80 )                  └─[ 16 .. 80 )
//! ```
//!
//! A block holds the keys and values of one prompt. Prompts that part inside a block can keep what
//! follows only if each of them computes that block from its edge: a few tokens now, so that the
//! rest need not be computed again.

use std::{cmp::Reverse, ops::Range};

use prelude_core::TokenId;
use prelude_kv::KvCache;

use super::emit::{Piece, Readers};
use crate::length::length_of;

/// Fewest tokens that a suffix of one row must keep for each token computed twice. Such a suffix
/// may never come again, unlike a prefix that rows share, which need only keep more than it costs.
const MIN_GAIN: u32 = 8;

/// The places of pieces of which some are to start earlier.
#[derive(Debug, Default)]
pub(super) struct Lifts {
    /// The start of each piece: the piece's own or the edge of a block before it.
    starts: Vec<u32>,
    /// The nearest piece above each piece that starts before it; `None`: a cached prefix.
    above: Vec<Option<usize>>,
}

/// The end of what is read of a part, and the first row that reads as much: the part is computed
/// for that row, up to there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Read {
    end: u32,
    row: Reverse<usize>,
}

/// Pieces after some were moved.
#[derive(Debug)]
pub(super) struct Aligned {
    pub(super) pieces: Vec<Piece>,
    /// The parts of each piece before: a range of `parts`.
    ranges: Vec<Range<usize>>,
    /// The number of the piece that each part became.
    parts: Vec<usize>,
}

impl Aligned {
    /// Returns the piece that holds a position, given the piece that held it before.
    pub(super) fn piece_with(&self, piece: usize, position: u32) -> usize {
        let parts = &self.parts[self.ranges[piece].clone()];
        let holds = |&&part: &&usize| position < self.pieces[part].end;
        let last = parts.last().expect("a piece has a part");
        *parts.iter().find(holds).unwrap_or(last)
    }
}

/// Chooses the pieces worth moving for at most `room` more tokens; `None` if there are none.
pub(super) fn choose(
    pieces: &[Piece],
    readers: &[Readers],
    room: u32,
    cache: &KvCache,
) -> Option<Lifts> {
    let size = length_of(cache.block_size());
    if pieces.iter().all(|piece| piece.start.is_multiple_of(size)) {
        return None;
    }
    let (mut room, mut free) = (room, cache.free_blocks());
    let mut lifts = Lifts::default();
    let mut is_any = false;
    // True for a piece whose whole blocks will follow kept or cached ones without a gap.
    let mut keeps = vec![false; pieces.len()];
    for (i, piece) in pieces.iter().enumerate() {
        let edge = piece.start - piece.start % size;
        let mut above = piece.parent;
        while let Some(parent) = above.filter(|&parent| lifts.starts[parent] >= edge) {
            above = lifts.above[parent];
        }
        let Readers { rows, until } = readers[i];
        let blocks = (piece.end.min(until).max(edge) - edge) / size;
        let (cost, gain) = (piece.start - edge, blocks * size);
        let is_worth = match rows {
            0 => false,
            1 => blocks <= free && gain >= MIN_GAIN * cost,
            _ => gain > cost,
        };
        keeps[i] = is_worth && cost <= room && above.is_none_or(|above| keeps[above]);
        if keeps[i] {
            room -= cost;
            free = free.saturating_sub(blocks);
            is_any |= cost > 0;
        }
        let moves = keeps[i] && cost > 0;
        lifts.starts.push(if moves { edge } else { piece.start });
        lifts.above.push(if moves { above } else { piece.parent });
    }
    is_any.then_some(lifts)
}

/// The pieces cut where moved ones begin.
struct Parts<'a> {
    lifts: &'a Lifts,
    /// The parts: the piece that each is of, and its positions.
    parts: Vec<(usize, Range<u32>)>,
    /// The parts of each piece: a range of `parts`.
    ranges: Vec<Range<usize>>,
}

impl<'a> Parts<'a> {
    fn new(lifts: &'a Lifts, pieces: &[Piece]) -> Self {
        let mut cuts = vec![Vec::new(); pieces.len()];
        for (i, piece) in pieces.iter().enumerate() {
            if lifts.starts[i] < piece.start
                && let Some(above) = lifts.above[i]
            {
                cuts[above].push(lifts.starts[i]);
            }
        }
        let mut parts = Vec::with_capacity(pieces.len());
        let mut ranges = Vec::with_capacity(pieces.len());
        for (i, cuts) in cuts.iter_mut().enumerate() {
            cuts.sort_unstable();
            let first = parts.len();
            let mut start = lifts.starts[i];
            for end in cuts.drain(..).chain([pieces[i].end]) {
                if start < end {
                    parts.push((i, start..end));
                    start = end;
                }
            }
            ranges.push(first..parts.len());
        }
        Self {
            lifts,
            parts,
            ranges,
        }
    }

    /// Returns the part of a piece that has a position.
    fn part_with(&self, piece: usize, position: u32) -> usize {
        let range = self.ranges[piece].clone();
        let parts = &self.parts[range.clone()];
        range.start + parts.partition_point(|(_, part)| part.end <= position)
    }

    /// Returns the part above a part.
    fn parent_of(&self, part: usize) -> Option<usize> {
        let (piece, positions) = &self.parts[part];
        match part > self.ranges[*piece].start {
            true => Some(part - 1),
            false => {
                self.lifts.above[*piece].map(|above| self.part_with(above, positions.start - 1))
            }
        }
    }

    /// Returns what is read of each part. Nothing may read the rest of a piece if all that followed
    /// it was moved. `ends` has the piece and the position of each row's last token.
    fn read(&self, ends: &[(usize, u32)]) -> Vec<Option<Read>> {
        let mut read: Vec<Option<Read>> = vec![None; self.parts.len()];
        for (row, &(piece, last)) in ends.iter().enumerate() {
            let part = self.part_with(piece, last);
            let (end, row) = (last + 1, Reverse(row));
            read[part] = read[part].max(Some(Read { end, row }));
        }
        for part in (0..self.parts.len()).rev() {
            if let (Some(Read { row, .. }), Some(parent)) = (read[part], self.parent_of(part)) {
                let end = self.parts[parent].1.end;
                read[parent] = read[parent].max(Some(Read { end, row }));
            }
        }
        read
    }
}

/// Moves pieces: cuts those above where a moved one now begins, and drops what nothing reads any
/// longer. `tokens` are the batch's, those of the pieces from `first` on; `ends` has the piece and
/// the position of each row's last token.
pub(super) fn apply(
    lifts: &Lifts,
    pieces: &[Piece],
    ends: &[(usize, u32)],
    tokens: &mut Vec<TokenId>,
    first: usize,
) -> Aligned {
    let parts = Parts::new(lifts, pieces);
    let read = parts.read(ends);
    let old = tokens.split_off(first);
    let mut aligned = Aligned {
        pieces: Vec::with_capacity(read.len()),
        ranges: Vec::new(),
        parts: Vec::with_capacity(read.len()),
    };
    for (part, (piece, positions)) in parts.parts.iter().enumerate() {
        let parent = parts.parent_of(part).map(|parent| aligned.parts[parent]);
        let Some(Read { end, row }) = read[part] else {
            // A prompt that waits for room may end here: it finds the part before.
            aligned.parts.push(parent.unwrap_or(0));
            continue;
        };
        aligned.parts.push(aligned.pieces.len());
        let from = length_of(tokens.len());
        let mut position = positions.start;
        while position < end {
            // The piece that had the tokens: this one, or one above it.
            let mut source = &pieces[*piece];
            while source.start > position {
                source = &pieces[source
                    .parent
                    .expect("a piece that starts behind a position of its prompt has a parent")];
            }
            let next = end.min(source.end);
            let at = source.tokens.start as usize - first + (position - source.start) as usize;
            tokens.extend_from_slice(&old[at..][..(next - position) as usize]);
            position = next;
        }
        aligned.pieces.push(Piece {
            parent,
            prefix: pieces[*piece].prefix,
            start: positions.start,
            end,
            tokens: from..length_of(tokens.len()),
            owner: row.0,
        });
    }
    aligned.ranges = parts.ranges;
    aligned
}
