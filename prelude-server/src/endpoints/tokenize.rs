//! `/tokenize`, `/detokenize`, `/tokenizer_info`: the tokenizer alone, without the engine.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use prelude_core::TokenId;
use schemars::JsonSchema;
use serde::Serialize;

use super::{Call, Reply, conversation::Conversation, input::Prompt};
use crate::{
    error::ApiError,
    json::Fields,
    served_model::{ServedModel, Task},
};

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Tokens")]
pub(crate) struct Tokens<'a> {
    count: usize,
    max_model_len: u32,
    tokens: Vec<TokenId>,
    token_strs: Option<Vec<Cow<'a, str>>>,
}

/// Text or messages to ids.
///
/// # Errors
/// 400 naming the field.
pub(crate) async fn tokenize(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    let mut fields = call.fields(&body)?;
    let (model, source) = {
        let name = fields.string("model")?;
        if fields.has("messages") {
            let model = call.app.model_for(name.as_deref(), Task::Chat)?;
            super::chat::refuse_unimplemented(&mut fields)?;
            for name in ["echo", "return_prompt_text"] {
                fields.refuse(name, &["false"])?;
            }
            fields.refuse("truncate_prompt_tokens", &[])?;
            let chat = Conversation::take(call, model, &mut fields, true)?;
            (model, Source::Chat(Box::new(chat)))
        } else {
            let model = call.app.model(name.as_deref())?;
            (model, Source::texts(&mut fields)?)
        }
    };
    let is_chat = matches!(source, Source::Chat(_));
    let add_special_tokens = fields.bool("add_special_tokens")?.unwrap_or(!is_chat);
    let with_strings = fields.bool("return_token_strs")?.unwrap_or(false);
    call.finish(&fields)?;
    if let Source::Many(texts) = &source {
        check_rows(call, texts.len())?;
    }
    let show = |tokens: Vec<TokenId>| Tokens {
        count: tokens.len(),
        max_model_len: model.max_model_len,
        token_strs: with_strings.then(|| strings(model, &tokens)),
        tokens,
    };
    let encode = |text: &str| show(model.tokenizer.encode(text, add_special_tokens));
    let encode_all = || match source {
        Source::Chat(chat) => {
            let rendered = chat.encode(call, model, add_special_tokens, None)?;
            Ok(Reply::json(&show(rendered.ids)))
        }
        Source::One(text) => Ok(Reply::json(&encode(&text))),
        Source::Many(texts) => {
            let all: Vec<Tokens<'_>> = texts.iter().map(|text| encode(text)).collect();
            Ok(Reply::json(&all))
        }
    };
    call.encode(body.len(), encode_all).await?
}

/// A list has no more texts than a request has rows.
fn check_rows(call: &Call, texts: usize) -> Result<(), ApiError> {
    let (rows, max) = (texts as u64, call.app.config.limits.rows);
    if rows > max {
        return Err(ApiError::too_many_rows(rows, max));
    }
    Ok(())
}

enum Source<'a> {
    Chat(Box<Conversation>),
    One(Cow<'a, str>),
    Many(Vec<Cow<'a, str>>),
}

impl<'a> Source<'a> {
    /// One text, or a list of texts and then a list of results.
    fn texts(fields: &mut Fields<'a>) -> Result<Self, ApiError> {
        let raw = fields
            .raw("prompt")
            .ok_or_else(|| ApiError::missing_field("prompt"))?;
        let wrong = || ApiError::invalid_type("prompt", "a string or a list of strings");
        let texts = super::input::parse_prompts(raw).map_err(|_| wrong())?;
        let mut texts: Vec<Cow<'a, str>> = texts
            .into_iter()
            .map(|prompt| match prompt {
                Prompt::Text(text) => Ok(text),
                Prompt::Ids(_) => Err(wrong()),
            })
            .collect::<Result<_, _>>()?;
        Ok(match texts.pop() {
            Some(text) if raw.starts_with('"') => Self::One(text),
            Some(last) => {
                texts.push(last);
                Self::Many(texts)
            }
            None => return Err(wrong()),
        })
    }
}

/// Tokens as text; part of a character prints as U+FFFD, an id beyond the tokenizer's as nothing.
fn strings<'m>(model: &'m ServedModel, ids: &[TokenId]) -> Vec<Cow<'m, str>> {
    let text = |&id: &TokenId| model.tokenizer.id_to_text(id);
    ids.iter().map(text).collect()
}

/// Two names for one thing: vLLM's and SGLang's.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Detokenized")]
pub(crate) struct Detokenized<'a> {
    prompt: &'a str,
    text: &'a str,
}

/// Ids to text.
///
/// # Errors
/// 400 naming the field.
pub(crate) async fn detokenize(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    let mut fields = call.fields(&body)?;
    let name = fields.string("model")?;
    let model = call.app.model(name.as_deref())?;
    let must_be = "a list of token ids: integers of at least 0";
    let ids: Vec<TokenId> = fields
        .get("tokens", must_be)?
        .ok_or_else(|| ApiError::missing_field("tokens"))?;
    let skip_special_tokens = fields.bool("skip_special_tokens")?.unwrap_or(false);
    call.finish(&fields)?;
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

/// What harnesses ask of a tokenizer.
///
/// # Errors
/// 503 while loading.
pub(crate) fn info(call: &Call) -> Result<Reply, ApiError> {
    let model = call.app.model(None)?;
    let config = &model.tokenizer_config;
    Ok(Reply::json(&Info {
        tokenizer_class: config.tokenizer_class.as_deref(),
        bos_token: config.token("bos_token"),
        eos_token: config.token("eos_token"),
        pad_token: config.token("pad_token"),
        chat_template: model.template.as_ref().map(|t| t.source()),
        max_model_len: model.max_model_len,
    }))
}
