//! Fields that completions and chat share: how many, how long, how chosen, what to report.

use std::{ops::Range, sync::Arc};

use prelude_core::{SamplingParams, TokenId};

use crate::{
    app::App,
    endpoints::Call,
    error::ApiError,
    json::{Fields, Text},
    served_model::ServedModel,
};

const STOPS_MAX: usize = 16;
const STOP_BYTES_MAX: usize = 256;
const STOP_IDS_MAX: usize = 128;
const LOGIT_BIAS_MAX: usize = 1_024;
const N_MAX: u32 = 128;
/// Penalties beyond this choose nothing that those within do not, and may overflow a logit.
const REPETITION_PENALTY: std::ops::RangeInclusive<f64> = 0.01..=100.0;

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
        if prompt_logprobs.is_some() && stream.is_some() {
            let must = "be absent when `stream` is true";
            return Err(ApiError::invalid_value("prompt_logprobs", must));
        }
        if prompt_logprobs_range.is_some() && prompt_logprobs.is_none() {
            let must = "come with `prompt_logprobs`";
            return Err(ApiError::invalid_value("prompt_logprobs_range", must));
        }
        Ok(Self {
            n,
            ignore_eos,
            sampling: Arc::new(take_sampling(call, model, fields, ignore_eos)?),
            stops: take_stops(fields)?,
            include_stop: fields.bool("include_stop_str_in_output")?.unwrap_or(false),
            skip_special_tokens: fields.bool("skip_special_tokens")?.unwrap_or(true),
            prompt_logprobs,
            prompt_logprobs_range,
            return_token_ids: fields.bool("return_token_ids")?.unwrap_or(false),
            tokens_as_ids: fields.bool("return_tokens_as_token_ids")?.unwrap_or(false),
            stream,
        })
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
    /// and the ids of `tokens` tokens if ids are wanted.
    ///
    /// # Errors
    /// 400 `too_much_echo`.
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
        Ok(())
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
        ("bad_words", &["[]"]),
        ("structured_outputs", &[]),
        ("guided_json", &[]),
        ("guided_regex", &[]),
        ("guided_choice", &[]),
        ("guided_grammar", &[]),
        ("use_beam_search", &["false"]),
        ("logprob_token_ids", &["[]"]),
        ("lora", &[]),
        ("logits_processors", &["[]"]),
    ];
    for (name, neutral) in neutral {
        fields.refuse(name, neutral)?;
    }
    if let Some(mut format) = fields.object("response_format")? {
        let kind = format.string("type")?;
        if kind.as_deref() != Some("text") {
            return Err(ApiError::unsupported_parameter("response_format"));
        }
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
    Ok(Some(StreamOptions {
        include_usage: options.bool("include_usage")?.unwrap_or(false),
        continuous_usage: options.bool("continuous_usage_stats")?.unwrap_or(false),
    }))
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

#[expect(
    clippy::cast_possible_truncation,
    reason = "sampling runs in f32; range checks follow the cast"
)]
fn take_sampling(
    call: &Call,
    model: &ServedModel,
    fields: &mut Fields<'_>,
    ignore_eos: bool,
) -> Result<SamplingParams, ApiError> {
    let defaults = &model.sampling;
    let max = f64::from(f32::MAX);
    let mut number = |name, ok: fn(f64) -> bool, must, default: f32| {
        let value = fields.number(name, |v| v.abs() <= max && ok(v), must)?;
        Ok::<f32, ApiError>(value.map_or(default, |v| v as f32))
    };
    let in_2 = |v: f64| (-2.0..=2.0).contains(&v);
    let mut sampling = SamplingParams {
        temperature: number(
            "temperature",
            |v| v >= 0.0,
            "be at least 0",
            defaults.temperature,
        )?,
        // As f32, so that a value too small for it is not taken for one in range.
        top_p: number(
            "top_p",
            |v| v as f32 > 0.0 && v <= 1.0,
            "be above 0 and at most 1",
            defaults.top_p,
        )?,
        min_p: number(
            "min_p",
            |v| (0.0..=1.0).contains(&v),
            "be in 0..=1",
            defaults.min_p,
        )?,
        repetition_penalty: number(
            "repetition_penalty",
            |v| REPETITION_PENALTY.contains(&v),
            "be in 0.01..=100",
            defaults.repetition_penalty,
        )?,
        presence_penalty: number("presence_penalty", in_2, "be in -2..=2", 0.0)?,
        frequency_penalty: number("frequency_penalty", in_2, "be in -2..=2", 0.0)?,
        ..SamplingParams::default()
    };
    sampling.top_k = match fields.int("top_k", -1..=i64::from(u32::MAX))? {
        None => defaults.top_k,
        Some(k) => u32::try_from(k).unwrap_or(0),
    };
    sampling.seed = match fields.int("seed", i64::MIN..=i64::MAX)? {
        Some(seed) => seed.cast_unsigned(),
        None => call.app.ids.seed(),
    };
    sampling.min_tokens = fields.count("min_tokens", 0..=u32::MAX)?.unwrap_or(0);
    sampling.logit_bias = take_bias(fields, model)?;
    sampling.allowed_token_ids = take_ids(fields, "allowed_token_ids", usize::MAX, model)?;
    if sampling
        .allowed_token_ids
        .as_ref()
        .is_some_and(|ids| ids.is_empty())
    {
        let must = "not be an empty list: no token could be chosen";
        return Err(ApiError::invalid_value("allowed_token_ids", must));
    }
    let own = take_ids(fields, "stop_token_ids", STOP_IDS_MAX, model)?;
    let mut stop_ids = own.map_or_else(Vec::new, |ids| ids.to_vec());
    if !ignore_eos {
        stop_ids.extend_from_slice(&model.eos_token_ids);
    }
    stop_ids.sort_unstable();
    stop_ids.dedup();
    sampling.stop_token_ids = stop_ids.into();
    check_choice_left(&sampling)?;
    Ok(sampling)
}

