//! The labels that are scored: tokens or classes.

use std::sync::Arc;

use prelude_core::{Head, Normalise, TokenId};

use crate::{
    error::ApiError, served_model::ServedModel, tasks::place::check_ids, wire::check_count,
};

/// Most label tokens of a request.
const LABELS_MAX: usize = 1_024;

/// The tokens or classes that are scored.
pub(super) enum ScoredLabels {
    /// Tokens that may come next.
    Tokens(Arc<[TokenId]>),
    /// Classes of a classification head by their places, or all of them.
    Classes(Option<Vec<usize>>),
}

impl ScoredLabels {
    /// Returns the number of scores of one item.
    pub(super) fn width(&self, model: &ServedModel) -> usize {
        match self {
            Self::Tokens(labels) => labels.len(),
            Self::Classes(Some(places)) => places.len(),
            Self::Classes(None) => model.class_names().len(),
        }
    }

    /// Returns the output at the end of each item's prompt.
    pub(super) fn head(&self, apply_softmax: bool) -> Head {
        match self {
            Self::Tokens(labels) => Head::LabelScores {
                labels: Arc::clone(labels),
                normalise: match apply_softmax {
                    true => Normalise::OverLabels,
                    false => Normalise::OverVocab,
                },
            },
            Self::Classes(_) => Head::Classify,
        }
    }

    /// Returns the scores that are wanted of all that the output has.
    pub(super) fn choose(&self, scores: Vec<f64>) -> Vec<f64> {
        match self {
            Self::Classes(Some(places)) => places.iter().map(|&place| scores[place]).collect(),
            _ => scores,
        }
    }
}

/// Returns which classes `labels` name, of a model that has classes; `None` if all are to be
/// scored. Token ids name no class; clients that send them to every model get all classes.
pub(super) fn classes(
    names: Option<Vec<String>>,
    model: &ServedModel,
) -> Result<Option<Vec<usize>>, ApiError> {
    let Some(names) = names else {
        return Ok(None);
    };
    check_count("labels", names.len(), 1..=LABELS_MAX, "entries")?;
    let place = |(index, name): (usize, &String)| {
        let place = model.class_names().iter().position(|label| label == name);
        place.ok_or_else(|| {
            let must = "be the name of one of this model's classes";
            ApiError::invalid_value(format!("/labels/{index}"), must)
        })
    };
    let places = names.iter().enumerate().map(place);
    Ok(Some(places.collect::<Result<_, _>>()?))
}

/// Returns the ids of `label_token_ids`, or of `labels` of one token each.
pub(super) fn tokens(
    ids: Option<Vec<TokenId>>,
    texts: Option<Vec<String>>,
    model: &ServedModel,
) -> Result<Arc<[TokenId]>, ApiError> {
    let (name, ids) = match (ids, texts) {
        (Some(ids), None) => ("label_token_ids", ids),
        (None, Some(texts)) => ("labels", single_tokens(model, &texts)?),
        (None, None) => {
            let message = "give `label_token_ids` or `labels`: what a language model may say next";
            let error = ApiError::new(400, "missing_field", message);
            return Err(error.with_param("label_token_ids"));
        }
        (Some(_), Some(_)) => {
            let must = "not be combined with label_token_ids";
            return Err(ApiError::invalid_value("labels", must));
        }
    };
    check_count(name, ids.len(), 1..=LABELS_MAX, "entries")?;
    check_ids(name, &ids, model)?;
    Ok(ids.into())
}

fn single_tokens(model: &ServedModel, labels: &[String]) -> Result<Vec<TokenId>, ApiError> {
    let single = |(index, label): (usize, &String)| match model.tokenizer.encode(label, false)[..] {
        [token] => Ok(token),
        ref tokens => {
            let must = format!("be one token, it is {}", tokens.len());
            Err(ApiError::invalid_value(format!("/labels/{index}"), must))
        }
    };
    labels.iter().enumerate().map(single).collect()
}
