//! Fields that say how a token is chosen.

use std::sync::Arc;

use prelude_core::{SamplingParams, TokenId};

use crate::{endpoints::Call, error::ApiError, json::Fields, served_model::ServedModel};

const STOP_IDS_MAX: usize = 128;
const LOGIT_BIAS_MAX: usize = 1_024;
/// Penalties beyond this choose nothing that those within do not, and may overflow a logit.
const REPETITION_PENALTY: std::ops::RangeInclusive<f64> = 0.01..=100.0;

/// Takes the fields.
///
/// # Errors
/// 400 naming the field.
#[expect(
    clippy::cast_possible_truncation,
    reason = "sampling runs in f32; range checks follow the cast"
)]
pub(super) fn take(
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
