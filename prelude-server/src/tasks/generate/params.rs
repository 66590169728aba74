//! Fields that completions and chat share: how many, how long, how chosen, what to report.

use std::{ops::Range, sync::Arc};

use prelude_core::{ExecutionClass, SamplingParams, TokenId};
use prelude_text::output::Parts;
use schemars::JsonSchema;
use serde::Deserialize;

use super::sampling::{self, SamplingFields};
use crate::{
    admission::{Cost, Growth},
    app::App,
    config::JSON_DEPTH_MAX,
    constrain::{
        self, Ask, Constrained, ConstraintContext, ConstraintFields, Reading, Reasoning, Wanted,
    },
    endpoint::Call,
    error::ApiError,
    served_model::ServedModel,
    wire::{CountOrAll, Int, OneOrMany, Text, request},
};

const STOPS_MAX: usize = 16;
const STOP_BYTES_MAX: usize = 256;
const N_MAX: i64 = 128;

/// Checked parameters of generations and their reports.
#[derive(Clone, Debug)]
pub(crate) struct Params {
    /// Continuations of each prompt.
    pub(crate) n: u32,
    /// The sampling parameters. Their stop ids are the end tokens, unless ignored, and the caller's.
    pub(crate) sampling: Arc<SamplingParams>,
    /// True if the model's end tokens do not end the text.
    pub(crate) ignore_eos: bool,
    /// Strings that end the text.
    pub(crate) stops: Arc<[String]>,
    /// True if what ended the text stays in it.
    pub(crate) include_stop: bool,
    /// True if special tokens are left out of the text.
    pub(crate) skip_special_tokens: bool,
    /// Likeliest tokens beside each prompt token, if prompt log-probabilities are wanted.
    pub(crate) prompt_logprobs: Option<u32>,
    /// Positions that prompt log-probabilities are wanted for; all but the first if absent.
    pub(crate) prompt_logprobs_range: Option<Range<u32>>,
    /// True if choices carry their ids.
    pub(crate) return_token_ids: bool,
    /// True if tokens print as `token_id:N`.
    pub(crate) tokens_as_ids: bool,
    /// The reports of usage, if the answer is a stream.
    pub(crate) stream: Option<StreamOptions>,
    /// The language that continuations are asked to belong to.
    pub(crate) ask: Option<Ask>,
    /// Reasoning that may come before that language.
    pub(crate) reasoning: Option<Reasoning>,
    /// The language and the reasoning before it, ready to be enforced: made by [`Params::constrain`].
    pub(crate) constrained: Option<Constrained>,
    /// The parts that a continuation's text is split into, if it is.
    pub(crate) parts: Option<Parts>,
}

/// The reports of usage on a stream.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct StreamOptions {
    /// True for a last chunk with the usage.
    pub(crate) include_usage: Option<bool>,
    /// The running usage on each chunk.
    #[serde(rename = "continuous_usage_stats")]
    pub(crate) continuous_usage: Option<bool>,
}

/// The number of texts, their ends and reports, as clients write them.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct OutputFields<'a> {
    /// Continuations of each prompt.
    n: Option<Int<1, N_MAX>>,
    /// The same number as `n`, if given.
    best_of: Option<Int<1, N_MAX>>,
    /// Texts that end a continuation: at most 16 strings of 1 to 256 bytes.
    #[serde(borrow)]
    stop: Option<OneOrMany<Text<'a>>>,
    include_stop_str_in_output: Option<bool>,
    ignore_eos: Option<bool>,
    /// Likeliest tokens beside each prompt token; -1 is the whole vocabulary, where the server
    /// allows it.
    prompt_logprobs: Option<CountOrAll>,
    /// Positions `[a, b)` that `prompt_logprobs` are wanted for.
    prompt_logprobs_range: Option<[u32; 2]>,
    return_token_ids: Option<bool>,
    /// Tokens print as `token_id:N`.
    return_tokens_as_token_ids: Option<bool>,
    skip_special_tokens: Option<bool>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
}

request! {
    /// Fields that completions and chat share.
    struct GenerationFields<'a> {
        output: OutputFields<'a>,
        sampling: SamplingFields,
        constraint: ConstraintFields<'a>,
    }
}

