//! Characters from whose tokens merging can begin, and places that no merge crosses.
//!
//! Merging begins with bytes, and a character beyond ASCII has two to four. For most characters it
//! is certain that their own bytes merge to one token first, whatever stands around them. Such a
//! character is *premerged*: merging can begin from its token.
//!
//! The proof holds for words of whole characters of which every byte has a token (other words are
//! merged whole). Let `r` be the rank of the next merge inside of the character, in each state on
//! the way to its token, and let every rule that joins the state's first or last symbol with a
//! symbol outside have a rank above `r`. Then no such rule applies before the character is
//! complete, since the applicable rule of the lowest rank is taken. If moreover the rules that join
//! the complete token with a neighbour have ranks above all inner rules, then taking the inner
//! merges first does not change the order of the others.
//!
//! A rule that joins a symbol with its left neighbour often has a low rank (a space and the first
//! byte of Cyrillic letters), but few characters end in that neighbour. After those characters the
//! character is not premerged, after others it is. Testing the last byte alone, which 64 characters
//! share, would exclude one Chinese character in six. The same holds on the right: the last byte of
//! 你 has an early rule with 除 and with nothing else. On the right, the test is whether any
//! character excludes it, since testing the existence of such a character for all would exclude one
//! in seven.
//!
//! A character that is not a token is premerged as well if its bytes merge to two tokens first.
//!
//! No merge joins two neighbouring premerged characters that no token has side by side, since the
//! result would be a token with both. At such places a word falls into pieces, which are short and
//! frequent. This makes languages without spaces fast: their words are clauses that rarely repeat,
//! made of pieces that do.

mod bits;
mod char_pairs;
mod edges;
mod limits;
mod premerge_builder;
mod proof;

use crate::format::CompiledError;
use crate::format::{Reader, Section, Writer};
use crate::store::{Flat, Relocatable};
use crate::vocab::NO_TOKEN;
use bits::{ByteSet, contains, excluded_bit, follower_bit, has_bit, neighbour_bit};
use char_pairs::CharPairs;

/// The number of code points in a block of the table.
const BLOCK: usize = 64;
/// The table entry of a character that is not premerged.
pub(crate) const NOT_PREMERGED: u32 = u32::MAX;
/// The number of low bits of a table entry, which hold the token.
const TOKEN_BITS: u32 = 20;
const TOKEN: u32 = (1 << TOKEN_BITS) - 1;

/// Fact: some next characters exclude the character.
const NEXT_CHAR_EXCLUDES: u64 = 1;
/// Fact: some first bytes of the next character exclude the character.
const NEXT_BYTE_EXCLUDES: u64 = 4;
/// Fact: the character is premerged to two tokens.
const TWO_TOKENS: u64 = 2;

/// The fixed-size part of a [`proof::Context`].
#[derive(Debug, Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct PackedContext {
    possible_before: ByteSet,
    always_before: ByteSet,
    next: ByteSet,
    facts: u64,
}

/// The tokens of a premerged character; the second is [`NO_TOKEN`] if it has one token.
pub(crate) type CharTokens = [u32; 2];
/// The code point, with the byte 0, that stands for the begin or end of a word. Treating it as a
/// character that excludes another would cost time and change no result.
pub(crate) const NO_CHAR: u32 = u32::MAX;
/// The tokens of a character that is not premerged.
pub(crate) const NONE: CharTokens = [NOT_PREMERGED, NO_TOKEN];

/// The premerged characters of a vocabulary, and the pairs of characters that some token has side
/// by side.
#[derive(Debug, Default)]
pub(crate) struct Premerged {
    /// The block of `tokens` for each 64 code points.
    index: Flat<u16>,
    /// The entry of each character: [`NOT_PREMERGED`], or the token in the lower 20 bits and the
    /// index into `excluded` in the upper 12 bits. A character of two tokens has its index into
    /// `splits` in place of a token.
    tokens: Flat<u32>,
    splits: Flat<CharTokens>,
    /// The contexts in which characters are not premerged; the first is empty.
    excluded: Flat<PackedContext>,
    /// The previous characters of all contexts, as a hashed bit set.
    excluded_chars: Flat<u64>,
    followers: Flat<u64>,
    neighbours: Flat<u64>,
    char_pairs: CharPairs,
}

