//! DistilBERT. Sanh et al., DistilBERT (2019), §3.

use super::{ClassHead, ENCODER, EncoderParts, Family, LayerNames, ShapeFields, bert::PARTS};
use crate::{Activation, field::rows};

pub(super) const DISTILBERT: Family = Family {
    name: "DistilBert",
    architectures: &[
        "DistilBertForMaskedLM",
        "DistilBertForSequenceClassification",
        "DistilBertForTokenClassification",
        "DistilBertModel",
    ],
    model_type: "distilbert",
    own_fields: FIELDS,
    shape: ShapeFields {
        hidden: "dim",
        intermediate: "hidden_dim",
        layers: "n_layers",
        heads: "n_heads",
    },
    // Transformers reads no epsilon of it.
    eps: (None, 1e-12),
    text_classes: ClassHead {
        dense: Some("pre_classifier"),
        ..ENCODER.token_classes
    },
    prefix: "distilbert.",
    encoder: Some(EncoderParts {
        activation: "activation",
        has_types: false,
        layer: LayerNames {
            layers: "transformer.layer",
            qkv: &["attention.q_lin", "attention.k_lin", "attention.v_lin"],
            o: "attention.out_lin",
            attention_norm: "sa_layer_norm",
            up: "ffn.lin1",
            down: "ffn.lin2",
            mlp_norm: "output_layer_norm",
        },
        class_activation: Some(Activation::Relu),
        ..PARTS
    }),
    ..ENCODER
};

rows! {
    FIELDS, "config.json of a DistilBERT";
    NoEffect ["position_embedding_type", "is_decoder", "add_cross_attention", "is_encoder_decoder"]
        "transformers' DistilBERT does not read it";
}
