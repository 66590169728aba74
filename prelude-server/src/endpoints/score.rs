//! `POST /score`: probabilities of given next tokens behind each item.

use std::{borrow::Cow, collections::HashSet, sync::Arc};

use bytes::Bytes;
use prelude_core::{Head, NodeIdx, Normalise, PromptTree, RowOutput, RowSpec, TokenId};
use serde::Serialize;

use super::{
    Call, Reply,
    classify::class_probabilities,
    input::{Prompt, check_ids, check_length, parse_prompts, prompts},
    read,
    submit::{Common, UsageBody},
};
use crate::{
    error::ApiError,
    json::Fields,
    label_trie::softmax,
    served_model::{ModelKind, ServedModel, Task},
    shared_prefix::SharedPrompts,
};

/// Most label tokens of a request.
const LABELS_MAX: usize = 1_024;

#[derive(Serialize)]
struct Response<'a> {
    scores: Vec<Vec<f64>>,
    model: &'a str,
    usage: UsageBody,
    object: &'static str,
}

/// Answers `/score`.
pub(crate) async fn handle(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    let mut fields = call.fields(&body)?;
    let common = Common::take(call, &mut fields)?;
    // Labels are for language models; without a model's name, the one that can use them is meant.
    let labelled = fields.has("labels") || fields.has("label_token_ids");
    let model = match &common.model {
        None if labelled => call
            .app
            .model_of(Task::Score, |m| m.kind == ModelKind::Lm)?,
        name => call.app.model_for(name.as_deref(), Task::Score)?,
    };
    refuse_pairs(&fields)?;
    fields.refuse("stream", &["false"])?;
    fields.refuse("truncate_prompt_tokens", &[])?;
    let apply_softmax = fields.bool("apply_softmax")?.unwrap_or(false);
    let item_first = fields.bool("item_first")?.unwrap_or(false);
    let labels = match model.kind {
        ModelKind::Lm => Some(labels(&mut fields, model)?),
        _ => refuse_labels(&fields)?,
    };
    let joined = Joined::take(&mut fields, item_first)?;
    call.finish(&fields)?;

    let count = joined.len();
    if count == 0 {
        let usage = UsageBody::new(0, 0, None);
        return Ok(respond(model, Vec::new(), usage));
    }
    call.reservation.set_rows(count as u64)?;
    let (tree, ends, tokens) = joined.encode(call, model).await?;
    let normalise = match apply_softmax {
        true => Normalise::OverLabels,
        false => Normalise::OverVocab,
    };
    let head = match labels {
        Some(labels) => Head::LabelScores { labels, normalise },
        None => Head::Classify,
    };
    let row = |node| RowSpec {
        node,
        head: head.clone(),
    };
    let rows = ends.into_iter().map(row).collect();
    let (outputs, usage) = read::read_rows(call, model, &common, tree, rows, tokens).await?;
    let scores = outputs
        .into_iter()
        .map(|output| scores(output, apply_softmax))
        .collect::<Option<_>>()
        .ok_or_else(|| read::mismatch(call))?;
    let usage = UsageBody::new(tokens, 0, Some(&usage));
    Ok(respond(model, scores, usage))
}

fn respond(model: &ServedModel, scores: Vec<Vec<f64>>, usage: UsageBody) -> Reply {
    Reply::json(&Response {
        scores,
        model: &model.name,
        usage,
        object: "scoring",
    })
}

/// Probabilities over the labels, or over the vocabulary; of a classification head, class
/// probabilities or logits.
fn scores(output: RowOutput, apply_softmax: bool) -> Option<Vec<f64>> {
    match output {
        RowOutput::LabelScores(scores) if apply_softmax => Some(softmax(&scores.logits)),
        RowOutput::LabelScores(scores) => {
            let norm = f64::from(scores.log_sum_exp?);
            let probability = |logit: &f32| (f64::from(*logit) - norm).exp();
            Some(scores.logits.iter().map(probability).collect())
        }
        RowOutput::Classes(logits) if apply_softmax => Some(class_probabilities(&logits)),
        RowOutput::Classes(logits) => Some(logits.into_iter().map(f64::from).collect()),
        _ => None,
    }
}

