//! A batch of pieces that are merged together, many at a time ([`super::lanes`]).
//!
//! A pending piece reserves room for its tokens in the output, one slot for each symbol. When the
//! batch is full its pieces are merged, their tokens fill the reserved room, and the output behind
//! them moves up:
//!
//! ```text
//! before   tokens | room of piece 1 . . . | tokens | room of piece 2 . . | tokens
//! after    tokens | piece 1 | tokens | piece 2 | tokens
//! ```

use super::Bpe;
#[cfg(target_arch = "x86_64")]
use super::lanes::{BLOCKS, LANES, Lanes};
use super::merge::{HeapScratch, Symbols};
use super::pieces::{MAX_SMALL_SYMBOLS, MergeNow, PieceSink};
use crate::cache::{Cache, SHORT_TOKENS};
use crate::compare::Compare;
#[cfg(target_arch = "x86_64")]
use crate::compare::Vectors;
use crate::short_tokens::Key;
use std::ops::Range;

/// The largest number of symbols of a pending piece. Longer pieces are merged at once.
pub(super) const MAX_BATCHED_SYMBOLS: usize = 16;

/// The number of pending pieces at which the batch is merged. It is several times sixteen, so that
/// pieces of similar length share a block.
const FULL_BATCH_PIECES: usize = 64;
/// Upper bound of pending pieces. Further pieces of the same word are merged at once.
const MAX_PENDING_PIECES: usize = 2 * FULL_BATCH_PIECES;

/// The smallest number of symbols of a pending piece.
const MIN_BATCHED_SYMBOLS: usize = 5;

/// The largest batch that is merged one by one: a block of lanes takes as long as some eight
/// pieces.
#[cfg(target_arch = "x86_64")]
const MAX_SCALAR_PIECES: usize = 8;

/// A piece that is not merged yet.
#[derive(Debug, Clone, Copy)]
struct PendingPiece {
    /// The position in the output of the room for its tokens.
    at: usize,
    /// The number of symbols, which is the size of that room.
    len: usize,
    /// The number of tokens after merging.
    tokens: usize,
    symbols: [u32; MAX_BATCHED_SYMBOLS],
    /// The cache key and its hash, if the piece is cached by itself.
    key: Option<(Key, u64)>,
}

/// A word with pending pieces.
#[derive(Debug, Clone)]
struct PendingWord {
    /// The position in the output of its first token.
    at: usize,
    /// The end of its tokens in the output.
    end: usize,
    /// The number of pending pieces up to the end of this word.
    pieces_end: usize,
    /// The byte range of the word in the text.
    place: Range<usize>,
    key: (Key, u64),
}

/// Pending pieces and the words that they belong to.
#[derive(Debug)]
pub(super) struct MergeBatch {
    pieces: Vec<PendingPiece>,
    words: Vec<PendingWord>,
    #[cfg(target_arch = "x86_64")]
    lanes: Lanes,
}

impl Default for MergeBatch {
    fn default() -> Self {
        Self {
            pieces: Vec::with_capacity(MAX_PENDING_PIECES),
            words: Vec::with_capacity(MAX_PENDING_PIECES),
            #[cfg(target_arch = "x86_64")]
            lanes: Lanes::EMPTY,
        }
    }
}

impl PieceSink for MergeBatch {
    #[inline(always)]
    fn merge_piece(
        &mut self,
        bpe: &Bpe,
        word: &[u8],
        piece: Range<usize>,
        symbols: &mut Symbols,
        rest: (&mut Cache, &mut HeapScratch),
        out: &mut Vec<u32>,
    ) {
        // Pieces of a word of several pieces are short: merging them costs as little as batching.
        let least = if piece.len() < word.len() {
            MAX_SMALL_SYMBOLS + 1
        } else {
            MIN_BATCHED_SYMBOLS
        };
        let waits = self.pieces.len() < MAX_PENDING_PIECES
            && (least..=MAX_BATCHED_SYMBOLS).contains(&symbols.len);
        if waits {
            self.push_piece(bpe, word, piece, symbols, rest.0, out);
        } else {
            MergeNow.merge_piece(bpe, word, piece, symbols, rest, out);
        }
    }
}

impl MergeBatch {
    /// Appends the tokens of a cached piece, or makes the piece pending.
    #[inline(never)]
    fn push_piece(
        &mut self,
        bpe: &Bpe,
        word: &[u8],
        piece: Range<usize>,
        symbols: &mut Symbols,
        cache: &mut Cache,
        out: &mut Vec<u32>,
    ) {
        let len = std::mem::take(&mut symbols.len).min(MAX_BATCHED_SYMBOLS);
        let mut key = None;
        if piece.len() < word.len() {
            match bpe.cached_piece(&word[piece], cache, out) {
                Ok(()) => return,
                Err(new) => key = Some(new),
            }
        }
        let mut first = [0; MAX_BATCHED_SYMBOLS];
        first.copy_from_slice(&symbols.ids[..MAX_BATCHED_SYMBOLS]);
        self.pieces.push(PendingPiece {
            at: out.len(),
            len,
            tokens: 0,
            symbols: first,
            key,
        });
        out.extend_from_slice(&first[..len]);
    }

    /// Drops the pieces that a call left behind because it panicked.
    pub(super) fn clear(&mut self) {
        self.pieces.clear();
        self.words.clear();
    }

    /// Returns true if the batch should be merged before the next word.
    pub(super) fn is_full(&self) -> bool {
        self.pieces.len() >= FULL_BATCH_PIECES
    }

