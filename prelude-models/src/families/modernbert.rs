//! ModernBERT. Warner et al., Smarter, Better, Faster, Longer (2024), §2.1.

use super::{
    Bias, ClassHead, ENCODER, EncoderParts, Family, LayerNames, LocalFields, RopeFields, Unread,
};
use crate::field::rows;

pub(super) const MODERNBERT: Family = Family {
    name: "ModernBert",
    architectures: &[
        "ModernBertForMaskedLM",
        "ModernBertForSequenceClassification",
        "ModernBertForTokenClassification",
        "ModernBertModel",
    ],
    model_type: "modernbert",
    own_fields: FIELDS,
    eps: (Some("norm_eps"), 1e-5),
    biases: [
        Bias::Field("attention_bias"),
        Bias::Field("attention_bias"),
        Bias::Field("mlp_bias"),
    ],
    local: Some(LocalFields {
        window: ("local_attention", 128),
        has_window: false,
        first: 0,
        every: (Some("global_attn_every_n_layers"), 3),
        ropes: Some([
            RopeFields {
                theta: "global_rope_theta",
                default: 160_000.0,
            },
            RopeFields {
                theta: "local_rope_theta",
                default: 1e4,
            },
        ]),
    }),
    text_classes: CLASSES,
    token_classes: CLASSES,
    words: "embeddings.tok_embeddings",
    unread: Unread {
        names: &[],
        // A head that predicts words, and frequencies, which follow from the configuration.
        starts: &["decoder."],
        starts_of_embedders: &["head."],
        parts: &["rotary_emb."],
        ends: &[],
    },
    encoder: Some(EncoderParts {
        activation: "hidden_activation",
        positions: None,
        has_types: false,
        buckets: 0,
        norm: "embeddings.norm",
        last_norm: Some("final_norm"),
        norm_bias: Bias::Field("norm_bias"),
        layer: LayerNames {
            layers: "layers",
            qkv: &["attn.Wqkv"],
            o: "attn.Wo",
            attention_norm: "attn_norm",
            up: "mlp.Wi",
            down: "mlp.Wo",
            mlp_norm: "mlp_norm",
        },
        class_bias: Bias::Field("classifier_bias"),
        class_activation: None,
        class_pooling: Some("classifier_pooling"),
    }),
    ..ENCODER
};

/// The head of classifiers, of texts and of tokens.
const CLASSES: ClassHead = ClassHead {
    dense: Some("head.dense"),
    norm: Some("head.norm"),
    score: "classifier",
    score_bias: true,
};

rows! {
    FIELDS, "config.json of a ModernBERT";
    Refused() ["rope_scaling", "rope_theta", "sliding_window"]
        "there is `rope_parameters` for each kind of layers, and `local_attention`";
    NoEffect ["position_embedding_type", "is_decoder", "add_cross_attention", "is_encoder_decoder"]
        "transformers' ModernBERT does not read it; mmBERT says \"sans_pos\"";
}
