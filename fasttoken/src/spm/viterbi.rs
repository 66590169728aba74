//! Unigram as SentencePiece computes it: the cut of a text whose pieces have the largest sum of
//! scores, with sums in single precision over the whole text.
//!
//! The order of additions decides between cuts whose sums are nearly equal. So the sum at the end
//! of one chunk is the one with which the next chunk begins: as no piece goes across the end of a
//! chunk, every way through the text passes there, with this sum.

use super::model_file::{Kind, ModelFile};
use crate::error::Error;
use crate::lattice::{Best, Lattice};
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

/// The difference between the smallest score and that of an unknown character.
const UNK_PENALTY: f32 = 10.0;

/// The sum beyond which all sums are counted from zero again, so that they stay precise.
const MAX_SUM: f32 = 100_000.0;

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

    /// Replaces `out` by the pieces of `chunk`, with the unknown id for each unknown character. `sum` is
    /// the sum of scores at the end of the chunk before, and becomes that of this one. Without `symbols`,
    /// user-defined symbols are not used.
    pub(super) fn encode(
        &self,
        chunk: &str,
        symbols: bool,
        (lattice, sum): (&mut Lattice<f32>, &mut f32),
        out: &mut Vec<Token>,
    ) {
        let score = |id: u32, len| match self.scores[id as usize] {
            score if !score.is_nan() => Some(score),
            _ => symbols.then(|| symbol_score(len)),
        };
        let unknown = (self.unk, self.unk_score);
        lattice.fill(&self.trie, (chunk, *sum), unknown, score, |ways| {
            if ways[0].score.abs() > MAX_SUM {
                rebase(ways);
            }
        });
        out.clear();
        let mut end = chunk.len();
        *sum = lattice.sum(end);
        while end > 0 {
            let token = lattice.last(end);
            out.push(token);
            end = token.start;
        }
        out.reverse();
    }
}

/// Counts the sums of ways from that of the first one.
fn rebase(ways: &mut [Best<f32>]) {
    let first = ways[0].score;
    for (n, way) in ways.iter_mut().enumerate() {
        if n == 0 || way.is_reached() {
            way.score -= first;
        }
    }
}

/// Returns the score of a user-defined symbol of some bytes.
fn symbol_score(len: usize) -> f32 {
    (0.1 * (len as f64 - 1.0)) as f32
}
