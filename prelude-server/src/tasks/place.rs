//! Places of texts in a request, and what a text at a place may be: lengths and ids.

use std::borrow::Cow;

use prelude_core::TokenId;

use crate::{error::ApiError, served_model::ServedModel};

/// The place of a text in a request, which errors name: a field, or an item of its list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    field: &'static str,
    index: Option<usize>,
}

impl From<&'static str> for Place {
    fn from(field: &'static str) -> Self {
        Self { field, index: None }
    }
}

impl From<Place> for Cow<'static, str> {
    fn from(Place { field, index }: Place) -> Self {
        match index {
            None => field.into(),
            Some(index) => format!("/{field}/{index}").into(),
        }
    }
}

/// Returns the place of one of `count` texts of a field: the field if it is the only one.
pub(crate) fn place(field: &'static str, index: usize, count: usize) -> Place {
    let index = (count != 1).then_some(index);
    Place { field, index }
}

/// Checks that a prompt has tokens and that they are in the vocabulary.
///
/// # Errors
/// 400.
pub(crate) fn check_ids(
    place: impl Into<Place>,
    ids: &[TokenId],
    model: &ServedModel,
) -> Result<(), ApiError> {
    let place: Place = place.into();
    if ids.is_empty() {
        let must = "not be empty: it has no tokens";
        return Err(ApiError::invalid_value(place, must));
    }
    match ids.iter().find(|&&id| id >= model.vocab_size) {
        None => Ok(()),
        Some(&id) => {
            let id = u64::from(id);
            Err(ApiError::token_out_of_range(place, id, model.vocab_size))
        }
    }
}

/// Checks that a text of so many bytes may fit the context, before any of it is encoded.
///
/// # Errors
/// 400 `context_length_exceeded`.
pub(crate) fn check_bytes(
    place: impl Into<Place>,
    bytes: usize,
    model: &ServedModel,
) -> Result<(), ApiError> {
    let least = model.tokenizer.least_tokens(bytes);
    if least <= model.max_model_len as usize {
        return Ok(());
    }
    let place: Place = place.into();
    Err(ApiError::context_bytes_exceeded(
        place,
        model.max_model_len,
        bytes,
        least,
    ))
}

/// Checks that a prompt and its output budget fit the context.
///
/// # Errors
/// 400 `context_length_exceeded`.
pub(crate) fn check_length(
    place: impl Into<Place>,
    prompt_tokens: usize,
    output_tokens: u64,
    model: &ServedModel,
) -> Result<(), ApiError> {
    let prompt_tokens = prompt_tokens as u64;
    if prompt_tokens.saturating_add(output_tokens) <= u64::from(model.max_model_len) {
        return Ok(());
    }
    let place: Place = place.into();
    Err(ApiError::context_length_exceeded(
        place,
        model.max_model_len,
        prompt_tokens,
        output_tokens,
    ))
}
