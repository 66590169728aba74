//! Loading: finds the premerged characters of a vocabulary.

use super::bits::{
    EXCLUDED_CHAR_BITS, FOLLOWER_BITS, NEIGHBOUR_BITS, contains, excluded_bit, follower_bit,
    has_bit, neighbour_bit, set_bit,
};
use super::char_pairs;
use super::edges::{TokenEnd, TokenStart, ends_character};
use super::limits::Limits;
use super::proof::{Context, Exclusions, Rules, starts};
use super::{
    BLOCK, CharTokens, NOT_PREMERGED, PackedContext, Premerged, TOKEN, TOKEN_BITS, TWO_TOKENS,
    decode,
};
use crate::pairs::PairTable;
use crate::vocab::Vocab;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;

/// The first code point that is never premerged. Above it are rare scripts and emoji.
pub(super) const END: usize = 0x2_0000;
/// The code points that are premerged to two tokens if they are no token: Kana, Han and Hangul.
const TWO_TOKEN_SCRIPTS: [Range<u32>; 2] = [0x3040..0xA000, 0xAC00..0xD7A4];

impl Premerged {
    /// Finds the premerged characters. `rules` yields the left token, the right token and the rank
    /// of each merge of `pairs`; `ids` lists the tokens that spell bytes.
    pub(crate) fn new(
        byte_ids: &[u32; 256],
        pairs: &PairTable,
        rules: impl Iterator<Item = (u32, u32, u32)>,
        ids: &[u32],
        vocab: &Vocab,
    ) -> Self {
        Self::within(Limits::USUAL, byte_ids, (pairs, rules), ids, vocab).0
    }

    /// Does the work of [`Premerged::new`] within `limits`. Returns the number of visited rules as
    /// well.
    pub(super) fn within(
        limits: Limits,
        byte_ids: &[u32; 256],
        (pairs, rules): (&PairTable, impl Iterator<Item = (u32, u32, u32)>),
        ids: &[u32],
        vocab: &Vocab,
    ) -> (Self, usize) {
        let end = ids.iter().max().map_or(0, |id| *id as usize + 1);
        // Only a token that is part of one character, or of two, can be the last or the first
        // symbol of a premerged character.
        let mut symbols = vec![false; end];
        for &id in ids {
            let piece = vocab.piece(id);
            symbols[id as usize] = piece.len() <= 4 && !piece.is_ascii();
        }
        let is_symbol = |id: u32| symbols.get(id as usize).is_none_or(|is| *is);
        // The rules with such a token that can join symbols of two neighbouring characters.
        let (mut as_left, mut as_right) = (Vec::new(), Vec::new());
        // Two characters are side by side in a token where one of its rules joined them.
        let mut neighbours = vec![0u64; NEIGHBOUR_BITS / 64];
        for (left, right, rank) in rules {
            let (left_piece, right_piece) = (vocab.piece(left), vocab.piece(right));
            let (last, first) = (TokenEnd::of(left_piece), TokenStart::of(right_piece));
            if let (Some(TokenEnd::Char(left, _)), Some(TokenStart::Char(right))) = (last, first) {
                set_bit(&mut neighbours, neighbour_bit(left, right));
            }
            if is_symbol(left)
                && let Some(first) = first
            {
                as_left.push((left, rank, first));
            }
            if (is_symbol(right) || right_piece == char_pairs::ASCII)
                && let Some(last) = last
                && ends_character(left_piece)
            {
                as_right.push((right, rank, last));
            }
        }
        as_left.sort_unstable();
        as_right.sort_unstable();
        let rules = Rules {
            byte_ids,
            pairs,
            left_starts: starts(&as_left, end),
            right_starts: starts(&as_right, end),
            as_left,
            as_right,
            limits,
            seen: Cell::new(0),
        };

        let mut made = Builder::new(limits);
        made.add_chars(&rules, ids, vocab);
        let char_pairs = rules.char_pairs(&mut made, ids, vocab);
        let this = Self {
            char_pairs,
            index: made.index.into(),
            tokens: made.tokens.into(),
            splits: made.splits.into(),
            excluded: made.excluded.into(),
            excluded_chars: made.excluded_chars.into(),
            followers: made.followers.into(),
            neighbours: neighbours.into(),
        };
        (this, rules.seen.get())
    }
}

/// A [`Premerged`] under construction.
pub(super) struct Builder {
    limits: Limits,
    index: Vec<u16>,
    tokens: Vec<u32>,
    splits: Vec<CharTokens>,
    excluded: Vec<PackedContext>,
    excluded_chars: Vec<u64>,
    followers: Vec<u64>,
    known: BTreeMap<Context, u32>,
}

