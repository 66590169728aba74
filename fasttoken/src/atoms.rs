//! Where merging can begin, and where it never crosses.
//!
//! Merging begins with bytes, of which characters beyond ASCII have two to four. For
//! most characters it is certain that their own bytes merge to one token first,
//! whatever stands around them; such a character is an *atom*, from which merging can
//! begin as well. The proof, for words that are whole characters and of which every byte
//! has a token (others are merged whole): let `r` be the rank of the next merge inside of
//! the character, in each state on the way to its token, and let every rule that joins the
//! state's first or last symbol with anything outside come after `r`. Then no such
//! rule is applied before the character is whole, since the first rule of all that
//! apply is taken. If moreover the rules that join the whole token with anything come
//! after all of those inside, then taking the inner merges first changes nothing about
//! the order of the others. Rules that join something on the left often come early
//! (a space and the first byte of Cyrillic letters), but only few characters end what they
//! join; after those the character is no atom, after others it is. Asking for the last
//! byte alone, which 64 characters share, would turn down one Chinese character in six.
//!
//! Between two atoms that stand side by side in no token nothing is ever merged, since
//! the result would be a token with both. There a word falls apart, into parts that
//! are short and frequent. This is what makes languages without spaces fast: their
//! words are clauses that rarely come back, made of parts that do.

use crate::bpe::NO_TOKEN;
use crate::image::ImageError;
use crate::image::format::{Reader, Section, Writer};
use crate::pairs::{NO_RANK, PairTable};
use crate::store::{Flat, Movable};
use crate::vocab::Vocab;
use std::cell::Cell;
use std::collections::HashMap;

/// Code points per block of the table.
const BLOCK: usize = 64;
/// Characters from here on are no atoms. Above are rare scripts and emoji.
const END: usize = 0x2_0000;
/// Characters of one context, counted for each rule with them. Of eight vocabularies that
/// models use, Llama 3's has the most: 16.
const CHARS_MAX: usize = 1 << 12;
/// Rules looked at for all contexts of a file, and so at most 16 MiB of characters. Of the
/// same vocabularies, Qwen 3's needs the most: 17,319.
const RULES_MAX: usize = 1 << 22;
/// In the table: no atom.
pub(crate) const NO_ATOM: u32 = u32::MAX;
/// The lower bits of an entry, which are the token.
const TOKEN_BITS: u32 = 20;
const TOKEN: u32 = (1 << TOKEN_BITS) - 1;
/// More different sets than the upper bits can name, without the one that would make an
/// entry [`NO_ATOM`]: later characters are no atoms.
const SETS_MAX: usize = (1 << (32 - TOKEN_BITS)) - 1;

/// What a file can make [`Atoms::new`] do. Characters beyond a limit are no atoms, which
/// costs time when text with them is encoded and changes nothing else.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// [`SETS_MAX`]
    sets: usize,
    /// [`CHARS_MAX`]
    chars: usize,
    /// [`RULES_MAX`]
    rules: usize,
}

impl Limits {
    const USUAL: Self = Self {
        sets: SETS_MAX,
        chars: CHARS_MAX,
        rules: RULES_MAX,
    };
}

/// A bit per pair of characters, by hash: 128 KiB, of which the pairs of a large
/// vocabulary set one in ten.
const NEIGHBOUR_BITS: usize = 1 << 20;

/// A bit for each value of a byte.
type ByteSet = [u64; 4];

/// A bit per set and character that it excludes, by hash.
const EXCLUDED_BITS: usize = 1 << 18;

/// After what a character is no atom.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Context {
    /// Last bytes of all that excludes it: nearly always this decides.
    suspects: ByteSet,
    /// Bytes that exclude it whatever their character is.
    always: ByteSet,
    /// Characters that exclude it, rising.
    chars: Vec<u32>,
}

fn contains(set: &[u64], byte: u8) -> bool {
    set.get(usize::from(byte / 64))
        .is_none_or(|bits| bits >> (byte % 64) & 1 == 1)
}

