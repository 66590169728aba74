//! Fields that completions and chat share: how many, how long, how chosen, what to report.

use std::{ops::Range, sync::Arc};

use prelude_core::{ExecutionClass, SamplingParams, TokenId};
use prelude_text::output::Parts;

use super::sampling;
use crate::{
    app::App,
    constrain::{self, Ask, Constrained, Reasoning, Wanted},
    endpoints::Call,
    error::ApiError,
    json::Fields,
    served_model::ServedModel,
    wire::Text,
};

const STOPS_MAX: usize = 16;
const STOP_BYTES_MAX: usize = 256;
const BAD_WORDS_MAX: usize = 256;
const N_MAX: u32 = 128;

/// How to generate and what to say about it.
#[derive(Clone, Debug)]
pub(crate) struct Params {
    /// Continuations of each prompt.
    pub(crate) n: u32,
    /// How tokens are chosen. Its stop ids are the end tokens, unless ignored, and the caller's.
    pub(crate) sampling: Arc<SamplingParams>,
    /// Whether the model's end tokens do not end the text.
    pub(crate) ignore_eos: bool,
    /// Strings that end the text.
    pub(crate) stops: Arc<[String]>,
    /// Whether what ended the text stays in it.
    pub(crate) include_stop: bool,
    /// Whether special tokens are left out of the text.
    pub(crate) skip_special_tokens: bool,
    /// Likeliest tokens beside each prompt token, if prompt log-probabilities are wanted.
    pub(crate) prompt_logprobs: Option<u32>,
    /// Positions they are wanted for; all but the first if absent.
    pub(crate) prompt_logprobs_range: Option<Range<u32>>,
    /// Whether choices carry their ids.
    pub(crate) return_token_ids: bool,
    /// Whether tokens print as `token_id:N`.
    pub(crate) tokens_as_ids: bool,
    /// Whether the answer is a stream, and what it says of usage.
    pub(crate) stream: Option<StreamOptions>,
    /// The language that continuations are asked to belong to.
    pub(crate) ask: Option<Ask>,
    /// Reasoning that may come before it.
    pub(crate) reasoning: Option<Reasoning>,
    /// Words that continuations do not have.
    bad_words: Vec<String>,
    /// All of that, ready to be enforced: made by [`Params::constrain`].
    pub(crate) constrained: Option<Constrained>,
    /// What a continuation's text is taken apart into, if it is.
    pub(crate) parts: Option<Parts>,
}

/// What a stream says of usage.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamOptions {
    /// One last chunk with the usage.
    pub(crate) include_usage: bool,
    /// The running usage on each chunk.
    pub(crate) continuous_usage: bool,
}

