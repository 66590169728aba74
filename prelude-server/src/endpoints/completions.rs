//! `POST /v1/completions`: continuations of prompts, and scores of the prompts themselves.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use prelude_core::TokenId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    dialects::{self, COMMON, GENERATION, MEDIA, SERVICE, TRUNCATION},
    endpoint::{Call, Endpoint, Printed, Reply, asked, events, unix_seconds},
    error::ApiError,
    served_model::Task,
    sse::Events,
    tasks::{
        generate::{
            CompletionLogprobs, GenerationFields, Job, Params, PromptLogprobs,
            PromptLogprobsSchema, Readiness, Report, Run, Speaker, StopReason, entries, logprobs,
        },
        input::{self, Encoding, Prompt, Prompts},
        submit::{Common, CommonFields, UsageBody},
        truncate::{Side, Truncation, TruncationFields},
    },
    wire::{Count, CountOrAll, Int, request},
};

/// `POST /v1/completions`.
pub(crate) const COMPLETIONS: Endpoint = Endpoint {
    group: "text",
    summary: "Continue prompts, or score them",
    requests: &[asked::<CompletionRequest<'static>>()],
    responses: |g| events::<Body<'static>>(g, "<Completion>"),
    generates: true,
    ..Endpoint::post(&["/v1/completions"], |call, body| {
        Box::pin(handle(call, body))
    })
};

const MAX_TOKENS_DEFAULT: u32 = 16;

/// The prompts, and the fields that say what the answer shows of them.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct PromptFields<'a> {
    #[serde(borrow)]
    prompt: Prompts<'a>,
    /// 16 by default; 0 scores the prompt and generates nothing.
    max_tokens: Option<Count>,
    /// The prompt's text precedes the continuation.
    echo: Option<bool>,
    /// Likeliest tokens beside each token.
    logprobs: Option<CountOrAll>,
    add_special_tokens: Option<bool>,
}

request! {
    /// `POST /v1/completions`.
    struct CompletionRequest<'a> {
        prompt: PromptFields<'a>,
        generation: GenerationFields<'a>,
        truncation: TruncationFields,
        common: CommonFields<'a>,
    }
    fields [COMMON, MEDIA, SERVICE, TRUNCATION, GENERATION, dialects::COMPLETIONS];
}

/// The fields about reporting prompt and tokens, beside [`Params`].
#[derive(Debug)]
struct Options {
    /// The prompt's text precedes the continuation's.
    echo: bool,
    /// Likeliest tokens beside each token, if log-probabilities are wanted.
    logprobs: Option<u32>,
}

/// Answers the request.
///
/// # Errors
/// 400 for whatever is wrong with it, 429, 503, 500.
pub(crate) async fn handle(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    let request: CompletionRequest<'_> = call.read(&body).await?;
    let (common, model) = Common::with_model(call, request.common, Task::Completions)?;
    let PromptFields {
        prompt: Prompts(prompts),
        max_tokens,
        echo,
        logprobs: top,
        add_special_tokens,
    } = request.prompt;
    let max_tokens = max_tokens.map_or(MAX_TOKENS_DEFAULT, Int::count);
    let options = Options {
        echo: echo.unwrap_or(false),
        logprobs: logprobs(&call.app, model, "logprobs", top)?,
    };
    let add_special_tokens = add_special_tokens.unwrap_or(true);
    let truncation = Truncation::new(request.truncation, model, max_tokens, Side::Left)?;
    let mut params = Params::new(call, model, request.generation)?;
    params.check_budget(max_tokens)?;

    let rows = prompts.len() as u64 * u64::from(params.n);
    params.reserve(call, rows, max_tokens)?;
    let encoding = |truncation| Encoding {
        field: "prompt",
        add_special_tokens,
        truncation,
    };
    // Cut first: an echo is of what was read.
    let prompts = input::cut(call, model, prompts, encoding(truncation)).await?;
    let mut echoes = echo_texts(&options, &prompts);
    let prompts = input::encode(call, model, prompts, encoding(None)).await?;
    for (index, ids) in prompts.iter().enumerate() {
        let place = input::place("prompt", index, prompts.len());
        input::check_length(place, ids.len(), u64::from(max_tokens), model)?;
        params.check_prompt(ids.len())?;
        if let Some(echo) = echoes.get_mut(index)
            && echo.is_none()
        {
            *echo = Some(Cow::Owned(model.tokenizer.decode(ids, false)));
        }
    }
    call.expect(
        prompt_entries(&options, &params, &prompts),
        Printed::Logprob,
    )?;
    let echoed = echoes.iter().flatten().map(|e| e.len() as u64);
    params.check_repeats(call, echoed.sum(), prompts.iter().map(Vec::len).sum())?;

    params.constrain(call, model).await?;
    let report = report(&options, &params);
    let jobs = prompts
        .into_iter()
        .map(|ids| Job { ids, max_tokens })
        .collect();
    let run = Run::start(call, model, &common, params, jobs, &report).await?;
    let echoes: Vec<String> = echoes.into_iter().flatten().map(Cow::into_owned).collect();
    drop(common);
    drop(body);
    let completion = Completion {
        id: call.app.ids.next("cmpl-"),
        created: unix_seconds(),
        options,
        echo_chars: echoes.iter().map(|e| e.chars().count()).collect(),
        echoes,
        run,
    };
    completion.reply().await
}