/// The atoms of a vocabulary, and which of them can be neighbours in a token.
#[derive(Debug, Default)]
pub(crate) struct Atoms {
    /// Block of each 64 code points.
    index: Flat<u16>,
    /// For each character [`NO_ATOM`], or its token in the lower 20 bits and which of
    /// `excluded` in the upper ones.
    tokens: Flat<u32>,
    /// Suspects, then the others, of each context. The first is empty.
    excluded: Flat<[u64; 8]>,
    /// The characters of contexts.
    excluded_chars: Flat<u64>,
    neighbours: Flat<u64>,
}

impl Atoms {
    /// `ids` are the tokens that spell bytes.
    pub(crate) fn new(
        byte_ids: &[u32; 256],
        pairs: &PairTable,
        ids: &[u32],
        vocab: &Vocab,
    ) -> Self {
        Self::within(Limits::USUAL, byte_ids, pairs, ids, vocab).0
    }

    /// Also gives the number of rules looked at.
    fn within(
        limits: Limits,
        byte_ids: &[u32; 256],
        pairs: &PairTable,
        ids: &[u32],
        vocab: &Vocab,
    ) -> (Self, usize) {
        let end = ids.iter().max().map_or(0, |id| *id as usize + 1);
        // Of the rules with a token on the left, the first that can join what is in one
        // character with what is in the next. With a token on the right, all of them.
        let mut first_as_left = vec![u32::MAX; end];
        let mut as_right = Vec::new();
        for (left, right, rank) in pairs.iter() {
            if begins_character(vocab.piece(right))
                && let Some(first) = first_as_left.get_mut(left as usize)
            {
                *first = rank.min(*first);
            }
            let piece = vocab.piece(left);
            if ends_character(piece)
                && let Some(last) = End::of(piece)
            {
                as_right.push((right, rank, last));
            }
        }
        as_right.sort_unstable();
        let rules = Rules {
            byte_ids,
            pairs,
            first_as_left,
            as_right,
            limits,
            seen: Cell::new(0),
        };

        let mut index = vec![0; END / BLOCK];
        let mut tokens = vec![NO_ATOM; BLOCK];
        let mut excluded: Vec<[u64; 8]> = vec![[0; 8]];
        let mut excluded_chars = vec![0u64; EXCLUDED_BITS / 64];
        let mut known = HashMap::from([(Context::default(), 0u32)]);
        let mut neighbours = vec![0u64; NEIGHBOUR_BITS / 64];
        for &id in ids {
            let piece = vocab.piece(id);
            if let Some((code, len)) = decode(piece, 0)
                && len == piece.len()
                && len > 1
                && (code as usize) < END
                && id <= TOKEN
                && excluded.len() < limits.sets
                && let Some(context) = rules.atom(piece, id)
            {
                let block: &mut u16 = &mut index[code as usize / BLOCK];
                if *block == 0 {
                    *block = (tokens.len() / BLOCK) as u16;
                    tokens.resize(tokens.len() + BLOCK, NO_ATOM);
                }
                let at = usize::from(*block) * BLOCK + code as usize % BLOCK;
                let context = match known.get(&context) {
                    Some(number) => *number,
                    None => {
                        let number = excluded.len() as u32;
                        let ([a, b, c, d], [e, f, g, h]) = (context.suspects, context.always);
                        excluded.push([a, b, c, d, e, f, g, h]);
                        for code in &context.chars {
                            let bit = excluded_bit(number, *code);
                            excluded_chars[bit / 64] |= 1 << (bit % 64);
                        }
                        known.insert(context, number);
                        number
                    }
                };
                tokens[at] = entry(context, id);
            }
            // Tokens can begin and end inside of a character; those bytes are none.
            let mut before = None;
            let mut at = 0;
            while at < piece.len() {
                let found = decode(piece, at);
                if let (Some(left), Some((right, _))) = (before, found) {
                    let bit = neighbour_bit(left, right);
                    neighbours[bit / 64] |= 1 << (bit % 64);
                }
                before = found.map(|(code, _)| code);
                at += found.map_or(1, |(_, len)| len);
            }
        }
        let this = Self {
            index: index.into(),
            tokens: tokens.into(),
            excluded: excluded.into(),
            excluded_chars: excluded_chars.into(),
            neighbours: neighbours.into(),
        };
        (this, rules.seen.get())
    }

