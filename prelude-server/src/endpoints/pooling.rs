//! `POST /pooling`: what a model makes of a whole text, whatever kind it is.

use std::sync::Arc;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    Call, Reply, classify, embeddings,
    submit::{Common, UsageBody},
    unix_seconds,
};
use crate::{
    error::ApiError,
    json::Fields,
    served_model::{ModelKind, ServedModel, Task},
};

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Pooling")]
pub(crate) struct Response<'a> {
    id: String,
    object: &'static str,
    created: u64,
    model: &'a str,
    data: Vec<Item>,
    usage: UsageBody,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PooledItem")]
struct Item {
    index: usize,
    object: &'static str,
    data: embeddings::Vector,
}

/// Answers `/pooling`.
///
/// # Errors
/// 400 for whatever is wrong with the request, 429, 503, 500.
pub(crate) async fn handle(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    let mut fields = call.fields(&body)?;
    let common = Common::take(call, &mut fields)?;
    let model = call
        .app
        .model_for(common.model.as_deref(), Task::Pooling)
        .map_err(|e| e.prefixed("Unsupported task: "))?;
    let (vectors, format, tokens, usage) = match task(&mut fields, model)? {
        Pooled::Embed => {
            let embedded = embeddings::embed(call, model, &common, fields).await?;
            (
                embedded.vectors,
                embedded.format,
                embedded.tokens,
                embedded.usage,
            )
        }
        Pooled::Classify => {
            let format = embeddings::format(&mut fields)?;
            // Of embeddings.
            for name in ["dimensions", "instruction", "prompt_name", "input_type"] {
                fields.refuse(name, &[])?;
            }
            let classified = classify::classify(call, model, &common, fields).await?;
            #[expect(
                clippy::cast_possible_truncation,
                reason = "written in f32's precision"
            )]
            let narrow = |probs: Vec<f64>| probs.into_iter().map(|p| p as f32).collect();
            let vectors = classified.probs.into_iter().map(narrow).collect();
            (vectors, format, classified.tokens, classified.usage)
        }
    };
    let item = |(index, floats)| Item {
        index,
        object: "pooling",
        data: embeddings::Vector::new(floats, format),
    };
    let data: Vec<Item> = vectors.into_iter().enumerate().map(item).collect();
    Ok(Reply::json(&Response {
        id: call.app.ids.next("pool-"),
        object: "list",
        created: unix_seconds(),
        model: &model.name,
        data,
        usage: UsageBody::new(tokens, 0, Some(&usage)),
    }))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pooled {
    Embed,
    Classify,
}

/// `task`, or the kind's own.
fn task(fields: &mut Fields<'_>, model: &ServedModel) -> Result<Pooled, ApiError> {
    let classifies = matches!(model.kind, ModelKind::Classifier | ModelKind::Reward);
    let own = match classifies {
        true => Pooled::Classify,
        false => Pooled::Embed,
    };
    match fields.string("task")?.as_deref() {
        None => Ok(own),
        Some("embed") if own == Pooled::Embed => Ok(own),
        Some("classify") if own == Pooled::Classify => Ok(own),
        Some(task @ ("embed" | "classify")) => {
            let message = format!(
                "Unsupported task: model {:?} (kind {}) does not {task}",
                model.name,
                model.kind.as_str()
            );
            Err(ApiError::new(400, "unsupported_task", message).with_param("task"))
        }
        // A row for each token: no executor returns that yet.
        Some("token_embed" | "token_classify") => {
            let message = "Unsupported task: values of each token are not supported by this server";
            Err(ApiError::new(400, "unsupported_parameter", message).with_param("task"))
        }
        Some(_) => {
            let must = "be `embed`, `classify`, `token_embed` or `token_classify`";
            Err(ApiError::invalid_value("task", must))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::testing::{answer, demos, refused};

    const PATH: &str = "/pooling";

    #[test]
    fn classes_are_those_of_classify() {
        let input = json!(["Where is my card?", "What is the rate?"]);
        let found = answer(demos(), PATH, &json!({"input": input}));
        assert!(found["id"].as_str().unwrap().starts_with("pool-"));
        let classes = answer(demos(), "/classify", &json!({"input": input}));
        for (pooled, class) in [0, 1].map(|i| (&found["data"][i], &classes["data"][i])) {
            assert_eq!(pooled["object"], "pooling");
            assert_eq!(pooled["data"], class["probs"]);
        }
        assert_eq!(
            found["usage"]["prompt_tokens"],
            classes["usage"]["prompt_tokens"]
        );
        let packed = answer(
            demos(),
            PATH,
            &json!({"input": "x", "encoding_format": "base64"}),
        );
        assert!(packed["data"][0]["data"].is_string());
    }

    #[test]
    fn other_tasks_are_refused_by_name() {
        let check = |more: Value, reason: &str, param: &str| {
            let mut body = json!({"input": "x"});
            body.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            refused(demos(), PATH, &body, (400, reason, Some(param)));
        };
        check(json!({"task": "embed"}), "unsupported_task", "task");
        check(
            json!({"task": "token_classify"}),
            "unsupported_parameter",
            "task",
        );
        check(json!({"task": "sing"}), "invalid_value", "task");
        check(
            json!({"dimensions": 8}),
            "unsupported_parameter",
            "dimensions",
        );
        check(json!({"model": "demo-lm"}), "unsupported_task", "model");
        let (_, found, _) =
            crate::testing::ask(demos(), PATH, &json!({"model": "demo-lm", "input": "x"}));
        let message = found["error"]["message"].as_str().unwrap();
        assert!(message.starts_with("Unsupported task"), "{message}");
    }
}
