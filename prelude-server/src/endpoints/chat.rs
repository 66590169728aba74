//! `POST /v1/chat/completions`: answers to conversations, through the model's own template.

mod answer;
mod body;

use std::sync::Arc;

use bytes::Bytes;
use schemars::{JsonSchema, SchemaGenerator};
use serde::Deserialize;

use self::{
    answer::Chat,
    body::{Body, ChoiceBody, ChunkBody},
};
use crate::{
    admission::{Growth, Printed},
    dialects::{self, COMMON, CONVERSATION, GENERATION, MEDIA, SERVICE, TRUNCATION},
    endpoint::{Bodies, Call, Endpoint, Reply, asked, events, unix_seconds},
    error::ApiError,
    served_model::{ServedModel, Task},
    tasks::{
        conversation::{Conversation, ConversationFields},
        generate::{GenerationFields, Job, Params, Report, Run, Speaker, entries, logprobs},
        place,
        submit::{Ask, CommonFields},
        tools::Mind,
        truncate::{Side, Truncation, TruncationFields},
    },
    wire::{Count, CountOrAll, Int, request},
};

fn responses(generator: &mut SchemaGenerator) -> Bodies {
    // Chunks are described although no media type can name them.
    generator.subschema_for::<Body<'static, ChunkBody<'static>>>();
    events::<Body<'static, ChoiceBody<'static>>>(generator, "<ChatChunk>")
}

/// `POST /v1/chat/completions`.
pub(crate) const CHAT: Endpoint = Endpoint {
    group: "text",
    summary: "Answer a conversation",
    requests: &[asked::<ChatRequest<'static>>()],
    responses,
    generates: true,
    ..Endpoint::post(&["/v1/chat/completions"], |call, body| {
        Box::pin(handle(call, body))
    })
};

/// The fields of an answer.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct AnswerFields {
    /// The context left if absent. `max_completion_tokens` wins.
    max_tokens: Option<Count>,
    max_completion_tokens: Option<Count>,
    /// The rendered prompt is shown as `prompt_text`.
    return_prompt_text: Option<bool>,
    /// False leaves out reasoning that the server tells from the content.
    include_reasoning: Option<bool>,
    logprobs: Option<bool>,
    /// Likeliest tokens to report at each position, only with `logprobs`.
    top_logprobs: Option<CountOrAll>,
    add_special_tokens: Option<bool>,
}

request! {
    /// `POST /v1/chat/completions`.
    struct ChatRequest<'a> {
        conversation: ConversationFields,
        answer: AnswerFields,
        generation: GenerationFields<'a>,
        truncation: TruncationFields,
        common: CommonFields<'a>,
    }
    fields [COMMON, MEDIA, SERVICE, CONVERSATION, TRUNCATION, GENERATION, dialects::CHAT];
}

/// Answers the request.
///
/// # Errors
/// 400 for whatever is wrong with it, 429, 503, 500.
pub(crate) async fn handle(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    let request: ChatRequest<'_> = call.read(&body).await?;
    let ask = Ask::new(call, request.common, Task::Chat)?;
    let model = ask.model;
    let conversation = Conversation::new(&call.app.config, model, request.conversation, true)?;
    let answer = request.answer;
    let max_tokens = { answer.max_completion_tokens.or(answer.max_tokens) }.map(Int::count);
    let top_logprobs = top_logprobs(call, model, &answer)?;
    let add_special_tokens = answer.add_special_tokens.unwrap_or(false);
    let include_reasoning = answer.include_reasoning.unwrap_or(true);
    let output = max_tokens.unwrap_or(1);
    let truncation = Truncation::new(request.truncation, model, output, Side::Left)?;
    let mut params = Params::new(call, model, request.generation)?;

    let rows = u64::from(params.n);
    params.reserve(call, rows, max_tokens.unwrap_or(u32::MAX))?;
    // Rendering and encoding are one piece of work.
    let encode = || conversation.encode(model, add_special_tokens, truncation, true);
    let rendered = call.encode(body.len(), encode).await??;
    call.note_cut(rendered.is_cut);
    let mind = Mind::at_end_of(&rendered.text);
    conversation
        .tools
        .shape(call, model, mind, include_reasoning, &mut params)?;
    drop(conversation);
    let (ids, prompt_text) = match answer.return_prompt_text {
        Some(true) => (rendered.ids.clone(), Some(rendered.into_text(model))),
        _ => (rendered.ids, None),
    };
    place::check_ids("messages", &ids, model)?;
    // Without a limit the answer may fill the context, of which at least one token is left.
    place::check_length("messages", ids.len(), u64::from(output), model)?;
    params.check_prompt(ids.len())?;
    let left = model.max_model_len
        - u32::try_from(ids.len()).expect("`check_length` bounds the prompt by the context");
    let max_tokens = max_tokens.unwrap_or(left);
    params.check_budget(max_tokens)?;
    if let Some(top) = params.prompt_logprobs {
        // Printed once, whatever `n` is.
        let range = params.prompt_logprobs_range.as_ref();
        let numbers = Growth::Numbers(entries(ids.len(), range, top), Printed::Logprob);
        call.reservation.grow(numbers)?;
    }

    params.constrain(call, model).await?;
    let report = Report {
        generated_top: top_logprobs,
        prompt_top: params.prompt_logprobs,
        prompt_range: params.prompt_logprobs_range.clone(),
    };
    let jobs = vec![Job { ids, max_tokens }];
    let run = Run::start(&ask, params, jobs, &report).await?;
    drop(ask);
    drop(body);
    let chat = Chat {
        id: call.app.ids.next("chatcmpl-"),
        created: unix_seconds(),
        logprobs: top_logprobs.is_some(),
        prompt_text,
        run,
    };
    chat.reply().await
}

fn top_logprobs(
    call: &Call,
    model: &ServedModel,
    answer: &AnswerFields,
) -> Result<Option<u32>, ApiError> {
    let wanted = answer.logprobs.unwrap_or(false);
    let top = logprobs(&call.app, model, "top_logprobs", answer.top_logprobs)?.unwrap_or(0);
    if top > 0 && !wanted {
        let must = "be absent unless `logprobs` is true";
        return Err(ApiError::invalid_value("top_logprobs", must));
    }
    Ok(wanted.then_some(top))
}