    pub(crate) fn write(&self, image: &mut Writer) {
        image.put(Section::AtomIndex, &self.index);
        image.put(Section::AtomTokens, &self.tokens);
        image.put(Section::AtomSets, &self.excluded);
        image.put(Section::AtomChars, &self.excluded_chars);
        image.put(Section::Neighbours, &self.neighbours);
    }

    pub(crate) fn tables(&mut self) -> [&mut dyn Movable; 5] {
        [
            &mut self.index,
            &mut self.tokens,
            &mut self.excluded,
            &mut self.excluded_chars,
            &mut self.neighbours,
        ]
    }

    /// Look-ups check every index, so any contents will do.
    pub(crate) fn read(image: &Reader) -> Result<Self, ImageError> {
        Ok(Self {
            index: image.get(Section::AtomIndex)?,
            tokens: image.get(Section::AtomTokens)?,
            excluded: image.get(Section::AtomSets)?,
            excluded_chars: image.get(Section::AtomChars)?,
            neighbours: image.get(Section::Neighbours)?,
        })
    }

    /// The token of a character beyond ASCII, or [`NO_ATOM`]. `before` is what its word
    /// has before it: the last byte, and the character that this ends.
    #[inline(always)]
    pub(crate) fn token(&self, code: u32, before: Option<(u8, u32)>) -> u32 {
        let block = self.index.get(code as usize / BLOCK).copied().unwrap_or(0);
        let at = usize::from(block) * BLOCK + code as usize % BLOCK;
        let entry = self.tokens.get(at).copied().unwrap_or(NO_ATOM);
        if entry == NO_ATOM {
            return NO_ATOM;
        }
        let context = entry >> TOKEN_BITS;
        if context != 0
            && let Some((byte, left)) = before
            && self.excludes(context, byte, left)
        {
            return NO_ATOM;
        }
        entry & TOKEN
    }

    #[inline(always)]
    fn excludes(&self, context: u32, byte: u8, left: u32) -> bool {
        let Some(sets) = self.excluded.get(context as usize) else {
            return true;
        };
        let (suspects, always) = sets.split_at(4);
        if !contains(suspects, byte) {
            return false;
        }
        let bit = excluded_bit(context, left);
        let chars = self.excluded_chars.get(bit / 64);
        contains(always, byte) || chars.is_none_or(|bits| bits >> (bit % 64) & 1 == 1)
    }

    /// Whether a token may have these two characters side by side.
    #[inline(always)]
    pub(crate) fn may_join(&self, left: u32, right: u32) -> bool {
        let bit = neighbour_bit(left, right);
        self.neighbours
            .get(bit / 64)
            .is_none_or(|bits| bits >> (bit % 64) & 1 == 1)
    }
}

/// An entry of the table of tokens; never [`NO_ATOM`], as `context` is below [`SETS_MAX`].
#[inline(always)]
fn entry(context: u32, id: u32) -> u32 {
    context << TOKEN_BITS | id
}

#[inline(always)]
fn neighbour_bit(left: u32, right: u32) -> usize {
    let pair = u64::from(left) << 32 | u64::from(right);
    // The upper bits of a product depend on all of the factor.
    (pair.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 44) as usize % NEIGHBOUR_BITS
}

#[inline(always)]
fn excluded_bit(context: u32, code: u32) -> usize {
    let pair = u64::from(context) << 32 | u64::from(code);
    (pair.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 46) as usize % EXCLUDED_BITS
}

/// What a token ends with that ends where a character does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// A whole character, so text has this one there.
    Char(u32, u8),
    /// The last bytes of one that begins before the token: any with this last byte.
    Byte(u8),
}

impl End {
    fn of(piece: &[u8]) -> Option<Self> {
        let last = *piece.last()?;
        let tail = piece.iter().rev().take_while(|byte| *byte & 0xC0 == 0x80);
        let whole = piece
            .len()
            .checked_sub(tail.count() + 1)
            .and_then(|at| Some((at, decode(piece, at)?)))
            .filter(|(at, (_, len))| at + len == piece.len());
        Some(match whole {
            Some((_, (code, _))) => Self::Char(code, last),
            None => Self::Byte(last),
        })
    }
}

/// Whether a token can stand where a character begins.
fn begins_character(piece: &[u8]) -> bool {
    piece.first().is_none_or(|byte| byte & 0xC0 != 0x80)
}

