//! `POST /v1/chat/completions`: answers to conversations, through the model's own template.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use prelude_core::TokenId;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    Call, Reply,
    conversation::Conversation,
    generate::{
        ChatLogprobs, Choice, Job, Params, PromptLogprobs, PromptLogprobsSchema, Readiness, Report,
        Run, Speaker, StopReason, check_entries, entries, logprobs,
    },
    input,
    submit::{Common, UsageBody},
    tools::Mind,
    truncate::{Side, Truncation},
    unix_seconds,
};
use crate::{
    answer::Piece,
    error::ApiError,
    json::Fields,
    served_model::{ServedModel, Task},
    sse::Events,
};

/// Answers the request.
///
/// # Errors
/// 400 for whatever is wrong with it, 429, 503, 500.
pub(crate) async fn handle(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    let mut fields = call.fields(&body)?;
    let common = Common::take(call, &mut fields)?;
    let model = call.app.model_for(common.model.as_deref(), Task::Chat)?;
    refuse_unimplemented(&mut fields)?;
    let conversation = Conversation::take(&mut fields, true)?;
    let include_reasoning = fields.bool("include_reasoning")?.unwrap_or(true);
    let max_tokens = take_max_tokens(&mut fields)?;
    let top_logprobs = take_logprobs(call, model, &mut fields)?;
    let add_special_tokens = fields.bool("add_special_tokens")?.unwrap_or(false);
    let output = max_tokens.unwrap_or(1);
    let truncation = Truncation::take(&mut fields, model, output, Side::Left)?;
    let mut params = Params::take(call, model, &mut fields)?;
    call.finish(&fields)?;
    drop(fields);

    call.reservation.set_rows(u64::from(params.n))?;
    // Rendering and encoding are one piece of work.
    let (ids, mind) = call
        .app
        .encoder
        .run(body.len(), || {
            let text = conversation.render(model)?;
            let encode = |text: &str| model.tokenizer.encode(text, add_special_tokens);
            let mut ids = encode(&text);
            if let Some(truncation) = truncation.filter(|t| t.cuts(ids.len())) {
                let (before, behind) = conversation.around(model, &text)?;
                let spared = [encode(before), encode(behind)];
                cut(&mut ids, &spared, truncation)?;
            }
            Ok::<_, ApiError>((ids, Mind::at_end_of(&text)))
        })
        .await??;
    conversation
        .tools
        .shape(call, model, mind, include_reasoning, &mut params)?;
    drop(conversation);
    input::check_ids("messages", &ids, model)?;
    // Without a limit the answer may fill the context, of which at least one token is left.
    input::check_length("messages", ids.len(), u64::from(output), model)?;
    params.check_prompt(ids.len())?;
    let left = model.max_model_len - u32::try_from(ids.len()).expect("its length was checked");
    let max_tokens = max_tokens.unwrap_or(left);
    params.check_budget(max_tokens)?;
    if let Some(top) = params.prompt_logprobs {
        // Printed once, whatever `n` is.
        let range = params.prompt_logprobs_range.as_ref();
        check_entries(call, entries(ids.len(), range, top))?;
    }
    call.reservation.set_tokens(ids.len() as u64)?;

    params.constrain(call, model).await?;
    let report = Report {
        generated_top: top_logprobs,
        prompt_top: params.prompt_logprobs,
        prompt_range: params.prompt_logprobs_range.clone(),
    };
    let jobs = vec![Job { ids, max_tokens }];
    let run = Run::start(call, model, &common, params, jobs, &report).await?;
    drop(common);
    drop(body);
    let chat = Chat {
        id: call.app.ids.next("chatcmpl-"),
        created: unix_seconds(),
        logprobs: top_logprobs.is_some(),
        run,
    };
    chat.reply().await
}

