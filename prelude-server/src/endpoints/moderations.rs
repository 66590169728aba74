//! `POST /v1/moderations`: harmful categories of texts, in OpenAI's shape, by a classification head
//! or by the verdicts of a guard model, which judges the last turn of a conversation too.

use std::{borrow::Cow, collections::BTreeMap, fmt, sync::Arc};

use bytes::Bytes;
use prelude_models::ClassActivation;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{IgnoredAny, SeqAccess, Visitor},
    ser::SerializeMap,
};
use serde_json::{Value, json, value::RawValue};

use crate::{
    dialects::{self, COMMON, LABELS, MEDIA, ONE_PIECE},
    endpoint::{Call, Endpoint, Reply, asked, json},
    error::ApiError,
    served_model::ServedModel,
    tasks::{
        classify::{self, LabelFields, classify},
        embed::Unit,
        guards::{Guard, QWEN3_GUARD, UNSAFE, by_categories, by_verdicts},
        guidelines::{Form, GUIDELINES_MAX, Guideline, judge},
        input::Inputs,
        judged::Judged,
        messages::Message,
        submit::{Common, CommonFields},
    },
    wire::{Json, Text, request, unsupported, wrong_type, wrong_value},
};

/// `POST /v1/moderations`.
pub(crate) const MODERATIONS: Endpoint = Endpoint {
    group: "decisions",
    summary: "Flag harmful texts",
    requests: &[asked::<ModerationRequest<'static>>()],
    responses: json::<Response<'static>>,
    ..Endpoint::post(&["/v1/moderations"], |call, body| {
        Box::pin(handle(call, body))
    })
};

/// Names of classes that are no harmful category, in lower case, with `-` and `_` as spaces.
const HARMLESS: [&str; 12] = [
    "safe",
    "ok",
    "none",
    "neutral",
    "normal",
    "benign",
    "harmless",
    "clean",
    "non toxic",
    "not toxic",
    "nontoxic",
    "no hate",
];

/// Names by which OpenAI's clients call the model that moderates.
const ALIASES: [&str; 5] = [
    "omni-moderation-latest",
    "omni-moderation-2024-09-26",
    "text-moderation-latest",
    "text-moderation-stable",
    "text-moderation-007",
];

/// Texts to moderate.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ModerationFields<'a> {
    #[serde(borrow)]
    input: Input<'a>,
    /// 1 to 64 categories, each with the guideline that its texts violate: of a guard that is asked
    /// about one at a time (ShieldGemma, Granite Guardian). Null is the guideline that the model knows
    /// by this name.
    guidelines: Option<BTreeMap<String, Option<String>>>,
}

request! {
    /// `POST /v1/moderations`.
    struct ModerationRequest<'a> {
        moderation: ModerationFields<'a>,
        labels: LabelFields<'a>,
        common: CommonFields<'a>,
    }
    fields [COMMON, ONE_PIECE, MEDIA, LABELS, dialects::MODERATIONS];
}

/// A string, a list of strings, a list of parts that are one text together, or the messages of a
/// conversation; at least one.
#[derive(Debug)]
enum Input<'a> {
    Texts(Vec<Cow<'a, str>>),
    Messages(Vec<Value>),
}

/// An item of a list is a message if it has a role, which no part has.
#[derive(Deserialize)]
struct Speaker {
    role: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Part<'a> {
    r#type: Kind,
    #[serde(borrow)]
    text: Option<Text<'a>>,
}

#[derive(Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Text,
    ImageUrl,
}

