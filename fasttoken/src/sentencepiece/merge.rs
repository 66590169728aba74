//! Byte-pair encoding from characters, with bytes for characters that are unknown.

use super::cut_table::CutTable;
use super::letters::{Letter, Letters, push_swapped, swapped};
use crate::cache::Owner;
use crate::compare::Scalar;
use crate::heap_merge::HeapMerge;
use crate::pairs::{NO_RANK, PairTable};
use crate::short_tokens::{Key, ShortTokenTable};
use crate::small_merge::{MAX_SYMBOLS, Symbols};
use crate::store::Relocatable;
use std::ops::ControlFlow;

/// The value that stands for a missing id.
pub(super) const NO_ID: u32 = u32::MAX;

pub(super) use crate::pairs::{RANK_MAX, TOKEN_END};

/// The model: characters, bytes, merges.
#[derive(Debug)]
pub(super) struct Model {
    /// Tokens that are one character.
    pub(super) letters: Letters,
    /// `<0x00>` and so on, where the file asks for them; else [`NO_ID`].
    pub(super) bytes: [u32; 256],
    pub(super) unk: Option<u32>,
    pub(super) fuse_unk: bool,
    /// Rank and result of each pair.
    pub(super) pairs: PairTable,
    pub(super) cut_table: CutTable,
    /// Short tokens that their characters are merged to.
    pub(super) words: ShortTokenTable,
    /// The id of the model in the threads' caches.
    pub(super) owner: Owner,
    /// The texts that are a token whatever the merges say, with `ignore_merges`.
    pub(super) whole: Option<std::collections::HashMap<String, u32>>,
    /// True if every character has a token or bytes.
    pub(super) complete: bool,
}

/// Memory for merging, kept between pieces.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// A piece as texts spell it.
    spelled: Vec<u8>,
    /// The first symbols of a piece, and the number of bytes that each stands for.
    symbols: Vec<(u32, u32)>,
    heap: HeapMerge,
}

/// Memory for [`Model::makes`].
#[derive(Debug, Default)]
pub(super) struct Merging {
    ids: Vec<u32>,
    ranks: Vec<u32>,
    symbols: Symbols,
}

impl Model {
    /// Returns all tables, in falling order of how often encoding reads them.
    pub(super) fn tables(&mut self) -> impl Iterator<Item = &mut dyn Relocatable> {
        let first = self.letters.tables().into_iter();
        let rest = self
            .cut_table
            .tables()
            .into_iter()
            .chain(self.pairs.tables());
        first.chain(rest).chain([self.words.table()])
    }

    /// Returns the token of a character.
    #[inline]
    pub(super) fn char_id(&self, c: char) -> Option<u32> {
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
    pub(super) fn pieces<'w>(
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
    pub(super) fn whole_word(&self, word: &str) -> Option<u32> {
        self.whole.as_ref()?.get(word).copied()
    }

    /// Calls `each` with the tokens of a piece and the bytes that each stands for.
    #[inline]
    pub(super) fn merge(&self, piece: &str, scratch: &mut Scratch, mut each: impl FnMut(u32, u32)) {
        scratch.spelled.clear();
        push_swapped(piece, &mut scratch.spelled);
        let key = Key::new(&scratch.spelled, 0, scratch.spelled.len());
        let line = self.words.home(key.hash());
        if let Some(id) = self.words.get::<Scalar>(key, line) {
            return each(id, piece.len() as u32);
        }
        self.merge_all(piece, scratch, each);
    }

    /// Does the work of [`Model::merge`] without looking the piece itself up.
    pub(super) fn merge_all(&self, piece: &str, scratch: &mut Scratch, each: impl FnMut(u32, u32)) {
        let Scratch { symbols, heap, .. } = scratch;
        symbols.clear();
        self.symbols(piece, symbols);
        heap.merge(&self.pairs, symbols.drain(..), each);
    }

    /// Returns true if the characters of a short token merge to it.
    pub(super) fn makes(&self, token: &str, id: u32, merging: &mut Merging) -> bool {
        let Merging {
            ids,
            ranks,
            symbols,
        } = merging;
        ids.clear();
        ranks.clear();
        let mut last: Option<(u32, Letter)> = None;
        for c in token.chars() {
            let next = (swapped(c).into(), self.letters.of(c));
            if let Some(last) = last {
                ranks.push(self.cut_table.rank(&self.pairs, last, next));
            }
            ids.push(next.1.id);
            last = Some(next);
        }
        // Characters that no rule joins stay apart.
        if ids.len() < 2 || ids.len() > MAX_SYMBOLS || ranks.contains(&NO_RANK) {
            return false;
        }
        let (mut count, mut only) = (0, NO_ID);
        symbols.merge(&self.pairs, ids, ranks, |made| {
            (count, only) = (count + 1, made)
        });
        (count, only) == (1, id)
    }

    /// Calls `each` with the tokens that a long list of tokens is merged to.
    pub(super) fn merge_many(
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

    /// Appends the symbols of a text without merging and without ids that `avoid` names, which are
    /// replaced by bytes or the unknown token.
    pub(super) fn unmerged(&self, piece: &str, avoid: impl Fn(u32) -> bool, out: &mut Vec<u32>) {
        for c in piece.chars() {
            if let Some(id) = self.char_id(c).filter(|id| !avoid(*id)) {
                out.push(id);
                continue;
            }
            let mut buffer = [0; 4];
            let bytes = c.encode_utf8(&mut buffer).bytes();
            let bytes = bytes.map(|b| self.bytes[usize::from(b)]);
            if bytes.clone().all(|id| id != NO_ID) {
                out.extend(bytes);
            } else {
                out.extend(self.unk);
            }
        }
    }
}