/// The other dialect of this path, which needs a reranker or an embedding model.
fn refuse_pairs(fields: &Fields<'_>) -> Result<(), ApiError> {
    let pairs = [
        "queries",
        "documents",
        "text_1",
        "text_2",
        "data_1",
        "data_2",
    ];
    match pairs.into_iter().find(|name| fields.has(name)) {
        None => Ok(()),
        Some(name) => {
            let message = format!(
                "scoring of pairs (`{name}`) is not supported by this server; give `query`, \
                 `items` and `labels` or `label_token_ids`"
            );
            Err(ApiError::new(400, "unsupported_parameter", message).with_param(name))
        }
    }
}

fn refuse_labels(fields: &Fields<'_>) -> Result<Option<Arc<[TokenId]>>, ApiError> {
    match ["labels", "label_token_ids"]
        .into_iter()
        .find(|n| fields.has(n))
    {
        None => Ok(None),
        Some(name) => {
            let must = "be left out: this model has classes of its own";
            Err(ApiError::invalid_value(name, must))
        }
    }
}

/// `label_token_ids`, or `labels` of one token each.
fn labels(fields: &mut Fields<'_>, model: &ServedModel) -> Result<Arc<[TokenId]>, ApiError> {
    let ids: Option<Vec<TokenId>> = fields.get("label_token_ids", "a list of token ids")?;
    let texts: Option<Vec<String>> = fields.get("labels", "a list of strings")?;
    let (name, ids) = match (ids, texts) {
        (Some(ids), None) => ("label_token_ids", ids),
        (None, Some(texts)) => ("labels", single_tokens(model, &texts)?),
        (None, None) => return Err(ApiError::missing_field("label_token_ids")),
        (Some(_), Some(_)) => {
            let must = "not be combined with label_token_ids";
            return Err(ApiError::invalid_value("labels", must));
        }
    };
    if !(1..=LABELS_MAX).contains(&ids.len()) {
        let must = format!("have 1 to {LABELS_MAX} entries");
        return Err(ApiError::invalid_value(name, must));
    }
    check_ids(name, &ids, model)?;
    Ok(ids.into())
}

fn single_tokens(model: &ServedModel, labels: &[String]) -> Result<Vec<TokenId>, ApiError> {
    let single = |(index, label): (usize, &String)| match model.tokenizer.encode(label, false)[..] {
        [token] => Ok(token),
        ref tokens => {
            let must = format!("be one token, it is {}", tokens.len());
            Err(ApiError::invalid_value(format!("labels/{index}"), must))
        }
    };
    labels.iter().enumerate().map(single).collect()
}

/// A query and items, to be joined into one prompt for each item.
enum Joined<'a> {
    Texts {
        query: Cow<'a, str>,
        items: Vec<Cow<'a, str>>,
        item_first: bool,
    },
    Ids {
        query: Vec<TokenId>,
        items: Vec<Vec<TokenId>>,
        item_first: bool,
    },
}

impl<'a> Joined<'a> {
    fn take(fields: &mut Fields<'a>, item_first: bool) -> Result<Self, ApiError> {
        let mut query = prompts(fields, "query")?;
        let query = match query.len() {
            1 => query.swap_remove(0),
            _ => {
                return Err(ApiError::invalid_type(
                    "query",
                    "a string or a list of token ids",
                ));
            }
        };
        let raw = fields.raw("items");
        let raw = raw.ok_or_else(|| ApiError::missing_field("items"))?;
        // No items are no error: the answer has no scores.
        let items = match raw.strip_prefix('[').map(str::trim_start) {
            Some("]") => Vec::new(),
            _ => parse_prompts(raw, "items".to_owned())?,
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
                    item_first,
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
                    item_first,
                })
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Texts { items, .. } => items.len(),
            Self::Ids { items, .. } => items.len(),
        }
    }

    /// The prompts as a tree (a query that comes first is one path), where each ends, and the sum
    /// of their lengths. The number of items has been checked.
    async fn encode(
        self,
        call: &Call,
        model: &ServedModel,
    ) -> Result<(PromptTree, Vec<NodeIdx>, u64), ApiError> {
        let prompts = match self {
            Self::Ids {
                query,
                items,
                item_first,
            } => join_ids(call, model, query, items, item_first)?,
            Self::Texts {
                query,
                items,
                item_first,
            } => join_texts(call, model, &query, &items, item_first).await?,
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
    item_first: bool,
) -> Result<SharedPrompts, ApiError> {
    // Without a place to cut, the query is encoded with every item.
    let bytes = items.iter().map(|item| item.len()).sum::<usize>() + query.len() * items.len();
    let max = call.app.config.limits.queued_tokens;
    let mut encoded = 0;
    let work = || {
        let join = |item: &Cow<'_, str>| {
            let text = match item_first {
                true => format!("{item}{query}"),
                false => format!("{query}{item}"),
            };
            Ok(text)
        };
        SharedPrompts::encode(items.iter().map(join), model.text_cuts(), |text, out| {
            model.tokenizer.encode_into(text, true, out);
            encoded += out.len() as u64;
            if encoded > max {
                return Err(ApiError::larger_than_queue("prompt tokens", encoded, max));
            }
            // At once: a long query is not encoded again with every item to learn it.
            check_length("items", out.len(), 0, model)
        })
    };
    call.app.encoder.run(bytes, work).await?
}

