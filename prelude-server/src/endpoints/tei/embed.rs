//! `/embed` and `/embed_all`: vectors of texts, and of their tokens.

use std::sync::Arc;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    dialects::{COMMON, MEDIA, ONE_PIECE, PIPELINE, TEI_EMBED, TEI_EMBED_ALL, TEI_TRUNCATION},
    endpoint::{Call, Endpoint, Reply, asked, json},
    error::{ApiError, Dialect},
    served_model::Task,
    tasks::{
        embed::{VectorFields, embed},
        input::{Given, Prompts},
        prepared::Unit,
        submit::{Ask, CommonFields},
        truncate::CutFields,
    },
    wire::{Int, Text, request},
};

/// `POST /embed`.
pub(crate) const EMBED: Endpoint = Endpoint {
    group: "vectors",
    summary: "Embed texts, in TEI's dialect",
    requests: &[asked::<EmbedRequest<'static>>()],
    responses: json::<Vec<Vec<f32>>>,
    dialect: Dialect::Tei,
    ..Endpoint::post(&["/embed"], |call, body| Box::pin(embeddings(call, body)))
};

/// `POST /embed_all`.
pub(crate) const EMBED_ALL: Endpoint = Endpoint {
    group: "vectors",
    summary: "Embed each token of texts, in TEI's dialect",
    requests: &[asked::<EmbedAllRequest<'static>>()],
    responses: json::<Vec<Vec<Vec<f32>>>>,
    dialect: Dialect::Tei,
    ..Endpoint::post(&["/embed_all"], |call, body| {
        Box::pin(token_embeddings(call, body))
    })
};

/// Texts to embed.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct EmbedFields<'a> {
    #[serde(borrow)]
    inputs: Prompts<'a>,
    /// True by default: vectors have length 1.
    normalize: Option<bool>,
    /// A prompt that the model brings, put before each text.
    prompt_name: Option<Text<'a>>,
    /// Cut to this many components first, normalised after.
    dimensions: Option<Int<1, { u32::MAX as i64 }>>,
}

request! {
    /// `POST /embed`.
    struct EmbedRequest<'a> {
        embed: EmbedFields<'a>,
        cut: CutFields,
        common: CommonFields<'a>,
    }
    fields [COMMON, ONE_PIECE, MEDIA, TEI_TRUNCATION, PIPELINE, TEI_EMBED];
}

/// Answers `/embed`.
async fn embeddings(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    let request: EmbedRequest<'_> = call.read(&body).await?;
    let ask = Ask::new(call, request.common, Task::Embeddings)?;
    let model = ask.model;
    let asked = request.embed;
    let inputs = Given::Prompts(asked.inputs.0, "inputs", request.cut.truncation(model));
    let normalise = asked.normalize.unwrap_or(true);
    let fields = VectorFields {
        dimensions: asked.dimensions,
        prompt_name: asked.prompt_name,
        ..VectorFields::default()
    };
    let inputs = (inputs, normalise);
    let embedded = embed(&ask, fields, inputs, Unit::Texts).await?;
    let write = move || {
        let vectors: Vec<_> = embedded.vectors.into_iter().map(|v| v.concat()).collect();
        Reply::json(&vectors)
    };
    Ok(call.write(0, write).await)
}

/// Texts whose tokens are embedded.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct EmbedAllFields<'a> {
    #[serde(borrow)]
    inputs: Prompts<'a>,
    /// A prompt that the model brings, put before each text.
    prompt_name: Option<Text<'a>>,
}

request! {
    /// `POST /embed_all`.
    struct EmbedAllRequest<'a> {
        embed: EmbedAllFields<'a>,
        cut: CutFields,
        common: CommonFields<'a>,
    }
    fields [COMMON, ONE_PIECE, MEDIA, TEI_TRUNCATION, PIPELINE, TEI_EMBED_ALL];
}

/// Answers `/embed_all`: the vectors of each text's tokens, as the model computes them.
async fn token_embeddings(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    let request: EmbedAllRequest<'_> = call.read(&body).await?;
    let ask = Ask::new(call, request.common, Task::Embeddings)?;
    let model = ask.model;
    let asked = request.embed;
    let inputs = Given::Prompts(asked.inputs.0, "inputs", request.cut.truncation(model));
    let fields = VectorFields {
        prompt_name: asked.prompt_name,
        ..VectorFields::default()
    };
    let embedded = embed(&ask, fields, (inputs, false), Unit::Tokens).await?;
    let write = move || Reply::json(&embedded.vectors);
    Ok(call.write(0, write).await)
}
