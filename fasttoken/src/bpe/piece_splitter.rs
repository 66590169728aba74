//! Merging of a new word, piece by piece.
//!
//! A word falls into pieces at the places that no merge crosses ([`crate::premerge`]).

use super::byte_merge::Symbols;
use super::{Bpe, NO_TOKEN};
use crate::ablation::FastPath;
use crate::heap_merge::HeapMerge;
use crate::premerge::{self, NOT_PREMERGED};
use crate::scan_merge::MAX_SCAN_SYMBOLS;
use std::ops::Range;

/// The largest number of symbols of a piece that is merged in line.
const MAX_SMALL_SYMBOLS: usize = 8;

/// The largest number of bytes of an ASCII word that is merged as one piece: finding places that no
/// merge crosses takes longer than merging across them.
const MAX_WHOLE_ASCII_BYTES: usize = 16;

impl Bpe {
    /// Splits a word of valid UTF-8 into pieces, merges each piece, and appends its tokens.
    ///
    /// A word with a byte that has no token is merged whole: the byte vanishes, and its neighbours,
    /// which are adjacent in no text, become adjacent.
    #[inline(never)]
    pub(super) fn merge_pieces(&self, word: &[u8], merging: &mut HeapMerge, out: &mut Vec<u32>) {
        if self.loses_bytes && word.iter().any(|byte| !self.has_byte(*byte)) {
            return self.merge(word, merging, out);
        }
        let mut symbols = Symbols::default();
        if word.len() <= MAX_WHOLE_ASCII_BYTES && word.is_ascii() && FastPath::WholeAscii.is_taken()
        {
            self.fill_with_bytes(&mut symbols, word);
            return self.merge_piece(word, 0..word.len(), &mut symbols, merging, out);
        }
        // The start of the piece, and the character before `at` if it is premerged to one token.
        let (mut start, mut left_char) = (0, premerge::NO_CHAR);
        // True if the last symbol is that character alone.
        let mut last_is_one_char = false;
        // The last byte and code point before `at`, and those of the character before it.
        let (mut previous, mut earlier) = ((0, premerge::NO_CHAR), (0, premerge::NO_CHAR));
        let (mut at, mut lead) = (0, word.first().copied().unwrap_or(0));
        let (mut code, mut end) = char_of_word(word, 0, lead);
        while at < word.len() {
            let next_lead = word.get(end).copied().unwrap_or(0);
            let (next, next_end) = char_of_word(word, end, next_lead);
            let [token, second] = if lead.is_ascii() {
                [self.byte_ids[usize::from(lead)], NO_TOKEN]
            } else {
                self.premerged.get(code, previous, (next, next_lead))
            };
            if token == NOT_PREMERGED {
                let char_pair = if last_is_one_char {
                    self.premerged.char_pair(left_char, code, earlier)
                } else {
                    NO_TOKEN
                };
                if char_pair == NO_TOKEN {
                    for &byte in &word[at..end] {
                        symbols.push(self.byte_ids[usize::from(byte)]);
                    }
                    left_char = premerge::NO_CHAR;
                } else {
                    symbols.replace_last(char_pair);
                    left_char = code;
                }
                last_is_one_char = false;
            } else if second != NO_TOKEN {
                symbols.push(token);
                symbols.push(second);
                left_char = premerge::NO_CHAR;
                last_is_one_char = false;
            } else {
                if left_char != premerge::NO_CHAR {
                    if self.premerged.may_join(left_char, code) {
                        let last = symbols.ids.get(symbols.len.wrapping_sub(1));
                        self.pairs
                            .prefetch(last.copied().unwrap_or(NO_TOKEN), token);
                    } else {
                        self.merge_piece(word, start..at, &mut symbols, merging, out);
                        start = at;
                    }
                }
                symbols.push(token);
                left_char = code;
                last_is_one_char = true;
            }
            earlier = previous;
            previous = (word[end - 1], code);
            (at, lead) = (end, next_lead);
            (code, end) = (next, next_end);
        }
        self.merge_piece(word, start..word.len(), &mut symbols, merging, out);
    }

    /// Appends the tokens of the range `piece` of `word`, whose first symbols are `symbols`. Empties
    /// `symbols`.
    #[inline(always)]
    fn merge_piece(
        &self,
        word: &[u8],
        piece: Range<usize>,
        symbols: &mut Symbols,
        merging: &mut HeapMerge,
        out: &mut Vec<u32>,
    ) {
        let len = std::mem::take(&mut symbols.len);
        let [left, right, ..] = symbols.ids;
        if len == 1 {
            out.push(left);
        } else if len == 2 {
            match self.pairs.merged(left, right) {
                Some(id) => out.push(id),
                None => out.extend([left, right]),
            }
        } else if len <= MAX_SMALL_SYMBOLS {
            let len = self.merge_by_scan::<MAX_SMALL_SYMBOLS>(&mut symbols.ids, len);
            out.extend_from_slice(&symbols.ids[..len]);
        } else {
            self.merge_large_piece(&word[piece], (symbols, len), merging, out);
        }
    }

    /// Sets the symbols of a short word, every byte of which has a token.
    #[inline(always)]
    fn fill_with_bytes(&self, symbols: &mut Symbols, word: &[u8]) {
        for (id, byte) in symbols.ids.iter_mut().zip(word) {
            *id = self.byte_ids[usize::from(*byte)];
        }
        symbols.len = word.len();
    }

    /// Appends the tokens of a large piece.
    #[inline(never)]
    fn merge_large_piece(
        &self,
        piece: &[u8],
        (symbols, len): (&mut Symbols, usize),
        merging: &mut HeapMerge,
        out: &mut Vec<u32>,
    ) {
        let len = match len {
            ..=16 => self.merge_by_scan::<16>(&mut symbols.ids, len),
            17..=MAX_SCAN_SYMBOLS => self.merge_by_scan::<MAX_SCAN_SYMBOLS>(&mut symbols.ids, len),
            _ => return self.merge(piece, merging, out),
        };
        out.extend_from_slice(&symbols.ids[..len]);
    }
}

/// Decodes the character at byte `at` of a word, whose first byte is `lead`. Returns its code point
/// and its end. Words are valid UTF-8, which is not checked again. The code point at the end of the
/// word is [`premerge::NO_CHAR`].
#[inline(always)]
fn char_of_word(word: &[u8], at: usize, lead: u8) -> (u32, usize) {
    let tail = |n: usize| u32::from(word.get(at + n).copied().unwrap_or(0)) & 0x3F;
    let bits = u32::from(lead);
    let (code, len) = match lead {
        _ if at >= word.len() => (premerge::NO_CHAR, 0),
        ..0x80 => (bits, 1),
        0x80..0xE0 => ((bits & 0x1F) << 6 | tail(1), 2),
        0xE0..0xF0 => ((bits & 0x0F) << 12 | tail(1) << 6 | tail(2), 3),
        _ => {
            let code = (bits & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3);
            (code, 4)
        }
    };
    (code, (at + len).min(word.len()))
}
