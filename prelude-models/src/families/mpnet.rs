//! MPNet. Song et al., MPNet (2020), §3.

use super::{
    ENCODER, EncoderParts, Family, FirstPosition, LayerNames,
    bert::{PARTS, TWO_PRODUCTS},
};
use crate::field::rows;

pub(super) const MPNET: Family = Family {
    name: "MPNet",
    architectures: &[
        "MPNetForMaskedLM",
        "MPNetForSequenceClassification",
        "MPNetForTokenClassification",
        "MPNetModel",
    ],
    model_type: "mpnet",
    own_fields: FIELDS,
    text_classes: TWO_PRODUCTS,
    prefix: "mpnet.",
    encoder: Some(EncoderParts {
        // The padding token is 1 whatever the file says.
        positions: Some(FirstPosition::Row(2)),
        has_types: false,
        buckets: 32,
        layer: LayerNames {
            qkv: &["attention.attn.q", "attention.attn.k", "attention.attn.v"],
            o: "attention.attn.o",
            attention_norm: "attention.LayerNorm",
            ..PARTS.layer
        },
        ..PARTS
    }),
    ..ENCODER
};

rows! {
    FIELDS, "config.json of an MPNet";
    Refused("32") ["relative_attention_num_buckets"]
        "transformers divides the distances into 32 buckets, whatever the file says";
    NoEffect ["position_embedding_type", "is_decoder", "add_cross_attention", "is_encoder_decoder"]
        "transformers' MPNet does not read it";
}
