//! The scores of texts, by the means that the model has: a guard's, labels, or classes of its own.

use std::{borrow::Cow, collections::BTreeMap};

use prelude_models::ClassActivation;

use super::answers::{Flags, Found, harmful};
use crate::{
    error::ApiError,
    served_model::ServedModel,
    tasks::{
        classify::{LabelFields, classify},
        guards::{Guard, QWEN3_GUARD, UNSAFE, by_categories, by_verdicts},
        guidelines::{Form, GUIDELINES_MAX, Guideline, judge},
        input::{Given, Prompt},
        judged::Judged,
        prepared::Unit,
        submit::Ask,
        truncate::{Side, Truncation},
    },
    wire::check_count,
};

/// Categories, each with the guideline that its texts violate.
pub(super) type Guidelines = BTreeMap<String, Option<String>>;

/// Scores texts by the means that the model has: a guard's, labels, or classes of its own.
pub(super) async fn found<'m>(
    ask: &Ask<'m>,
    judged: Judged<'_>,
    (labels, guidelines): (LabelFields<'_>, Option<Guidelines>),
) -> Result<Found<'m>, ApiError> {
    let model = ask.model;
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
                judge(ask, &judged, (form, &wanted)).await?
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
            scores: by_categories(ask, &judged, &codes).await?,
            names: [Cow::Borrowed(UNSAFE)]
                .into_iter()
                .chain(codes.into_iter().map(Cow::Owned))
                .map(Some)
                .collect(),
            flags: Flags::First,
        }),
        (Some(Guard::Verdicts), judged) => Ok(Found {
            scores: by_verdicts(ask, &judged).await?,
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
            let cut = { model.auto_truncate }.then(|| Truncation::to_context(model, Side::Right));
            let prompts = texts.into_iter().map(Prompt::Text).collect();
            let inputs = (Given::Prompts(prompts, "input", cut), true);
            let (labels, classified) = classify(ask, labels, inputs, Unit::Texts).await?;
            let many =
                model.class_activation() == ClassActivation::Sigmoid && !model.has_vocabulary();
            let names: Vec<Cow<'_, str>> = match labels {
                Cow::Borrowed(labels) => labels.iter().map(Cow::from).collect(),
                Cow::Owned(labels) => labels.into_iter().map(Cow::Owned).collect(),
            };
            Ok(Found {
                names: names.into_iter().map(harmful).collect(),
                scores: { classified.outputs.into_iter() }
                    .map(|of| of.concat())
                    .collect(),
                flags: if many { Flags::Half } else { Flags::Likeliest },
            })
        }
    }
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
    check_count(
        "guidelines",
        guidelines.len(),
        1..=GUIDELINES_MAX,
        "entries",
    )?;
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