impl<'de: 'a, 'a> Deserialize<'de> for Input<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Shapes;
        impl<'de> Visitor<'de> for Shapes {
            type Value = Input<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a string, a list of strings, a list of text parts or a list of messages",
                )
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Input::Texts(vec![Cow::Borrowed(text)]))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Input::Texts(vec![Cow::Owned(text.to_owned())]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let (mut texts, mut parts, mut messages) = (Vec::new(), Vec::new(), Vec::new());
                while let Some(item) = list.next_element::<&RawValue>()? {
                    let raw = item.get();
                    let wrong = || wrong_type("a list of strings, of text parts or of messages");
                    let has_role = |of: &Speaker| of.role.is_some();
                    if raw.starts_with('"') {
                        let Text(text) = serde_json::from_str(raw).map_err(|_| wrong())?;
                        texts.push(text);
                    } else if serde_json::from_str(raw).is_ok_and(|of| has_role(&of)) {
                        let Json(message) = serde_json::from_str(raw).map_err(|_| wrong())?;
                        messages.push(message);
                    } else {
                        parts.push(part(raw)?);
                    }
                }
                match (texts.is_empty(), parts.is_empty(), messages.is_empty()) {
                    (true, true, true) => Err(wrong_value("not be an empty list")),
                    (false, true, true) => Ok(Input::Texts(texts)),
                    (true, false, true) => Ok(Input::Texts(vec![Cow::Owned(parts.join("\n"))])),
                    (true, true, false) => Ok(Input::Messages(messages)),
                    _ => Err(wrong_value("not mix strings, parts and messages")),
                }
            }
        }
        deserializer.deserialize_any(Shapes)
    }
}

/// Returns the text of a part.
fn part<E: serde::de::Error>(raw: &str) -> Result<Cow<'_, str>, E> {
    let wrong = || wrong_type("a list of strings, of text parts or of messages");
    match serde_json::from_str(raw).map_err(|_| wrong())? {
        Part {
            r#type: Kind::Text,
            text: Some(Text(text)),
        } => Ok(text),
        Part {
            r#type: Kind::ImageUrl,
            ..
        } => Err(unsupported()),
        Part { .. } => Err(wrong()),
    }
}

impl JsonSchema for Input<'_> {
    fn schema_name() -> Cow<'static, str> {
        "ModerationInput".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let part = json!({
            "type": "object",
            "properties": { "type": { "const": "text" }, "text": { "type": "string" } },
            "required": ["type", "text"],
        });
        let message = generator.subschema_for::<Message>();
        json_schema!({
            "description": "A text, texts, parts of one text, or a conversation whose last turn a guard \
                judges.",
            "anyOf": [
                { "type": "string" },
                { "type": "array", "minItems": 1, "items": { "type": "string" } },
                { "type": "array", "minItems": 1, "items": part },
                { "type": "array", "minItems": 1, "items": message },
            ],
        })
    }
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Moderations")]
pub(crate) struct Response<'a> {
    id: String,
    model: &'a str,
    results: Vec<Moderation<'a>>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Moderation")]
struct Moderation<'a> {
    /// True if a category is.
    flagged: bool,
    categories: Categories<'a, bool>,
    category_scores: Categories<'a, f64>,
    category_applied_input_types: Categories<'a, Vec<&'static str>>,
}

/// A value for each category, in the order of the model's classes.
struct Categories<'a, T>(Vec<(&'a str, T)>);

impl<T: Serialize> Serialize for Categories<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<T: JsonSchema> JsonSchema for Categories<'_, T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("CategoriesOf{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "additionalProperties": generator.subschema_for::<T>(),
        })
    }
}