/// Returns the texts as they came; ids are decoded later. Empty unless texts are echoed.
fn echo_texts<'a>(options: &Options, prompts: &[Prompt<'a>]) -> Vec<Option<Cow<'a, str>>> {
    if !options.echo {
        return Vec::new();
    }
    let text = |prompt: &Prompt<'a>| match prompt {
        Prompt::Text(text) => Some(text.clone()),
        Prompt::Ids(_) | Prompt::Pair(..) => None,
    };
    prompts.iter().map(text).collect()
}

/// Log-probabilities of prompts that the answer prints: with the echo, and in a list of their own.
fn prompt_entries(options: &Options, params: &Params, prompts: &[Vec<TokenId>]) -> u64 {
    let echoed = options.logprobs.filter(|_| options.echo);
    let range = params.prompt_logprobs_range.as_ref();
    let of_prompt = |ids: &Vec<TokenId>| {
        let echo = echoed.map_or(0, |top| entries(ids.len(), None, top));
        let own = params.prompt_logprobs;
        echo.saturating_add(own.map_or(0, |top| entries(ids.len(), range, top)))
    };
    let once = prompts.iter().map(of_prompt).fold(0, u64::saturating_add);
    once.saturating_mul(u64::from(params.n))
}

fn report(options: &Options, params: &Params) -> Report {
    let echoed = options.logprobs.filter(|_| options.echo);
    Report {
        generated_top: options.logprobs,
        prompt_top: echoed.max(params.prompt_logprobs),
        // An echoed prompt is scored whole.
        prompt_range: params
            .prompt_logprobs_range
            .clone()
            .filter(|_| echoed.is_none()),
    }
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Completion")]
pub(crate) struct Body<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<ChoiceBody<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<UsageBody>>,
    system_fingerprint: &'a str,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CompletionChoice")]
pub(crate) struct ChoiceBody<'a> {
    index: usize,
    text: Cow<'a, str>,
    logprobs: Option<CompletionLogprobs<'a>>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<&'a StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "PromptLogprobsSchema")]
    prompt_logprobs: Option<Option<PromptLogprobs<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [TokenId]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [TokenId]>,
}

/// A request on its way to an answer.
struct Completion {
    id: String,
    created: u64,
    options: Options,
    /// Text of each prompt, if it is echoed.
    echoes: Vec<String>,
    /// Code points of each.
    echo_chars: Vec<usize>,
    run: Run,
}