    /// Appends the tokens of a new word, or reserves room for them. The word stands at `place` of
    /// the text `bytes`.
    pub(super) fn push_word(
        &mut self,
        bpe: &Bpe,
        bytes: &[u8],
        place: Range<usize>,
        key: (Key, u64),
        (cache, merging): (&mut Cache, &mut HeapScratch),
        out: &mut Vec<u32>,
    ) {
        let (at, pieces) = (out.len(), self.pieces.len());
        let word = &bytes[place.clone()];
        bpe.merge_pieces(word, (&mut *cache, merging), self, out);
        if self.pieces.len() > pieces {
            self.words.push(PendingWord {
                at,
                end: out.len(),
                pieces_end: self.pieces.len(),
                place,
                key,
            });
        } else {
            bpe.cache_tokens(word, key, cache, &out[at..]);
        }
    }

    /// Merges all pending pieces, writes their tokens to `out`, and closes the gaps behind them.
    /// `bytes` is the text.
    pub(super) fn finish<C: Compare>(
        &mut self,
        bpe: &Bpe,
        bytes: &[u8],
        cache: &mut Cache,
        out: &mut Vec<u32>,
    ) {
        let Some(first) = self.words.first() else {
            return;
        };
        for word in &self.words {
            cache.prefetch(word.key.1);
        }
        let mut moving = Compactor {
            from: first.at,
            to: first.at,
        };
        self.merge::<C>(bpe);
        let mut pieces = self.pieces.iter();
        let mut done = 0;
        for word in &self.words {
            moving.copy_until(word.at, out);
            let at = moving.to;
            for piece in pieces.by_ref().take(word.pieces_end - done) {
                moving.copy_until(piece.at, out);
                let tokens = &piece.symbols[..piece.tokens];
                moving.put(tokens, piece.len, out);
                if let Some((key, hash)) = piece.key
                    && piece.tokens <= SHORT_TOKENS
                {
                    cache.insert_short(bpe.piece_owner, key, hash, tokens);
                }
            }
            done = word.pieces_end;
            moving.copy_until(word.end, out);
            let text = &bytes[word.place.clone()];
            bpe.cache_tokens(text, word.key, cache, &out[at..moving.to]);
        }
        moving.copy_until(out.len(), out);
        out.truncate(moving.to);
        self.clear();
    }

    fn merge<C: Compare>(&mut self, bpe: &Bpe) {
        #[cfg(target_arch = "x86_64")]
        if self.pieces.len() > MAX_SCALAR_PIECES
            && let Some(vectors) = C::VECTORS
        {
            return self.merge_together(vectors, bpe);
        }
        for piece in &mut self.pieces {
            let mut symbols = Symbols::default();
            symbols.ids[..piece.len].copy_from_slice(&piece.symbols[..piece.len]);
            piece.tokens = bpe.merge_by_scan::<MAX_BATCHED_SYMBOLS>(&mut symbols.ids, piece.len);
            piece
                .symbols
                .copy_from_slice(&symbols.ids[..MAX_BATCHED_SYMBOLS]);
        }
    }

    /// Merges sixteen pieces at a time. Pieces of similar length share a block, because each lane
    /// waits for the longest piece.
    #[cfg(target_arch = "x86_64")]
    fn merge_together(&mut self, vectors: Vectors, bpe: &Bpe) {
        let mut starts = [0; MAX_BATCHED_SYMBOLS + 2];
        for piece in &self.pieces {
            starts[piece.len + 1] += 1;
        }
        for len in 1..starts.len() {
            starts[len] += starts[len - 1];
        }
        let mut order = [0; MAX_PENDING_PIECES];
        for (n, piece) in self.pieces.iter().enumerate() {
            order[starts[piece.len]] = n as u8;
            starts[piece.len] += 1;
        }
        for some in order[..self.pieces.len()].chunks(LANES * BLOCKS) {
            let blocks = some.chunks(LANES).zip(&mut self.lanes.blocks);
            for (some, block) in blocks {
                block.lens = [0; LANES];
                for (lane, &n) in some.iter().enumerate() {
                    let piece = &self.pieces[usize::from(n)];
                    block.lens[lane] = piece.len as u32;
                    for (ids, symbol) in block.ids.iter_mut().zip(&piece.symbols[..piece.len]) {
                        ids[lane] = *symbol;
                    }
                }
            }
            let blocks = some.len().div_ceil(LANES);
            self.lanes.merge_with(vectors, blocks, &bpe.pairs);
            for (some, block) in some.chunks(LANES).zip(&self.lanes.blocks) {
                for (lane, &n) in some.iter().enumerate() {
                    let piece = &mut self.pieces[usize::from(n)];
                    let mut left = block.alive[lane];
                    piece.tokens = left.count_ones() as usize;
                    for token in &mut piece.symbols[..piece.tokens] {
                        *token = block.ids[left.trailing_zeros() as usize][lane];
                        left &= left - 1;
                    }
                }
            }
        }
    }
}

/// Moves tokens of the output forward over unused room.
struct Compactor {
    from: usize,
    to: usize,
}

impl Compactor {
    /// Moves the tokens before position `end`.
    fn copy_until(&mut self, end: usize, out: &mut [u32]) {
        // A call of a copy function costs more than copying a few numbers.
        while self.from < end {
            out[self.to] = out[self.from];
            self.to += 1;
            self.from += 1;
        }
    }

    /// Writes `tokens` in place of the next `room` slots.
    fn put(&mut self, tokens: &[u32], room: usize, out: &mut [u32]) {
        out[self.to..self.to + tokens.len()].copy_from_slice(tokens);
        self.to += tokens.len();
        self.from += room;
    }
}
