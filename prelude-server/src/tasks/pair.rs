//! Pairs of texts as the tokenizer's template puts them together: the prompts of cross-encoders and of
//! classifiers of pairs.

use std::borrow::Cow;

use prelude_core::TokenId;

use super::{
    place::{Place, check_bytes, check_ids, check_length},
    truncate::{Truncation, nothing_left},
};
use crate::{error::ApiError, served_model::ServedModel};

/// The ids of two texts.
#[derive(Debug)]
pub(crate) struct EncodedPair {
    /// Ids that also say their type: an id of type 1 is by the size of the vocabulary more.
    pub(crate) ids: Vec<TokenId>,
    /// True if texts were cut.
    pub(crate) is_cut: bool,
}

/// Encodes two texts with the special tokens and types of the tokenizer's template for pairs. If they
/// are too long, the longer one is cut, and where that is not enough both to the same length, as
/// transformers does it.
///
/// # Errors
/// 400 naming `place`: `context_length_exceeded` without a truncation, `invalid_value` if nothing of
/// the texts would be left or there are no tokens, `token_out_of_range`.
pub(crate) fn encode_pair(
    model: &ServedModel,
    place: Place,
    (first, second): (&str, &str),
    truncation: Option<Truncation>,
) -> Result<EncodedPair, ApiError> {
    let tokenizer = &model.tokenizer;
    let mut is_cut = false;
    let (mut ids, types) = match truncation {
        None => {
            check_bytes(place, first.len() + second.len(), model)?;
            tokenizer.encode_pair(first, second, None)
        }
        Some(truncation) => {
            let around = tokenizer.encode_pair("", "", None).0.len();
            if truncation.cuts(around) {
                return Err(nothing_left(&Cow::<str>::from(place), around));
            }
            // One token more tells whether there are more: long texts are not read to their ends.
            let (ids, types) = tokenizer.encode_pair(first, second, Some(truncation.of_pair(1)));
            is_cut = truncation.cuts(ids.len());
            match is_cut {
                true if truncation.cuts(around + 1) => {
                    return Err(nothing_left(&Cow::<str>::from(place), around));
                }
                true => tokenizer.encode_pair(first, second, Some(truncation.of_pair(0))),
                false => (ids, types),
            }
        }
    };
    check_length(place, ids.len(), 0, model)?;
    check_ids(place, &ids, model)?;
    for (id, kind) in ids.iter_mut().zip(types) {
        *id += kind.min(model.form.token_types - 1) * model.vocab_size;
    }
    Ok(EncodedPair { ids, is_cut })
}