impl Params {
    /// Takes the fields.
    ///
    /// # Errors
    /// 400 naming the field.
    pub(crate) fn take(
        call: &Call,
        model: &ServedModel,
        fields: &mut Fields<'_>,
    ) -> Result<Self, ApiError> {
        refuse_unimplemented(fields)?;
        let n = fields.count("n", 1..=N_MAX)?.unwrap_or(1);
        if let Some(best_of) = fields.count("best_of", 1..=N_MAX)?
            && best_of != n
        {
            return Err(ApiError::unsupported_parameter("best_of"));
        }
        let stream = take_stream(fields)?;
        let ignore_eos = fields.bool("ignore_eos")?.unwrap_or(false);
        let prompt_logprobs = logprobs(&call.app, model, fields, "prompt_logprobs")?;
        let prompt_logprobs_range = take_range(fields)?;
        // Of the prompt's own tokens alone they go with the first chunk.
        if prompt_logprobs.is_some_and(|top| top > 0) && stream.is_some() {
            let must = "be absent or 0 when `stream` is true";
            return Err(ApiError::invalid_value("prompt_logprobs", must));
        }
        if prompt_logprobs_range.is_some() && prompt_logprobs.is_none() {
            let must = "come with `prompt_logprobs`";
            return Err(ApiError::invalid_value("prompt_logprobs_range", must));
        }
        Ok(Self {
            n,
            ignore_eos,
            sampling: Arc::new(sampling::take(call, model, fields, ignore_eos)?),
            stops: take_stops(fields)?,
            include_stop: fields.bool("include_stop_str_in_output")?.unwrap_or(false),
            skip_special_tokens: fields.bool("skip_special_tokens")?.unwrap_or(true),
            prompt_logprobs,
            prompt_logprobs_range,
            return_token_ids: fields.bool("return_token_ids")?.unwrap_or(false),
            tokens_as_ids: fields.bool("return_tokens_as_token_ids")?.unwrap_or(false),
            stream,
            ask: Ask::take(fields, call.app.config.limits.json_depth)?,
            reasoning: None,
            bad_words: take_bad_words(fields)?,
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
        let wanted = Wanted {
            ask: self.ask.as_ref(),
            reasoning: self.reasoning,
            bad_words: &self.bad_words,
            ignore_eos: self.ignore_eos,
        };
        self.constrained = constrain::build(call, model, wanted, &self.sampling).await?;
        Ok(())
    }

    /// Says of which class the request is, unless a constraint may yet leave it one token.
    ///
    /// # Errors
    /// 429 `class_quota`.
    pub(crate) fn reserve_class(&self, call: &Call, max_tokens: u32) -> Result<(), ApiError> {
        match (max_tokens > 1, &self.ask) {
            (true, Some(_)) => Ok(()),
            (true, None) => call.reservation.set_class(ExecutionClass::Decode),
            (false, _) => call.reservation.set_class(ExecutionClass::OneShot),
        }
    }

    /// The tokens that a continuation may really take, of `max_tokens`: what the constraint lets
    /// it have.
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
        call.reservation.grow_answer(bytes)
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

    /// Whether `token` ends a continuation. The engine never chooses one before `min_tokens`.
    pub(crate) fn is_stop(&self, token: TokenId) -> bool {
        self.sampling.stop_token_ids.contains(&token)
    }
}

/// Known fields that are not implemented yet: refused unless neutral, never ignored.
fn refuse_unimplemented(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    let neutral: &[(&str, &[&str])] = &[
        ("use_beam_search", &["false"]),
        ("logprob_token_ids", &["[]"]),
        ("lora", &[]),
        ("logits_processors", &["[]"]),
    ];
    for (name, neutral) in neutral {
        fields.refuse(name, neutral)?;
    }
    Ok(())
}

/// A number of likeliest tokens: 0 to the server's limit, -1 for the whole vocabulary.
pub(crate) fn logprobs(
    app: &App,
    model: &ServedModel,
    fields: &mut Fields<'_>,
    name: &str,
) -> Result<Option<u32>, ApiError> {
    let limit = app.config.max_logprobs;
    let Some(asked) = fields.int(name, -1..=i64::from(model.vocab_size))? else {
        return Ok(None);
    };
    let all = i64::from(model.vocab_size);
    let limit = if limit < 0 { all } else { limit.min(all) };
    let asked = if asked < 0 { all } else { asked };
    if asked > limit {
        return Err(ApiError::invalid_value(
            name.to_owned(),
            format!("be at most {limit}, the server's limit"),
        ));
    }
    Ok(Some(
        u32::try_from(asked).expect("it lies in 0..=vocab_size"),
    ))
}

fn take_stream(fields: &mut Fields<'_>) -> Result<Option<StreamOptions>, ApiError> {
    let stream = fields.bool("stream")?.unwrap_or(false);
    let Some(mut options) = fields.object("stream_options")? else {
        return Ok(stream.then(StreamOptions::default));
    };
    if !stream {
        let must = "be absent unless `stream` is true";
        return Err(ApiError::invalid_value("stream_options", must));
    }
    let taken = StreamOptions {
        include_usage: options.bool("include_usage")?.unwrap_or(false),
        continuous_usage: options.bool("continuous_usage_stats")?.unwrap_or(false),
    };
    fields.unknown.add(&options);
    Ok(Some(taken))
}

fn take_range(fields: &mut Fields<'_>) -> Result<Option<Range<u32>>, ApiError> {
    let name = "prompt_logprobs_range";
    let must = "two positions [a, b] with 0 <= a < b";
    match fields.get::<[u32; 2]>(name, must)? {
        Some([a, b]) if a >= b => Err(ApiError::invalid_value(name, format!("be {must}"))),
        range => Ok(range.map(|[a, b]| a..b)),
    }
}

fn take_stops(fields: &mut Fields<'_>) -> Result<Arc<[String]>, ApiError> {
    let Some(raw) = fields.raw("stop") else {
        return Ok(Arc::from([]));
    };
    let wrong = |_| ApiError::invalid_type("stop", "a string or a list of strings");
    let stops: Vec<Text<'_>> = if raw.starts_with('"') {
        vec![serde_json::from_str(raw).map_err(wrong)?]
    } else {
        serde_json::from_str(raw).map_err(wrong)?
    };
    let fits = |s: &Text<'_>| (1..=STOP_BYTES_MAX).contains(&s.0.len());
    if stops.len() > STOPS_MAX || !stops.iter().all(fits) {
        let must = format!("be at most {STOPS_MAX} strings of 1 to {STOP_BYTES_MAX} bytes");
        return Err(ApiError::invalid_value("stop", must));
    }
    Ok(stops.into_iter().map(|s| s.0.into_owned()).collect())
}

fn take_bad_words(fields: &mut Fields<'_>) -> Result<Vec<String>, ApiError> {
    let must = "a list of strings";
    let words: Vec<String> = fields.get("bad_words", must)?.unwrap_or_default();
    let fits = |word: &String| (1..=STOP_BYTES_MAX).contains(&word.len());
    if words.len() > BAD_WORDS_MAX || !words.iter().all(fits) {
        let must = format!("be at most {BAD_WORDS_MAX} strings of 1 to {STOP_BYTES_MAX} bytes");
        return Err(ApiError::invalid_value("bad_words", must));
    }
    Ok(words)
}
