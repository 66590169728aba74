//! Byte-pair encoding of characters, as SentencePiece does it: Llama 2, Mistral, Gemma and their like.
//!
//! Texts are characters here and not bytes, spaces are the visible `▁`, no pattern splits a text
//! into words before it is merged, and a character that the vocabulary lacks becomes one token per
//! byte (`<0xE2>`).
//!
//! [`cut_table`] shows where a text can be cut nevertheless, and proves that this changes no result.
//! [`run_encoder`] is the way from a text to ids, and [`CharBpe::encode`] the plain one, for offsets and
//! for models that are not simple.

mod char_bpe_builder;
mod char_run;
mod characters;
mod compiled_char_bpe;
mod cut_table;
mod direct_text;
mod letter_table;
mod merge_rules;
mod run_encoder;
mod unmerged_tokens;

pub(crate) use direct_text::Direct;
pub(crate) use merge_rules::MergeRules;

use crate::cache::Owner;
use crate::compare::Scalar;
use crate::heap_merge::HeapMerge;
use crate::pairs::{NO_RANK, PairTable};
use crate::pieces::Token;
use crate::short_tokens::{Key, ShortTokenTable};
use crate::store::Relocatable;
use cut_table::CutTable;
use letter_table::{LetterTable, push_swapped, swapped};
use std::collections::HashMap;
use std::ops::ControlFlow;

/// The value that stands for a missing id.
pub(crate) const NO_ID: u32 = u32::MAX;

/// A model: characters, bytes, merges.
#[derive(Debug)]
pub(crate) struct CharBpe {
    /// Tokens that are one character.
    letters: LetterTable,
    /// `<0x00>` and so on, where the file asks for them; else [`NO_ID`].
    bytes: [u32; 256],
    pub(crate) unk: Option<u32>,
    fuse_unk: bool,
    /// Rank and result of each pair.
    pairs: PairTable,
    cut_table: CutTable,
    /// Short tokens that their characters are merged to.
    words: ShortTokenTable,
    /// The id of the model in the threads' caches.
    owner: Owner,
    /// The texts that are a token whatever the merges say, with `ignore_merges`.
    whole: Option<HashMap<String, u32>>,
    /// True if every character has a token or bytes.
    complete: bool,
}

/// Memory for merging, kept between pieces.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// A piece as texts spell it.
    spelled: Vec<u8>,
    /// The first symbols of a piece, and the number of bytes that each stands for.
    symbols: Vec<(u32, u32)>,
    heap: HeapMerge,
}

impl CharBpe {
    /// Calls `each` with the tokens of the parts of `word` that are merged alone, in order.
    pub(crate) fn encode(
        &self,
        word: &str,
        (scratch, tokens): (&mut Scratch, &mut Vec<Token>),
        mut each: impl FnMut(&[Token]) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        tokens.clear();
        if let Some(id) = self.whole_word(word) {
            let (start, end) = (0, word.len());
            tokens.push(Token { id, start, end });
            return each(tokens);
        }
        // Positions count the bytes of symbols; vanishing characters have none.
        let mut at = 0;
        self.pieces(word, |piece| {
            tokens.clear();
            self.merge(piece, scratch, |id, len| {
                let (start, end) = (at, at + len as usize);
                tokens.push(Token { id, start, end });
                at = end;
            });
            each(tokens)
        })
    }

    /// Appends the ids of the tokens that [`CharBpe::encode`] finds. Those for which `taken` is true
    /// are not used: the characters of a part with one are not merged, and written in bytes or as the
    /// unknown token if they are taken themselves.
    pub(crate) fn push_ids(
        &self,
        word: &str,
        taken: impl Fn(u32) -> bool,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) {
        if let Some(id) = self.whole_word(word).filter(|id| !taken(*id)) {
            return out.push(id);
        }
        let _ = self.pieces(word, |piece| {
            let before = out.len();
            self.merge(piece, scratch, |id, _| out.push(id));
            if out[before..].iter().any(|id| taken(*id)) {
                out.truncate(before);
                self.unmerged(piece, &taken, |id| out.push(id));
            }
            ControlFlow::Continue(())
        });
    }

    /// Returns all tables, in falling order of how often encoding reads them.
    fn tables(&mut self) -> impl Iterator<Item = &mut dyn Relocatable> {
        let first = self.letters.tables().into_iter();
        let second = self.cut_table.tables().into_iter();
        let rest = second.chain(self.pairs.tables());
        first.chain(rest).chain([self.words.table()])
    }

    /// Returns the token of a character.
    #[inline]
    fn char_id(&self, c: char) -> Option<u32> {
        let id = self.letters.of(c).id;
        (id != NO_ID).then_some(id)
    }

    /// Returns true if some rule may join two characters.
    fn joins(&self, left: char, right: char) -> bool {
        let [left, right] = [left, right].map(|c| (swapped(c).into(), self.letters.of(c)));
        self.cut_table.rank(&self.pairs, left, right) != NO_RANK
    }

