//! Scores of labels behind each item: tokens of a language model, classes of a classifier.

use std::sync::Arc;

use prelude_core::{RowOutput, TokenId};
use prelude_text::label_trie::softmax;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    ScoreRequest,
    joined::{Joined, Joining},
    wanted::{ScoredLabels, classes, tokens},
};
use crate::{
    admission::{Growth, Printed},
    endpoint::{Call, Reply},
    error::ApiError,
    served_model::{ServedModel, Task},
    tasks::{
        classify::activated,
        input::Prompts,
        prepared::{Expected, Prepared, prepare},
        submit::{Ask, UsageBody},
        truncate::{Side, Truncation},
    },
};

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "LabelScoring")]
pub(crate) struct Response<'a> {
    scores: Vec<Vec<f64>>,
    model: &'a str,
    usage: UsageBody,
    object: &'static str,
}

/// Tokens or classes that are scored behind each item.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct LabelFields<'a> {
    /// A text or token ids.
    #[serde(borrow)]
    #[schemars(with = "Option<TextOrIds>")]
    pub(super) query: Option<Prompts<'a>>,
    /// Texts, or token ids where the query is one.
    #[schemars(with = "Option<Items>")]
    pub(super) items: Option<&'a RawValue>,
    /// 1 to 1,024 ids. A model that has classes passes over them.
    pub(super) label_token_ids: Option<Vec<TokenId>>,
    /// Strings of one token each, in place of ids; of a model that has classes some of their names,
    /// all if absent.
    pub(super) labels: Option<Vec<String>>,
    /// Probabilities over the labels, not over the vocabulary.
    pub(super) apply_softmax: Option<bool>,
    /// Items precede the query.
    pub(super) item_first: Option<bool>,
}

/// A text or token ids, as described.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "prompts are read by a type of their own")]
enum TextOrIds {
    Text(String),
    Ids(Vec<TokenId>),
}

/// Items as texts or as token ids, as described.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "items are read by what the request is about")]
enum Items {
    Text(String),
    Texts(Vec<String>),
    IdLists(Vec<Vec<TokenId>>),
}

/// Scores tokens or classes behind each item.
pub(super) async fn by_labels(
    call: &Arc<Call>,
    request: ScoreRequest<'_>,
) -> Result<Reply, ApiError> {
    let fields = request.labels;
    // Labels are for language models; without a model's name, the one that can use them is meant.
    let labelled = fields.labels.is_some() || fields.label_token_ids.is_some();
    let can = |model: &ServedModel| !labelled || model.has_vocabulary();
    let named = |name: Option<&str>| call.app.model_of(name, Task::Score, can);
    let ask = Ask::of(call, request.common, named)?;
    let model = ask.model;
    let apply_softmax = fields.apply_softmax.unwrap_or(false);
    // Only a classification head without softmax gives logits.
    let activated = model.has_vocabulary() || apply_softmax;
    request.judge.check_unused(activated)?;
    let wanted = match model.has_vocabulary() {
        true => ScoredLabels::Tokens(tokens(fields.label_token_ids, fields.labels, model)?),
        false => ScoredLabels::Classes(classes(fields.labels, model)?),
    };
    let joining = Joining {
        item_first: fields.item_first.unwrap_or(false),
        truncation: Truncation::of_texts(request.truncation, None, model, (Side::Left, false))?,
    };
    let joined = Joined::new(fields.query, fields.items)?;
    let items = joined.len();
    if items == 0 {
        return Ok(respond(model, Vec::new(), UsageBody::new(0, 0, None)));
    }
    let expected = Expected {
        prompts: items,
        rows: 0,
        bytes: joined.bytes(),
    };
    let prepared = prepare(&ask, expected, || {
        let numbers = (items * wanted.width(model)) as u64;
        let numbers = Growth::Numbers(numbers, Printed::Decimal);
        call.reservation.grow(numbers)?;
        let prompts = joined.encode(call, model, joining)?;
        let head = wanted.head(apply_softmax);
        Prepared::with_head(model, "items", prompts, &head)
    });
    let scores = |output| Some(wanted.choose(scores(model, output, apply_softmax)?));
    let computed = prepared.await?.compute(&ask, scores).await?;
    let usage = computed.usage();
    Ok(respond(model, computed.outputs, usage))
}

fn respond(model: &ServedModel, scores: Vec<Vec<f64>>, usage: UsageBody) -> Reply {
    Reply::json(&Response {
        scores,
        model: &model.name,
        usage,
        object: "scoring",
    })
}

/// Returns the probabilities over the labels, or over the vocabulary; of a classification head what
/// its activation makes of its logits, or the logits.
fn scores(model: &ServedModel, output: RowOutput, apply_softmax: bool) -> Option<Vec<f64>> {
    match output {
        RowOutput::LabelScores(scores) if apply_softmax => Some(softmax(&scores.logits)),
        RowOutput::LabelScores(scores) => {
            let norm = f64::from(scores.log_sum_exp?);
            let probability = |logit: &f32| (f64::from(*logit) - norm).exp();
            Some(scores.logits.iter().map(probability).collect())
        }
        RowOutput::Classes(logits) if apply_softmax => {
            Some(activated(model.class_activation(), &logits))
        }
        RowOutput::Classes(logits) => Some(logits.into_iter().map(f64::from).collect()),
        _ => None,
    }
}
