//! Unigram as SentencePiece computes it: the cut of a text whose pieces have the largest sum of
//! scores, with sums in single precision over the whole text.
//!
//! The order of additions decides between cuts whose sums are nearly equal. So the sum at the end
//! of one chunk is the one with which the next chunk begins: as no piece goes across the end of a
//! chunk, every way through the text passes there, with this sum.

use super::model_file::{Kind, ModelFile};
use crate::error::Error;
use crate::pieces::Token;
use crate::store::Flat;
use crate::trie::Trie;

/// The pieces of a Unigram model with their scores.
#[derive(Debug)]
pub(super) struct Viterbi {
    pub(super) trie: Trie,
    /// The score of each id; NaN for a user-defined symbol, which is preferred to every other cut of
    /// its text.
    pub(super) scores: Flat<f32>,
    pub(super) unk: u32,
    pub(super) unk_score: f32,
}

/// The best way to the end of a part of a chunk.
#[derive(Debug, Clone, Copy)]
struct Best {
    score: f32,
    id: u32,
    /// The byte at which the last piece begins, or [`UNREACHED`].
    start: usize,
}

const UNREACHED: usize = usize::MAX;

/// The difference between the smallest score and that of an unknown character.
const UNK_PENALTY: f32 = 10.0;

/// The sum beyond which all sums are counted from zero again, so that they stay precise.
const MAX_SUM: f32 = 100_000.0;

/// Memory kept between chunks, and the sum of scores at the end of the last chunk.
#[derive(Debug, Default)]
pub(super) struct Lattice {
    best: Vec<Best>,
    sum: f32,
}

impl Viterbi {
    pub(super) fn new(file: &ModelFile, unk: u32) -> Result<Self, Error> {
        let normal = file.of_kind(Kind::Normal).map(|(_, piece)| piece.score);
        let least = normal.fold(f32::MAX, f32::min);
        let used = (0..).zip(&file.pieces).filter_map(|(id, piece)| {
            let used = matches!(piece.kind, Kind::Normal | Kind::UserDefined);
            used.then_some((piece.text.as_str(), id))
        });
        let score = |piece: &super::model_file::Piece| match piece.kind {
            Kind::UserDefined => f32::NAN,
            _ => piece.score,
        };
        Ok(Self {
            trie: Trie::new(used, "pieces")?,
            scores: file.pieces.iter().map(score).collect::<Vec<_>>().into(),
            unk,
            unk_score: least - UNK_PENALTY,
        })
    }

    /// Replaces `out` by the pieces of `chunk`, with the unknown id for each unknown character.
    /// Without `symbols`, user-defined symbols are not used.
    pub(super) fn encode(
        &self,
        chunk: &str,
        symbols: bool,
        lattice: &mut Lattice,
        out: &mut Vec<Token>,
    ) {
        self.fill(chunk, symbols, lattice);
        lattice.sum = lattice.best[chunk.len()].score;
        out.clear();
        let mut end = chunk.len();
        while end > 0 {
            let Best { id, start, .. } = lattice.best[end];
            out.push(Token { id, start, end });
            end = start;
        }
        out.reverse();
    }

    fn fill(&self, chunk: &str, symbols: bool, lattice: &mut Lattice) {
        let bytes = chunk.as_bytes();
        let unreached = Best {
            score: 0.0,
            id: self.unk,
            start: UNREACHED,
        };
        let best = &mut lattice.best;
        best.clear();
        best.resize(bytes.len() + 1, unreached);
        best[0].score = lattice.sum;
        // The furthest byte that was reached.
        let mut reached = 0;
        for (start, c) in chunk.char_indices() {
            if best[start].score.abs() > MAX_SUM {
                rebase(&mut best[start..=reached]);
            }
            let before = best[start].score;
            let mut reach = |end: usize, id: u32, score: f32| {
                reached = reached.max(end);
                let to = &mut best[end];
                let score = score + before;
                // Of two ways with the same sum, the one whose last piece begins first stays.
                if to.start == UNREACHED || score > to.score {
                    *to = Best { score, id, start };
                }
            };
            let mut single = false;
            let mut place = self.trie.root();
            for (at, &byte) in bytes[start..].iter().enumerate() {
                let Some((next, id)) = self.trie.step(place, byte) else {
                    break;
                };
                place = next;
                let Some(id) = id else { continue };
                let len = at + 1;
                let score = match self.scores[id as usize] {
                    score if !score.is_nan() => score,
                    _ if symbols => symbol_score(len),
                    _ => continue,
                };
                reach(start + len, id, score);
                single |= len == c.len_utf8();
            }
            if !single {
                reach(start + c.len_utf8(), self.unk, self.unk_score);
            }
        }
    }
}

/// Counts the sums of ways from that of the first one.
fn rebase(best: &mut [Best]) {
    let first = best[0].score;
    for (n, way) in best.iter_mut().enumerate() {
        if n == 0 || way.start != UNREACHED {
            way.score -= first;
        }
    }
}

/// Returns the score of a user-defined symbol of some bytes.
fn symbol_score(len: usize) -> f32 {
    (0.1 * (len as f64 - 1.0)) as f32
}
