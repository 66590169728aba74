//! `/tokenize`, `/detokenize`, `/tokenizer_info`: the tokenizer alone, without the engine.

mod detokenize;

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use prelude_core::TokenId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use self::detokenize::{DETOKENIZE, TOKENIZER_INFO};
use crate::{
    dialects::{self, CONVERSATION, MEDIA},
    endpoint::{Call, Endpoint, Needs, Reply, asked, either},
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
        let chat = Conversation::new(&call.app.config, model, chat, true)?;
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
            // No context has to hold tokens that are only shown.
            let rendered = chat.encode(model, add_special_tokens, None, false)?;
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
