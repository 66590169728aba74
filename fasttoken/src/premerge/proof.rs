//! The proof of [`super`]: finds the tokens that the bytes of a character merge to first, and the
//! neighbours that prevent it.

use super::bits::ByteSet;
use super::edges::{TokenEnd, TokenStart};
use super::limits::Limits;
use super::{NEXT_BYTE_EXCLUDES, NEXT_CHAR_EXCLUDES};
use crate::pairs::{NO_RANK, PairTable};
use crate::vocab::NO_TOKEN;
use std::cell::Cell;
use std::ops::Deref;

/// The neighbours next to which a character is not premerged, and its facts.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Context {
    /// The last bytes of all previous characters that exclude the character. This set alone decides
    /// nearly always.
    pub(super) possible_before: ByteSet,
    /// The previous bytes that exclude the character whatever their character is.
    pub(super) always_before: ByteSet,
    /// The previous characters that exclude the character, rising.
    pub(super) chars: Vec<u32>,
    /// The first bytes of next characters that exclude the character whatever their character is.
    pub(super) next: ByteSet,
    /// [`NEXT_CHAR_EXCLUDES`], [`NEXT_BYTE_EXCLUDES`] and [`super::TWO_TOKENS`].
    pub(super) facts: u64,
}

pub(super) struct Rules<'a> {
    pub(super) byte_ids: &'a [u32; 256],
    pub(super) pairs: &'a PairTable,
    /// The left token, the rank, and the start of the right token of every rule that can join
    /// symbols of two neighbouring characters; sorted.
    pub(super) as_left: Vec<(u32, u32, TokenStart)>,
    /// The right token, the rank, and the end of the left token of every rule that can join symbols
    /// of two neighbouring characters; sorted.
    pub(super) as_right: Vec<(u32, u32, TokenEnd)>,
    /// The first rule of each token in `as_left`.
    pub(super) left_starts: Vec<u32>,
    pub(super) right_starts: Vec<u32>,
    pub(super) limits: Limits,
    /// The number of rules visited so far.
    pub(super) seen: Cell<usize>,
}

/// Returns the first entry of each token below `end` in a list that is sorted by token.
pub(super) fn starts<T, U>(sorted: &[(u32, T, U)], end: usize) -> Vec<u32> {
    let mut starts = Vec::with_capacity(end);
    for (at, (token, ..)) in sorted.iter().enumerate() {
        let upto = (*token as usize + 1).min(end);
        if starts.len() < upto {
            starts.resize(upto, at as u32);
        }
    }
    starts
}

/// The symbols of a character while its bytes are merged.
#[derive(Default)]
pub(super) struct Symbols {
    ids: [u32; 4],
    len: usize,
}

impl Deref for Symbols {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.ids[..self.len]
    }
}

/// The neighbours next to which a character is not premerged.
#[derive(Default)]
pub(super) struct Exclusions {
    pub(super) context: Context,
    /// The next characters that exclude the character.
    pub(super) followers: Vec<u32>,
}

impl Rules<'_> {
    /// Returns the tokens that the bytes of the character `piece` always merge to first, and the
    /// neighbours that prevent it. Returns `None` if there are too many of these.
    pub(super) fn prove(&self, piece: &[u8]) -> Option<(Exclusions, Symbols)> {
        let mut symbols = Symbols::default();
        for (symbol, byte) in symbols.ids.iter_mut().zip(piece) {
            *symbol = self.byte_ids[usize::from(*byte)];
            symbols.len += 1;
        }
        if symbols.contains(&NO_TOKEN) {
            return None;
        }
        let mut exclusions = Exclusions::default();
        let mut last_rank = 0;
        loop {
            let merges = symbols.windows(2).enumerate().filter_map(|(at, pair)| {
                let rank = self.pairs.rank(pair[0], pair[1]);
                (rank != NO_RANK).then(|| (rank, at, self.pairs.product(rank)))
            });
            let Some((rank, at, id)) = merges.min() else {
                break;
            };
            self.exclude_until(&symbols, rank, &mut exclusions)?;
            symbols.ids[at] = id;
            symbols.ids.copy_within(at + 2.., at + 1);
            symbols.len -= 1;
            last_rank = rank.max(last_rank);
        }
        self.exclude_until(&symbols, last_rank, &mut exclusions)?;
        let Exclusions { context, followers } = &mut exclusions;
        context.chars.sort_unstable();
        context.chars.dedup();
        if !followers.is_empty() {
            context.facts |= NEXT_CHAR_EXCLUDES;
        }
        Some((exclusions, symbols))
    }

    /// Returns true if any two neighbouring bytes of a character merge, which is a quick
    /// precondition of [`Rules::prove`].
    pub(super) fn merges_something(&self, piece: &[u8]) -> bool {
        let id = |byte: u8| self.byte_ids[usize::from(byte)];
        let mut pairs = piece.windows(2);
        pairs.any(|pair| self.pairs.rank(id(pair[0]), id(pair[1])) != NO_RANK)
    }

    /// Excludes each neighbour that a rule of at most this rank joins with the first or the last of
    /// `symbols`. Returns `None` beyond a limit.
    fn exclude_until(&self, symbols: &[u32], rank: u32, exclusions: &mut Exclusions) -> Option<()> {
        let add = |set: &mut ByteSet, byte: u8| set[usize::from(byte / 64)] |= 1 << (byte % 64);
        let (first, last) = (symbols[0], symbols[symbols.len() - 1]);
        let Exclusions { context, followers } = exclusions;
        let seen = || {
            let seen = self.seen.get();
            (seen < self.limits.rules).then(|| self.seen.set(seen + 1))
        };
        // A token without rules may point to another token's first rule, where the loop stops.
        let from = |starts: &[u32], token: u32| starts.get(token as usize).copied();
        let rules =
            from(&self.right_starts, first).map_or(&[][..], |n| &self.as_right[n as usize..]);
        for &(right, other, end) in rules {
            if right != first || other > rank {
                break;
            }
            if context.chars.len() == self.limits.chars {
                return None;
            }
            seen()?;
            match end {
                TokenEnd::Char(code, byte) => {
                    add(&mut context.possible_before, byte);
                    context.chars.push(code);
                }
                TokenEnd::Byte(byte) => {
                    add(&mut context.possible_before, byte);
                    add(&mut context.always_before, byte);
                }
            }
        }
        let rules = from(&self.left_starts, last).map_or(&[][..], |n| &self.as_left[n as usize..]);
        for &(left, other, begin) in rules {
            if left != last || other > rank {
                break;
            }
            if followers.len() == self.limits.chars {
                return None;
            }
            seen()?;
            match begin {
                TokenStart::Char(code) => followers.push(code),
                TokenStart::Lead(byte) => {
                    add(&mut context.next, byte);
                    context.facts |= NEXT_BYTE_EXCLUDES;
                }
            }
        }
        Some(())
    }
}
