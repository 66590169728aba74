//! Fields that say how a token is chosen.

use std::{collections::BTreeMap, sync::Arc};

use prelude_core::{SamplingParams, TokenId};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};

use crate::{
    endpoint::Call,
    error::ApiError,
    served_model::{SamplingDefaults, ServedModel},
    wire::{Count, Int, Members, wrong_value},
};

const STOP_IDS_MAX: usize = 128;
const LOGIT_BIAS_MAX: usize = 1_024;
/// Penalties beyond this choose nothing that those within do not, and may overflow a logit.
const REPETITION_PENALTY: std::ops::RangeInclusive<f64> = 0.01..=100.0;

/// The sampling fields, as clients write them.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct SamplingFields {
    /// 0 always takes the likeliest token; by default what the model's own configuration says.
    #[schemars(range(min = 0))]
    temperature: Option<f64>,
    /// The share of probability that the likeliest tokens must reach, above 0 and at most 1.
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
    top_p: Option<f64>,
    /// -1 and 0 are off.
    top_k: Option<Int<-1, { u32::MAX as i64 }>>,
    #[schemars(range(min = 0, max = 1))]
    min_p: Option<f64>,
    #[schemars(range(min = 0.01, max = 100))]
    repetition_penalty: Option<f64>,
    #[schemars(range(min = -2, max = 2))]
    presence_penalty: Option<f64>,
    #[schemars(range(min = -2, max = 2))]
    frequency_penalty: Option<f64>,
    /// Repeats the same draws in any batch.
    seed: Option<i64>,
    /// Tokens before which nothing ends the text.
    min_tokens: Option<Count>,
    /// Token id to what is added to its logit, -100 to 100; at most 1,024.
    #[schemars(with = "Option<BTreeMap<String, f64>>")]
    logit_bias: Option<Bias>,
    /// The only ids that may be chosen.
    allowed_token_ids: Option<Vec<TokenId>>,
    /// Ids that end a continuation, at most 128.
    stop_token_ids: Option<Vec<TokenId>>,
}

/// Checks the fields.
///
/// # Errors
/// 400 naming the field.
pub(super) fn checked(
    call: &Call,
    model: &ServedModel,
    fields: SamplingFields,
    ignore_eos: bool,
) -> Result<SamplingParams, ApiError> {
    let words = model.generates();
    let defaults = &words.sampling;
    let mut sampling = checked_numbers(&fields, defaults)?;
    sampling.top_k = match fields.top_k {
        None => defaults.top_k,
        Some(k) => u32::try_from(k.get()).unwrap_or(0),
    };
    sampling.seed = match fields.seed {
        Some(seed) => seed.cast_unsigned(),
        None => call.app.ids.seed(),
    };
    sampling.min_tokens = fields.min_tokens.map_or(0, Int::count);
    sampling.logit_bias = checked_bias(fields.logit_bias, model)?;
    sampling.allowed_token_ids = checked_ids(
        "allowed_token_ids",
        fields.allowed_token_ids,
        usize::MAX,
        model,
    )?;
    if sampling
        .allowed_token_ids
        .as_ref()
        .is_some_and(|ids| ids.is_empty())
    {
        let must = "not be an empty list: no token could be chosen";
        return Err(ApiError::invalid_value("allowed_token_ids", must));
    }
    let own = checked_ids("stop_token_ids", fields.stop_token_ids, STOP_IDS_MAX, model)?;
    let mut stop_ids = own.map_or_else(Vec::new, |ids| ids.to_vec());
    if !ignore_eos {
        stop_ids.extend_from_slice(&words.eos_token_ids);
    }
    stop_ids.sort_unstable();
    stop_ids.dedup();
    sampling.stop_token_ids = stop_ids.into();
    check_choice_left(&sampling)?;
    Ok(sampling)
}

