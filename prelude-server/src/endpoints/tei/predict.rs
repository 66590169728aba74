//! `/predict`: classes of texts, as TEI and transformers' pipelines answer them.

use std::sync::Arc;

use bytes::Bytes;
use schemars::{JsonSchema, json_schema};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{json, value::RawValue};

use crate::{
    dialects::{COMMON, MEDIA, ONE_PIECE, PIPELINE, TEI_PREDICT, TEI_TRUNCATION},
    endpoint::{Call, Endpoint, Reply, asked, json as body},
    error::{ApiError, Dialect},
    tasks::{
        classify::{self, Function, LabelFields, classify, in_f32},
        input::{Given, Prompt},
        prepared::Unit,
        submit::{Ask, CommonFields},
        truncate::CutFields,
    },
    wire::{Fields, Int, Text, described, one_of, request, wrong_type},
};

/// `POST /predict`.
pub(crate) const PREDICT: Endpoint = Endpoint {
    group: "decisions",
    summary: "Classify texts, in TEI's dialect",
    requests: &[asked::<PredictRequest<'static>>()],
    responses: body::<Predictions<'static>>,
    dialect: Dialect::Tei,
    ..Endpoint::post(&["/predict"], |call, body| Box::pin(predict(call, body)))
};

/// Texts and pairs of texts to classify: one, or several each in a list of its own.
#[derive(Debug)]
pub(crate) struct Sequences<'a> {
    prompts: Vec<Prompt<'a>>,
    /// True if the answer is a list for each text.
    is_batch: bool,
}

impl<'de: 'a, 'a> Deserialize<'de> for Sequences<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const KINDS: &str =
            "a string, a list of a string or a pair of strings, or a list of such lists";
        let raw = <&'de RawValue>::deserialize(deserializer)?.get();
        let one = |raw: &'de str| -> Result<Prompt<'a>, D::Error> {
            if raw.starts_with('"') {
                let text: Text<'a> = serde_json::from_str(raw).map_err(|_| wrong_type(KINDS))?;
                return Ok(Prompt::Text(text.0));
            }
            let texts: Vec<Text<'a>> = serde_json::from_str(raw).map_err(|_| wrong_type(KINDS))?;
            let mut texts = texts.into_iter().map(|text| text.0);
            match (texts.next(), texts.next(), texts.next()) {
                (Some(text), None, None) => Ok(Prompt::Text(text)),
                (Some(first), Some(second), None) => Ok(Prompt::Pair(first, second)),
                _ => Err(wrong_type(KINDS)),
            }
        };
        let is_batch = raw.starts_with('[') && raw[1..].trim_start().starts_with('[');
        let prompts = match is_batch {
            true => {
                let items: Vec<&'de RawValue> =
                    serde_json::from_str(raw).map_err(|_| wrong_type(KINDS))?;
                let prompts = items.into_iter().map(|item| one(item.get()));
                prompts.collect::<Result<_, _>>()?
            }
            false => vec![one(raw)?],
        };
        Ok(Self { prompts, is_batch })
    }
}

described!(Sequences<'_>, "TeiSequences", |_| {
    let text = || json!({ "type": "string" });
    let list = || json!({ "type": "array", "minItems": 1, "maxItems": 2, "items": text() });
    json_schema!({
        "description": "A text, a pair of texts, or several of both, each in a list of its own.",
        "anyOf": [text(), list(), { "type": "array", "minItems": 1, "items": list() }],
    })
});

/// Texts to classify.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct PredictFields<'a> {
    #[serde(borrow)]
    inputs: Sequences<'a>,
    /// True for logits in place of probabilities.
    raw_scores: Option<bool>,
    /// `none` for logits, or the activation that the model's classes have (pipelines).
    function_to_apply: Option<Function>,
    /// The number of classes that are answered, the likeliest; all by default (pipelines).
    top_k: Option<Int<1, { i64::MAX }>>,
}

request! {
    /// `POST /predict`.
    struct PredictRequest<'a> {
        predict: PredictFields<'a>,
        cut: CutFields,
        common: CommonFields<'a>,
    }
    fields [COMMON, ONE_PIECE, MEDIA, TEI_TRUNCATION, PIPELINE, TEI_PREDICT];
}

/// A class and its probability, or its logit.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TeiPrediction")]
pub(crate) struct Prediction<'a> {
    score: f32,
    label: &'a str,
}

/// The classes of a text, likeliest first, or of each of several texts.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TeiPredictions")]
#[serde(untagged)]
pub(crate) enum Predictions<'a> {
    One(Vec<Prediction<'a>>),
    Batch(Vec<Vec<Prediction<'a>>>),
}

/// Answers `/predict`.
async fn predict(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    classes(call, call.fields(&body).await?).await
}

/// Answers with the classes of `inputs`, as TEI and pipelines do.
///
/// # Errors
/// 400 for whatever is wrong with the request, 429, 503, 500.
pub(crate) async fn classes(call: &Arc<Call>, fields: Fields<'_>) -> Result<Reply, ApiError> {
    let request: PredictRequest<'_> = call.read_fields(fields).await?;
    let named = |name: Option<&str>| classify::model(&call.app, name, false);
    let ask = Ask::of(call, request.common, named)?;
    let model = ask.model;
    if model.has_vocabulary() {
        let message = "the model has no classes of its own; ask /classify with `labels`";
        return Err(ApiError::new(400, "unsupported_task", message));
    }
    let Sequences { prompts, is_batch } = request.predict.inputs;
    let inputs = Given::Prompts(prompts, "inputs", request.cut.truncation(model));
    let function = request.predict.function_to_apply;
    let function = function.map(|f| f.is_applied(model)).transpose()?;
    let activation = one_of([
        ("raw_scores", request.predict.raw_scores.map(|raw| !raw)),
        ("function_to_apply", function),
    ])?;
    let activation = activation.is_none_or(|(_, is_wanted)| is_wanted);
    let top_k = request.predict.top_k;
    let top_k = top_k.and_then(|k| usize::try_from(k.get()).ok());
    let (none, inputs) = (LabelFields::default(), (inputs, activation));
    let (labels, classified) = classify(&ask, none, inputs, Unit::Texts).await?;
    let write = move || {
        let mut each = predictions(&labels, &classified.outputs);
        for classes in &mut each {
            classes.truncate(top_k.unwrap_or(usize::MAX));
        }
        Reply::json(&match is_batch {
            true => Predictions::Batch(each),
            false => Predictions::One(each.swap_remove(0)),
        })
    };
    Ok(call.write(0, write).await)
}

/// Returns the classes of each text, likeliest first.
fn predictions<'a>(labels: &'a [String], probs: &[Vec<Vec<f64>>]) -> Vec<Vec<Prediction<'a>>> {
    let of_text = |probs: &Vec<Vec<f64>>| {
        let each = labels.iter().zip(in_f32(&probs.concat()));
        let mut all: Vec<_> = each
            .map(|(label, score)| Prediction { score, label })
            .collect();
        // Stable, so equal scores stay in the order of the classes.
        all.sort_by(|a, b| b.score.total_cmp(&a.score));
        all
    };
    probs.iter().map(of_text).collect()
}