/// Answers `/v1/moderations`.
async fn handle(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    let request: ModerationRequest<'_> = call.read(&body).await?;
    let common = Common::new(call, request.common)?;
    let fields = request.labels;
    let ModerationFields { input, guidelines } = request.moderation;
    let judged = match input {
        Input::Texts(texts) => Judged::Texts(texts),
        Input::Messages(messages) => Judged::conversation(messages, "input")?,
    };
    let has_own_labels = fields.labels.is_some();
    let is_conversation = matches!(judged, Judged::Conversation(_));
    let asks_language_model = has_own_labels || guidelines.is_some() || is_conversation;
    // The name of a model wins over what OpenAI's clients mean by it.
    let is_meant = |name: &&str| !ALIASES.contains(name) || call.app.model(Some(name)).is_ok();
    let name = common.model.as_deref().filter(is_meant);
    let model = classify::model(call, name, asks_language_model)?;
    let guard = match has_own_labels {
        true => None,
        false => Guard::of(model)?,
    };
    if let Some(Guard::Guidelines(form)) = guard {
        return by_guidelines(call, model, &common, &judged, (form, guidelines)).await;
    }
    if guidelines.is_some() {
        let must = "be left out: this model's chat template has no place for a guideline, or the \
            request has `labels`";
        return Err(ApiError::invalid_value("guidelines", must));
    }
    let texts = match (guard, judged) {
        (Some(Guard::Categories(codes)), judged) => {
            return by_codes(call, model, &common, &judged, &codes).await;
        }
        (Some(Guard::Verdicts), judged) => return of_verdicts(call, model, &common, &judged).await,
        (_, Judged::Conversation(_)) => {
            let must = "be texts: only a guard judges a conversation, by its own categories";
            return Err(ApiError::invalid_value("input", must));
        }
        (_, Judged::Texts(texts)) => texts,
    };
    if model.has_vocabulary() && !has_own_labels {
        return Err(not_a_guard());
    }
    let inputs = (Inputs::of_texts(model, texts), true);
    let classified = classify(call, model, &common, fields, inputs, Unit::Texts).await?;
    let write = move || {
        let names: Vec<&str> = classified.labels.iter().map(|label| &**label).collect();
        let many = model.class_activation() == ClassActivation::Sigmoid && !model.has_vocabulary();
        let results = classified.probs.iter();
        let results = results.map(|probs| Moderation::new(&names, &probs.concat(), many));
        Reply::json(&Response {
            id: call.app.ids.next("modr-"),
            model: &model.name,
            results: results.collect(),
        })
    };
    Ok(call.write(0, write).await)
}

/// Answers with the verdicts of Qwen3Guard.
async fn of_verdicts(
    call: &Arc<Call>,
    model: &ServedModel,
    common: &Common<'_>,
    judged: &Judged<'_>,
) -> Result<Reply, ApiError> {
    let probs = by_verdicts(call, model, common, judged).await?;
    let write = move || {
        let names = QWEN3_GUARD.map(|(_, name)| name);
        let results = probs.iter();
        let results = results.map(|probs| Moderation::new(&names, probs, false));
        Reply::json(&Response {
            id: call.app.ids.next("modr-"),
            model: &model.name,
            results: results.collect(),
        })
    };
    Ok(call.write(0, write).await)
}

/// Answers with the categories that a Llama Guard names.
async fn by_codes(
    call: &Arc<Call>,
    model: &ServedModel,
    common: &Common<'_>,
    judged: &Judged<'_>,
    codes: &[String],
) -> Result<Reply, ApiError> {
    let found = by_categories(call, model, common, judged, codes).await?;
    let write = move || {
        let results = found.iter();
        let results = results.map(|(p, each)| Moderation::named_first(codes, *p, each));
        Reply::json(&Response {
            id: call.app.ids.next("modr-"),
            model: &model.name,
            results: results.collect(),
        })
    };
    Ok(call.write(0, write).await)
}

/// Answers with the guidelines that texts violate, by a guard that is asked about each.
async fn by_guidelines(
    call: &Arc<Call>,
    model: &ServedModel,
    common: &Common<'_>,
    judged: &Judged<'_>,
    (form, guidelines): (&Form, Option<BTreeMap<String, Option<String>>>),
) -> Result<Reply, ApiError> {
    let guidelines = checked(model, form, guidelines)?;
    let wanted: Vec<Guideline<'_>> = guidelines
        .iter()
        .map(|(name, text)| Guideline {
            name,
            text: text.as_deref().map(Cow::Borrowed),
        })
        .collect();
    let violations = judge(call, model, common, judged, (form, &wanted)).await?;
    let names: Vec<&str> = guidelines.keys().map(String::as_str).collect();
    let write = move || {
        let results = violations.iter();
        let results = results.map(|violations| Moderation::violated(&names, violations));
        Reply::json(&Response {
            id: call.app.ids.next("modr-"),
            model: &model.name,
            results: results.collect(),
        })
    };
    Ok(call.write(0, write).await)
}

