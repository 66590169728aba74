//! The rules of a file, and the tokens that no rule may join.

use super::is_complete;
use crate::error::Error;
use crate::sentencepiece::file::{File, Options};
use crate::sentencepiece::merge::{NO_ID, RANK_MAX, TOKEN_END};
use crate::sentencepiece::tokens::Tokens;
use std::collections::HashMap;

/// Tokens that no rule may join: those of bytes, and the unknown one.
pub(super) struct Special {
    pub(super) bytes: [u32; 256],
    pub(super) unk: Option<u32>,
    /// A bit for each of their ids.
    bits: Vec<u64>,
}

impl Special {
    pub(super) fn new(options: &Options, tokens: &Tokens) -> Result<Self, Error> {
        let mut bytes = [NO_ID; 256];
        if options.byte_fallback {
            for (byte, id) in bytes.iter_mut().enumerate() {
                *id = tokens.id(&format!("<{byte:#04X}>")).unwrap_or(NO_ID);
            }
        }
        let unk = options.unk_token.as_deref();
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
    pub(super) fn is(&self, id: u32) -> bool {
        let bits = self.bits.get(id as usize / 64);
        bits.is_some_and(|bits| bits >> (id % 64) & 1 != 0)
    }
}

/// Returns the two tokens that each rule joins, and its product.
pub(super) fn rules(
    file: &File,
    ids: &HashMap<&str, u32>,
    special: &Special,
) -> Result<Vec<[u32; 3]>, Error> {
    let path = "$.model.merges";
    if file.merges.len() > RANK_MAX {
        return Err(Error::invalid(path, format!("more than {RANK_MAX} merges")));
    }
    let mut rules = Vec::with_capacity(file.merges.len());
    let mut joined = String::new();
    for (index, (left, right)) in file.merges.iter().enumerate() {
        let id = |token: &str| {
            ids.get(token)
                .copied()
                .ok_or_else(|| Error::UnknownMergeToken {
                    index,
                    token: token.to_owned(),
                })
        };
        let (left_id, right_id) = (id(left)?, id(right)?);
        if let Some(part) = [(left, left_id), (right, right_id)]
            .into_iter()
            .find(|(_, id)| special.is(*id))
        {
            return Err(Error::unsupported(
                format!("{path}[{index}]"),
                format!(
                    "a merge of {:?}, which stands for bytes or for unknown text",
                    part.0
                ),
            ));
        }
        if let Some((token, id)) = [(left, left_id), (right, right_id)]
            .into_iter()
            .find(|(_, id)| *id >= TOKEN_END)
        {
            return Err(Error::unsupported(
                format!("{path}[{index}]"),
                format!(
                    "merge of token {token:?}, whose id is {id} (supported: below {TOKEN_END})"
                ),
            ));
        }
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        rules.push([left_id, right_id, id(&joined)?]);
    }
    Ok(rules)
}
