//! `POST /v1/chat/completions`: answers to conversations, through the model's own template.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use prelude_core::TokenId;
use prelude_text::output::OutputPart;
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use crate::{
    dialects::{self, COMMON, CONVERSATION, GENERATION, MEDIA, SERVICE, TRUNCATION},
    endpoint::{Bodies, Call, Endpoint, Printed, Reply, asked, events, unix_seconds},
    error::ApiError,
    served_model::{ServedModel, Task},
    sse::Events,
    tasks::{
        conversation::{Conversation, ConversationFields},
        generate::{
            ChatLogprobs, Choice, GenerationFields, Job, Params, PromptLogprobs,
            PromptLogprobsSchema, Readiness, Report, Run, Speaker, StopReason, entries, logprobs,
        },
        input,
        submit::{Common, CommonFields, UsageBody},
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
    let (common, model) = Common::with_model(call, request.common, Task::Chat)?;
    let conversation = Conversation::new(call, model, request.conversation, true)?;
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
    let encode = || conversation.encode(call, model, add_special_tokens, truncation);
    let rendered = call.encode(body.len(), encode).await??;
    let mind = Mind::at_end_of(&rendered.text);
    conversation
        .tools
        .shape(call, model, mind, include_reasoning, &mut params)?;
    drop(conversation);
    let (ids, prompt_text) = match answer.return_prompt_text {
        Some(true) => (rendered.ids.clone(), Some(rendered.into_text(model))),
        _ => (rendered.ids, None),
    };
    input::check_ids("messages", &ids, model)?;
    // Without a limit the answer may fill the context, of which at least one token is left.
    input::check_length("messages", ids.len(), u64::from(output), model)?;
    params.check_prompt(ids.len())?;
    let left = model.max_model_len
        - u32::try_from(ids.len()).expect("`check_length` bounds the prompt by the context");
    let max_tokens = max_tokens.unwrap_or(left);
    params.check_budget(max_tokens)?;
    if let Some(top) = params.prompt_logprobs {
        // Printed once, whatever `n` is.
        let range = params.prompt_logprobs_range.as_ref();
        call.expect(entries(ids.len(), range, top), Printed::Logprob)?;
    }

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
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_text: Option<&'a str>,
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
    /// The same text as `reasoning`, for clients that know the older name.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallBody<'a>>,
}

/// A call of a tool. A chunk has whole ones too.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ToolCall")]
struct CallBody<'a> {
    /// The index among the choice's calls, in a chunk.
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
    /// True if tokens are reported with their log-probabilities.
    logprobs: bool,
    /// The rendered prompt, if it is wanted.
    prompt_text: Option<String>,
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

    /// Returns the part of a choice that is certain and has not been sent: the whole message, or a
    /// piece of it.
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
                .filter(|p| matches!(p, OutputPart::Call(_)))
                .count();
        for piece in &pieces.out {
            match piece {
                OutputPart::Reasoning(text) => {
                    message.reasoning = Some(text);
                    message.reasoning_content = Some(text);
                }
                OutputPart::Content(text) => match &mut message.content {
                    Some(Some(said)) => said.to_mut().push_str(text),
                    content => *content = Some(Some(Cow::Borrowed(text))),
                },
                OutputPart::Call(call) => {
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
            // An answer of calls alone has no content; an answer of nothing at all has an empty
            // one.
            let none = (message.tool_calls.is_empty()).then_some(Cow::Borrowed(""));
            message.content.get_or_insert(none);
        }
        message
    }

    /// Returns the prompt's log-probabilities, if they were asked for.
    fn prompt_logprobs(&self) -> Option<PromptLogprobs<'_>> {
        let prompt = self.run.prompt_of(0);
        self.run.params.prompt_logprobs.map(|top| PromptLogprobs {
            printer: self.run.printer(),
            prompt_len: prompt.ids.len(),
            first: prompt.positions.start as usize,
            scored: &prompt.scored,
            top,
        })
    }

    /// Shows the prompt, as far as that is wanted.
    fn show_prompt<'a, C>(&'a self, body: &mut Body<'a, C>) {
        let ids = &self.run.prompt_of(0).ids;
        body.prompt_token_ids = self.run.params.return_token_ids.then_some(&**ids);
        body.prompt_text = self.prompt_text.as_deref();
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
            prompt_text: None,
            system_fingerprint: &self.run.model.fingerprint,
        }
    }
}

const CHUNK: &str = "chat.completion.chunk";

impl Speaker for Chat {
    fn run(&self) -> &Run {
        &self.run
    }

    fn run_mut(&mut self) -> &mut Run {
        &mut self.run
    }

    fn whole(&self) -> Reply {
        let run = &self.run;
        let choices = run.choices.iter().enumerate().map(|(index, choice)| {
            let mut message = self.said(choice, true);
            message.role = Some("assistant");
            ChoiceBody {
                index,
                message,
                state: self.state(index),
            }
        });
        let mut body = self.body("chat.completion", choices.collect());
        body.usage = Some(Some(run.usage_body()));
        body.prompt_logprobs = Some(self.prompt_logprobs());
        self.show_prompt(&mut body);
        Reply::json(&body)
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
        if is_first && index == 0 {
            body.prompt_logprobs = self.prompt_logprobs().map(Some);
            self.show_prompt(&mut body);
        }
        events.push(&body);
    }

    fn push_usage(&self, events: &mut Events) {
        let mut body = self.body(CHUNK, Vec::<ChunkBody<'_>>::new());
        body.usage = Some(Some(self.run.usage_body()));
        events.push(&body);
    }

    /// Returns when a choice's text goes out: its first chunk has the prompt's scores, so it waits
    /// for them.
    fn readiness(&self, index: usize) -> Readiness {
        match self.run.prompt_of(index).is_scored() {
            true => Readiness::WithText,
            false => Readiness::Wait,
        }
    }
}