/// Cuts a conversation between what the template puts before it and behind it, both of which the
/// ids begin and end with, but for tokens at the seams.
fn cut(
    ids: &mut Vec<TokenId>,
    [before, behind]: &[Vec<TokenId>; 2],
    truncation: Truncation,
) -> Result<(), ApiError> {
    let equal = |(a, b): &(&TokenId, &TokenId)| a == b;
    let start = ids.iter().zip(before).take_while(equal).count();
    let rest = ids[start..].iter().rev();
    let end = ids.len() - rest.zip(behind.iter().rev()).take_while(equal).count();
    let spared = [0..start, end..ids.len()];
    truncation.apply_between("messages", ids, spared)
}

/// Known fields that are not implemented: refused unless neutral.
pub(super) fn refuse_unimplemented(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    let neutral: &[(&str, &[&str])] = &[
        ("chat_template", &[]),
        ("echo", &["false"]),
        ("return_prompt_text", &["false"]),
        ("escape_special_tokens", &["false"]),
        ("functions", &["[]"]),
        ("function_call", &["\"none\""]),
        ("audio", &[]),
    ];
    for (name, neutral) in neutral {
        fields.refuse(name, neutral)?;
    }
    Ok(())
}

fn take_max_tokens(fields: &mut Fields<'_>) -> Result<Option<u32>, ApiError> {
    let newer = fields.count("max_completion_tokens", 0..=u32::MAX)?;
    let older = fields.count("max_tokens", 0..=u32::MAX)?;
    Ok(newer.or(older))
}

fn take_logprobs(
    call: &Call,
    model: &ServedModel,
    fields: &mut Fields<'_>,
) -> Result<Option<u32>, ApiError> {
    let wanted = fields.bool("logprobs")?.unwrap_or(false);
    let top = logprobs(&call.app, model, fields, "top_logprobs")?.unwrap_or(0);
    if top > 0 && !wanted {
        let must = "be absent unless `logprobs` is true";
        return Err(ApiError::invalid_value("top_logprobs", must));
    }
    Ok(wanted.then_some(top))
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Chat{C}")]
pub(crate) struct Body<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<C>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<UsageBody>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "PromptLogprobsSchema")]
    prompt_logprobs: Option<Option<PromptLogprobs<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [TokenId]>,
    system_fingerprint: &'a str,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Completion")]
pub(crate) struct ChoiceBody<'a> {
    index: usize,
    message: Message<'a>,
    #[serde(flatten)]
    state: State<'a>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Chunk")]
pub(crate) struct ChunkBody<'a> {
    index: usize,
    delta: Message<'a>,
    #[serde(flatten)]
    state: State<'a>,
}

/// The message of an answer, or a part of it.
#[derive(Default, Serialize, JsonSchema)]
#[schemars(rename = "ChatMessage")]
struct Message<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<Option<Cow<'a, str>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<&'a str>,
    /// The same, for clients that know the older name.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallBody<'a>>,
}

/// A call of a tool. A chunk has whole ones too.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ToolCall")]
struct CallBody<'a> {
    /// Which of the choice's calls, in a chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    id: String,
    r#type: &'static str,
    function: FunctionBody<'a>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CalledFunction")]
struct FunctionBody<'a> {
    name: &'a str,
    /// The text of a JSON object.
    arguments: &'a str,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ChatState")]
struct State<'a> {
    logprobs: Option<ChatLogprobs<'a>>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<&'a StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [TokenId]>,
}

/// A request on its way to an answer.
struct Chat {
    id: String,
    created: u64,
    /// Whether tokens are reported with their log-probabilities.
    logprobs: bool,
    run: Run,
}