impl Completion {
    /// Returns the unsent text of choice `index`; at its beginning with the echo.
    fn choice_body(&self, index: usize, beginning: bool) -> ChoiceBody<'_> {
        let run = &self.run;
        let choice = &run.choices[index];
        let prompt_index = index / run.params.n as usize;
        let echo = self.echoes.get(prompt_index).filter(|_| beginning);
        let start = self.echo_chars.get(prompt_index).copied().unwrap_or(0);
        let logprobs = self.options.logprobs.map(|top| {
            let mut logprobs = CompletionLogprobs::default();
            if echo.is_some() {
                let prompt = run.prompt_of(index);
                logprobs.push_prompt(self.run.printer(), &prompt.ids, &prompt.scored, top, start);
            }
            logprobs.push_generated(self.run.printer(), &choice.tokens, start);
            logprobs
        });
        let finish = choice.finish.as_ref();
        ChoiceBody {
            index,
            text: match echo {
                None => Cow::Borrowed(&*choice.text),
                Some(echo) => Cow::Owned([&**echo, &choice.text].concat()),
            },
            logprobs,
            finish_reason: finish.map(|f| f.reason),
            stop_reason: finish.and_then(|f| f.stop.as_ref()),
            prompt_logprobs: None,
            token_ids: run.params.return_token_ids.then_some(&*choice.ids),
            prompt_token_ids: None,
        }
    }

    /// Returns the log-probabilities of the prompt of choice `index`, if they were asked for.
    fn prompt_logprobs(&self, index: usize) -> Option<PromptLogprobs<'_>> {
        let prompt = self.run.prompt_of(index);
        let range = &self.run.params.prompt_logprobs_range;
        let top = self.run.params.prompt_logprobs?;
        // Scored for the echo or for the range alone.
        let first = prompt.positions.start as usize;
        let wanted = range.as_ref().map_or(first, |r| r.start.max(1) as usize);
        let skip = (wanted - first).min(prompt.scored.len());
        let end = range.as_ref().map_or(usize::MAX, |r| r.end as usize);
        let take = end.saturating_sub(first).min(prompt.scored.len());
        Some(PromptLogprobs {
            printer: self.run.printer(),
            prompt_len: prompt.ids.len(),
            first: wanted,
            scored: &prompt.scored[skip..take.max(skip)],
            top,
        })
    }

    fn body<'a>(
        &'a self,
        choices: Vec<ChoiceBody<'a>>,
        usage: Option<Option<UsageBody>>,
    ) -> Body<'a> {
        Body {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: &self.run.model.name,
            choices,
            usage,
            system_fingerprint: &self.run.model.fingerprint,
        }
    }
}

impl Speaker for Completion {
    fn run(&self) -> &Run {
        &self.run
    }

    fn run_mut(&mut self) -> &mut Run {
        &mut self.run
    }

    fn whole(&self) -> Reply {
        let run = &self.run;
        let choices = (0..run.choices.len())
            .map(|index| {
                let mut choice = self.choice_body(index, true);
                choice.prompt_logprobs = Some(self.prompt_logprobs(index));
                if run.params.return_token_ids {
                    choice.token_ids = Some(&run.choices[index].ids);
                    choice.prompt_token_ids = Some(&run.prompt_of(index).ids);
                }
                choice
            })
            .collect();
        Reply::json(&self.body(choices, Some(Some(run.usage_body()))))
    }

    fn push_chunk(
        &self,
        index: usize,
        is_first: bool,
        usage: Option<Option<UsageBody>>,
        events: &mut Events,
    ) {
        let mut choice = self.choice_body(index, is_first);
        if is_first {
            choice.prompt_logprobs = self.prompt_logprobs(index).map(Some);
            let wants_ids = self.run.params.return_token_ids;
            choice.prompt_token_ids = wants_ids.then(|| &*self.run.prompt_of(index).ids);
        }
        events.push(&self.body(vec![choice], usage));
    }

    fn push_usage(&self, events: &mut Events) {
        events.push(&self.body(Vec::new(), Some(Some(self.run.usage_body()))));
    }

    /// Returns when a choice's text goes out: an echo at once, unless the prompt's scores go with
    /// it.
    fn readiness(&self, index: usize) -> Readiness {
        match (self.options.echo, self.run.prompt_of(index).is_scored()) {
            (_, false) => Readiness::Wait,
            (false, true) => Readiness::WithText,
            (true, true) => Readiness::Now,
        }
    }
}
