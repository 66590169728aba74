//! `/info`: what is served.

use std::{collections::BTreeMap, sync::Arc};

use prelude_core::Pooling;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use crate::{
    endpoint::{Call, Endpoint, Needs, Reply, json as body},
    error::{ApiError, Dialect},
    served_model::{ServedModel, Task},
};

/// `GET /info`.
pub(crate) const INFO: Endpoint = Endpoint {
    group: "models",
    summary: "What is served, in TEI's dialect",
    responses: body::<Info<'static>>,
    needs: Needs::Models,
    dialect: Dialect::Tei,
    ..Endpoint::get(&["/info"], |call, _| Box::pin(async { info(call) }))
};

/// The first model that embeds, ranks or has classes, and what a request to it may be.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TeiInfo")]
pub(crate) struct Info<'a> {
    model_id: &'a str,
    model_sha: Option<&'a str>,
    #[schemars(with = "BTreeMap<String, serde_json::Value>")]
    model_type: serde_json::Value,
    max_concurrent_requests: usize,
    max_input_length: u32,
    max_client_batch_size: u64,
    auto_truncate: bool,
    version: &'static str,
}

/// Answers `/info`.
///
/// # Errors
/// 503 while loading.
pub(super) fn info(call: &Call) -> Result<Reply, ApiError> {
    let first = call.app.model(None)?;
    let is_told_of = |model: &&Arc<ServedModel>| {
        model.vectors().is_some() || model.serves(Task::Rerank) || !model.class_names().is_empty()
    };
    let model = call.app.models().iter().find(is_told_of).unwrap_or(first);
    let limits = &call.app.config.limits;
    Ok(Reply::json(&Info {
        model_id: &model.name,
        model_sha: None,
        model_type: model_type(model),
        max_concurrent_requests: limits.connections,
        max_input_length: model.max_model_len,
        max_client_batch_size: limits.rows,
        auto_truncate: model.auto_truncate,
        version: env!("CARGO_PKG_VERSION"),
    }))
}

/// Returns TEI's name of a model's use, with what its clients read of it.
fn model_type(model: &ServedModel) -> serde_json::Value {
    let labels = || {
        let names = model.class_names().iter().enumerate();
        let by_id: BTreeMap<_, _> = names
            .clone()
            .map(|(i, name)| (i.to_string(), name))
            .collect();
        let by_name: BTreeMap<_, _> = names.map(|(i, name)| (name, i)).collect();
        json!({ "id2label": by_id, "label2id": by_name })
    };
    if let Some(vectors) = model.vectors() {
        let pooling = match vectors.pooling {
            Pooling::First => "cls",
            Pooling::Last => "last_token",
            Pooling::Mean => "mean",
        };
        return json!({ "embedding": { "pooling": pooling } });
    }
    match model.serves(Task::Rerank) {
        true => json!({ "reranker": labels() }),
        false => json!({ "classifier": labels() }),
    }
}