impl Chat {
    fn state(&self, index: usize) -> State<'_> {
        let choice = &self.run.choices[index];
        let finish = choice.finish.as_ref();
        State {
            logprobs: self.logprobs.then(|| ChatLogprobs {
                printer: self.run.printer(),
                records: &choice.tokens,
            }),
            finish_reason: finish.map(|f| match &choice.pieces {
                Some(pieces) if pieces.calls > 0 && f.reason == "stop" => "tool_calls",
                _ => f.reason,
            }),
            stop_reason: finish.and_then(|f| f.stop.as_ref()),
            token_ids: self.run.params.return_token_ids.then_some(&*choice.ids),
        }
    }

    /// What has become certain of a choice and has not been sent: the whole message, or a part.
    fn said<'a>(&'a self, choice: &'a Choice, is_whole: bool) -> Message<'a> {
        let Some(pieces) = &choice.pieces else {
            let text = (is_whole || !choice.text.is_empty()).then_some(&*choice.text);
            return Message {
                content: text.map(|text| Some(Cow::Borrowed(text))),
                ..Message::default()
            };
        };
        let mut message = Message::default();
        let first_call = pieces.calls as usize
            - pieces
                .out
                .iter()
                .filter(|p| matches!(p, Piece::Call(_)))
                .count();
        for piece in &pieces.out {
            match piece {
                Piece::Reasoning(text) => {
                    message.reasoning = Some(text);
                    message.reasoning_content = Some(text);
                }
                Piece::Content(text) => match &mut message.content {
                    Some(Some(said)) => said.to_mut().push_str(text),
                    content => *content = Some(Some(Cow::Borrowed(text))),
                },
                Piece::Call(call) => {
                    let index = first_call + message.tool_calls.len();
                    message.tool_calls.push(CallBody {
                        index: (!is_whole).then_some(index),
                        id: self.run.call.app.ids.next("call_"),
                        r#type: "function",
                        function: FunctionBody {
                            name: &call.name,
                            arguments: &call.arguments,
                        },
                    });
                }
            }
        }
        if is_whole {
            // Nothing but calls: no content; nothing at all: an empty one.
            let none = (message.tool_calls.is_empty()).then_some(Cow::Borrowed(""));
            message.content.get_or_insert(none);
        }
        message
    }

    fn body<C>(&self, object: &'static str, choices: Vec<C>) -> Body<'_, C> {
        Body {
            id: &self.id,
            object,
            created: self.created,
            model: &self.run.model.name,
            choices,
            usage: None,
            prompt_logprobs: None,
            prompt_token_ids: None,
            system_fingerprint: &self.run.model.fingerprint,
        }
    }
}

const CHUNK: &str = "chat.completion.chunk";

impl Speaker for Chat {
    async fn answer(mut self) -> Result<Reply, ApiError> {
        self.run.complete().await?;
        let run = &self.run;
        let choices = run.choices.iter().enumerate().map(|(index, choice)| {
            let message = Message {
                role: Some("assistant"),
                ..self.said(choice, true)
            };
            ChoiceBody {
                index,
                message,
                state: self.state(index),
            }
        });
        let mut body = self.body("chat.completion", choices.collect());
        body.usage = Some(Some(run.usage_body()));
        let prompt = run.prompt_of(0);
        body.prompt_logprobs = Some(run.params.prompt_logprobs.map(|top| PromptLogprobs {
            printer: self.run.printer(),
            prompt_len: prompt.ids.len(),
            first: prompt.positions.start as usize,
            scored: &prompt.scored,
            top,
        }));
        body.prompt_token_ids = run.params.return_token_ids.then_some(&*prompt.ids);
        Ok(Reply::json(&body))
    }

    fn run(&self) -> &Run {
        &self.run
    }

    fn run_mut(&mut self) -> &mut Run {
        &mut self.run
    }

    fn push_chunk(
        &self,
        index: usize,
        is_first: bool,
        usage: Option<Option<UsageBody>>,
        events: &mut Events,
    ) {
        let mut delta = self.said(&self.run.choices[index], false);
        if is_first {
            delta.role = Some("assistant");
            delta.content.get_or_insert(Some(Cow::Borrowed("")));
        }
        let chunk = ChunkBody {
            index,
            delta,
            state: self.state(index),
        };
        let mut body = self.body(CHUNK, vec![chunk]);
        body.usage = usage;
        events.push(&body);
    }

    fn push_usage(&self, events: &mut Events) {
        let mut body = self.body(CHUNK, Vec::<ChunkBody<'_>>::new());
        body.usage = Some(Some(self.run.usage_body()));
        events.push(&body);
    }

    fn readiness(&self, _index: usize) -> Readiness {
        Readiness::WithText
    }
}
