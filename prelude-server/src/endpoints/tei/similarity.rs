//! `/similarity`: cosines of a text's vector and others'.

use std::sync::Arc;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    dialects::{COMMON, MEDIA, ONE_PIECE, TEI_SIMILARITY},
    endpoint::{Call, Endpoint, Reply, asked, json},
    error::{ApiError, Dialect},
    served_model::Task,
    tasks::{
        classify::in_f32,
        rank::{self, PairOptions},
        submit::{Ask, CommonFields},
        truncate::CutFields,
    },
    wire::{Text, request},
};

/// `POST /similarity`.
pub(crate) const SIMILARITY: Endpoint = Endpoint {
    group: "vectors",
    summary: "Compare a text with others, in TEI's dialect",
    requests: &[asked::<SimilarityRequest<'static>>()],
    responses: json::<Vec<f32>>,
    dialect: Dialect::Tei,
    ..Endpoint::post(&["/similarity"], |call, body| {
        Box::pin(similarity(call, body))
    })
};

/// A text, and texts to compare it with.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "TeiSimilarityInputs")]
#[serde(deny_unknown_fields)]
pub(crate) struct SimilarityInputs<'a> {
    #[serde(borrow)]
    source_sentence: Text<'a>,
    #[schemars(length(min = 1))]
    sentences: Vec<Text<'a>>,
}

/// A text, texts to compare it with, and how those that are too long are cut.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct SimilarityFields<'a> {
    #[serde(borrow)]
    inputs: SimilarityInputs<'a>,
    parameters: Option<CutFields>,
}

request! {
    /// `POST /similarity`.
    struct SimilarityRequest<'a> {
        similarity: SimilarityFields<'a>,
        common: CommonFields<'a>,
    }
    fields [COMMON, ONE_PIECE, MEDIA, TEI_SIMILARITY];
}

/// Answers `/similarity` by the cosines of embeddings.
async fn similarity(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    let request: SimilarityRequest<'_> = call.read(&body).await?;
    let ask = Ask::new(call, request.common, Task::Embeddings)?;
    let model = ask.model;
    let SimilarityInputs {
        source_sentence,
        sentences,
    } = request.similarity.inputs;
    if sentences.is_empty() {
        let must = "have at least one sentence";
        return Err(ApiError::invalid_value("inputs/sentences", must));
    }
    let cut = request.similarity.parameters;
    let options = PairOptions {
        truncation: cut.and_then(|cut| cut.truncation(model)),
        field: "inputs/sentences",
        query_field: "inputs/source_sentence",
        ..PairOptions::default()
    };
    let pairs = sentences.iter().map(|text| (&*source_sentence.0, &*text.0));
    let pairs: Vec<_> = pairs.collect();
    let judged = rank::by_cosine(&ask, &pairs, &options).await?;
    Ok(Reply::json(&in_f32(&judged.scores(false))))
}
