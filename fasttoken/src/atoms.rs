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
//! The same holds on the right: the last byte of 你 is joined early with 除, and with
//! nothing else. Asking whether there is a character at all that excludes it, not which,
//! would turn down another one in seven.
//!
//! What holds for one token holds for two: of characters that are no token, the bytes
//! often merge to two tokens first, and these are an atom together.
//!
//! Between two atoms that stand side by side in no token nothing is ever merged, since
//! the result would be a token with both. There a word falls apart, into parts that
//! are short and frequent. This is what makes languages without spaces fast: their
//! words are clauses that rarely come back, made of parts that do.

mod bits;
mod build;
mod doubles;
mod limits;
mod rules;
mod sides;

use crate::bpe::NO_TOKEN;
use crate::image::ImageError;
use crate::image::format::{Reader, Section, Writer};
use crate::store::{Flat, Movable};
use bits::{ByteSet, contains, excluded_bit, follower_bit, has_bit, neighbour_bit};
use doubles::Doubles;

/// Code points per block of the table.
const BLOCK: usize = 64;
/// In the table: no atom.
pub(crate) const NO_ATOM: u32 = u32::MAX;
/// The lower bits of an entry, which are the token.
const TOKEN_BITS: u32 = 20;
const TOKEN: u32 = (1 << TOKEN_BITS) - 1;

/// Some characters after it exclude it.
const FOLLOWED: u64 = 1;
/// Some first bytes after it exclude it.
const NEXT: u64 = 4;
/// It is two tokens.
const SPLIT: u64 = 2;

/// A [`rules::Context`], but for the characters.
#[derive(Debug, Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Excluded {
    suspects: ByteSet,
    always: ByteSet,
    next: ByteSet,
    facts: u64,
}

/// The tokens of a character, of which the second is [`NO_TOKEN`] if it is one.
pub(crate) type Atom = [u32; 2];
/// In place of a character, with the byte 0: the word begins or ends. To take it for a
/// character that excludes another would cost time and change nothing.
pub(crate) const NO_CHAR: u32 = u32::MAX;
/// In place of an atom.
pub(crate) const NONE: Atom = [NO_ATOM, NO_TOKEN];

/// The atoms of a vocabulary, and which of them can be neighbours in a token.
#[derive(Debug, Default)]
pub(crate) struct Atoms {
    /// Block of each 64 code points.
    index: Flat<u16>,
    /// For each character [`NO_ATOM`], or its token in the lower 20 bits and which of
    /// `excluded` in the upper ones. Instead of two tokens, their place in `splits`.
    tokens: Flat<u32>,
    splits: Flat<Atom>,
    /// The first is empty.
    excluded: Flat<Excluded>,
    /// The characters of contexts.
    excluded_chars: Flat<u64>,
    followers: Flat<u64>,
    neighbours: Flat<u64>,
    doubles: Doubles,
}

impl Atoms {
    pub(crate) fn write(&self, image: &mut Writer) {
        image.put(Section::AtomIndex, &self.index);
        image.put(Section::AtomTokens, &self.tokens);
        image.put(Section::AtomSplits, &self.splits);
        image.put(Section::AtomSets, &self.excluded);
        image.put(Section::AtomChars, &self.excluded_chars);
        image.put(Section::AtomFollowers, &self.followers);
        image.put(Section::Neighbours, &self.neighbours);
        self.doubles.write(image);
    }

    pub(crate) fn tables(&mut self) -> [&mut dyn Movable; 8] {
        [
            &mut self.index,
            &mut self.tokens,
            &mut self.splits,
            &mut self.excluded,
            &mut self.excluded_chars,
            &mut self.followers,
            &mut self.neighbours,
            self.doubles.table(),
        ]
    }

    /// Look-ups check every index, so any contents will do.
    pub(crate) fn read(image: &Reader) -> Result<Self, ImageError> {
        Ok(Self {
            index: image.get(Section::AtomIndex)?,
            tokens: image.get(Section::AtomTokens)?,
            splits: image.get(Section::AtomSplits)?,
            excluded: image.get(Section::AtomSets)?,
            excluded_chars: image.get(Section::AtomChars)?,
            followers: image.get(Section::AtomFollowers)?,
            neighbours: image.get(Section::Neighbours)?,
            doubles: Doubles::read(image)?,
        })
    }

    /// The tokens of a character beyond ASCII, or [`NONE`]. `before` is what its word has
    /// before it: the last byte, and the character that this ends. `next` is what its word
    /// has after it: the character, and its first byte. [`NO_CHAR`] and 0 where there is
    /// none.
    #[inline(always)]
    pub(crate) fn get(&self, code: u32, before: (u8, u32), next: (u32, u8)) -> Atom {
        let block = self.index.get(code as usize / BLOCK).copied().unwrap_or(0);
        let at = usize::from(block) * BLOCK + code as usize % BLOCK;
        let entry = self.tokens.get(at).copied().unwrap_or(NO_ATOM);
        if entry == NO_ATOM {
            return NONE;
        }
        let (context, token) = (entry >> TOKEN_BITS, entry & TOKEN);
        if context == 0 {
            return [token, NO_TOKEN];
        }
        let Some(excluded) = self.excluded.get(context as usize) else {
            return NONE;
        };
        if self.is_excluded(context, excluded, before) {
            return NONE;
        }
        if excluded.facts == 0 {
            return [token, NO_TOKEN];
        }
        let (right, lead) = next;
        let followed =
            excluded.facts & FOLLOWED != 0 && has_bit(&self.followers, follower_bit(code, right));
        if followed || contains(&excluded.next, lead) {
            return NONE;
        }
        if excluded.facts & SPLIT == 0 {
            return [token, NO_TOKEN];
        }
        self.splits.get(token as usize).copied().unwrap_or(NONE)
    }

    /// The token of two characters of which the second one is no atom after the first one,
    /// or [`NO_TOKEN`]. `before` is what its word has before both.
    #[inline(always)]
    pub(crate) fn double(&self, left: u32, code: u32, before: (u8, u32)) -> u32 {
        let entry = self.doubles.get(left, code);
        if entry == NO_ATOM {
            return NO_TOKEN;
        }
        let (context, token) = (entry >> TOKEN_BITS, entry & TOKEN);
        let excluded = self.excluded.get(context as usize);
        let is_atom = excluded.is_some_and(|excluded| !self.is_excluded(context, excluded, before));
        if is_atom { token } else { NO_TOKEN }
    }

    /// Whether what is before excludes a character with this context.
    #[inline(always)]
    fn is_excluded(&self, context: u32, excluded: &Excluded, before: (u8, u32)) -> bool {
        let (byte, left) = before;
        contains(&excluded.suspects, byte)
            && (contains(&excluded.always, byte)
                || has_bit(&self.excluded_chars, excluded_bit(context, left)))
    }

    /// Whether a token may have these two characters side by side.
    #[inline(always)]
    pub(crate) fn may_join(&self, left: u32, right: u32) -> bool {
        has_bit(&self.neighbours, neighbour_bit(left, right))
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