/// Checks the guidelines of a request. Without any, those are meant that the model knows.
fn checked(
    model: &ServedModel,
    form: &Form,
    guidelines: Option<BTreeMap<String, Option<String>>>,
) -> Result<BTreeMap<String, Option<String>>, ApiError> {
    let own: Vec<&str> = form.own(model).collect();
    let guidelines = match guidelines {
        Some(guidelines) => guidelines,
        None if own.is_empty() => return Err(no_guidelines()),
        None => own.iter().map(|name| ((*name).to_owned(), None)).collect(),
    };
    if !(1..=GUIDELINES_MAX).contains(&guidelines.len()) {
        let must = format!("have 1 to {GUIDELINES_MAX} entries");
        return Err(ApiError::invalid_value("guidelines", must));
    }
    let is_empty = |(name, text): (&String, &Option<String>)| {
        name.is_empty() || text.as_ref().is_some_and(|text| text.trim().is_empty())
    };
    if guidelines.iter().any(is_empty) {
        let must = "have a name and a text in each entry";
        return Err(ApiError::invalid_value("guidelines", must));
    }
    let is_unknown =
        |(name, text): &(&String, &Option<String>)| text.is_none() && !own.contains(&name.as_str());
    match guidelines.iter().find(is_unknown) {
        None => Ok(guidelines),
        Some((name, _)) => {
            let must = match own.is_empty() {
                true => format!("have a text for {name:?}: this model knows no guidelines by name"),
                false => format!(
                    "have a text for {name:?}: this model knows {} by name",
                    own.join(", ")
                ),
            };
            Err(ApiError::invalid_value("guidelines", must))
        }
    }
}

fn no_guidelines() -> ApiError {
    let message = "this guard is asked about one guideline at a time: give `guidelines`, an object \
        with a text for each category; the model's card has the texts that it was trained with";
    ApiError::new(400, "missing_field", message).with_param("guidelines")
}

fn not_a_guard() -> ApiError {
    let message = "this language model's chat template names no verdicts of a guard model: give \
        `labels` to choose from, one of them `safe`, or use a guard or a classifier";
    ApiError::new(400, "missing_field", message).with_param("labels")
}

fn is_harmless(name: &str) -> bool {
    let name = name.trim().to_lowercase().replace(['-', '_'], " ");
    HARMLESS.contains(&&*name)
}

impl<'a> Moderation<'a> {
    /// Flags each category whose guideline one text violates with a probability of at least one half.
    fn violated(names: &[&'a str], violations: &[f64]) -> Self {
        let all = || names.iter().copied().zip(violations.iter().copied());
        Self {
            flagged: violations.iter().any(|&p| p >= 0.5),
            categories: Categories(all().map(|(name, p)| (name, p >= 0.5)).collect()),
            category_scores: Categories(all().collect()),
            category_applied_input_types: Categories(
                all().map(|(name, _)| (name, vec!["text"])).collect(),
            ),
        }
    }

    /// Flags an unsafe text, of which `p` is the probability, and the category that the guard names
    /// first; `each` has the probability of each.
    fn named_first(codes: &'a [String], p: f64, each: &[f64]) -> Self {
        let flagged = p >= 0.5;
        let best = each.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let names = || [UNSAFE].into_iter().chain(codes.iter().map(String::as_str));
        let scores = || [p].into_iter().chain(each.iter().copied());
        let flags = [flagged]
            .into_iter()
            .chain(each.iter().map(|&q| flagged && q >= best));
        Self {
            flagged,
            categories: Categories(names().zip(flags).collect()),
            category_scores: Categories(names().zip(scores()).collect()),
            category_applied_input_types: Categories(
                names().map(|name| (name, vec!["text"])).collect(),
            ),
        }
    }

    /// Flags the categories of one text: the likeliest class, or every class of at least one half
    /// where a text may have `many`.
    fn new(names: &[&'a str], probs: &[f64], many: bool) -> Self {
        let best = probs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let is_flagged = |p: f64| if many { p >= 0.5 } else { p >= best };
        let harmful = || {
            let all = names.iter().copied().zip(probs.iter().copied());
            all.filter(|(name, _)| !is_harmless(name))
        };
        Self {
            flagged: harmful().any(|(_, p)| is_flagged(p)),
            categories: Categories(harmful().map(|(name, p)| (name, is_flagged(p))).collect()),
            category_scores: Categories(harmful().collect()),
            category_applied_input_types: Categories(
                harmful().map(|(name, _)| (name, vec!["text"])).collect(),
            ),
        }
    }
}

#[cfg(test)]
mod tests;
