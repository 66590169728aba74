//! What the bytes of a character merge to first, and beside what: the proof of [`super`].

use super::bits::ByteSet;
use super::limits::Limits;
use super::sides::{Begin, End};
use super::{FOLLOWED, NEXT};
use crate::bpe::NO_TOKEN;
use crate::pairs::{NO_RANK, PairTable};
use std::cell::Cell;
use std::ops::Deref;

/// Next to what a character is no atom, and what it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Context {
    /// Last bytes of all before it that excludes it: nearly always this decides.
    pub(super) suspects: ByteSet,
    /// Bytes before it that exclude it whatever their character is.
    pub(super) always: ByteSet,
    /// Characters before it that exclude it, rising.
    pub(super) chars: Vec<u32>,
    /// First bytes after it that exclude it whatever their character is.
    pub(super) next: ByteSet,
    /// [`FOLLOWED`], [`NEXT`] and [`super::SPLIT`].
    pub(super) facts: u64,
}

pub(super) struct Rules<'a> {
    pub(super) byte_ids: &'a [u32; 256],
    pub(super) pairs: &'a PairTable,
    /// The left token, the rank, and the beginning of the right token of every rule that
    /// can join what is in one character with the next one; sorted.
    pub(super) as_left: Vec<(u32, u32, Begin)>,
    /// The right token, the rank, and the end of the left token of every rule that can
    /// join what is in one character with the next one; sorted.
    pub(super) as_right: Vec<(u32, u32, End)>,
    /// Where the rules of each token begin in these two.
    pub(super) left_starts: Vec<u32>,
    pub(super) right_starts: Vec<u32>,
    pub(super) limits: Limits,
    /// Rules looked at so far.
    pub(super) seen: Cell<usize>,
}

/// Where the entries of each token below `end` begin in a list that is sorted by these.
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

/// The tokens of a character on the way to its own.
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

/// Next to what a character is no atom.
#[derive(Default)]
pub(super) struct Bounds {
    pub(super) context: Context,
    /// Characters after it that exclude it.
    pub(super) followers: Vec<u32>,
}

impl Rules<'_> {
    /// What the bytes of the character `piece` always merge to first, and next to what
    /// they may not.
    pub(super) fn atom(&self, piece: &[u8]) -> Option<(Bounds, Symbols)> {
        let mut symbols = Symbols::default();
        for (symbol, byte) in symbols.ids.iter_mut().zip(piece) {
            *symbol = self.byte_ids[usize::from(*byte)];
            symbols.len += 1;
        }
        if symbols.contains(&NO_TOKEN) {
            return None;
        }
        let mut bounds = Bounds::default();
        let mut last_rank = 0;
        loop {
            let merges = symbols.windows(2).enumerate().filter_map(|(at, pair)| {
                let rank = self.pairs.rank(pair[0], pair[1]);
                (rank != NO_RANK).then(|| (rank, at, self.pairs.product(rank)))
            });
            let Some((rank, at, id)) = merges.min() else {
                break;
            };
            self.close_until(&symbols, rank, &mut bounds)?;
            symbols.ids[at] = id;
            symbols.ids.copy_within(at + 2.., at + 1);
            symbols.len -= 1;
            last_rank = rank.max(last_rank);
        }
        self.close_until(&symbols, last_rank, &mut bounds)?;
        let Bounds { context, followers } = &mut bounds;
        context.chars.sort_unstable();
        context.chars.dedup();
        if !followers.is_empty() {
            context.facts |= FOLLOWED;
        }
        Some((bounds, symbols))
    }

    /// Whether any two bytes of a character merge: a quick look at what [`Rules::atom`]
    /// would begin with.
    pub(super) fn merges_something(&self, piece: &[u8]) -> bool {
        let id = |byte: u8| self.byte_ids[usize::from(byte)];
        let mut pairs = piece.windows(2);
        pairs.any(|pair| self.pairs.rank(id(pair[0]), id(pair[1])) != NO_RANK)
    }

    /// Excludes all that a rule of at most this rank joins with the first or the last of
    /// these symbols. `None` if that is too much.
    fn close_until(&self, symbols: &[u32], rank: u32, bounds: &mut Bounds) -> Option<()> {
        let add = |set: &mut ByteSet, byte: u8| set[usize::from(byte / 64)] |= 1 << (byte % 64);
        let (first, last) = (symbols[0], symbols[symbols.len() - 1]);
        let Bounds { context, followers } = bounds;
        let seen = || {
            let seen = self.seen.get();
            (seen < self.limits.rules).then(|| self.seen.set(seen + 1))
        };
        // A token with no rules may begin at another's, which the loop ends at.
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
                Begin::Char(code) => followers.push(code),
                Begin::Lead(byte) => {
                    add(&mut context.next, byte);
                    context.facts |= NEXT;
                }
            }
        }
        Some(())
    }
}
