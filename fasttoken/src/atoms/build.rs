//! Finding the atoms of a vocabulary.

use super::bits::{
    EXCLUDED_BITS, FOLLOWER_BITS, NEIGHBOUR_BITS, contains, excluded_bit, follower_bit, has_bit,
    neighbour_bit, set_bit,
};
use super::doubles;
use super::limits::Limits;
use super::rules::{Bounds, Context, Rules, starts};
use super::sides::{Begin, End, ends_character};
use super::{Atom, Atoms, BLOCK, Excluded, NO_ATOM, SPLIT, TOKEN, TOKEN_BITS, decode};
use crate::pairs::PairTable;
use crate::vocab::Vocab;
use std::cell::Cell;
use std::collections::HashMap;
use std::ops::Range;

/// Characters from here on are no atoms. Above are rare scripts and emoji.
pub(super) const END: usize = 0x2_0000;
/// Scripts of which characters that are no token are atoms of two: Kana, Han and Hangul.
const SPLIT_SCRIPTS: [Range<u32>; 2] = [0x3040..0xA000, 0xAC00..0xD7A4];

impl Atoms {
    /// `rules` are the left token, the right token and the rank of each merge of `pairs`,
    /// `ids` the tokens that spell bytes.
    pub(crate) fn new(
        byte_ids: &[u32; 256],
        pairs: &PairTable,
        rules: impl Iterator<Item = (u32, u32, u32)>,
        ids: &[u32],
        vocab: &Vocab,
    ) -> Self {
        Self::within(Limits::USUAL, byte_ids, (pairs, rules), ids, vocab).0
    }