impl Params {
    /// Checks the fields.
    ///
    /// # Errors
    /// 400 naming the field.
    pub(crate) fn new(
        call: &Call,
        model: &ServedModel,
        fields: GenerationFields<'_>,
    ) -> Result<Self, ApiError> {
        let output = fields.output;
        let n = output.n.map_or(1, Int::count);
        if output.best_of.is_some_and(|best_of| best_of.count() != n) {
            return Err(ApiError::unsupported_parameter("best_of"));
        }
        let stream = checked_stream(output.stream, output.stream_options)?;
        let ignore_eos = output.ignore_eos.unwrap_or(false);
        let top = output.prompt_logprobs;
        let prompt_logprobs = logprobs(&call.app, model, "prompt_logprobs", top)?;
        let prompt_logprobs_range = checked_range(output.prompt_logprobs_range)?;
        // In a stream, scores of the prompt's own tokens alone go with the first chunk; others have
        // no place.
        if prompt_logprobs.is_some_and(|top| top > 0) && stream.is_some() {
            let must = "be absent or 0 when `stream` is true";
            return Err(ApiError::invalid_value("prompt_logprobs", must));
        }
        if prompt_logprobs_range.is_some() && prompt_logprobs.is_none() {
            let must = "come with `prompt_logprobs`";
            return Err(ApiError::invalid_value("prompt_logprobs_range", must));
        }
        let reading = Reading {
            depth: JSON_DEPTH_MAX,
            limits: &call.app.config.limits,
            room: &|values| call.reservation.grow(Growth::Values(values)),
        };
        Ok(Self {
            n,
            ignore_eos,
            sampling: Arc::new(sampling::checked(call, model, fields.sampling, ignore_eos)?),
            stops: checked_stops(output.stop)?,
            include_stop: output.include_stop_str_in_output.unwrap_or(false),
            skip_special_tokens: output.skip_special_tokens.unwrap_or(true),
            prompt_logprobs,
            prompt_logprobs_range,
            return_token_ids: output.return_token_ids.unwrap_or(false),
            tokens_as_ids: output.return_tokens_as_token_ids.unwrap_or(false),
            stream,
            ask: Ask::new(fields.constraint, &reading)?,
            reasoning: None,
            constrained: None,
            parts: None,
        })
    }

    /// Compiles the constraint that was asked for, if any. To be called before the engine is.
    ///
    /// # Errors
    /// 400 naming the field, 429.
    pub(crate) async fn constrain(
        &mut self,
        call: &Call,
        model: &ServedModel,
    ) -> Result<(), ApiError> {
        let app = &call.app;
        let words = model.generates();
        let context = ConstraintContext {
            limits: &app.config.limits,
            encoder: &app.encoder,
            metrics: &app.metrics,
            request_id: &call.request_id,
            tokenizer: &model.tokenizer,
            vocab_size: model.vocab_size,
            eos_token_ids: &words.eos_token_ids,
            grammars: &words.grammars,
        };
        let wanted = Wanted {
            ask: self.ask.as_ref(),
            reasoning: self.reasoning,
            ignore_eos: self.ignore_eos,
        };
        self.constrained = constrain::build(context, wanted, &self.sampling).await?;
        Ok(())
    }

    /// Takes room for so many rows, of the request's class unless a constraint may yet leave it one token.
    ///
    /// # Errors
    /// 429 `class_quota`.
    pub(crate) fn reserve(&self, call: &Call, rows: u64, max_tokens: u32) -> Result<(), ApiError> {
        let class = match (max_tokens > 1, &self.ask) {
            (true, Some(_)) => None,
            (true, None) => Some(ExecutionClass::Decode),
            (false, _) => Some(ExecutionClass::OneShot),
        };
        call.reservation.admit(Cost {
            class,
            rows: Some(rows),
            tokens: None,
        })
    }

    /// Returns the tokens that a continuation may really take, of `max_tokens`: what the constraint
    /// lets it have.
    pub(crate) fn budget(&self, max_tokens: u32) -> u32 {
        let longest = self.constrained.as_ref().and_then(|c| c.budget);
        longest.map_or(max_tokens, |longest| longest.min(max_tokens))
    }