/// Whether a token can stand where a character ends: not, if it ends before the last
/// byte of one that it begins.
fn ends_character(piece: &[u8]) -> bool {
    let tail = piece.iter().rev().take_while(|byte| *byte & 0xC0 == 0x80);
    let tail = tail.count();
    match piece.len().checked_sub(tail + 1).map(|at| piece[at]) {
        Some(lead) => {
            let needed = match lead {
                ..0xC0 => 0,
                0xC0..0xE0 => 1,
                0xE0..0xF0 => 2,
                0xF0.. => 3,
            };
            tail >= needed
        }
        None => true,
    }
}

struct Rules<'a> {
    byte_ids: &'a [u32; 256],
    pairs: &'a PairTable,
    first_as_left: Vec<u32>,
    /// The right token, the rank, and the end of the left token of every rule that can
    /// join what is in one character with the next one; sorted.
    as_right: Vec<(u32, u32, End)>,
    limits: Limits,
    /// Rules looked at so far.
    seen: Cell<usize>,
}

impl Rules<'_> {
    /// Whether the bytes of the character `piece` always merge to `token` first: after
    /// what they may not.
    fn atom(&self, piece: &[u8], token: u32) -> Option<Context> {
        let mut symbols: Vec<u32> = piece
            .iter()
            .map(|byte| self.byte_ids[usize::from(*byte)])
            .collect();
        if symbols.contains(&NO_TOKEN) {
            return None;
        }
        let mut context = Context::default();
        let add = |set: &mut ByteSet, byte: u8| set[usize::from(byte / 64)] |= 1 << (byte % 64);
        // Nothing from outside may come before a rule of this rank.
        let mut close_until = |symbols: &[u32], rank: u32| {
            let (first, last) = (symbols[0], symbols[symbols.len() - 1]);
            let from = self.as_right.partition_point(|rule| rule.0 < first);
            for &(right, other, end) in &self.as_right[from..] {
                if right != first || other > rank {
                    break;
                }
                let seen = self.seen.get();
                if seen == self.limits.rules || context.chars.len() == self.limits.chars {
                    return None;
                }
                self.seen.set(seen + 1);
                match end {
                    End::Char(code, byte) => {
                        add(&mut context.suspects, byte);
                        context.chars.push(code);
                    }
                    End::Byte(byte) => {
                        add(&mut context.suspects, byte);
                        add(&mut context.always, byte);
                    }
                }
            }
            let closed = self.first_as_left.get(last as usize);
            closed.is_some_and(|other| *other > rank).then_some(())
        };
        let mut last_rank = 0;
        while symbols.len() > 1 {
            let merges = symbols.windows(2).enumerate().filter_map(|(at, pair)| {
                let rank = self.pairs.rank(pair[0], pair[1]);
                (rank != NO_RANK).then(|| (rank, at, self.pairs.product(rank)))
            });
            let (rank, at, id) = merges.min()?;
            close_until(&symbols, rank)?;
            symbols.splice(at..at + 2, [id]);
            last_rank = rank.max(last_rank);
        }
        close_until(&symbols, last_rank)?;
        context.chars.sort_unstable();
        context.chars.dedup();
        (symbols == [token]).then_some(context)
    }
}

/// The character at `at` and its length; `None` where no whole one begins.
#[inline(always)]
pub(crate) fn decode(bytes: &[u8], at: usize) -> Option<(u32, usize)> {
    let lead = *bytes.get(at)?;
    let tail = |n: usize| {
        let byte = bytes.get(at + n).copied().unwrap_or(0);
        (byte & 0xC0 == 0x80).then_some(u32::from(byte & 0x3F))
    };
    let lead_bits = u32::from(lead);
    match lead {
        ..0x80 => Some((lead_bits, 1)),
        0xC2..0xE0 => Some(((lead_bits & 0x1F) << 6 | tail(1)?, 2)),
        0xE0..0xF0 => Some(((lead_bits & 0x0F) << 12 | tail(1)? << 6 | tail(2)?, 3)),
        0xF0..0xF5 => {
            let code = (lead_bits & 0x07) << 18 | tail(1)? << 12 | tail(2)? << 6 | tail(3)?;
            Some((code, 4))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
