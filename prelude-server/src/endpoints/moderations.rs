//! `POST /v1/moderations`: harmful categories of texts, in OpenAI's shape, by a classification head
//! or by the verdicts of a guard model, which judges the last turn of a conversation too.

mod input;

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use prelude_models::ClassActivation;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::input::Input;
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
        submit::{Common, CommonFields},
    },
    wire::{Entries, request},
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

/// Names by which OpenAI's clients call the model that moderates.
const ALIASES: [&str; 5] = [
    "omni-moderation-latest",
    "omni-moderation-2024-09-26",
    "text-moderation-latest",
    "text-moderation-stable",
    "text-moderation-007",
];

/// Categories, each with the guideline that its texts violate.
type Guidelines = BTreeMap<String, Option<String>>;

/// Texts to moderate.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ModerationFields<'a> {
    #[serde(borrow)]
    input: Input<'a>,
    /// 1 to 64 categories, each with the guideline that its texts violate: of a guard that is asked
    /// about one at a time (ShieldGemma, Granite Guardian). Null is the guideline that the model knows
    /// by this name.
    guidelines: Option<Guidelines>,
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

/// Answers `/v1/moderations`.
async fn handle(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    let request: ModerationRequest<'_> = call.read(&body).await?;
    let common = Common::new(call, request.common)?;
    let ModerationFields { input, guidelines } = request.moderation;
    let judged = match input {
        Input::Texts(texts) => Judged::Texts(texts),
        Input::Messages(messages) => Judged::conversation(messages, "input")?,
    };
    let labels = request.labels;
    let is_conversation = matches!(judged, Judged::Conversation(_));
    let asks_language_model = labels.labels.is_some() || guidelines.is_some() || is_conversation;
    // The name of a model wins over what OpenAI's clients mean by it.
    let is_meant = |name: &&str| !ALIASES.contains(name) || call.app.model(Some(name)).is_ok();
    let name = common.model.as_deref().filter(is_meant);
    let model = classify::model(call, name, asks_language_model)?;
    let found = found(call, model, &common, judged, (labels, guidelines)).await?;
    let write = move || {
        Reply::json(&Response {
            id: call.app.ids.next("modr-"),
            model: &model.name,
            results: found.scores.iter().map(|of| found.result(of)).collect(),
        })
    };
    Ok(call.write(0, write).await)
}

/// Scores texts by the means that the model has: a guard's, labels, or classes of its own.
async fn found<'m>(
    call: &Call,
    model: &'m ServedModel,
    common: &Common<'_>,
    judged: Judged<'_>,
    (labels, guidelines): (LabelFields<'_>, Option<Guidelines>),
) -> Result<Found<'m>, ApiError> {
    let has_own_labels = labels.labels.is_some();
    let guard = match has_own_labels {
        true => None,
        false => Guard::of(model)?,
    };
    match (guard, judged) {
        (Some(Guard::Guidelines(form)), judged) => {
            let asked = checked(model, form, guidelines)?;
            let scores = {
                let wanted = asked.iter().map(|(name, text)| Guideline {
                    name,
                    text: text.as_deref().map(Cow::Borrowed),
                });
                let wanted: Vec<Guideline<'_>> = wanted.collect();
                judge(call, model, common, &judged, (form, &wanted)).await?
            };
            Ok(Found {
                scores,
                names: asked.into_keys().map(|name| Some(name.into())).collect(),
                flags: Flags::Half,
            })
        }
        _ if guidelines.is_some() => {
            let must = "be left out: this model's chat template has no place for a guideline, or the \
                request has `labels`";
            Err(ApiError::invalid_value("guidelines", must))
        }
        (Some(Guard::Categories(codes)), judged) => Ok(Found {
            scores: by_categories(call, model, common, &judged, &codes).await?,
            names: [Cow::Borrowed(UNSAFE)]
                .into_iter()
                .chain(codes.into_iter().map(Cow::Owned))
                .map(Some)
                .collect(),
            flags: Flags::First,
        }),
        (Some(Guard::Verdicts), judged) => Ok(Found {
            scores: by_verdicts(call, model, common, &judged).await?,
            names: { QWEN3_GUARD.iter() }
                .map(|(_, name)| harmful((*name).into()))
                .collect(),
            flags: Flags::Likeliest,
        }),
        (None, Judged::Conversation(_)) => {
            let must = "be texts: only a guard judges a conversation, by its own categories";
            Err(ApiError::invalid_value("input", must))
        }
        (None, Judged::Texts(_)) if model.has_vocabulary() && !has_own_labels => Err(not_a_guard()),
        (None, Judged::Texts(texts)) => {
            let inputs = (Inputs::of_texts(model, texts), true);
            let classified = classify(call, model, common, labels, inputs, Unit::Texts).await?;
            let many =
                model.class_activation() == ClassActivation::Sigmoid && !model.has_vocabulary();
            let names: Vec<Cow<'_, str>> = match classified.labels {
                Cow::Borrowed(labels) => labels.iter().map(Cow::from).collect(),
                Cow::Owned(labels) => labels.into_iter().map(Cow::Owned).collect(),
            };
            Ok(Found {
                names: names.into_iter().map(harmful).collect(),
                scores: { classified.probs.into_iter() }
                    .map(|of| of.concat())
                    .collect(),
                flags: if many { Flags::Half } else { Flags::Likeliest },
            })
        }
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
    categories: Entries<'a, bool>,
    category_scores: Entries<'a, f64>,
    category_applied_input_types: Entries<'a, Vec<&'static str>>,
}

