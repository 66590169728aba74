//! Merging a word that nobody remembers, part by part ([`crate::atoms`]).

use super::merge::{Merging, SCAN_MAX, Symbols};
use super::{Bpe, NO_TOKEN};
use crate::atoms::{self, NO_ATOM};
use crate::cache::{Cache, SHORT_TOKENS};
use crate::compare::Scalar;
use crate::words::Key;
use std::ops::Range;

/// Parts of so many symbols are merged at once: to look for one that was merged before
/// takes as long.
pub(super) const FEW: usize = 8;

/// Words of up to so many ASCII characters are merged whole: looking for places where they
/// fall apart takes longer than merging what is between these.
const ASCII_MAX: usize = 16;

/// Where parts of words go.
pub(super) trait Parts {
    /// Appends the tokens of a part of `word`, which begins as `symbols`, or room for them, and
    /// empties `symbols`.
    fn part(
        &mut self,
        bpe: &Bpe,
        word: &[u8],
        part: Range<usize>,
        symbols: &mut Symbols,
        rest: (&mut Cache, &mut Merging),
        out: &mut Vec<u32>,
    );
}

/// Merges each part when it comes.
pub(super) struct AtOnce;

impl Parts for AtOnce {
    #[inline(always)]
    fn part(
        &mut self,
        bpe: &Bpe,
        word: &[u8],
        part: Range<usize>,
        symbols: &mut Symbols,
        (cache, merging): (&mut Cache, &mut Merging),
        out: &mut Vec<u32>,
    ) {
        let len = std::mem::take(&mut symbols.len);
        let [left, right, ..] = symbols.ids;
        if len == 1 {
            out.push(left);
        } else if len == 2 {
            match bpe.pairs.merged(left, right) {
                Some(id) => out.push(id),
                None => out.extend([left, right]),
            }
        } else if len <= FEW {
            let len = bpe.merge_by_scan::<FEW>(&mut symbols.ids, len);
            out.extend_from_slice(&symbols.ids[..len]);
        } else {
            bpe.merge_part(word, part, symbols, len, cache, merging, out);
        }
    }
}

impl Bpe {
    /// Merges a word that is valid UTF-8, part by part ([`crate::atoms`]).
    ///
    /// Atoms and their neighbours are known for words of which every byte has a token:
    /// where one vanishes, tokens meet that no text has side by side.
    #[inline(never)]
    pub(super) fn merge_parts<P: Parts>(
        &self,
        word: &[u8],
        (cache, merging): (&mut Cache, &mut Merging),
        parts: &mut P,
        out: &mut Vec<u32>,
    ) {
        if self.loses_bytes && word.iter().any(|byte| !self.has_byte(*byte)) {
            return self.merge(word, merging, out);
        }
        let mut symbols = Symbols::default();
        if word.len() <= ASCII_MAX && word.is_ascii() {
            for (id, byte) in symbols.ids.iter_mut().zip(word) {
                *id = self.byte_ids[usize::from(*byte)];
            }
            symbols.len = word.len();
            let rest = (cache, merging);
            return parts.part(self, word, 0..word.len(), &mut symbols, rest, out);
        }
        // Where the part begins, and the character before `at` if it is an atom of one
        // token.
        let (mut start, mut before) = (0, atoms::NO_CHAR);
        // Whether the last token is that character alone.
        let mut single = false;
        // The last byte and the last character, atom or not, and those before these.
        let (mut previous, mut earlier) = ((0, atoms::NO_CHAR), (0, atoms::NO_CHAR));
        let (mut at, mut lead) = (0, word.first().copied().unwrap_or(0));
        let (mut code, mut end) = char_of_word(word, 0, lead);
        while at < word.len() {
            let next_lead = word.get(end).copied().unwrap_or(0);
            let (next, next_end) = char_of_word(word, end, next_lead);
            let [token, second] = if lead.is_ascii() {
                [self.byte_ids[usize::from(lead)], NO_TOKEN]
            } else {
                self.atoms.get(code, previous, (next, next_lead))
            };
            if token == NO_ATOM {
                let double = if single {
                    self.atoms.double(before, code, earlier)
                } else {
                    NO_TOKEN
                };
                if double == NO_TOKEN {
                    for &byte in &word[at..end] {
                        symbols.push(self.byte_ids[usize::from(byte)]);
                    }
                    before = atoms::NO_CHAR;
                } else {
                    symbols.replace_last(double);
                    before = code;
                }
                single = false;
            } else if second != NO_TOKEN {
                symbols.push(token);
                symbols.push(second);
                before = atoms::NO_CHAR;
                single = false;
            } else {
                if before != atoms::NO_CHAR {
                    if self.atoms.may_join(before, code) {
                        let last = symbols.ids.get(symbols.len.wrapping_sub(1));
                        self.pairs
                            .prefetch(last.copied().unwrap_or(NO_TOKEN), token);
                    } else {
                        let rest = (&mut *cache, &mut *merging);
                        parts.part(self, word, start..at, &mut symbols, rest, out);
                        start = at;
                    }
                }
                symbols.push(token);
                before = code;
                single = true;
            }
            earlier = previous;
            previous = (word[end - 1], code);
            (at, lead) = (end, next_lead);
            (code, end) = (next, next_end);
        }
        let rest = (cache, merging);
        parts.part(self, word, start..word.len(), &mut symbols, rest, out);
    }

