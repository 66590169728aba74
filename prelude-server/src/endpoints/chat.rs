//! `POST /v1/chat/completions`: answers to conversations, through the model's own template.

use std::sync::Arc;

use bytes::Bytes;
use prelude_core::TokenId;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::{
    Call, Reply,
    generate::{
        ChatLogprobs, Job, Params, PromptLogprobs, PromptLogprobsSchema, Readiness, Report, Run,
        Speaker, StopReason, check_entries, entries, logprobs,
    },
    input, messages,
    submit::{Common, UsageBody},
    unix_seconds,
};
use crate::{
    error::ApiError,
    json::Fields,
    served_model::{ServedModel, Task},
    sse::Events,
    template::ChatInputs,
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
    let max_tokens = take_max_tokens(&mut fields)?;
    let top_logprobs = take_logprobs(call, model, &mut fields)?;
    let add_special_tokens = fields.bool("add_special_tokens")?.unwrap_or(false);
    let params = Params::take(call, model, &mut fields)?;
    call.finish(&fields)?;
    drop(fields);

    call.reservation.set_rows(u64::from(params.n))?;
    // Rendering and encoding are one piece of work.
    let ids = call
        .app
        .encoder
        .run(body.len(), || {
            let text = conversation.render(model)?;
            Ok::<_, ApiError>(model.tokenizer.encode(&text, add_special_tokens))
        })
        .await??;
    drop(conversation);
    input::check_ids("messages", &ids, model)?;
    // Without a limit the answer may fill the context, of which at least one token is left.
    let needed = max_tokens.unwrap_or(1);
    input::check_length("messages", ids.len(), u64::from(needed), model)?;
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

    let report = Report {
        generated_top: top_logprobs,
        prompt_top: params.prompt_logprobs,
        prompt_range: params.prompt_logprobs_range.clone(),
    };
    let jobs = vec![Job { ids, max_tokens }];
    let run = Run::start(call, model, &common, params, jobs, &report)?;
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
        // Cutting would have to spare what the template puts around the messages.
        ("truncate_prompt_tokens", &[]),
        ("parallel_tool_calls", &["true"]),
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

/// What the template is given.
#[derive(Debug)]
pub(crate) struct Conversation {
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    documents: Option<Vec<Value>>,
    add_generation_prompt: bool,
    continue_final_message: bool,
    kwargs: Map<String, Value>,
}

impl Conversation {
    /// Takes the messages and what the template is told beside them. `generates` is whether an
    /// answer is to follow unless the request says otherwise.
    ///
    /// # Errors
    /// 400 naming the field.
    pub(crate) fn take(fields: &mut Fields<'_>, generates: bool) -> Result<Self, ApiError> {
        let add_generation_prompt = fields.bool("add_generation_prompt")?.unwrap_or(generates);
        let continue_final_message = fields.bool("continue_final_message")?.unwrap_or(false);
        if add_generation_prompt && continue_final_message {
            let must = "not be true unless `add_generation_prompt` is false";
            return Err(ApiError::invalid_value("continue_final_message", must));
        }
        let mut kwargs = fields.map("chat_template_kwargs")?.unwrap_or_default();
        if let Some(thinking) = fields.bool("enable_thinking")? {
            kwargs.insert("enable_thinking".to_owned(), Value::Bool(thinking));
        }
        Ok(Self {
            messages: messages::take(fields)?,
            tools: take_tools(fields)?,
            documents: values(fields, "documents")?,
            add_generation_prompt,
            continue_final_message,
            kwargs,
        })
    }

    /// About how much text there is.
    pub(crate) fn bytes(&self) -> usize {
        let content = |message: &Value| message["content"].as_str().map_or(0, str::len);
        self.messages.iter().map(content).sum()
    }

    /// The prompt's text.
    ///
    /// # Errors
    /// 400 `template_error`.
    pub(crate) fn render(&self, model: &ServedModel) -> Result<String, ApiError> {
        let template = model
            .template
            .as_ref()
            .ok_or_else(|| ApiError::template("the model has no chat template"))?;
        let render = |messages: &[Value]| {
            let inputs = ChatInputs {
                messages,
                tools: self.tools.as_deref(),
                documents: self.documents.as_deref(),
                add_generation_prompt: self.add_generation_prompt,
                kwargs: &self.kwargs,
            };
            template
                .render(&inputs)
                .map_err(|e| ApiError::template(e.to_string()))
        };
        if self.continue_final_message {
            messages::render_unfinished(&self.messages, render)
        } else {
            render(&self.messages)
        }
    }
}

/// Functions the model may call, unless they are hidden from it.
fn take_tools(fields: &mut Fields<'_>) -> Result<Option<Vec<Value>>, ApiError> {
    let tools = values(fields, "tools")?.filter(|tools| !tools.is_empty());
    match fields.raw("tool_choice") {
        None | Some("\"auto\"") => Ok(tools),
        Some("\"none\"") => Ok(None),
        // A constraint on the output, not yet implemented.
        Some(_) => Err(ApiError::unsupported_parameter("tool_choice")),
    }
}

fn values(fields: &mut Fields<'_>, name: &'static str) -> Result<Option<Vec<Value>>, ApiError> {
    match fields.value(name)? {
        None => Ok(None),
        Some(Value::Array(values)) if values.iter().all(Value::is_object) => Ok(Some(values)),
        Some(_) => Err(ApiError::invalid_type(name, "a list of objects")),
    }
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
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ChatMessage")]
struct Message<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
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
            finish_reason: finish.map(|f| f.reason),
            stop_reason: finish.and_then(|f| f.stop.as_ref()),
            token_ids: self.run.params.return_token_ids.then_some(&*choice.ids),
        }
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
                content: Some(&choice.text),
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
        let text = &*self.run.choices[index].text;
        let delta = Message {
            role: is_first.then_some("assistant"),
            content: (is_first || !text.is_empty()).then_some(text),
        };
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