/// The scores of texts, and the categories that they are scores of.
struct Found<'a> {
    /// `None` is a class that is no harmful category, which no answer shows.
    names: Vec<Option<Cow<'a, str>>>,
    /// The scores of each text, in the order of the names.
    scores: Vec<Vec<f64>>,
    flags: Flags,
}

/// The rule by which a category is flagged.
#[derive(Clone, Copy)]
enum Flags {
    /// Each category of at least one half.
    Half,
    /// The likeliest class.
    Likeliest,
    /// The first category at one half; and if it is flagged, the likeliest of the others.
    First,
}

impl Found<'_> {
    fn result(&self, scores: &[f64]) -> Moderation<'_> {
        let others = usize::from(matches!(self.flags, Flags::First));
        let others = scores[others..].iter().copied();
        let best = others.fold(f64::NEG_INFINITY, f64::max);
        let is_flagged = |index: usize, score: f64| match self.flags {
            Flags::Half => score >= 0.5,
            Flags::Likeliest => score >= best,
            Flags::First => scores[0] >= 0.5 && (index == 0 || score >= best),
        };
        let harmful = self.names.iter().zip(scores).enumerate();
        let harmful = harmful.filter_map(|(index, (name, &score))| {
            Some((name.as_deref()?, score, is_flagged(index, score)))
        });
        let named = |(name, score, flag)| (Cow::Borrowed(name), (score, flag));
        let all: Vec<(Cow<'_, str>, (f64, bool))> = harmful.map(named).collect();
        Moderation {
            flagged: all.iter().any(|(_, (_, flag))| *flag),
            categories: each(&all, |(_, flag)| flag),
            category_scores: each(&all, |(score, _)| score),
            category_applied_input_types: each(&all, |_| vec!["text"]),
        }
    }
}

/// Returns one of two values of each category.
fn each<'a, T>(
    all: &[(Cow<'a, str>, (f64, bool))],
    of: impl Fn((f64, bool)) -> T,
) -> Entries<'a, T> {
    let entries = all.iter().map(|(name, values)| (name.clone(), of(*values)));
    Entries(entries.collect())
}

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

/// Returns the name of a class that is a harmful category.
fn harmful(name: Cow<'_, str>) -> Option<Cow<'_, str>> {
    let plain = name.trim().to_lowercase().replace(['-', '_'], " ");
    (!HARMLESS.contains(&&*plain)).then_some(name)
}

/// Checks the guidelines of a request. Without any, those are meant that the model knows.
fn checked(
    model: &ServedModel,
    form: &Form,
    guidelines: Option<Guidelines>,
) -> Result<Guidelines, ApiError> {
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

#[cfg(test)]
mod tests;