    /// Appends the tokens of a part that merging takes a while for.
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "of one function, cut in two")]
    fn merge_part(
        &self,
        word: &[u8],
        part: Range<usize>,
        symbols: &mut Symbols,
        len: usize,
        cache: &mut Cache,
        merging: &mut Merging,
        out: &mut Vec<u32>,
    ) {
        // Whole words were looked for before they came here.
        let whole = part.len() == word.len();
        let part = &word[part];
        let mut new = None;
        if !whole {
            match self.known_part(part, cache, out) {
                Ok(()) => return,
                Err(key) => new = Some(key),
            }
        }
        let before = out.len();
        if len <= 16 {
            let len = self.merge_by_scan::<16>(&mut symbols.ids, len);
            out.extend_from_slice(&symbols.ids[..len]);
        } else if len <= SCAN_MAX {
            let len = self.merge_by_scan::<SCAN_MAX>(&mut symbols.ids, len);
            out.extend_from_slice(&symbols.ids[..len]);
        } else {
            self.merge(part, merging, out);
        }
        // Of parts with more tokens nothing would be found.
        if let Some((key, hash)) = new
            && out.len() - before <= SHORT_TOKENS
        {
            cache.remember_short(self.parts_owner, key, hash, &out[before..]);
        }
    }

    /// Appends the tokens of a part of a word if they are known.
    ///
    /// # Errors
    /// The key and its hash if they are not.
    pub(super) fn known_part(
        &self,
        part: &[u8],
        cache: &Cache,
        out: &mut Vec<u32>,
    ) -> Result<(), (Key, u64)> {
        let key = Key::new(part, 0, part.len());
        let hash = key.hash();
        if self.proved
            && let Some(id) = self.words.get::<Scalar>(key, self.words.home(hash))
        {
            out.push(id);
        } else if let Some((four, tokens)) = cache.short(self.parts_owner, key, hash) {
            out.extend_from_slice(&four[..tokens]);
        } else {
            return Err((key, hash));
        }
        Ok(())
    }
}

/// The character of a word that begins with `lead` at `at`, and where it ends. Words are
/// valid UTF-8, which is not checked again; after the word is [`atoms::NO_CHAR`].
#[inline(always)]
fn char_of_word(word: &[u8], at: usize, lead: u8) -> (u32, usize) {
    let tail = |n: usize| u32::from(word.get(at + n).copied().unwrap_or(0)) & 0x3F;
    let bits = u32::from(lead);
    let (code, len) = match lead {
        _ if at >= word.len() => (atoms::NO_CHAR, 0),
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