/// Each item with the query. All lengths are checked before anything is copied: a long query and
/// many items are far more joined than they were in the body.
fn join_ids(
    call: &Call,
    model: &ServedModel,
    query: Vec<TokenId>,
    items: Vec<Vec<TokenId>>,
    item_first: bool,
) -> Result<SharedPrompts, ApiError> {
    for item in &items {
        let len = query.len() + item.len();
        check_length("items", len, 0, model)?;
        if len == 0 {
            // Says so by name.
            check_ids("items", &[], model)?;
        }
    }
    for ids in items.iter().chain([&query]).filter(|ids| !ids.is_empty()) {
        check_ids("items", ids, model)?;
    }
    if !item_first {
        return Ok(SharedPrompts::after(query, items));
    }
    let distinct: HashSet<&[TokenId]> = items.iter().map(Vec::as_slice).collect();
    let copies = distinct.len() as u64 * query.len() as u64;
    let max = call.app.config.limits.queued_tokens;
    if copies > max {
        return Err(ApiError::larger_than_queue("prompt tokens", copies, max));
    }
    let mut joined = items;
    for item in &mut joined {
        item.extend_from_slice(&query);
    }
    Ok(SharedPrompts::after(Vec::new(), joined))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::testing::{Golden, answer, ask, demos, golden, refused};

    const PATH: &str = "/v1/score";

    #[test]
    fn recorded_yes_and_no() {
        let Some(folder) = golden("demo-lm") else {
            return;
        };
        let recorded = Golden::open(&folder);
        let mut compared = 0;
        for (index, kind, text) in recorded.texts() {
            let [yes, no, probability] = recorded.row("f32.yes_no", index)[..] else {
                panic!("three numbers")
            };
            let body = json!({"query": "", "items": [text], "labels": ["yes", "no"], "apply_softmax": true});
            // An empty query is a prompt of the item alone.
            let found = answer(demos(), PATH, &body)["scores"][0][0]
                .as_f64()
                .unwrap();
            assert!(
                (found - f64::from(probability)).abs() < 5e-4,
                "{kind}: {yes} {no}"
            );
            compared += 1;
        }
        assert!(compared > 30, "{compared}");
    }

    #[test]
    fn a_query_is_computed_once_for_all_items_and_changes_nothing() {
        let query = "I ordered my card two weeks ago and it has not come. ".repeat(8);
        let items: Vec<String> = (0..64)
            .map(|i| format!("Is this about number {i}?"))
            .collect();
        let labels = json!(["yes", "no"]);
        let body = |items: &[String], salt: &str| json!({"query": query, "items": items, "labels": labels, "cache_salt": salt});
        let (status, together, seen) = ask(demos(), PATH, &body(&items, "together"));
        assert_eq!(status, 200, "{together}");
        let usage = seen.usage.unwrap();
        let model = demos().model(Some("demo-lm")).unwrap();
        let prefix = model.tokenizer.count(&query, true) as u64;
        let alone_tokens: u64 = seen.prompt_tokens;
        // 64 prompts would compute the query 64 times.
        assert!(usage.computed_tokens >= prefix, "{usage:?}");
        assert!(
            usage.computed_tokens < alone_tokens - 62 * prefix,
            "{usage:?}"
        );
        assert_eq!(usage.cached_tokens, 0);
        for (i, item) in items.iter().enumerate() {
            let alone = answer(
                demos(),
                PATH,
                &body(std::slice::from_ref(item), &format!("alone-{i}")),
            );
            assert_eq!(alone["scores"][0], together["scores"][i], "{item}");
        }
        // And from the cache.
        let again = answer(demos(), PATH, &body(&items, "together"));
        assert_eq!(again["scores"], together["scores"]);
    }

    #[test]
    fn item_first_ids_and_normalisation() {
        let ids = |text: &str| demos().model(None).unwrap().tokenizer.encode(text, true);
        let body = |query: Value, items: Value, first: bool| json!({"query": query, "items": items, "item_first": first, "label_token_ids": ids("yes no")});
        let texts = answer(demos(), PATH, &body(json!(" b"), json!(["a"]), true));
        let joined = answer(
            demos(),
            PATH,
            &body(json!(ids("a")), json!([ids(" b")]), false),
        );
        assert_eq!(texts["scores"], joined["scores"]);
        assert_eq!(texts["object"], "scoring");
        // Over the whole vocabulary unless asked otherwise.
        let sum: f64 = texts["scores"][0]
            .as_array()
            .unwrap()
            .iter()
            .map(|s| s.as_f64().unwrap())
            .sum();
        assert!(sum < 1.0);
        let empty = answer(demos(), PATH, &body(json!("q"), json!([]), false));
        assert_eq!(empty["scores"], json!([]));
        let classes = answer(
            demos(),
            PATH,
            &json!({"model": "demo-classifier", "query": "Where is ", "items": ["my card?"], "apply_softmax": true}),
        );
        assert_eq!(classes["scores"][0].as_array().unwrap().len(), 77);
    }

    #[test]
    fn refusals() {
        let check = |body: Value, expected| refused(demos(), PATH, &body, expected);
        let ok = json!({"query": "q", "items": ["i"], "labels": ["yes"]});
        let with = |name: &str, value: Value| {
            let mut body = ok.clone();
            body[name] = value;
            body
        };
        check(
            with("labels", json!(["yes no"])),
            (400, "invalid_value", Some("labels/0")),
        );
        check(
            with("labels", json!([])),
            (400, "invalid_value", Some("labels")),
        );
        check(
            with("labels", json!(null)),
            (400, "missing_field", Some("label_token_ids")),
        );
        check(
            with("label_token_ids", json!([1])),
            (400, "invalid_value", Some("labels")),
        );
        check(
            with("items", json!(null)),
            (400, "missing_field", Some("items")),
        );
        check(
            with("items", json!([[1]])),
            (400, "invalid_value", Some("items")),
        );
        check(
            with("query", json!(["a", "b"])),
            (400, "invalid_type", Some("query")),
        );
        check(
            with("text_1", json!("a")),
            (400, "unsupported_parameter", Some("text_1")),
        );
        check(
            with("model", json!("nobody")),
            (404, "model_not_found", Some("model")),
        );
        check(
            with("items", json!(["x ".repeat(5000)])),
            (400, "context_length_exceeded", Some("items")),
        );
        check(
            json!({"query": [1], "items": [[9000]], "label_token_ids": [1]}),
            (400, "token_out_of_range", Some("items")),
        );
        check(
            json!({"query": [9000], "items": [[1]], "label_token_ids": [1]}),
            (400, "token_out_of_range", Some("items")),
        );
        check(
            json!({"query": [], "items": [[]], "label_token_ids": [1]}),
            (400, "invalid_value", Some("query")),
        );
    }

    /// Joined, these would be gigabytes of ids; encoded with every item, hours of text. The tests
    /// end at all because nothing is joined before its length was looked at.
    #[test]
    fn what_would_grow_by_joining_is_refused_unjoined() {
        let rows = demos().config.limits.rows as usize;
        let check = |query: Value, items: Value, first: bool, expected| {
            let body = json!({"query": query, "items": items, "item_first": first, "label_token_ids": [1]});
            refused(demos(), PATH, &body, expected);
        };
        let too_many = (400, "too_many_rows", None);
        let too_long = (400, "context_length_exceeded", Some("items"));
        for first in [false, true] {
            let ids = json!(vec![1; 100_000]);
            check(ids.clone(), json!(vec![[1]; 20 * rows]), first, too_many);
            check(ids, json!(vec![[1]; rows]), first, too_long);
            // The query alone would fit.
            let context = demos().model(None).unwrap().max_model_len as usize;
            let ids = json!(vec![1; context - 1]);
            check(ids, json!([[1], [1, 1]]), first, too_long);
            let text = json!("x ".repeat(100_000));
            let items: Vec<String> = (0..rows).map(|i| i.to_string()).collect();
            check(text, json!(items), first, too_long);
        }
    }
}
