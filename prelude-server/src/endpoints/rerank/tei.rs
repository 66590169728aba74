//! Texts in the order of their relevance: TEI's dialect.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use super::{answers::ListedBody, ranked};
use crate::{
    dialects::{COMMON, MEDIA, ONE_PIECE, RERANK, RERANK_TEXTS, TEI_TRUNCATION},
    endpoint::{Call, Reply},
    error::ApiError,
    served_model::Task,
    tasks::{
        rank::{PairOptions, judge},
        submit::{Ask, CommonFields},
        truncate::CutFields,
    },
    wire::{Fields, Text, check_some, request},
};

/// A query and texts.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct TeiRerankFields<'a> {
    #[serde(borrow)]
    query: Text<'a>,
    #[schemars(length(min = 1))]
    texts: Vec<Text<'a>>,
    /// Raw differences.
    raw_scores: Option<bool>,
    /// Results carry their text.
    return_text: Option<bool>,
    /// Special tokens in texts are plain text (models that judge behind a prompt).
    escape_special_tokens: Option<bool>,
}

request! {
    /// `POST /rerank`: `texts` (TEI's dialect).
    struct TeiRerankRequest<'a> {
        rerank: TeiRerankFields<'a>,
        cut: CutFields,
        common: CommonFields<'a>,
    }
    fields [COMMON, ONE_PIECE, MEDIA, TEI_TRUNCATION, RERANK, RERANK_TEXTS];
}

/// Answers a request for a ranking of `texts`.
///
/// # Errors
/// 400 for whatever is wrong with the request, 429, 503, 500.
pub(super) async fn rank(call: &Arc<Call>, fields: Fields<'_>) -> Result<Reply, ApiError> {
    let request: TeiRerankRequest<'_> = call.read_fields(fields).await?;
    let ask = Ask::new(call, request.common, Task::Rerank)?;
    let model = ask.model;
    let asked = request.rerank;
    check_some("texts", &asked.texts)?;
    let options = PairOptions {
        truncation: request.cut.truncation(model),
        escapes: asked.escape_special_tokens,
        field: "texts",
        query_field: "query",
        ..PairOptions::default()
    };
    let pairs = asked.texts.iter().map(|t| (&*asked.query.0, &*t.0));
    let pairs: Vec<(&str, &str)> = pairs.collect();
    let judged = judge(&ask, &pairs, &options).await?;
    let ranked = ranked(&judged, asked.raw_scores != Some(true), None);
    let return_text = asked.return_text == Some(true);
    let results = ranked.into_iter().map(|(index, score)| ListedBody {
        index,
        score,
        text: return_text.then(|| &*asked.texts[index].0),
        document: None,
    });
    Ok(Reply::json(&results.collect::<Vec<_>>()))
}
