//! `config.json` of an encoder.

use prelude_core::Attention;

use super::{
    HEADS_MAX, HIDDEN_MAX, INTERMEDIATE_MAX, LAYERS_MAX, ModelConfig, POSITIONS_MAX, VOCAB_MAX,
    dtype, labels,
};
use crate::{
    Activation, Biases, ClassActivation, Error, RopeConfig, RopeScaling, family::EncoderFamily,
    fields, json::Fields,
};

/// Upper bound of the types of a token.
const TYPES_MAX: usize = 16;

/// The parts of an encoder's shape that decoders do not have.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct EncoderConfig {
    pub(crate) family: EncoderFamily,
    /// The activation between the two products of a layer's second half.
    pub activation: Activation,
    /// Added to the variance inside the root of layer norms.
    pub layer_norm_eps: f32,
    /// Rows of the position table.
    pub position_rows: usize,
    /// Rows of the position table before the one of position 0.
    pub position_offset: usize,
    /// Types of tokens: text pairs have type 0 and type 1. A token of type `k` has the id that its
    /// word has, plus `k` times the vocabulary's size.
    pub token_types: usize,
}

/// Reads and checks the `config.json` of an encoder of this family.
pub(super) fn read(
    file: &str,
    fields: &Fields<'_>,
    (architecture, family): (String, EncoderFamily),
) -> Result<ModelConfig, Error> {
    let warnings = fields::check_as(fields::ENCODERS, file, fields.map)?;
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
    let position_rows = fields.required_count("max_position_embeddings", POSITIONS_MAX)?;
    let position_offset = family.position_offset(fields)?;
    let Some(positions) = position_rows
        .checked_sub(position_offset)
        .filter(|&n| n > 0)
    else {
        let what = format!("must be above {position_offset}, the row of the first position");
        return Err(fields.wrong("max_position_embeddings", what));
    };
    let eps = fields.number("layer_norm_eps", "in (0, 0.1]", |eps| {
        eps > 0.0 && eps <= 0.1
    })?;
    // Transformers reads none for DistilBERT.
    let eps = eps.filter(|_| family != EncoderFamily::DistilBert);
    let layer_norm_eps = eps.unwrap_or(1e-12) as f32;
    let token_types = match family.has_types() {
        true => fields.count("type_vocab_size", TYPES_MAX)?.unwrap_or(2),
        false => 1,
    };
    let labels = labels(fields)?;
    let config = ModelConfig {
        architecture,
        hidden_size,
        num_hidden_layers: fields.required_count(names.layers, LAYERS_MAX)?,
        num_attention_heads: heads,
        num_key_value_heads: heads,
        head_dim: hidden_size / heads,
        intermediate_size: fields.required_count(names.intermediate, INTERMEDIATE_MAX)?,
        vocab_size: fields.required_count("vocab_size", VOCAB_MAX)?,
        max_position_embeddings: positions,
        attention: Attention::Full,
        rms_norm_eps: layer_norm_eps,
        biases: Biases {
            qkv: true,
            o: true,
            mlp: true,
        },
        qk_norm: false,
        tie_word_embeddings: false,
        dtype: dtype(fields)?,
        rope: RopeConfig {
            theta: 1e4,
            scaling: RopeScaling::None,
        },
        class_activation: ClassActivation::of_classes(fields, labels.len())?,
        pair_activation: ClassActivation::of_pairs(fields)?,
        labels,
        eos_token_ids: Vec::new(),
        pad_token_id: fields.token_ids("pad_token_id")?.first().copied(),
        encoder: Some(EncoderConfig {
            family,
            activation: activation(fields, names.activation)?,
            layer_norm_eps,
            position_rows,
            position_offset,
            token_types,
        }),
        warnings,
    };
    config.check_special_ids(fields)?;
    Ok(config)
}

/// Returns the activation of a layer's second half; transformers' default is GELU.
fn activation(fields: &Fields<'_>, name: &str) -> Result<Activation, Error> {
    match fields.text(name)? {
        None | Some("gelu") => Ok(Activation::Gelu),
        Some("gelu_new" | "gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
        Some("relu") => Ok(Activation::Relu),
        Some(other) => Err(fields.unsupported(format!("`{name}` of {other:?}"))),
    }
}
