//! A query and items as prompts, one for each item.

use std::borrow::Cow;

use prelude_core::{NodeIdx, PromptTree, TokenId};
use prelude_text::shared_prefix::SharedPrompts;
use serde_json::value::RawValue;

use crate::{
    endpoint::Call,
    endpoints::{
        input::{Prompt, Prompts, check_bytes, check_ids, check_length, parse_prompts},
        meter::Meter,
        read,
        truncate::Truncation,
    },
    error::ApiError,
    served_model::ServedModel,
};

/// How a query and an item become one prompt.
pub(super) struct Joining {
    pub(super) item_first: bool,
    /// Encoded apart, then joined as ids; else joined as text, then encoded.
    pub(super) apart: bool,
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
        let Prompts(mut query) = query.ok_or_else(|| ApiError::missing_field("query"))?;
        let query = match query.len() {
            1 => query.swap_remove(0),
            _ => {
                let must_be = "a string or a list of token ids";
                return Err(ApiError::invalid_type("query", must_be));
            }
        };
        let raw = items.ok_or_else(|| ApiError::missing_field("items"))?.get();
        // No items are no error: the answer has no scores.
        let items = match raw.strip_prefix('[').map(str::trim_start) {
            Some("]") => Vec::new(),
            _ => parse_prompts(raw).map_err(|wrong| wrong.at("items"))?,
        };
        let mixed = || {
            let must = "be strings where `query` is one, and lists of token ids where it is one";
            ApiError::invalid_value("items", must)
        };
        match query {
            Prompt::Text(query) => {
                let text = |item| match item {
                    Prompt::Text(text) => Ok(text),
                    Prompt::Ids(_) => Err(mixed()),
                };
                Ok(Self::Texts {
                    query,
                    items: items.into_iter().map(text).collect::<Result<_, _>>()?,
                })
            }
            Prompt::Ids(query) => {
                let ids = |item| match item {
                    Prompt::Ids(ids) => Ok(ids),
                    Prompt::Text(_) => Err(mixed()),
                };
                Ok(Self::Ids {
                    query,
                    items: items.into_iter().map(ids).collect::<Result<_, _>>()?,
                })
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Texts { items, .. } => items.len(),
            Self::Ids { items, .. } => items.len(),
        }
    }

    /// The prompts as a tree (a query that comes first is one path), where each ends, and the sum
    /// of their lengths. The number of items has been checked.
    pub(super) async fn encode(
        self,
        call: &Call,
        model: &ServedModel,
        joining: &Joining,
    ) -> Result<(PromptTree, Vec<NodeIdx>, u64), ApiError> {
        let prompts = match self {
            Self::Ids { query, items } => join_ids(call, model, query, items, (0, 0), joining)?,
            Self::Texts { query, items } if joining.apart => {
                let bytes = query.len() + items.iter().map(|item| item.len()).sum::<usize>();
                let encode = |text: &str, special| model.tokenizer.encode(text, special);
                for part in items.iter().chain([&query]) {
                    check_bytes("items", part.len(), model)?;
                }
                let work = || {
                    // What begins the prompt begins it with the tokenizer's special tokens.
                    let first = joining.item_first;
                    let items = items.iter().map(|item| encode(item, first)).collect();
                    (encode(&query, !first), items, special_around(model))
                };
                let (query, items, special) = call.encode(bytes, work).await?;
                join_ids(call, model, query, items, special, joining)?
            }
            Self::Texts { query, items } => {
                join_texts(call, model, &query, &items, joining).await?
            }
        };
        let mut tokens = 0;
        for len in prompts.lens() {
            check_length("items", len, 0, model)?;
            tokens += len as u64;
        }
        let (tree, ends) = prompts
            .into_tree()
            .map_err(|e| read::of_tree("items", &e))?;
        Ok((tree, ends, tokens))
    }
}

/// Each item with the query as text. A query that comes first is encoded once where it can be cut
/// off; what has to be encoded with every item is bounded by the queue it is meant for.
async fn join_texts(
    call: &Call,
    model: &ServedModel,
    query: &str,
    items: &[Cow<'_, str>],
    joining: &Joining,
) -> Result<SharedPrompts, ApiError> {
    // Without a place to cut, the query is encoded with every item.
    let bytes = items.iter().map(|item| item.len()).sum::<usize>() + query.len() * items.len();
    let work = || {
        let meter = Meter::new(call);
        if joining.truncation.is_some() {
            // Where a prompt is cut is learned from the whole of it, for each item anew.
            meter.read_again(query.len(), items.len() - 1)?;
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
            Ok(cut.into_owned())
        };
        SharedPrompts::encode(items.iter().map(join), model.text_cuts(), |text, out| {
            check_bytes("items", text.len(), model)?;
            model.tokenizer.encode_into(text, true, out);
            meter.add(out.len())?;
            // At once: a long query is not encoded again with every item to learn it.
            check_length("items", out.len(), 0, model)
        })
    };
    call.encode(bytes, work).await?
}

/// Each item with the query. All lengths are checked before anything is copied: a long query and
/// many items are far more joined than they were in the body. `special` is how many ids before and
/// behind the part that comes first are the tokenizer's own: these are never cut.
fn join_ids(
    call: &Call,
    model: &ServedModel,
    query: Vec<TokenId>,
    items: Vec<Vec<TokenId>>,
    special: (usize, usize),
    joining: &Joining,
) -> Result<SharedPrompts, ApiError> {
    for item in &items {
        let len = query.len() + item.len();
        if joining.truncation.is_none() {
            check_length("items", len, 0, model)?;
        }
        if len == 0 {
            // Says so by name.
            check_ids("items", &[], model)?;
        }
    }
    for ids in items.iter().chain([&query]).filter(|ids| !ids.is_empty()) {
        check_ids("items", ids, model)?;
    }
    if !joining.item_first && joining.truncation.is_none() {
        return Ok(SharedPrompts::after(query, items));
    }
    let copies = items.len() as u64 * query.len() as u64;
    let max = call.app.config.limits.queued_tokens;
    if copies > max {
        return Err(ApiError::larger_than_queue("prompt tokens", copies, max));
    }
    let join = |item: Vec<TokenId>| {
        let (first, second) = match joining.item_first {
            true => (item.as_slice(), query.as_slice()),
            false => (query.as_slice(), item.as_slice()),
        };
        let mut joined = [first, second].concat();
        if let Some(truncation) = &joining.truncation {
            let spared = [0..special.0, first.len() - special.1..first.len()];
            truncation.apply_between("items", &mut joined, spared)?;
        }
        Ok(joined)
    };
    let joined = items
        .into_iter()
        .map(join)
        .collect::<Result<_, ApiError>>()?;
    Ok(SharedPrompts::after(Vec::new(), joined))
}

/// How many ids the tokenizer puts before and behind every text it is asked to.
fn special_around(model: &ServedModel) -> (usize, usize) {
    let [with, without] = [true, false].map(|special| model.tokenizer.encode("a", special));
    let around = with.len().saturating_sub(without.len());
    let is_before = |&before: &usize| with[before..].starts_with(&without);
    let before = (0..=around).find(is_before).unwrap_or(around);
    (before, around - before)
}