/// Returns the temperature, the nucleus and the penalties of `fields`, or the model's default of
/// each that is absent.
#[expect(
    clippy::cast_possible_truncation,
    reason = "sampling runs in f32; range checks follow the cast"
)]
fn checked_numbers(
    fields: &SamplingFields,
    defaults: &SamplingDefaults,
) -> Result<SamplingParams, ApiError> {
    let max = f64::from(f32::MAX);
    let number = |name, value: Option<f64>, ok: fn(f64) -> bool, must, default: f32| match value {
        None => Ok(default),
        Some(v) if v.abs() <= max && ok(v) => Ok(v as f32),
        Some(_) => Err(ApiError::invalid_value(name, must)),
    };
    let in_2 = |v: f64| (-2.0..=2.0).contains(&v);
    Ok(SamplingParams {
        temperature: number(
            "temperature",
            fields.temperature,
            |v| v >= 0.0,
            "be at least 0",
            defaults.temperature,
        )?,
        // Compared as f32, so that a value too small for f32 is not taken for one in range.
        top_p: number(
            "top_p",
            fields.top_p,
            |v| v as f32 > 0.0 && v <= 1.0,
            "be above 0 and at most 1",
            defaults.top_p,
        )?,
        min_p: number(
            "min_p",
            fields.min_p,
            |v| (0.0..=1.0).contains(&v),
            "be from 0 to 1",
            defaults.min_p,
        )?,
        repetition_penalty: number(
            "repetition_penalty",
            fields.repetition_penalty,
            |v| REPETITION_PENALTY.contains(&v),
            "be from 0.01 to 100",
            defaults.repetition_penalty,
        )?,
        presence_penalty: number(
            "presence_penalty",
            fields.presence_penalty,
            in_2,
            "be from -2 to 2",
            0.0,
        )?,
        frequency_penalty: number(
            "frequency_penalty",
            fields.frequency_penalty,
            in_2,
            "be from -2 to 2",
            0.0,
        )?,
        ..SamplingParams::default()
    })
}

/// Checks that an allowed id is no stop id if `min_tokens` is above 0: until then no stop id may be
/// chosen.
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

/// Returns the ids in order, each once: at most the vocabulary, whatever the body holds.
fn checked_ids(
    name: &'static str,
    ids: Option<Vec<TokenId>>,
    max: usize,
    model: &ServedModel,
) -> Result<Option<Arc<[TokenId]>>, ApiError> {
    let Some(mut ids) = ids else {
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

/// Token ids and what is added to their logits: each id once, in order.
#[derive(Debug)]
struct Bias(Vec<(TokenId, f32)>);

impl<'de> Deserialize<'de> for Bias {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Members(entries) = Members::<'_, f32>::deserialize(deserializer)?;
        if entries.len() > LOGIT_BIAS_MAX {
            let must = format_args!("have at most {LOGIT_BIAS_MAX} entries");
            return Err(wrong_value(must));
        }
        let mut bias = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let id = key.parse();
            let id: TokenId = id.map_err(|_| wrong_value("have token ids as keys"))?;
            if !(-100.0..=100.0).contains(&value) {
                return Err(wrong_value("have values from -100 to 100"));
            }
            bias.push((id, value));
        }
        // "1" and "01" are one id; a bias for each would apply twice.
        bias.sort_unstable_by_key(|&(id, _)| id);
        if bias.windows(2).any(|w| w[0].0 == w[1].0) {
            return Err(wrong_value("name each id once"));
        }
        Ok(Self(bias))
    }
}

fn checked_bias(
    bias: Option<Bias>,
    model: &ServedModel,
) -> Result<Arc<[(TokenId, f32)]>, ApiError> {
    let Bias(bias) = bias.unwrap_or(Bias(Vec::new()));
    match bias.last().filter(|&&(id, _)| id >= model.vocab_size) {
        None => Ok(bias.into()),
        Some(&(id, _)) => {
            let id = u64::from(id);
            let size = model.vocab_size;
            Err(ApiError::token_out_of_range("logit_bias", id, size))
        }
    }
}