impl Builder {
    fn new(limits: Limits) -> Self {
        Self {
            limits,
            index: vec![0; END / BLOCK],
            tokens: vec![NOT_PREMERGED; BLOCK],
            splits: Vec::new(),
            excluded: vec![PackedContext::default()],
            excluded_chars: vec![0; EXCLUDED_CHAR_BITS / 64],
            followers: vec![0; FOLLOWER_BITS / 64],
            known: BTreeMap::from([(Context::default(), 0)]),
        }
    }

    /// Adds the characters that are proved to be premerged: tokens first, then characters of two
    /// tokens.
    fn add_chars(&mut self, rules: &Rules<'_>, ids: &[u32], vocab: &Vocab) {
        for &id in ids {
            let piece = vocab.piece(id);
            if let Some((code, len)) = decode(piece, 0)
                && len == piece.len()
                && len > 1
                && (code as usize) < END
                && id <= TOKEN
                && self.has_capacity()
                && let Some((exclusions, symbols)) = rules.prove(piece)
                && *symbols == [id]
            {
                self.add(code, exclusions, id);
            }
        }
        for code in TWO_TOKEN_SCRIPTS.into_iter().flatten() {
            let mut buffer = [0; 4];
            if let Some(c) = char::from_u32(code)
                && !self.has(code)
                && self.has_capacity()
                && rules.merges_something(c.encode_utf8(&mut buffer).as_bytes())
                && let Some((mut exclusions, symbols)) =
                    rules.prove(c.encode_utf8(&mut buffer).as_bytes())
                && let [first, second] = symbols[..]
            {
                exclusions.context.facts |= TWO_TOKENS;
                let at = self.splits.len() as u32;
                self.splits.push([first, second]);
                self.add(code, exclusions, at);
            }
        }
    }

    /// Returns true if another set of exclusions fits.
    pub(super) fn has_capacity(&self) -> bool {
        self.excluded.len() < self.limits.sets
    }

    /// Returns the index of a character's entry, or `None` if its block has no entry yet.
    fn place(&self, code: u32) -> Option<usize> {
        let block = self.index[code as usize / BLOCK];
        (block != 0).then(|| usize::from(block) * BLOCK + code as usize % BLOCK)
    }

    fn has(&self, code: u32) -> bool {
        self.place(code)
            .is_some_and(|at| self.tokens[at] != NOT_PREMERGED)
    }

    /// Returns true if a character is not premerged after the character `left`, whose last byte is
    /// `byte`.
    pub(super) fn excludes(&self, code: u32, (byte, left): (u8, u32)) -> bool {
        let entry = self.place(code).map_or(NOT_PREMERGED, |at| self.tokens[at]);
        let context = entry >> TOKEN_BITS;
        entry == NOT_PREMERGED
            || contains(&self.excluded[context as usize].always_before, byte)
            || has_bit(&self.excluded_chars, excluded_bit(context, left))
    }

    /// Returns the index of a context that is stored already.
    fn number_of(&self, context: &Context) -> Option<u32> {
        // Nearly all contexts are empty, which is tested without a search.
        let empty = *context == Context::default();
        if empty {
            Some(0)
        } else {
            self.known.get(context).copied()
        }
    }

    /// Returns the index of a context, which is stored if it is new.
    pub(super) fn name(&mut self, context: Context) -> u32 {
        if let Some(number) = self.number_of(&context) {
            return number;
        }
        let number = self.excluded.len() as u32;
        self.excluded.push(PackedContext {
            possible_before: context.possible_before,
            always_before: context.always_before,
            next: context.next,
            facts: context.facts,
        });
        for left in &context.chars {
            set_bit(&mut self.excluded_chars, excluded_bit(number, *left));
        }
        self.known.insert(context, number);
        number
    }

    /// Adds a premerged character. `what` is its token, or the index of its two tokens in `splits`.
    fn add(&mut self, code: u32, exclusions: Exclusions, what: u32) {
        let Exclusions { context, followers } = exclusions;
        for next in followers {
            set_bit(&mut self.followers, follower_bit(code, next));
        }
        let context = self.name(context);
        let at = self.place(code).unwrap_or_else(|| {
            self.index[code as usize / BLOCK] = (self.tokens.len() / BLOCK) as u16;
            self.tokens.resize(self.tokens.len() + BLOCK, NOT_PREMERGED);
            self.tokens.len() - BLOCK + code as usize % BLOCK
        });
        self.tokens[at] = entry(context, what);
    }
}

/// Packs a table entry. It never equals [`NOT_PREMERGED`], because `context` is below
/// [`super::limits::SETS_MAX`].
#[inline(always)]
pub(super) fn entry(context: u32, id: u32) -> u32 {
    context << TOKEN_BITS | id
}