    /// Also gives the number of rules looked at.
    pub(super) fn within(
        limits: Limits,
        byte_ids: &[u32; 256],
        (pairs, rules): (&PairTable, impl Iterator<Item = (u32, u32, u32)>),
        ids: &[u32],
        vocab: &Vocab,
    ) -> (Self, usize) {
        let end = ids.iter().max().map_or(0, |id| *id as usize + 1);
        // Of the tokens, only those that are part of a character, or of two, can be the
        // last or the first symbol of an atom.
        let mut symbols = vec![false; end];
        for &id in ids {
            let piece = vocab.piece(id);
            symbols[id as usize] = piece.len() <= 4 && !piece.is_ascii();
        }
        let is_symbol = |id: u32| symbols.get(id as usize).is_none_or(|is| *is);
        // Of the rules with such a token on one side, those that can join what is in one
        // character with what is in the next one.
        let (mut as_left, mut as_right) = (Vec::new(), Vec::new());
        // Two characters are side by side in a token where one of its rules joined them.
        let mut neighbours = vec![0u64; NEIGHBOUR_BITS / 64];
        for (left, right, rank) in rules {
            let (left_piece, right_piece) = (vocab.piece(left), vocab.piece(right));
            let (last, first) = (End::of(left_piece), Begin::of(right_piece));
            if let (Some(End::Char(left, _)), Some(Begin::Char(right))) = (last, first) {
                set_bit(&mut neighbours, neighbour_bit(left, right));
            }
            if is_symbol(left)
                && let Some(first) = first
            {
                as_left.push((left, rank, first));
            }
            if (is_symbol(right) || right_piece == doubles::ASCII)
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
        for &id in ids {
            let piece = vocab.piece(id);
            if let Some((code, len)) = decode(piece, 0)
                && len == piece.len()
                && len > 1
                && (code as usize) < END
                && id <= TOKEN
                && made.has_room()
                && let Some((bounds, symbols)) = rules.atom(piece)
                && *symbols == [id]
            {
                made.add(code, bounds, id);
            }
        }
        for code in SPLIT_SCRIPTS.into_iter().flatten() {
            let mut buffer = [0; 4];
            if let Some(c) = char::from_u32(code)
                && !made.has(code)
                && made.has_room()
                && rules.merges_something(c.encode_utf8(&mut buffer).as_bytes())
                && let Some((mut bounds, symbols)) =
                    rules.atom(c.encode_utf8(&mut buffer).as_bytes())
                && let [first, second] = symbols[..]
            {
                bounds.context.facts |= SPLIT;
                let at = made.splits.len() as u32;
                made.splits.push([first, second]);
                made.add(code, bounds, at);
            }
        }
        let doubles = rules.doubles(&mut made, ids, vocab);
        let this = Self {
            doubles,
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

/// Atoms that are being gathered.
pub(super) struct Builder {
    limits: Limits,
    index: Vec<u16>,
    tokens: Vec<u32>,
    splits: Vec<Atom>,
    excluded: Vec<Excluded>,
    excluded_chars: Vec<u64>,
    followers: Vec<u64>,
    known: HashMap<Context, u32>,
}

impl Builder {
    fn new(limits: Limits) -> Self {
        Self {
            limits,
            index: vec![0; END / BLOCK],
            tokens: vec![NO_ATOM; BLOCK],
            splits: Vec::new(),
            excluded: vec![Excluded::default()],
            excluded_chars: vec![0; EXCLUDED_BITS / 64],
            followers: vec![0; FOLLOWER_BITS / 64],
            known: HashMap::from([(Context::default(), 0)]),
        }
    }

    /// Whether one more set can be named.
    pub(super) fn has_room(&self) -> bool {
        self.excluded.len() < self.limits.sets
    }

    /// Where the entry of a character is; `None` if its block has none yet.
    fn place(&self, code: u32) -> Option<usize> {
        let block = self.index[code as usize / BLOCK];
        (block != 0).then(|| usize::from(block) * BLOCK + code as usize % BLOCK)
    }

    fn has(&self, code: u32) -> bool {
        self.place(code)
            .is_some_and(|at| self.tokens[at] != NO_ATOM)
    }

    /// Whether a character is no atom after another one, of which the last byte is given.
    pub(super) fn excludes(&self, code: u32, (byte, left): (u8, u32)) -> bool {
        let entry = self.place(code).map_or(NO_ATOM, |at| self.tokens[at]);
        let context = entry >> TOKEN_BITS;
        entry == NO_ATOM
            || contains(&self.excluded[context as usize].always, byte)
            || has_bit(&self.excluded_chars, excluded_bit(context, left))
    }

    /// The number that a context has already.
    fn number_of(&self, context: &Context) -> Option<u32> {
        // Of nearly all characters it is empty, which is told without hashing it.
        let empty = *context == Context::default();
        if empty {
            Some(0)
        } else {
            self.known.get(context).copied()
        }
    }

    /// The number of a context, which is given one if it has none yet.
    pub(super) fn name(&mut self, context: Context) -> u32 {
        if let Some(number) = self.number_of(&context) {
            return number;
        }
        let number = self.excluded.len() as u32;
        self.excluded.push(Excluded {
            suspects: context.suspects,
            always: context.always,
            next: context.next,
            facts: context.facts,
        });
        for left in &context.chars {
            set_bit(&mut self.excluded_chars, excluded_bit(number, *left));
        }
        self.known.insert(context, number);
        number
    }

    /// Makes a character an atom. `what` is its token, or where in `splits` they are.
    fn add(&mut self, code: u32, bounds: Bounds, what: u32) {
        let Bounds { context, followers } = bounds;
        for next in followers {
            set_bit(&mut self.followers, follower_bit(code, next));
        }
        let context = self.name(context);
        let at = self.place(code).unwrap_or_else(|| {
            self.index[code as usize / BLOCK] = (self.tokens.len() / BLOCK) as u16;
            self.tokens.resize(self.tokens.len() + BLOCK, NO_ATOM);
            self.tokens.len() - BLOCK + code as usize % BLOCK
        });
        self.tokens[at] = entry(context, what);
    }
}

/// An entry of the table of tokens; never [`NO_ATOM`], as `context` is below
/// [`super::limits::SETS_MAX`].
#[inline(always)]
pub(super) fn entry(context: u32, id: u32) -> u32 {
    context << TOKEN_BITS | id
}