    /// Calls `each` with parts of `word` that can be merged alone, in order.
    #[inline]
    fn pieces<'w>(
        &self,
        word: &'w str,
        mut each: impl FnMut(&'w str) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut start = 0;
        let mut chars = word.char_indices();
        let Some((_, mut left)) = chars.next() else {
            return ControlFlow::Continue(());
        };
        for (at, right) in chars {
            // A known character also ends a pending unknown token.
            if !self.joins(left, right) && (self.complete || self.char_id(right).is_some()) {
                each(&word[start..at])?;
                start = at;
            }
            // The characters around a vanishing character become neighbours.
            if self.complete || !self.vanishes(right) {
                left = right;
            }
        }
        each(&word[start..])
    }

    /// Returns true if a character has no token, bytes or unknown token, and vanishes.
    fn vanishes(&self, c: char) -> bool {
        let lacks = |byte: u8| self.bytes[usize::from(byte)] == NO_ID;
        self.unk.is_none()
            && self.char_id(c).is_none()
            && c.encode_utf8(&mut [0; 4]).bytes().any(lacks)
    }

    /// Returns the token of a whole text that is one whatever the merges say.
    fn whole_word(&self, word: &str) -> Option<u32> {
        self.whole.as_ref()?.get(word).copied()
    }

    /// Calls `each` with the tokens of a piece and the bytes that each stands for.
    #[inline]
    fn merge(&self, piece: &str, scratch: &mut Scratch, mut each: impl FnMut(u32, u32)) {
        scratch.spelled.clear();
        push_swapped(piece, &mut scratch.spelled);
        let key = Key::new(&scratch.spelled, 0, scratch.spelled.len());
        let line = self.words.home(key.hash());
        if let Some(id) = self.words.get::<Scalar>(key, line) {
            return each(id, piece.len() as u32);
        }
        self.merge_all(piece, scratch, each);
    }

    /// Does the work of [`CharBpe::merge`] without looking the piece itself up.
    fn merge_all(&self, piece: &str, scratch: &mut Scratch, each: impl FnMut(u32, u32)) {
        let Scratch { symbols, heap, .. } = scratch;
        symbols.clear();
        self.symbols(piece, symbols);
        heap.merge(&self.pairs, symbols.drain(..), each);
    }

    /// Calls `each` with the tokens that a long list of tokens is merged to.
    fn merge_many(
        &self,
        ids: impl Iterator<Item = u32>,
        scratch: &mut Scratch,
        mut each: impl FnMut(u32),
    ) {
        let symbols = ids.map(|id| (id, 0));
        scratch.heap.merge(&self.pairs, symbols, |id, _| each(id));
    }

    /// Builds the symbols of `piece`, as the reference does. The reference keeps an unknown
    /// character back until a known one comes, also past characters that become bytes.
    fn symbols(&self, piece: &str, symbols: &mut Vec<(u32, u32)>) {
        let mut push = |id, len| symbols.push((id, len));
        let mut unknown: Option<u32> = None;
        for c in piece.chars() {
            let len = c.len_utf8() as u32;
            if let Some(id) = self.char_id(c) {
                if let (Some(id), Some(len)) = (self.unk, unknown.take()) {
                    push(id, len);
                }
                push(id, len);
                continue;
            }
            let mut buffer = [0; 4];
            let bytes = c.encode_utf8(&mut buffer).bytes();
            if bytes.clone().all(|b| self.bytes[usize::from(b)] != NO_ID) {
                for byte in bytes {
                    push(self.bytes[usize::from(byte)], 1);
                }
                continue;
            }
            let Some(id) = self.unk else { continue };
            unknown = match unknown {
                Some(before) if self.fuse_unk => Some(before + len),
                Some(before) => {
                    push(id, before);
                    Some(len)
                }
                None => Some(len),
            };
        }
        if let (Some(id), Some(len)) = (self.unk, unknown) {
            push(id, len);
        }
    }

    /// Calls `each` with the symbols of a text without merging and without ids that `avoid` names,
    /// which are replaced by bytes or the unknown token.
    fn unmerged(&self, piece: &str, avoid: impl Fn(u32) -> bool, mut each: impl FnMut(u32)) {
        for c in piece.chars() {
            if let Some(id) = self.char_id(c).filter(|id| !avoid(*id)) {
                each(id);
                continue;
            }
            let mut buffer = [0; 4];
            let bytes = c.encode_utf8(&mut buffer).bytes();
            let bytes = bytes.map(|b| self.bytes[usize::from(b)]);
            if bytes.clone().all(|id| id != NO_ID) {
                bytes.for_each(&mut each);
            } else if let Some(id) = self.unk {
                each(id);
            }
        }
    }
}
