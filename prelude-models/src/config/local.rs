//! Layers whose tokens see a window, and the rotary embeddings of both kinds of layers.

use prelude_core::Attention;
use serde_json::{Map, Value};

use super::POSITIONS_MAX;
use crate::{
    Error, RopeConfig, RopeScaling,
    families::{Family, LocalFields, RopeFields},
    json::Fields,
    rope,
};

/// The layers of a model whose tokens see a window.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LocalLayers {
    /// The tokens on either side that a token sees; none behind it where attention is causal.
    pub window: u32,
    /// True for each layer whose tokens see the window.
    pub layers: Vec<bool>,
    /// Rotary embeddings of these layers.
    pub rope: RopeConfig,
}

/// The names of layers that see whole texts and of those with a window, among `layer_types` and in
/// `rope_parameters`.
const GLOBAL: &str = "full_attention";
const LOCAL: &str = "sliding_attention";

impl LocalLayers {
    /// Reads the fields of a family's layers, of which the model has so many. A decoder without layers
    /// with a window is refused where the file names such.
    pub(super) fn of(
        fields: &Fields<'_>,
        family: &Family,
        (layers, attention): (usize, Attention),
        rope: RopeConfig,
    ) -> Result<Option<Self>, Error> {
        let Some(of) = &family.local else {
            let kinds = match family.encoder {
                None => fields.array("layer_types")?.unwrap_or_default(),
                Some(_) => &[],
            };
            return match kinds.iter().find(|kind| kind.as_str() != Some(GLOBAL)) {
                Some(kind) => Err(fields.unsupported(format!("layer type {kind}"))),
                None => Ok(None),
            };
        };
        let (name, default) = of.window;
        let tokens = match fields.count(name, POSITIONS_MAX)? {
            Some(tokens) => tokens,
            None if of.has_window && fields.map.contains_key(name) => {
                return Err(fields.wrong(name, "must be a number of tokens, not null"));
            }
            None => default,
        };
        // The field counts the token itself; where tokens see later ones, it is the width of both
        // sides.
        let window = match attention {
            Attention::Full => tokens / 2,
            Attention::Causal => tokens - 1,
        };
        Ok(Some(Self {
            window: window as u32,
            layers: local_layers(fields, of, layers)?,
            rope,
        }))
    }
}

/// Returns for each layer whether tokens see a window: by its name, or all but each n-th.
fn local_layers(fields: &Fields<'_>, of: &LocalFields, layers: usize) -> Result<Vec<bool>, Error> {
    let Some(kinds) = fields.array("layer_types")? else {
        let (name, default) = of.every;
        let every = match name {
            Some(name) => fields.count(name, 1 << 10)?,
            None => None,
        };
        let every = every.unwrap_or(default);
        return Ok((of.first..of.first + layers)
            .map(|i| i % every != 0)
            .collect());
    };
    if kinds.len() != layers {
        let what = format!(
            "must have {layers} entries, one for each layer, not {}",
            kinds.len()
        );
        return Err(fields.wrong("layer_types", what));
    }
    let is_local = |kind: &Value| match kind.as_str() {
        Some(LOCAL) => Ok(true),
        Some(GLOBAL) => Ok(false),
        _ => Err(fields.unsupported(format!("layer type {kind}"))),
    };
    kinds.iter().map(is_local).collect()
}

/// Returns the rotary embeddings of layers that see whole texts and of those with a window; any for an
/// encoder whose positions are in a table.
pub(super) fn ropes(
    fields: &Fields<'_>,
    family: &Family,
    positions: usize,
) -> Result<[RopeConfig; 2], Error> {
    let ropes = family.local.as_ref().and_then(|local| local.ropes);
    let Some([global, local]) = ropes else {
        let rope = match family.encoder {
            None => RopeConfig::read(fields, positions)?,
            Some(_) => RopeConfig {
                theta: 1e4,
                scaling: RopeScaling::None,
            },
        };
        return Ok([rope, rope]);
    };
    let scaled = fields.object("rope_scaling")?;
    if scaled.is_some() && fields.object("rope_parameters")?.is_some() {
        return Err(fields.unsupported("`rope_scaling` beside `rope_parameters`"));
    }
    Ok([
        rope_of(fields, (GLOBAL, global), scaled, positions)?,
        rope_of(fields, (LOCAL, local), None, positions)?,
    ])
}

/// Reads the rotation of one kind of layers: from the set `named`, from that in `rope_parameters`, or
/// from the base beside other fields.
fn rope_of(
    fields: &Fields<'_>,
    (kind, of): (&str, RopeFields),
    named: Option<&Map<String, Value>>,
    positions: usize,
) -> Result<RopeConfig, Error> {
    let theta = rope::base(fields, of.theta)?.unwrap_or(of.default);
    let empty = Map::new();
    let sets = fields.object("rope_parameters")?.unwrap_or(&empty);
    let sets = fields.within("rope_parameters.", sets);
    let is_known = |name: &str| [GLOBAL, LOCAL].contains(&name);
    if let Some(name) = sets.map.keys().find(|name| !is_known(name)) {
        let what = format!("`rope_parameters.{name}`, which is no kind of layers");
        return Err(fields.unsupported(what));
    }
    let path = format!("rope_parameters.{kind}.");
    let (path, map) = match named {
        Some(map) => ("rope_scaling.", map),
        None => (&*path, sets.object(kind)?.unwrap_or(&empty)),
    };
    RopeConfig::read_set(&fields.within(path, map), theta, positions)
}
