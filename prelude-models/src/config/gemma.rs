//! The part of a Gemma's `config.json` that other decoders do not have.

use super::{POSITIONS_MAX, encoder, modern};
use crate::{Activation, Error, RopeConfig, family::Family, json::Fields};

/// The parts of a Gemma's shape that other decoders do not have.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct GemmaConfig {
    /// Factor on rows of the embedding matrix.
    pub embed_scale: f32,
    /// Factor on the products of queries and keys.
    pub attention_scale: f32,
    /// Bound of attention's scores, if there is one.
    pub attention_cap: Option<f32>,
    /// Bound of the logits, if there is one.
    pub logit_cap: Option<f32>,
    /// The tokens on either side that a token sees in layers with a window; none behind it where
    /// attention is causal.
    pub window: u32,
    /// True for each layer whose tokens see a window.
    pub local_layers: Vec<bool>,
    /// Rotary embeddings of layers with a window.
    pub local_rope: RopeConfig,
    /// The activation of the MLP's gate.
    pub activation: Activation,
}

/// Largest factor and bound that a file may name.
const NUMBER_MAX: f64 = 1e6;

impl GemmaConfig {
    /// Reads the fields of a Gemma; `looks_ahead` if its tokens see later ones.
    pub(super) fn read(
        fields: &Fields<'_>,
        family: Family,
        (hidden, layers): (usize, usize),
        looks_ahead: bool,
    ) -> Result<Self, Error> {
        let is_positive = |x: f64| x > 0.0 && x <= NUMBER_MAX;
        let scalar = fields.number("query_pre_attn_scalar", "above 0", is_positive)?;
        Ok(Self {
            embed_scale: (hidden as f64).sqrt() as f32,
            attention_scale: scalar.unwrap_or(256.0).powf(-0.5) as f32,
            attention_cap: attention_cap(fields, family)?,
            logit_cap: match family {
                Family::Gemma2 => cap(fields, "final_logit_softcapping", Some(30.0))?,
                _ => cap(fields, "final_logit_softcapping", None)?,
            },
            window: window(fields, looks_ahead)?,
            local_layers: local_layers(fields, family, layers)?,
            local_rope: local_rope(fields, family)?,
            activation: match fields.text("hidden_activation")? {
                None => Activation::GeluTanh,
                Some(_) => encoder::activation(fields, "hidden_activation")?,
            },
        })
    }
}

/// Returns a bound: the default where the file does not have the field, none for null.
fn cap(fields: &Fields<'_>, name: &str, default: Option<f32>) -> Result<Option<f32>, Error> {
    if !fields.map.contains_key(name) {
        return Ok(default);
    }
    let is_cap = |x: f64| x > 0.0 && x <= NUMBER_MAX;
    let cap = fields.number(name, "a number above 0, or null", is_cap)?;
    Ok(cap.map(|cap| cap as f32))
}

fn attention_cap(fields: &Fields<'_>, family: Family) -> Result<Option<f32>, Error> {
    const NAME: &str = "attn_logit_softcapping";
    match family {
        Family::Gemma2 => cap(fields, NAME, Some(50.0)),
        // Transformers keeps the number and does not use it.
        _ if fields.get(NAME).is_some() => {
            Err(fields.unsupported(format!("`{NAME}` of a Gemma 3")))
        }
        _ => Ok(None),
    }
}

/// Returns the tokens on either side that a token sees in layers with a window. The field counts the
/// token itself; where tokens see later ones, it is the width of both sides.
fn window(fields: &Fields<'_>, looks_ahead: bool) -> Result<u32, Error> {
    const NAME: &str = "sliding_window";
    let tokens = match fields.count(NAME, POSITIONS_MAX)? {
        Some(tokens) => tokens,
        None if fields.map.contains_key(NAME) => {
            return Err(fields.wrong(NAME, "must be a number of tokens, not null"));
        }
        None => 4096,
    };
    let window = if looks_ahead { tokens / 2 } else { tokens - 1 };
    Ok(window as u32)
}

/// Returns for each layer whether tokens see a window: by its name, or all but each n-th.
fn local_layers(fields: &Fields<'_>, family: Family, layers: usize) -> Result<Vec<bool>, Error> {
    if let Some(kinds) = fields.array("layer_types")? {
        return modern::named_layers(fields, kinds, layers);
    }
    let every = match family {
        Family::Gemma2 => 2,
        _ => {
            let every = fields.count("sliding_window_pattern", 1 << 10)?;
            every.unwrap_or(6)
        }
    };
    Ok((1..=layers).map(|i| i % every != 0).collect())
}

/// Returns the rotary embeddings of layers that see whole texts.
pub(super) fn rope(
    fields: &Fields<'_>,
    family: Family,
    positions: usize,
) -> Result<RopeConfig, Error> {
    match family {
        Family::Gemma3 => {
            let scaled = fields.object("rope_scaling")?;
            if scaled.is_some() && fields.object("rope_parameters")?.is_some() {
                return Err(fields.unsupported("`rope_scaling` beside `rope_parameters`"));
            }
            modern::rope_of(fields, GLOBAL, scaled, positions)
        }
        _ => RopeConfig::read(fields, positions),
    }
}

/// Layers that see whole texts.
const GLOBAL: modern::RopeFields = modern::RopeFields {
    layer_type: "full_attention",
    theta: "rope_theta",
    default: 1e6,
};

/// Layers with a window.
const LOCAL: modern::RopeFields = modern::RopeFields {
    layer_type: "sliding_attention",
    theta: "rope_local_base_freq",
    default: 1e4,
};

/// Returns the rotary embeddings of layers with a window: in Gemma 2 those of the others.
fn local_rope(fields: &Fields<'_>, family: Family) -> Result<RopeConfig, Error> {
    let positions = fields.required_count("max_position_embeddings", POSITIONS_MAX)?;
    match family {
        Family::Gemma3 => modern::rope_of(fields, LOCAL, None, positions),
        _ => rope(fields, family, positions),
    }
}

/// Refuses a Gemma 2 that looks ahead.
pub(super) fn check_attention(fields: &Fields<'_>, family: Family) -> Result<(), Error> {
    const AHEAD: &str = "use_bidirectional_attention";
    if family == Family::Gemma2 && fields.boolean(AHEAD)? == Some(true) {
        return Err(fields.unsupported(format!("`{AHEAD}` of true in a Gemma 2")));
    }
    Ok(())
}