/// Before `min_tokens` no stop id may be chosen, so another one must be allowed.
fn check_choice_left(sampling: &SamplingParams) -> Result<(), ApiError> {
    let (min, stops) = (sampling.min_tokens, &sampling.stop_token_ids);
    let is_stop = |id: &TokenId| stops.binary_search(id).is_ok();
    match &sampling.allowed_token_ids {
        Some(allowed) if min > 0 && allowed.iter().all(is_stop) => {
            let must = "have an id that does not end the text when `min_tokens` is above 0";
            Err(ApiError::invalid_value("allowed_token_ids", must))
        }
        _ => Ok(()),
    }
}

/// Ids in order, each once: at most the vocabulary, whatever the body holds.
fn take_ids(
    fields: &mut Fields<'_>,
    name: &'static str,
    max: usize,
    model: &ServedModel,
) -> Result<Option<Arc<[TokenId]>>, ApiError> {
    let must_be = "a list of token ids: integers of at least 0";
    let Some(mut ids) = fields.get::<Vec<TokenId>>(name, must_be)? else {
        return Ok(None);
    };
    ids.sort_unstable();
    ids.dedup();
    if ids.len() > max {
        return Err(ApiError::invalid_value(
            name,
            format!("have at most {max} ids"),
        ));
    }
    match ids.last().filter(|&&id| id >= model.vocab_size) {
        None => Ok(Some(ids.into())),
        Some(&id) => Err(ApiError::token_out_of_range(
            name,
            u64::from(id),
            model.vocab_size,
        )),
    }
}

fn take_bias(
    fields: &mut Fields<'_>,
    model: &ServedModel,
) -> Result<Arc<[(TokenId, f32)]>, ApiError> {
    let Some(map) = fields.object("logit_bias")? else {
        return Ok(Arc::from([]));
    };
    let mut bias = Vec::new();
    for (key, raw) in map.drain() {
        let id: TokenId = key
            .parse()
            .map_err(|_| ApiError::invalid_value("logit_bias", "have token ids as keys"))?;
        if id >= model.vocab_size {
            let id = u64::from(id);
            return Err(ApiError::token_out_of_range(
                "logit_bias",
                id,
                model.vocab_size,
            ));
        }
        let value: f32 = crate::json::parse(raw, "logit_bias", "a map of ids to numbers")?;
        if !(-100.0..=100.0).contains(&value) {
            let must = "have values in -100..=100";
            return Err(ApiError::invalid_value("logit_bias", must));
        }
        bias.push((id, value));
    }
    if bias.len() > LOGIT_BIAS_MAX {
        let must = format!("have at most {LOGIT_BIAS_MAX} entries");
        return Err(ApiError::invalid_value("logit_bias", must));
    }
    // "1" and "01" are one id; a bias for each would apply twice.
    bias.sort_unstable_by_key(|&(id, _)| id);
    if bias.windows(2).any(|w| w[0].0 == w[1].0) {
        return Err(ApiError::invalid_value("logit_bias", "name each id once"));
    }
    Ok(bias.into())
}
