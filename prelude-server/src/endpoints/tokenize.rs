//! `/tokenize`, `/detokenize`, `/tokenizer_info`: the tokenizer alone, without the engine.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use prelude_core::TokenId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    dialects::{self, CONVERSATION, MEDIA},
    endpoint::{Call, Endpoint, Needs, Reply, asked, either, json},
    error::ApiError,
    served_model::{ServedModel, Task},
    tasks::conversation::{Conversation, ConversationFields},
    wire::{OneOrMany, Text, request},
};

/// `POST /tokenize`.
pub(crate) const TOKENIZE: Endpoint = Endpoint {
    group: "tokens",
    summary: "Text to token ids",
    requests: &[asked::<TokenizeRequest<'static>>()],
    responses: either::<Tokens<'static>, Vec<Tokens<'static>>>,
    needs: Needs::Models,
    ..Endpoint::post(&["/tokenize"], |call, body| Box::pin(tokenize(call, body)))
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

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Tokens")]
pub(crate) struct Tokens<'a> {
    count: usize,
    max_model_len: u32,
    tokens: Vec<TokenId>,
    token_strs: Option<Vec<Cow<'a, str>>>,
}

/// Text to tokenise, and how.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct TextFields<'a> {
    #[serde(borrow)]
    model: Option<Text<'a>>,
    /// One text, or a list of texts and then a list of results.
    prompt: Option<OneOrMany<Text<'a>>>,
    add_special_tokens: Option<bool>,
    /// True to get each token's text beside its id.
    return_token_strs: Option<bool>,
}

request! {
    /// `POST /tokenize`: `prompt`, or `messages` as the chat template renders them.
    struct TokenizeRequest<'a> {
        text: TextFields<'a>,
        conversation: ConversationFields,
    }
    fields [MEDIA, CONVERSATION, dialects::TOKENIZE];
}

/// Answers with the ids of texts or messages.
///
/// # Errors
/// 400 naming the field.
pub(crate) async fn tokenize(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    let request: TokenizeRequest<'_> = call.read(&body).await?;
    let (text, chat) = (request.text, request.conversation);
    let name = text.model.as_ref().map(|name| &*name.0);
    let is_chat = chat.messages.is_some();
    let (model, source) = if is_chat {
        let model = call.app.model_for(name, Task::Chat)?;
        let chat = Conversation::new(call, model, chat, true)?;
        (model, Source::Chat(Box::new(chat)))
    } else {
        let model = call.app.model(name)?;
        if chat.escape_special_tokens == Some(true) {
            return Err(ApiError::special_tokens_not_kept_apart());
        }
        (model, Source::texts(text.prompt)?)
    };
    let add_special_tokens = text.add_special_tokens.unwrap_or(!is_chat);
    let with_strings = text.return_token_strs.unwrap_or(false);
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

/// Checks that a list has no more texts than a request may have rows.
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
    /// Reads one text, or a list of texts.
    fn texts(prompt: Option<OneOrMany<Text<'a>>>) -> Result<Self, ApiError> {
        match prompt {
            None => Err(ApiError::missing_field("prompt")),
            Some(OneOrMany::One(text)) => Ok(Self::One(text.0)),
            Some(OneOrMany::Many(texts)) if texts.is_empty() => {
                Err(ApiError::invalid_value("prompt", "not be an empty list"))
            }
            Some(OneOrMany::Many(texts)) => {
                Ok(Self::Many(texts.into_iter().map(|text| text.0).collect()))
            }
        }
    }
}

/// Returns the tokens as text; part of a character prints as U+FFFD, an id beyond the tokenizer's
/// as nothing.
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
