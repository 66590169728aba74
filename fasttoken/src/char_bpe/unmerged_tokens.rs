//! The tokens that no rule may join.

use super::NO_ID;
use super::char_bpe_builder::is_complete;
use crate::error::Error;
use crate::json::ModelJson;
use crate::pieces::Tokens;

/// Tokens that no rule may join: those of bytes, and the unknown one.
pub(super) struct UnmergedTokens {
    pub(super) bytes: [u32; 256],
    pub(super) unk: Option<u32>,
    /// A bit for the id of each of these tokens.
    bits: Vec<u64>,
}

impl UnmergedTokens {
    pub(super) fn new(model: &ModelJson, tokens: &Tokens) -> Result<Self, Error> {
        let mut bytes = [NO_ID; 256];
        if model.byte_fallback == Some(true) {
            for (byte, id) in bytes.iter_mut().enumerate() {
                *id = tokens.id(&format!("<{byte:#04X}>")).unwrap_or(NO_ID);
            }
        }
        let unk = model.unk_token.as_deref();
        let unk = match unk.map(|token| (token, tokens.id(token))) {
            Some((token, None)) if !is_complete(&bytes) => {
                return Err(Error::invalid(
                    "$.model.unk_token",
                    format!("{token:?} is not in the vocabulary"),
                ));
            }
            Some((_, id)) => id,
            None => None,
        };
        let mut bits = vec![0; tokens.id_end() / 64 + 1];
        for id in bytes.into_iter().chain(unk).filter(|id| *id != NO_ID) {
            bits[id as usize / 64] |= 1 << (id % 64);
        }
        Ok(Self { bytes, unk, bits })
    }

    #[inline]
    pub(super) fn contains(&self, id: u32) -> bool {
        let bits = self.bits.get(id as usize / 64);
        bits.is_some_and(|bits| bits >> (id % 64) & 1 != 0)
    }
}
