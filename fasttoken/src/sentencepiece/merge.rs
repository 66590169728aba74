//! Byte-pair encoding from characters, with bytes for characters that are unknown.

use super::borders::Borders;
use super::letters::{Letter, Letters, push_swapped, swapped};
use crate::cache::Owner;
use crate::compare::Scalar;
use crate::pairs::{NO_RANK, PairTable};
use crate::short_tokens::{Key, ShortTokenTable};
use crate::small_merge::{MAX_SYMBOLS, Symbols};
use crate::store::Movable;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::ControlFlow;

/// The value that stands for a missing id.
pub(super) const NO_ID: u32 = u32::MAX;

pub(super) use crate::pairs::{RANK_MAX, TOKEN_END};

/// The largest number of symbols that are merged by scanning.
const SCAN_MAX: usize = 32;

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
    pub(super) borders: Borders,
    /// Short tokens that their characters are merged to.
    pub(super) words: ShortTokenTable,
    /// The id of the model in the threads' caches.
    pub(super) owner: Owner,
    /// The texts that are a token whatever the merges say, with `ignore_merges`.
    pub(super) whole: Option<std::collections::HashMap<String, u32>>,
    /// True if every character has a token or bytes.
    pub(super) complete: bool,
}

/// One symbol: an id and the number of bytes it stands for.
#[derive(Debug, Clone, Copy)]
struct Symbol {
    id: u32,
    len: u32,
    /// The merge with the symbol after it; `NO_RANK` also where this was swallowed.
    rank: u32,
    merged: u32,
    previous: u32,
    next: u32,
}

/// Memory for merging, kept between pieces.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// A piece as texts spell it.
    spelled: Vec<u8>,
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Reverse<u64>>,
}

const NONE: u32 = u32::MAX;

/// Memory for [`Model::makes`].
#[derive(Debug, Default)]
pub(super) struct Merging {
    ids: Vec<u32>,
    ranks: Vec<u32>,
    symbols: Symbols,
}

