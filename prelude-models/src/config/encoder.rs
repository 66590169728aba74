//! `config.json` of an encoder.

use prelude_core::{Attention, Pooling};

use super::{
    HEADS_MAX, HIDDEN_MAX, INTERMEDIATE_MAX, LAYERS_MAX, ModelConfig, POSITIONS_MAX, VOCAB_MAX,
    dtype, labels,
    modern::{self, ModernConfig},
};
use crate::{
    Activation, Biases, ClassActivation, Error, RopeConfig, RopeScaling, family::EncoderFamily,
    fields, json::Fields,
};

/// Upper bound of the types of a token.
const TYPES_MAX: usize = 16;

/// Buckets into which MPNet divides distances.
const BUCKETS: usize = 32;

/// The parts of an encoder's shape that decoders do not have.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct EncoderConfig {
    pub(crate) family: EncoderFamily,
    /// The activation between the two products of a layer's second half.
    pub activation: Activation,
    /// Added to the variance inside the root of layer norms.
    pub layer_norm_eps: f32,
    /// Rows of the position table; 0 if there is none.
    pub position_rows: usize,
    /// Rows of the position table before the one of position 0.
    pub position_offset: usize,
    /// Types of tokens: text pairs have type 0 and type 1. A token of type `k` has the id that its
    /// word has, plus `k` times the vocabulary's size.
    pub token_types: usize,
    /// Buckets of distances between tokens that add to attention's scores; 0 if none do.
    pub relative_buckets: usize,
    /// The hidden states from which the classes of a text are read.
    pub class_pooling: Pooling,
    /// The rest of the shape, if the model is a ModernBERT.
    pub modern: Option<ModernConfig>,
}

impl EncoderConfig {
    /// Returns true if the classes of a text are read from the mean of its hidden states, so that
    /// single tokens have none.
    #[must_use]
    pub fn has_mean_classes(&self) -> bool {
        self.class_pooling == Pooling::Mean
    }
}

/// Reads and checks the `config.json` of an encoder of this family.
pub(super) fn read(
    file: &str,
    fields: &Fields<'_>,
    (architecture, family): (String, EncoderFamily),
) -> Result<ModelConfig, Error> {
    let warnings = fields::check_as(family.table(), file, fields.map)?;
    family.check_model_type(fields)?;
    let names = family.fields();
    let hidden_size = fields.required_count(names.hidden, HIDDEN_MAX)?;
    let heads = fields.required_count(names.heads, HEADS_MAX)?;
    if !hidden_size.is_multiple_of(2 * heads) {
        let what = format!(
            "must divide the hidden size {hidden_size} into heads of an even size, not be {heads}"
        );
        return Err(fields.wrong(names.heads, what));
    }
    let (positions, position_rows, position_offset) = positions(fields, family)?;
    let layer_norm_eps = layer_norm_eps(fields, family)?;
    let layers = fields.required_count(names.layers, LAYERS_MAX)?;
    let modern = match family {
        EncoderFamily::ModernBert => Some(ModernConfig::read(fields, layers)?),
        _ => None,
    };
    let token_types = match family.has_types() {
        true => fields.count("type_vocab_size", TYPES_MAX)?.unwrap_or(2),
        false => 1,
    };
    let class_pooling = match family {
        EncoderFamily::ModernBert => modern::class_pooling(fields, &architecture)?,
        _ => Pooling::First,
    };
    let labels = labels(fields)?;
    let config = ModelConfig {
        architecture,
        hidden_size,
        num_hidden_layers: layers,
        num_attention_heads: heads,
        num_key_value_heads: heads,
        head_dim: hidden_size / heads,
        intermediate_size: fields.required_count(names.intermediate, INTERMEDIATE_MAX)?,
        vocab_size: fields.required_count("vocab_size", VOCAB_MAX)?,
        max_position_embeddings: positions,
        attention: Attention::Full,
        rms_norm_eps: layer_norm_eps,
        biases: biases(fields, family)?,
        qk_norm: false,
        tie_word_embeddings: false,
        dtype: dtype(fields)?,
        rope: rope(fields, family, positions)?,
        class_activation: ClassActivation::of_classes(fields, labels.len())?,
        pair_activation: ClassActivation::of_pairs(fields)?,
        labels,
        eos_token_ids: Vec::new(),
        encoder: Some(EncoderConfig {
            family,
            activation: activation(fields, names.activation)?,
            layer_norm_eps,
            position_rows,
            position_offset,
            token_types,
            relative_buckets: match family {
                EncoderFamily::MpNet => BUCKETS,
                _ => 0,
            },
            class_pooling,
            modern,
        }),
        gemma: None,
        granite: None,
        fp8: None,
        experts: None,
        dense: Vec::new(),
        warnings,
    };
    config.check_special_ids(fields)?;
    Ok(config)
}

/// Returns the projections of a layer that have biases: all, or what the file of a ModernBERT says.
fn biases(fields: &Fields<'_>, family: EncoderFamily) -> Result<Biases, Error> {
    let field = |name| match family {
        EncoderFamily::ModernBert => Ok(fields.boolean(name)?.unwrap_or(false)),
        _ => Ok(true),
    };
    let of_attention = field("attention_bias")?;
    Ok(Biases {
        qkv: of_attention,
        o: of_attention,
        mlp: field("mlp_bias")?,
    })
}

/// Returns the rotary embeddings of a ModernBERT's layers that see whole texts; of others, whose
/// positions are in a table, any.
fn rope(fields: &Fields<'_>, family: EncoderFamily, positions: usize) -> Result<RopeConfig, Error> {
    match family {
        EncoderFamily::ModernBert => modern::rope(fields, modern::GLOBAL, positions),
        _ => Ok(RopeConfig {
            theta: 1e4,
            scaling: RopeScaling::None,
        }),
    }
}

/// Returns the number of positions that are served, the rows of the position table, and those before
/// the first position's.
fn positions(fields: &Fields<'_>, family: EncoderFamily) -> Result<(usize, usize, usize), Error> {
    let rows = fields.required_count("max_position_embeddings", POSITIONS_MAX)?;
    if family == EncoderFamily::ModernBert {
        return Ok((rows, 0, 0));
    }
    let offset = family.position_offset(fields)?;
    match rows.checked_sub(offset).filter(|&n| n > 0) {
        Some(positions) => Ok((positions, rows, offset)),
        None => {
            let what = format!("must be above {offset}, the row of the first position");
            Err(fields.wrong("max_position_embeddings", what))
        }
    }
}

fn layer_norm_eps(fields: &Fields<'_>, family: EncoderFamily) -> Result<f32, Error> {
    let (name, default) = match family {
        EncoderFamily::ModernBert => ("norm_eps", 1e-5),
        // Transformers reads no epsilon of DistilBERT.
        EncoderFamily::DistilBert => return Ok(1e-12),
        _ => ("layer_norm_eps", 1e-12),
    };
    let eps = fields.number(name, "in (0, 0.1]", |eps| eps > 0.0 && eps <= 0.1)?;
    Ok(eps.unwrap_or(default) as f32)
}

/// Returns the activation of a layer's second half; transformers' default is GELU.
pub(super) fn activation(fields: &Fields<'_>, name: &str) -> Result<Activation, Error> {
    match fields.text(name)? {
        None | Some("gelu") => Ok(Activation::Gelu),
        Some("gelu_new" | "gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
        Some("relu") => Ok(Activation::Relu),
        Some(other) => Err(fields.unsupported(format!("`{name}` of {other:?}"))),
    }
}
