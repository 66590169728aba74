//! The table of a model whose texts are characters and not bytes: every character with a token is
//! premerged to it, whatever stands around it.

use super::bits::{NEIGHBOUR_BITS, neighbour_bit, set_bit};
use super::premerge_builder::entry;
use super::{BLOCK, NOT_PREMERGED, PackedContext, Premerged, TOKEN};

impl Premerged {
    /// Creates the table. `chars` yields the characters beyond ASCII that have a token, with it, and
    /// `neighbours` the characters on both sides of the place where each rule joins its parts. Returns
    /// the token that is too large for the table if there is one.
    pub(crate) fn of_chars(
        chars: impl Iterator<Item = (char, u32)>,
        neighbours: impl Iterator<Item = (char, char)>,
    ) -> Result<Self, u32> {
        let mut index = vec![0u16; char::MAX as usize / BLOCK + 1];
        let mut tokens = vec![NOT_PREMERGED; BLOCK];
        for (c, id) in chars {
            if id > TOKEN {
                return Err(id);
            }
            let block = &mut index[c as usize / BLOCK];
            if *block == 0 {
                *block = (tokens.len() / BLOCK) as u16;
                tokens.resize(tokens.len() + BLOCK, NOT_PREMERGED);
            }
            tokens[usize::from(*block) * BLOCK + c as usize % BLOCK] = entry(0, id);
        }
        let mut bits = vec![0u64; NEIGHBOUR_BITS / 64];
        for (left, right) in neighbours {
            set_bit(&mut bits, neighbour_bit(left.into(), right.into()));
        }
        Ok(Self {
            index: index.into(),
            tokens: tokens.into(),
            excluded: vec![PackedContext::default()].into(),
            neighbours: bits.into(),
            ..Self::default()
        })
    }
}