impl Model {
    /// Returns all tables, in falling order of how often encoding reads them.
    pub(super) fn tables(&mut self) -> impl Iterator<Item = &mut dyn Movable> {
        let first = self.letters.tables().into_iter();
        let rest = self.borders.tables().into_iter().chain(self.pairs.tables());
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
        self.borders.rank(&self.pairs, left, right) != NO_RANK
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
    pub(super) fn merge_all(
        &self,
        piece: &str,
        scratch: &mut Scratch,
        mut each: impl FnMut(u32, u32),
    ) {
        let Scratch { symbols, heap, .. } = scratch;
        symbols.clear();
        self.symbols(piece, symbols);
        if symbols.len() <= SCAN_MAX {
            self.scan(symbols);
            for symbol in &*symbols {
                each(symbol.id, symbol.len);
            }
            return;
        }
        self.by_heap(symbols, heap);
        let mut at = 0;
        while let Some(symbol) = symbols.get(at as usize) {
            each(symbol.id, symbol.len);
            at = symbol.next;
        }
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
                ranks.push(self.borders.rank(&self.pairs, last, next));
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
        let Scratch { symbols, heap, .. } = scratch;
        symbols.clear();
        symbols.extend(ids.map(|id| Symbol {
            id,
            len: 0,
            rank: NO_RANK,
            merged: 0,
            previous: 0,
            next: 0,
        }));
        self.by_heap(symbols, heap);
        let mut at = 0;
        while let Some(symbol) = symbols.get(at as usize) {
            each(symbol.id);
            at = symbol.next;
        }
    }

    /// Builds the symbols of `piece`, as the reference does. The reference keeps an unknown
    /// character back until a known one comes, also past characters that become bytes.
    fn symbols(&self, piece: &str, symbols: &mut Vec<Symbol>) {
        let mut push = |id, len| {
            symbols.push(Symbol {
                id,
                len,
                rank: NO_RANK,
                merged: 0,
                previous: 0,
                next: 0,
            });
        };
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

    #[inline]
    fn rule(&self, left: u32, right: u32) -> (u32, u32) {
        let rank = self.pairs.rank(left, right);
        if rank == NO_RANK {
            return (NO_RANK, 0);
        }
        (rank, self.pairs.product(rank))
    }

    fn scan(&self, symbols: &mut Vec<Symbol>) {
        for at in 1..symbols.len() {
            let (rank, merged) = self.rule(symbols[at - 1].id, symbols[at].id);
            symbols[at - 1].rank = rank;
            symbols[at - 1].merged = merged;
        }
        loop {
            let (mut best, mut at) = (NO_RANK, 0);
            for (n, symbol) in symbols.iter().enumerate() {
                if symbol.rank < best {
                    (best, at) = (symbol.rank, n);
                }
            }
            if best == NO_RANK {
                return;
            }
            let right = symbols.remove(at + 1);
            symbols[at].id = symbols[at].merged;
            symbols[at].len += right.len;
            let after = symbols.get(at + 1).map(|next| next.id);
            let (rank, merged) = after.map_or((NO_RANK, 0), |next| self.rule(symbols[at].id, next));
            (symbols[at].rank, symbols[at].merged) = (rank, merged);
            if at > 0 {
                let (rank, merged) = self.rule(symbols[at - 1].id, symbols[at].id);
                (symbols[at - 1].rank, symbols[at - 1].merged) = (rank, merged);
            }
        }
    }

    /// Links the symbols and merges; the first one stays the first.
    fn by_heap(&self, symbols: &mut [Symbol], heap: &mut BinaryHeap<Reverse<u64>>) {
        let count = symbols.len();
        let mut entries = std::mem::take(heap).into_vec();
        entries.clear();
        for at in 0..count {
            let rule = symbols
                .get(at + 1)
                .map_or((NO_RANK, 0), |next| self.rule(symbols[at].id, next.id));
            let symbol = &mut symbols[at];
            (symbol.rank, symbol.merged) = rule;
            symbol.previous = (at as u32).wrapping_sub(1);
            symbol.next = if at + 1 < count { at as u32 + 1 } else { NONE };
            if rule.0 != NO_RANK {
                entries.push(Reverse(entry(rule.0, at as u32)));
            }
        }
        *heap = BinaryHeap::from(entries);
        while let Some(Reverse(top)) = heap.pop() {
            let (rank, at) = ((top >> 40) as u32, (top & ((1 << 40) - 1)) as u32);
            let Symbol {
                rank: now,
                merged,
                next,
                previous,
                ..
            } = symbols[at as usize];
            // An outdated entry: the symbol was swallowed or has a new neighbour.
            if now != rank {
                continue;
            }
            let right = symbols[next as usize];
            symbols[next as usize].rank = NO_RANK;
            let symbol = &mut symbols[at as usize];
            symbol.id = merged;
            symbol.len += right.len;
            symbol.next = right.next;
            if right.next != NONE {
                symbols[right.next as usize].previous = at;
            }
            self.update(symbols, heap, at);
            if previous != NONE {
                self.update(symbols, heap, previous);
            }
        }
    }

    fn update(&self, symbols: &mut [Symbol], heap: &mut BinaryHeap<Reverse<u64>>, at: u32) {
        let Symbol { id, next, .. } = symbols[at as usize];
        let (rank, merged) = match symbols.get(next as usize) {
            Some(right) => self.rule(id, right.id),
            None => (NO_RANK, 0),
        };
        let symbol = &mut symbols[at as usize];
        (symbol.rank, symbol.merged) = (rank, merged);
        if rank != NO_RANK {
            heap.push(Reverse(entry(rank, at)));
        }
    }
}

fn entry(rank: u32, at: u32) -> u64 {
    u64::from(rank) << 40 | u64::from(at)
}
