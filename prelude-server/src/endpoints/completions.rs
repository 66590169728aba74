//! `POST /v1/completions`: continuations of prompts, and scores of the prompts themselves.

mod answer;

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use prelude_core::TokenId;
use schemars::JsonSchema;
use serde::Deserialize;

use self::answer::{Body, Completion};
use crate::{
    admission::{Growth, Printed},
    dialects::{self, COMMON, GENERATION, MEDIA, SERVICE, TRUNCATION},
    endpoint::{Call, Endpoint, Reply, asked, events, unix_seconds},
    error::ApiError,
    served_model::Task,
    tasks::{
        generate::{GenerationFields, Job, Params, Report, Run, Speaker, entries, logprobs},
        input::{self, Encoding, Prompt, Prompts},
        place,
        submit::{Ask, CommonFields},
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
    let ask = Ask::new(call, request.common, Task::Completions)?;
    let model = ask.model;
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
        let place = place::place("prompt", index, prompts.len());
        place::check_length(place, ids.len(), u64::from(max_tokens), model)?;
        params.check_prompt(ids.len())?;
        if let Some(echo) = echoes.get_mut(index)
            && echo.is_none()
        {
            *echo = Some(Cow::Owned(model.tokenizer.decode(ids, false)));
        }
    }
    let numbers = prompt_entries(&options, &params, &prompts);
    let numbers = Growth::Numbers(numbers, Printed::Logprob);
    call.reservation.grow(numbers)?;
    let echoed = echoes.iter().flatten().map(|e| e.len() as u64);
    params.check_repeats(call, echoed.sum(), prompts.iter().map(Vec::len).sum())?;

    params.constrain(call, model).await?;
    let report = report(&options, &params);
    let jobs = prompts
        .into_iter()
        .map(|ids| Job { ids, max_tokens })
        .collect();
    let run = Run::start(&ask, params, jobs, &report).await?;
    let echoes: Vec<String> = echoes.into_iter().flatten().map(Cow::into_owned).collect();
    drop(ask);
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
