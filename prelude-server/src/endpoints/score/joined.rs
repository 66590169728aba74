//! A query and items as prompts, one for each item.

use std::borrow::Cow;

use prelude_core::TokenId;
use prelude_text::shared_prefix::SharedPrompts;
use serde_json::value::RawValue;

use crate::{
    admission::Growth,
    endpoint::Call,
    error::ApiError,
    served_model::ServedModel,
    tasks::{
        input::{Prompt, Prompts},
        place::{check_bytes, check_ids, check_length, place},
        truncate::Truncation,
    },
    wire::{Unknown, from_raw},
};

/// The way in which a query and an item become one prompt: texts are joined, then encoded.
#[derive(Clone, Copy)]
pub(super) struct Joining {
    pub(super) item_first: bool,
    pub(super) truncation: Option<Truncation>,
}

/// A query and items, to be joined into one prompt for each item.
pub(super) enum Joined<'a> {
    Texts {
        query: Cow<'a, str>,
        items: Vec<Cow<'a, str>>,
    },
    Ids {
        query: Vec<TokenId>,
        items: Vec<Vec<TokenId>>,
    },
}

impl<'a> Joined<'a> {
    /// Checks that query and items are of one kind.
    ///
    /// # Errors
    /// 400 naming the field.
    pub(super) fn new(
        query: Option<Prompts<'a>>,
        items: Option<&'a RawValue>,
    ) -> Result<Self, ApiError> {
        let Prompts(query) = query.ok_or_else(|| ApiError::missing_field("query"))?;
        let wrong = || ApiError::invalid_type("query", "a string or a list of token ids");
        let [query] = <[Prompt<'a>; 1]>::try_from(query).map_err(|_| wrong())?;
        let raw = items.ok_or_else(|| ApiError::missing_field("items"))?.get();
        // No items are no error: the answer has no scores.
        let items = match raw.strip_prefix('[').map(str::trim_start) {
            Some("]") => Vec::new(),
            _ => from_raw::<Prompts<'_>>(raw, "items", &mut Unknown::default())?.0,
        };
        let mixed = || {
            let must = "be strings where `query` is one, and lists of token ids where it is one";
            ApiError::invalid_value("items", must)
        };
        match query {
            Prompt::Text(query) => {
                let text = |item| match item {
                    Prompt::Text(text) => Ok(text),
                    Prompt::Ids(_) | Prompt::Pair(..) => Err(mixed()),
                };
                let items = items.into_iter().map(text).collect::<Result<_, _>>()?;
                Ok(Self::Texts { query, items })
            }
            Prompt::Pair(..) => Err(wrong()),
            Prompt::Ids(query) => {
                let ids = |item| match item {
                    Prompt::Ids(ids) => Ok(ids),
                    Prompt::Text(_) | Prompt::Pair(..) => Err(mixed()),
                };
                let items = items.into_iter().map(ids).collect::<Result<_, _>>()?;
                Ok(Self::Ids { query, items })
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Texts { items, .. } => items.len(),
            Self::Ids { items, .. } => items.len(),
        }
    }

    /// Returns about how many bytes of text there are to encode. Without a place to cut, the query
    /// is encoded with every item.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Ids { .. } => 0,
            Self::Texts { query, items } => {
                items.iter().map(|item| item.len()).sum::<usize>() + query.len() * items.len()
            }
        }
    }

    /// Encodes the prompts within the room of the call.
    ///
    /// # Errors
    /// 400 naming the field.
    pub(super) fn encode(
        self,
        call: &Call,
        model: &ServedModel,
        joining: Joining,
    ) -> Result<SharedPrompts, ApiError> {
        match self {
            Self::Ids { query, items } => join_ids(call, model, query, items, joining),
            Self::Texts { query, items } => join_texts(call, model, &query, &items, joining),
        }
    }
}

/// Joins each item with the query as text. A query that comes first is encoded once where it can be
/// cut off; a query that has to be encoded with every item is bounded by the queue.
fn join_texts(
    call: &Call,
    model: &ServedModel,
    query: &str,
    items: &[Cow<'_, str>],
    joining: Joining,
) -> Result<SharedPrompts, ApiError> {
    if joining.truncation.is_some() {
        // Where a prompt is cut is learned from the whole of it, for each item anew.
        let again = Growth::Reread(query.len(), items.len() - 1);
        call.reservation.grow(again)?;
    }
    let join = |item: &Cow<'_, str>| {
        let text = match joining.item_first {
            true => format!("{item}{query}"),
            false => format!("{query}{item}"),
        };
        let Some(truncation) = &joining.truncation else {
            return Ok(text);
        };
        let count = |text: &str| Ok(model.tokenizer.count(text, true));
        let cut = truncation.fit(model, "items", &text, count)?;
        call.note_cut(matches!(cut, Cow::Owned(_)));
        Ok(cut.into_owned())
    };
    let place = |index| place("items", index, items.len());
    SharedPrompts::encode(
        items.iter().map(join),
        model.text_cuts(),
        |index, text, out| {
            check_bytes(place(index), text.len(), model)?;
            model.tokenizer.encode_into(text, true, out);
            call.reservation.grow(Growth::Tokens(out.len()))?;
            // Checked at once: a long query is not encoded again with every item before the request is
            // refused.
            check_length(place(index), out.len(), 0, model)
        },
    )
}

/// Joins each item with the query. All lengths are checked before anything is copied: a long query
/// and many items are far more joined than they were in the body.
fn join_ids(
    call: &Call,
    model: &ServedModel,
    query: Vec<TokenId>,
    items: Vec<Vec<TokenId>>,
    joining: Joining,
) -> Result<SharedPrompts, ApiError> {
    for (index, item) in items.iter().enumerate() {
        let place = place("items", index, items.len());
        let len = query.len() + item.len();
        if joining.truncation.is_none() {
            check_length(place, len, 0, model)?;
        }
        // The empty prompt is refused by its name; an item may be empty behind a query.
        if len == 0 || !item.is_empty() {
            check_ids(place, item, model)?;
        }
    }
    if !query.is_empty() {
        check_ids("query", &query, model)?;
    }
    if !joining.item_first && joining.truncation.is_none() {
        return Ok(SharedPrompts::after(query, items));
    }
    let copied = Growth::Tokens(items.len() * query.len());
    call.reservation.grow(copied)?;
    let join = |item: Vec<TokenId>| {
        let mut joined = match joining.item_first {
            true => [item.as_slice(), query.as_slice()].concat(),
            false => [query.as_slice(), item.as_slice()].concat(),
        };
        if let Some(truncation) = &joining.truncation {
            call.note_cut(truncation.cuts(joined.len()));
            truncation.apply(&mut joined);
        }
        joined
    };
    let joined = items.into_iter().map(join).collect();
    Ok(SharedPrompts::after(Vec::new(), joined))
}
