//! The part of a ModernBERT's `config.json` that other encoders do not have.

use prelude_core::Pooling;

use super::{POSITIONS_MAX, encoder::activation};
use crate::{Activation, Error, RopeConfig, json::Fields};

/// The parts of a ModernBERT's shape that other encoders do not have.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ModernConfig {
    /// Tokens on either side that a token sees in layers with a window.
    pub window: u32,
    /// True for each layer whose tokens see a window.
    pub local_layers: Vec<bool>,
    /// Rotary embeddings of layers with a window.
    pub local_rope: RopeConfig,
    /// True if norms have biases.
    pub norm_bias: bool,
    /// True if the first product of the classification head has a bias.
    pub class_bias: bool,
    /// The activation between the two products of the classification head.
    pub class_activation: Activation,
}

/// The rotary embeddings of one kind of layers: its name among `layer_types` and in
/// `rope_parameters`, the field of older files that names the base, and the base by default.
#[derive(Clone, Copy)]
pub(super) struct RopeFields {
    pub(super) layer_type: &'static str,
    pub(super) theta: &'static str,
    pub(super) default: f64,
}

/// Layers that see whole texts.
pub(super) const GLOBAL: RopeFields = RopeFields {
    layer_type: "full_attention",
    theta: "global_rope_theta",
    default: 160_000.0,
};

/// Layers with a window.
const LOCAL: RopeFields = RopeFields {
    layer_type: "sliding_attention",
    theta: "local_rope_theta",
    default: 10_000.0,
};

impl ModernConfig {
    pub(super) fn read(fields: &Fields<'_>, layers: usize) -> Result<Self, Error> {
        // The window is given as its whole width.
        let width = fields
            .count("local_attention", POSITIONS_MAX)?
            .unwrap_or(128);
        let positions = fields.required_count("max_position_embeddings", POSITIONS_MAX)?;
        let field = |name| Ok(fields.boolean(name)?.unwrap_or(false));
        Ok(Self {
            window: (width / 2) as u32,
            local_layers: local_layers(fields, layers)?,
            local_rope: rope(fields, LOCAL, positions)?,
            norm_bias: field("norm_bias")?,
            class_bias: field("classifier_bias")?,
            class_activation: activation(fields, "classifier_activation")?,
        })
    }
}

/// Returns for each layer whether tokens see a window: by its name, or every layer but each n-th.
fn local_layers(fields: &Fields<'_>, layers: usize) -> Result<Vec<bool>, Error> {
    let Some(kinds) = fields.array("layer_types")? else {
        let every = fields.count("global_attn_every_n_layers", layers.max(1 << 10))?;
        return Ok((0..layers).map(|i| i % every.unwrap_or(3) != 0).collect());
    };
    named_layers(fields, kinds, layers)
}

/// Returns for each layer whether tokens see a window, by the names of the kinds.
pub(super) fn named_layers(
    fields: &Fields<'_>,
    kinds: &[serde_json::Value],
    layers: usize,
) -> Result<Vec<bool>, Error> {
    if kinds.len() != layers {
        let what = format!(
            "must have {layers} entries, one for each layer, not {}",
            kinds.len()
        );
        return Err(fields.wrong("layer_types", what));
    }
    let is_local = |kind: &serde_json::Value| match kind.as_str() {
        Some(kind) if kind == LOCAL.layer_type => Ok(true),
        Some(kind) if kind == GLOBAL.layer_type => Ok(false),
        _ => Err(fields.unsupported(format!("layer type {kind}"))),
    };
    kinds.iter().map(is_local).collect()
}

/// Returns the rotary embeddings of one kind of layers, in either spelling: a set in
/// `rope_parameters`, or a base beside other fields.
pub(super) fn rope(
    fields: &Fields<'_>,
    of: RopeFields,
    positions: usize,
) -> Result<RopeConfig, Error> {
    rope_of(fields, of, None, positions)
}

/// Reads a rotation, from the set `named` instead of that in `rope_parameters` if there is one.
pub(super) fn rope_of(
    fields: &Fields<'_>,
    of: RopeFields,
    named: Option<&serde_json::Map<String, serde_json::Value>>,
    positions: usize,
) -> Result<RopeConfig, Error> {
    let is_base = |theta| theta > 1.0 && theta <= 1e12;
    let theta = fields.number(of.theta, "a number above 1", is_base)?;
    let theta = theta.unwrap_or(of.default);
    let empty = serde_json::Map::new();
    let sets = fields.object("rope_parameters")?.unwrap_or(&empty);
    let sets = Fields {
        path: "rope_parameters.",
        map: sets,
        ..*fields
    };
    let is_known = |name: &str| [GLOBAL, LOCAL].iter().any(|kind| kind.layer_type == name);
    if let Some(name) = sets.map.keys().find(|name| !is_known(name)) {
        let what = format!("`rope_parameters.{name}`, which is no kind of layers");
        return Err(fields.unsupported(what));
    }
    let path = format!("rope_parameters.{}.", of.layer_type);
    let set = match named {
        Some(map) => Fields {
            path: "rope_scaling.",
            map,
            ..*fields
        },
        None => Fields {
            path: &path,
            map: sets.object(of.layer_type)?.unwrap_or(&empty),
            ..*fields
        },
    };
    RopeConfig::read_set(&set, theta, positions)
}

/// Returns the hidden states from which the classes of a text are read. The field is left in the files
/// of other heads too, which do not read it.
pub(super) fn class_pooling(fields: &Fields<'_>, architecture: &str) -> Result<Pooling, Error> {
    match fields.text("classifier_pooling")? {
        None | Some("cls") => Ok(Pooling::First),
        Some("mean") if architecture.ends_with("ForSequenceClassification") => Ok(Pooling::Mean),
        Some("mean") => Ok(Pooling::First),
        Some(other) => {
            let must = format!("must be \"cls\" or \"mean\", not {other:?}");
            Err(fields.wrong("classifier_pooling", must))
        }
    }
}
