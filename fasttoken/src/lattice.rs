//! The search for the cut of a text whose tokens have the largest sum of scores (Viterbi).

use crate::pieces::Token;
use crate::trie::Trie;
use std::ops::Add;

/// The best way to the end of a part of a text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Best<S> {
    /// The sum of the scores.
    pub(crate) score: S,
    /// The last token.
    id: u32,
    /// The bytes of the last token; 0 if there is no way.
    len: u32,
}

impl<S> Best<S> {
    /// Returns true if there is a way.
    pub(crate) fn is_reached(&self) -> bool {
        self.len > 0
    }
}

/// The best way to each byte of a text. The memory is kept between texts.
#[derive(Debug, Default)]
pub(crate) struct Lattice<S> {
    best: Vec<Best<S>>,
}

impl<S: Copy + PartialOrd + Add<Output = S>> Lattice<S> {
    /// Finds the best way to the end of every part of `text` that begins where the text does, with the
    /// sum `begin` there.
    ///
    /// A character that is no token has the id and the score of `unknown`. `score` returns the score of
    /// a token of some bytes, or `None` if it is not used. `visit` is called with the ways from each
    /// character's beginning on to the furthest byte that was reached, and may change their scores.
    #[inline(always)]
    pub(crate) fn fill(
        &mut self,
        trie: &Trie,
        (text, begin): (&str, S),
        unknown: (u32, S),
        score: impl Fn(u32, usize) -> Option<S>,
        visit: impl Fn(&mut [Best<S>]),
    ) {
        let bytes = text.as_bytes();
        let best = &mut self.best;
        best.clear();
        let (id, len) = (unknown.0, 0);
        let score_of = score;
        best.resize(
            bytes.len() + 1,
            Best {
                score: begin,
                id,
                len,
            },
        );
        let (mut start, mut reached) = (0, 0);
        while start < bytes.len() {
            visit(&mut best[start..=reached]);
            let before = best[start].score;
            let mut reach = |len: usize, id: u32, score: S| {
                reached = reached.max(start + len);
                let to = &mut best[start + len];
                let score = score + before;
                // Of two ways with the same sum, the one whose last token begins first stays.
                if to.len == 0 || score > to.score {
                    let len = len as u32;
                    *to = Best { score, id, len };
                }
            };
            let char_len = char_len(bytes[start]);
            let mut single = false;
            let mut place = trie.root();
            for (at, &byte) in bytes[start..].iter().enumerate() {
                let Some((next, id)) = trie.step(place, byte) else {
                    break;
                };
                place = next;
                let len = at + 1;
                if let Some(id) = id
                    && let Some(score) = score_of(id, len)
                {
                    reach(len, id, score);
                    single |= len == char_len;
                }
            }
            if !single {
                reach(char_len, unknown.0, unknown.1);
            }
            start += char_len;
        }
    }

    /// Returns the sum of scores of the best way to byte `end`.
    pub(crate) fn sum(&self, end: usize) -> S {
        self.best[end].score
    }

    /// Returns the last token of the best way to byte `end`, which is not 0.
    pub(crate) fn last(&self, end: usize) -> Token {
        let Best { id, len, .. } = self.best[end];
        let start = end - len as usize;
        Token { id, start, end }
    }
}

/// Returns the number of bytes of a character by its first byte.
#[inline]
fn char_len(first: u8) -> usize {
    match first {
        0..0x80 => 1,
        0x80..0xE0 => 2,
        0xE0..0xF0 => 3,
        0xF0.. => 4,
    }
}
