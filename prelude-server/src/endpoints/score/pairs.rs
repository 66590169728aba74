//! Scores of pairs of texts, in vLLM's dialect.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ScoreRequest, side::PairSide};
use crate::{
    endpoint::{Call, Reply},
    error::ApiError,
    served_model::{ServedModel, Task},
    tasks::{
        rank::{self, Judged},
        submit::{Ask, ListBody},
        truncate::{Side, Truncation},
    },
};

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Score")]
pub(super) struct ListItem {
    index: usize,
    object: &'static str,
    score: f64,
}

/// Two sides of pairs, in one of two spellings.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct PairFields<'a> {
    #[serde(borrow)]
    queries: Option<PairSide<'a>>,
    documents: Option<PairSide<'a>>,
    text_1: Option<PairSide<'a>>,
    text_2: Option<PairSide<'a>>,
}

/// Scores pairs of texts: vLLM's dialect.
pub(super) async fn pairs(call: &Arc<Call>, request: ScoreRequest<'_>) -> Result<Reply, ApiError> {
    let ask = Ask::new(call, request.common, Task::Pairs)?;
    let model = ask.model;
    ApiError::refuse_given(&[
        ("items", request.labels.items.is_some()),
        ("item_first", request.labels.item_first == Some(true)),
        ("apply_softmax", request.labels.apply_softmax == Some(true)),
    ])?;
    let ((left, queries), (right, documents)) = request.pairs.sides()?;
    let (queries, documents) = (queries.0, documents.0);
    let (mut options, activation) = request.judge.options((left, right))?;
    options.truncation =
        Truncation::of_texts(request.truncation, None, model, (Side::Right, false))?;
    let pairs: Vec<(&str, &str)> = match (queries.len(), documents.len()) {
        (1, _) => documents.iter().map(|d| (&*queries[0], &**d)).collect(),
        (n, m) if n == m => {
            let zipped = queries.iter().zip(&documents);
            zipped.map(|(q, d)| (&**q, &**d)).collect()
        }
        (n, m) => {
            let must = format!("have as many entries as `{right}` ({m}), or one; it has {n}");
            return Err(ApiError::invalid_value(left, must));
        }
    };
    let judged = rank::judge(&ask, &pairs, &options).await?;
    Ok(respond_list(call, model, &judged, activation))
}

/// One side of pairs, and the field that it came in.
type NamedSide<'a> = (&'static str, PairSide<'a>);

impl<'a> PairFields<'a> {
    /// Returns the name of the first field that is given, if any is.
    pub(super) fn first(&self) -> Option<&'static str> {
        let given = [
            ("queries", self.queries.is_some()),
            ("documents", self.documents.is_some()),
            ("text_1", self.text_1.is_some()),
            ("text_2", self.text_2.is_some()),
        ];
        let first = given.into_iter().find(|(_, is_given)| *is_given);
        first.map(|(name, _)| name)
    }

    /// Returns the two sides of the one spelling that is given.
    fn sides(self) -> Result<(NamedSide<'a>, NamedSide<'a>), ApiError> {
        match (self.queries, self.documents, self.text_1, self.text_2) {
            (Some(a), Some(b), None, None) => Ok((("queries", a), ("documents", b))),
            (None, None, Some(a), Some(b)) => Ok((("text_1", a), ("text_2", b))),
            (Some(_), Some(_), ..) | (.., Some(_), Some(_)) => {
                let must = "not be combined with another spelling of pairs";
                Err(ApiError::invalid_value("queries", must))
            }
            _ => {
                let message =
                    "give pairs as `queries` and `documents`, or as `text_1` and `text_2`";
                Err(ApiError::new(400, "missing_field", message))
            }
        }
    }
}

fn respond_list(call: &Call, model: &ServedModel, judged: &Judged, activation: bool) -> Reply {
    let item = |(index, score)| ListItem {
        index,
        object: "score",
        score,
    };
    let scores = judged.scores(activation).into_iter().enumerate();
    ListBody::reply(
        call.app.ids.next("score-"),
        model,
        scores.map(item).collect(),
        judged.computed.usage(),
    )
}
