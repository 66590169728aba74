//! BPE as SentencePiece computes it: of all neighbours that together are a piece, those with the
//! largest score merge first, and of several with the same score, those that stand furthest left.
//!
//! A `tokenizer.json` ranks pairs instead of pieces. Two pairs that make one piece, such as `▁▁` and
//! `▁` beside `▁` and `▁▁`, have one score here and different ranks there, so that runs of blanks
//! become other pieces there. That is why this model merges by score.

use super::model_file::{Kind, ModelFile};
use super::symbols::Symbols;
use crate::cache::Owner;
use crate::pieces::{Token, Vocab};
use crate::store::Flat;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The scores of a BPE model.
#[derive(Debug)]
pub(super) struct ScoreMerge {
    /// A number for each id that orders as the scores do, or [`NO_MERGE`] for pieces that no merge
    /// makes.
    pub(super) ranks: Flat<u32>,
    /// The bytes of the longest piece.
    pub(super) max_len: usize,
    pub(super) unk: u32,
    /// The id of this model in caches.
    pub(super) owner: Owner,
}

/// The rank of a piece that no merge makes; that of every finite score is larger.
const NO_MERGE: u32 = 0;

/// Memory kept between chunks.
#[derive(Debug, Default)]
pub(super) struct Merging {
    parts: Vec<Part>,
    heap: BinaryHeap<Candidate>,
}

/// A part of the text in a doubly linked list. A part of no bytes was swallowed by a merge.
#[derive(Debug, Clone, Copy)]
struct Part {
    start: usize,
    len: usize,
    id: Option<u32>,
    previous: usize,
    next: usize,
    /// True for a user-defined symbol, which never merges.
    frozen: bool,
}

const NONE: usize = usize::MAX;

/// Two neighbours that may merge: the largest of these is merged first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: Reverse<usize>,
    right: usize,
    /// The bytes of both symbols when the candidate was found. Parts only grow, so a candidate is
    /// outdated exactly if they have another number of bytes now.
    len: usize,
    id: u32,
}

/// A chunk at work.
struct Work<'a> {
    model: &'a ScoreMerge,
    vocab: &'a Vocab,
    chunk: &'a str,
    /// The symbols to find, or `None` if user-defined symbols must not be made.
    symbols: Option<&'a Symbols>,
}

impl ScoreMerge {
    pub(super) fn new(file: &ModelFile, unk: u32) -> Self {
        let rank = |piece: &super::model_file::Piece| match piece.kind {
            Kind::Normal | Kind::UserDefined => ordered(piece.score),
            _ => NO_MERGE,
        };
        let lens = file.pieces.iter().map(|piece| piece.text.len());
        Self {
            ranks: file.pieces.iter().map(rank).collect::<Vec<_>>().into(),
            max_len: lens.max().unwrap_or(0),
            unk,
            owner: Owner::new(),
        }
    }

    /// Replaces `out` by the pieces of `chunk`, with the unknown id for each unknown character.
    /// Without `symbols`, user-defined symbols are not used.
    pub(super) fn encode(
        &self,
        chunk: &str,
        vocab: &Vocab,
        symbols: Option<&Symbols>,
        merging: &mut Merging,
        out: &mut Vec<Token>,
    ) {
        let work = Work {
            model: self,
            vocab,
            chunk,
            symbols,
        };
        work.fill(&mut merging.parts);
        work.merge(merging);
        out.clear();
        let mut at = 0;
        while let Some(part) = merging.parts.get(at) {
            out.push(Token {
                id: part.id.unwrap_or(self.unk),
                start: part.start,
                end: part.start + part.len,
            });
            at = part.next;
        }
    }
}

impl Work<'_> {
    /// Makes a part of every user-defined symbol and every other character.
    fn fill(&self, parts: &mut Vec<Part>) {
        parts.clear();
        let mut start = 0;
        while let Some(c) = self.chunk[start..].chars().next() {
            let rest = &self.chunk[start..];
            let symbol = self.symbols.and_then(|symbols| symbols.longest(rest));
            let len = symbol.map_or_else(|| c.len_utf8(), |(len, _)| len);
            let id = match symbol {
                Some((_, id)) => Some(id),
                None => self.id(start, len),
            };
            let at = parts.len();
            parts.push(Part {
                start,
                len,
                id,
                previous: at.wrapping_sub(1),
                next: at + 1,
                frozen: symbol.is_some(),
            });
            start += len;
        }
        if let Some(last) = parts.last_mut() {
            last.next = NONE;
        }
    }

    /// Returns the piece that these bytes are.
    fn id(&self, start: usize, len: usize) -> Option<u32> {
        let id = self.vocab.id(&self.chunk[start..start + len])?;
        let symbol = self.vocab.is_added(id);
        (!symbol || self.symbols.is_some()).then_some(id)
    }

    fn merge(&self, merging: &mut Merging) {
        let Merging { parts, heap } = merging;
        heap.clear();
        for right in 1..parts.len() {
            heap.extend(self.candidate(parts, right - 1, right));
        }
        while let Some(top) = heap.pop() {
            let (left, right) = (top.left.0, top.right);
            let outdated = parts[left].len == 0
                || parts[right].len == 0
                || parts[left].len + parts[right].len != top.len;
            if outdated {
                continue;
            }
            let next = parts[right].next;
            parts[right].len = 0;
            let part = &mut parts[left];
            (part.len, part.id, part.next) = (top.len, Some(top.id), next);
            let previous = part.previous;
            if next != NONE {
                parts[next].previous = left;
                heap.extend(self.candidate(parts, left, next));
            }
            if previous != NONE {
                heap.extend(self.candidate(parts, previous, left));
            }
        }
    }

    fn candidate(&self, parts: &[Part], left: usize, right: usize) -> Option<Candidate> {
        let (first, second) = (&parts[left], &parts[right]);
        let len = first.len + second.len;
        if first.frozen || second.frozen || len > self.model.max_len {
            return None;
        }
        let id = self.id(first.start, len)?;
        let rank = self.model.ranks[id as usize];
        (rank != NO_MERGE).then_some(Candidate {
            rank,
            left: Reverse(left),
            right,
            len,
            id,
        })
    }
}

/// Returns a number above 0 that orders as a finite score does.
fn ordered(score: f32) -> u32 {
    // The negative zero is below the positive one, as in SentencePiece.
    let bits = score.to_bits();
    if bits >> 31 == 0 {
        bits | 1 << 31
    } else {
        !bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_order_as_scores_do() {
        let scores = [
            f32::MIN,
            -8.5,
            -8.25,
            -1e-40,
            -0.0,
            0.0,
            1e-40,
            3.0,
            f32::MAX,
        ];
        let ranks = scores.map(ordered);
        assert!(ranks.is_sorted_by(|a, b| a < b), "{ranks:?}");
        assert!(ranks[0] > NO_MERGE);
    }
}
