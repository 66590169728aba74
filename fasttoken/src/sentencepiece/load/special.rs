//! The tokens that no rule may join.

use super::is_complete;
use crate::error::Error;
use crate::json::ModelJson;
use crate::pieces::Tokens;
use crate::sentencepiece::merge::NO_ID;

/// Tokens that no rule may join: those of bytes, and the unknown one.
pub(in crate::sentencepiece) struct Special {
    pub(in crate::sentencepiece) bytes: [u32; 256],
    pub(in crate::sentencepiece) unk: Option<u32>,
    /// A bit for each of their ids.
    bits: Vec<u64>,
}

impl Special {
    pub(in crate::sentencepiece) fn new(
        model: &ModelJson<'_>,
        tokens: &Tokens,
    ) -> Result<Self, Error> {
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
    pub(in crate::sentencepiece) fn is(&self, id: u32) -> bool {
        let bits = self.bits.get(id as usize / 64);
        bits.is_some_and(|bits| bits >> (id % 64) & 1 != 0)
    }
}
