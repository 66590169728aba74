//! `/detokenize` and `/tokenizer_info`: the text of ids, and what a tokenizer is.

use std::sync::Arc;

use bytes::Bytes;
use prelude_core::TokenId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    dialects,
    endpoint::{Call, Endpoint, Needs, Reply, asked, json},
    error::ApiError,
    wire::{Text, request},
};

/// `POST /detokenize`.
pub(crate) const DETOKENIZE: Endpoint = Endpoint {
    group: "tokens",
    summary: "Token ids to text",
    requests: &[asked::<DetokenizeRequest<'static>>()],
    responses: json::<Detokenized<'static>>,
    needs: Needs::Models,
    ..Endpoint::post(&["/detokenize"], |call, body| {
        Box::pin(detokenize(call, body))
    })
};

/// `GET /tokenizer_info`.
pub(crate) const TOKENIZER_INFO: Endpoint = Endpoint {
    group: "tokens",
    summary: "Special tokens and the chat template",
    responses: json::<Info<'static>>,
    needs: Needs::Models,
    ..Endpoint::get(&["/tokenizer_info"], |call, _| {
        Box::pin(async { info(call) })
    })
};

/// Two names for one thing: vLLM's and SGLang's.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Detokenized")]
pub(crate) struct Detokenized<'a> {
    prompt: &'a str,
    text: &'a str,
}

/// Ids to turn into text, and how.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct IdFields<'a> {
    #[serde(borrow)]
    model: Option<Text<'a>>,
    tokens: Vec<TokenId>,
    skip_special_tokens: Option<bool>,
}

request! {
    /// `POST /detokenize`.
    struct DetokenizeRequest<'a> {
        ids: IdFields<'a>,
    }
    fields [dialects::DETOKENIZE];
}

/// Answers with the text of ids.
///
/// # Errors
/// 400 naming the field.
pub(crate) async fn detokenize(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    let DetokenizeRequest { ids: request, .. } = call.read(&body).await?;
    let name = request.model.as_ref().map(|name| &*name.0);
    let model = call.app.model(name)?;
    let ids = request.tokens;
    let skip_special_tokens = request.skip_special_tokens.unwrap_or(false);
    if let Some(&id) = ids.iter().find(|&&id| id >= model.vocab_size) {
        let id = u64::from(id);
        return Err(ApiError::token_out_of_range("tokens", id, model.vocab_size));
    }
    let max = call.app.config.limits.detokenize_bytes;
    let decode = || {
        // A token may be far longer than its id is in the body.
        let pieces = ids.iter().map(|&id| model.tokenizer.id_to_piece(id));
        let bytes: u64 = pieces.map(|p| p.map_or(0, |p| p.len() as u64)).sum();
        if bytes > max {
            let must = format!("be at most {max} bytes of text, it is {bytes}; split it");
            return Err(ApiError::invalid_value("tokens", must));
        }
        let text = &*model.tokenizer.decode(&ids, skip_special_tokens);
        Ok(Reply::json(&Detokenized { prompt: text, text }))
    };
    call.app.encoder.run(body.len(), decode).await?
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "TokenizerInfo")]
pub(crate) struct Info<'a> {
    tokenizer_class: Option<&'a str>,
    bos_token: Option<&'a str>,
    eos_token: Option<&'a str>,
    pad_token: Option<&'a str>,
    chat_template: Option<&'a str>,
    max_model_len: u32,
}

/// Answers with the properties of a tokenizer that evaluation harnesses ask for.
///
/// # Errors
/// 503 while loading.
pub(crate) fn info(call: &Call) -> Result<Reply, ApiError> {
    let model = call.app.model(None)?;
    let config = &model.form.tokenizer_config;
    Ok(Reply::json(&Info {
        tokenizer_class: config.tokenizer_class.as_deref(),
        bos_token: config.token("bos_token"),
        eos_token: config.token("eos_token"),
        pad_token: config.token("pad_token"),
        chat_template: model.form.template.as_ref().map(|t| t.source()),
        max_model_len: model.max_model_len,
    }))
}