impl Premerged {
    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.put(Section::CharIndex, &self.index);
        writer.put(Section::CharTokens, &self.tokens);
        writer.put(Section::CharTokenPairs, &self.splits);
        writer.put(Section::ContextBytes, &self.excluded);
        writer.put(Section::ContextChars, &self.excluded_chars);
        writer.put(Section::ContextFollowers, &self.followers);
        writer.put(Section::Neighbours, &self.neighbours);
        self.char_pairs.write(writer);
    }

    pub(crate) fn tables(&mut self) -> [&mut dyn Relocatable; 8] {
        [
            &mut self.index,
            &mut self.tokens,
            &mut self.splits,
            &mut self.excluded,
            &mut self.excluded_chars,
            &mut self.followers,
            &mut self.neighbours,
            self.char_pairs.table(),
        ]
    }

    /// Reads the tables. Lookups check every index, so any contents are safe.
    pub(crate) fn read(reader: &Reader) -> Result<Self, CompiledError> {
        Ok(Self {
            index: reader.get(Section::CharIndex)?,
            tokens: reader.get(Section::CharTokens)?,
            splits: reader.get(Section::CharTokenPairs)?,
            excluded: reader.get(Section::ContextBytes)?,
            excluded_chars: reader.get(Section::ContextChars)?,
            followers: reader.get(Section::ContextFollowers)?,
            neighbours: reader.get(Section::Neighbours)?,
            char_pairs: CharPairs::read(reader)?,
        })
    }

    /// Returns the tokens of a character beyond ASCII, or [`NONE`] if it is not premerged here.
    /// `before` is the last byte and the code point of the previous character of the word, `next`
    /// the code point and the first byte of the next one; [`NO_CHAR`] and 0 where there is none.
    #[inline(always)]
    pub(crate) fn get(&self, code: u32, before: (u8, u32), next: (u32, u8)) -> CharTokens {
        let block = self.index.get(code as usize / BLOCK).copied().unwrap_or(0);
        let at = usize::from(block) * BLOCK + code as usize % BLOCK;
        let entry = self.tokens.get(at).copied().unwrap_or(NOT_PREMERGED);
        if entry == NOT_PREMERGED {
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
        let followed = excluded.facts & NEXT_CHAR_EXCLUDES != 0
            && has_bit(&self.followers, follower_bit(code, right));
        if followed || contains(&excluded.next, lead) {
            return NONE;
        }
        if excluded.facts & TWO_TOKENS == 0 {
            return [token, NO_TOKEN];
        }
        self.splits.get(token as usize).copied().unwrap_or(NONE)
    }

    /// Returns the token of two characters, the second of which is not premerged after the first,
    /// or [`NO_TOKEN`]. `before` is the last byte and the code point of the character before both.
    #[inline(always)]
    pub(crate) fn char_pair(&self, left: u32, code: u32, before: (u8, u32)) -> u32 {
        let entry = self.char_pairs.get(left, code);
        if entry == NOT_PREMERGED {
            return NO_TOKEN;
        }
        let (context, token) = (entry >> TOKEN_BITS, entry & TOKEN);
        let excluded = self.excluded.get(context as usize);
        let is_premerged =
            excluded.is_some_and(|excluded| !self.is_excluded(context, excluded, before));
        if is_premerged { token } else { NO_TOKEN }
    }

    /// Returns true if the previous character `before` excludes a character with this context.
    #[inline(always)]
    fn is_excluded(&self, context: u32, excluded: &PackedContext, before: (u8, u32)) -> bool {
        let (byte, left) = before;
        contains(&excluded.possible_before, byte)
            && (contains(&excluded.always_before, byte)
                || has_bit(&self.excluded_chars, excluded_bit(context, left)))
    }

    /// Returns false if no token has these two characters side by side.
    #[inline(always)]
    pub(crate) fn may_join(&self, left: u32, right: u32) -> bool {
        has_bit(&self.neighbours, neighbour_bit(left, right))
    }
}

/// Decodes the character at byte `at`. Returns its code point and length, or `None` if no whole
/// character begins there.
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
mod premerge_tests;