    /// Checks the tokens that must come against those that may.
    ///
    /// # Errors
    /// 400 naming the field.
    pub(crate) fn check_budget(&self, max_tokens: u32) -> Result<(), ApiError> {
        if self.sampling.min_tokens > max_tokens {
            let must = "not exceed `max_tokens`";
            return Err(ApiError::invalid_value("min_tokens", must));
        }
        Ok(())
    }

    /// Bounds what an answer repeats of prompts for each of `n` choices: `echoed` bytes of text,
    /// and the ids of `tokens` tokens if ids are wanted; and takes room for it.
    ///
    /// # Errors
    /// 400 `too_much_echo`, 429 `queue_full`.
    pub(crate) fn check_repeats(
        &self,
        call: &Call,
        echoed: u64,
        tokens: usize,
    ) -> Result<(), ApiError> {
        // Up to six digits and a comma.
        let ids = if self.return_token_ids { 7 } else { 0 };
        let once = echoed.saturating_add(ids * tokens as u64);
        let bytes = once.saturating_mul(u64::from(self.n));
        let max = call.app.config.limits.echo_bytes;
        if bytes > max {
            return Err(ApiError::too_much_echo(bytes, max));
        }
        call.reservation.grow(Growth::Answer(bytes))
    }

    /// Checks what could not be checked before the prompt's length was known.
    ///
    /// # Errors
    /// 400 naming the field.
    pub(crate) fn check_prompt(&self, prompt_tokens: usize) -> Result<(), ApiError> {
        match &self.prompt_logprobs_range {
            Some(range) if range.end as usize > prompt_tokens => {
                let must = format!("end within the prompt of {prompt_tokens} tokens");
                Err(ApiError::invalid_value("prompt_logprobs_range", must))
            }
            _ => Ok(()),
        }
    }

    /// Returns true if `token` ends a continuation. The engine never chooses one before `min_tokens`.
    pub(crate) fn is_stop(&self, token: TokenId) -> bool {
        self.sampling.stop_token_ids.contains(&token)
    }
}

/// Returns a number of likeliest tokens: 0 to the server's limit, -1 for the whole vocabulary.
///
/// # Errors
/// 400 naming the field.
pub(crate) fn logprobs(
    app: &App,
    model: &ServedModel,
    name: &'static str,
    asked: Option<CountOrAll>,
) -> Result<Option<u32>, ApiError> {
    let Some(asked) = asked.map(Int::get) else {
        return Ok(None);
    };
    let all = i64::from(model.vocab_size);
    let limit = match app.config.max_logprobs {
        limit if limit < 0 => all,
        limit => limit.min(all),
    };
    let asked = if asked < 0 { all } else { asked };
    if asked > limit {
        let must = format!("be from 0 to {limit}, the server's limit (`--max-logprobs`)");
        return Err(ApiError::invalid_value(name, must));
    }
    let asked = u32::try_from(asked);
    Ok(Some(asked.expect("the number lies in 0..=vocab_size")))
}

fn checked_stream(
    stream: Option<bool>,
    options: Option<StreamOptions>,
) -> Result<Option<StreamOptions>, ApiError> {
    match (stream.unwrap_or(false), options) {
        (true, options) => Ok(Some(options.unwrap_or_default())),
        (false, None) => Ok(None),
        (false, Some(_)) => {
            let must = "be absent unless `stream` is true";
            Err(ApiError::invalid_value("stream_options", must))
        }
    }
}

fn checked_range(range: Option<[u32; 2]>) -> Result<Option<Range<u32>>, ApiError> {
    match range {
        Some([a, b]) if a >= b => {
            let must = "be two positions [a, b] with 0 <= a < b";
            Err(ApiError::invalid_value("prompt_logprobs_range", must))
        }
        range => Ok(range.map(|[a, b]| a..b)),
    }
}

fn checked_stops(stops: Option<OneOrMany<Text<'_>>>) -> Result<Arc<[String]>, ApiError> {
    let stops = stops.map_or_else(Vec::new, OneOrMany::into_vec);
    let fits = |s: &Text<'_>| (1..=STOP_BYTES_MAX).contains(&s.0.len());
    if stops.len() > STOPS_MAX || !stops.iter().all(fits) {
        let must = format!("be at most {STOPS_MAX} strings of 1 to {STOP_BYTES_MAX} bytes");
        return Err(ApiError::invalid_value("stop", must));
    }
    Ok(stops.into_iter().map(|s| s.0.into_owned()).collect())
}
