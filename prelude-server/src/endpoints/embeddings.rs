//! `POST /v1/embeddings`: vectors of texts.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use prelude_core::{Head, RowOutput, RowSpec};
use serde::Serialize;

use super::{
    Call, Reply,
    input::{self, Encoding, Prompt},
    read,
    submit::{Common, UsageBody},
    unix_seconds,
};
use crate::{
    error::ApiError,
    json::Fields,
    served_model::{ServedModel, Task},
};

#[derive(Serialize)]
struct Response<'a> {
    id: String,
    object: &'static str,
    created: u64,
    model: &'a str,
    data: Vec<Item>,
    usage: UsageBody,
}

#[derive(Serialize)]
struct Item {
    index: usize,
    object: &'static str,
    embedding: Vector,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Floats(Vec<f32>),
    Base64(String),
}

impl Vector {
    fn new(floats: Vec<f32>, format: Format) -> Self {
        match format {
            Format::Float => Self::Floats(floats),
            Format::Base64 => {
                let bytes: Vec<u8> = floats.iter().flat_map(|f| f.to_le_bytes()).collect();
                Self::Base64(STANDARD.encode(bytes))
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Float,
    Base64,
}

/// Answers `/v1/embeddings`.
pub(crate) async fn handle(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    let mut fields = call.fields(&body)?;
    let common = Common::take(call, &mut fields)?;
    let model = call
        .app
        .model_for(common.model.as_deref(), Task::Embeddings)?;
    let pooling = model.pooling.expect("a model that serves embeddings pools");
    fields.refuse("messages", &[])?;
    let mut inputs = input::prompts(&mut fields, "input")?;
    let format = format(&mut fields)?;
    let dimensions = dimensions(&mut fields, model)?;
    let normalise = fields.bool("use_activation")?.unwrap_or(model.normalise);
    let prefix = prefix(&mut fields, model)?;
    let add_special_tokens = fields.bool("add_special_tokens")?.unwrap_or(true);
    fields.refuse("truncate_prompt_tokens", &[])?;
    fields.refuse("stream", &["false"])?;
    call.finish(&fields)?;
    call.reservation.set_rows(inputs.len() as u64)?;
    put_before(&mut inputs, &prefix)?;

    let encoding = Encoding {
        field: "input",
        add_special_tokens,
    };
    let prompts = input::encode(call, model, inputs, encoding).await?;
    let (tree, ends, tokens) = read::tree(model, "input", &prompts)?;
    let head = Head::Embed {
        pooling,
        normalise,
        dimensions,
    };
    let row = |node| RowSpec {
        node,
        head: head.clone(),
    };
    let rows = ends.into_iter().map(row).collect();
    let (outputs, usage) = read::read_rows(call, model, &common, tree, rows, tokens).await?;
    let mut data = Vec::with_capacity(outputs.len());
    for (index, output) in outputs.into_iter().enumerate() {
        let RowOutput::Embedding(floats) = output else {
            return Err(read::mismatch(call));
        };
        data.push(Item {
            index,
            object: "embedding",
            embedding: Vector::new(floats, format),
        });
    }
    Ok(Reply::json(&Response {
        id: call.app.ids.next("embd-"),
        object: "list",
        created: unix_seconds(),
        model: &model.name,
        data,
        usage: UsageBody::new(tokens, 0, Some(&usage)),
    }))
}

fn format(fields: &mut Fields<'_>) -> Result<Format, ApiError> {
    match fields.string("encoding_format")?.as_deref() {
        None | Some("float") => Ok(Format::Float),
        Some("base64") => Ok(Format::Base64),
        Some(_) => {
            let must = "be \"float\" or \"base64\"";
            Err(ApiError::invalid_value("encoding_format", must))
        }
    }
}

fn put_before(inputs: &mut [Prompt<'_>], prefix: &str) -> Result<(), ApiError> {
    if prefix.is_empty() {
        return Ok(());
    }
    for input in inputs {
        match input {
            Prompt::Text(text) => text.to_mut().insert_str(0, prefix),
            Prompt::Ids(_) => {
                let must = "be text where an instruction or prompt is to precede it";
                return Err(ApiError::invalid_value("input", must));
            }
        }
    }
    Ok(())
}

fn dimensions(fields: &mut Fields<'_>, model: &ServedModel) -> Result<Option<u32>, ApiError> {
    let dimensions = fields.count("dimensions", 1..=model.hidden_size)?;
    match dimensions {
        Some(d) if !model.matryoshka.is_empty() && !model.matryoshka.contains(&d) => {
            let must = format!(
                "be one of {:?}, which the model was trained for",
                model.matryoshka
            );
            Err(ApiError::invalid_value("dimensions", must))
        }
        _ => Ok(dimensions),
    }
}

/// What precedes each input: at most one of `instruction`, `prompt_name` and `input_type`.
fn prefix(fields: &mut Fields<'_>, model: &ServedModel) -> Result<String, ApiError> {
    let instruction = fields.string("instruction")?;
    let prompt_name = fields.string("prompt_name")?;
    let input_type = fields.string("input_type")?;
    let named = |name: &str, param: &'static str| {
        model.prompts.get(name).cloned().ok_or_else(|| {
            let known: Vec<_> = model.prompts.keys().collect();
            ApiError::invalid_value(
                param,
                format!("name a prompt of this model; it has {known:?}"),
            )
        })
    };
    match (instruction, prompt_name, input_type.as_deref()) {
        (None, None, None) => Ok(String::new()),
        (Some(instruction), None, None) => Ok(format!("Instruct: {instruction}\nQuery:")),
        (None, Some(name), None) => named(&name, "prompt_name"),
        (None, None, Some("query" | "search_query")) => named("query", "input_type"),
        (None, None, Some("document" | "passage" | "search_document")) => Ok(String::new()),
        (None, None, Some(_)) => {
            let must = "be query, search_query, document, passage or search_document";
            Err(ApiError::invalid_value("input_type", must))
        }
        _ => {
            let must = "not be combined with prompt_name or input_type: at most one of the three";
            Err(ApiError::invalid_value("instruction", must))
        }
    }
}
