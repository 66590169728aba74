//! BERT, RoBERTa and XLM-R. Devlin et al., BERT (2019), §3; Liu et al., RoBERTa (2019), §4; Conneau
//! et al., XLM-R (2020), §3.

use super::{Bias, ClassHead, ENCODER, EncoderParts, Family, FirstPosition, LayerNames};
use crate::Activation;

pub(super) const BERT: Family = Family {
    name: "Bert",
    architectures: &[
        "BertForMaskedLM",
        "BertForSequenceClassification",
        "BertForTokenClassification",
        "BertModel",
    ],
    model_type: "bert",
    text_classes: ClassHead {
        dense: Some("bert.pooler.dense"),
        score: "classifier",
        ..ENCODER.token_classes
    },
    prefix: "bert.",
    encoder: Some(PARTS),
    ..ENCODER
};

pub(super) const ROBERTA: Family = Family {
    name: "Roberta",
    architectures: &[
        "RobertaForMaskedLM",
        "RobertaForSequenceClassification",
        "RobertaForTokenClassification",
        "RobertaModel",
    ],
    model_type: "roberta",
    text_classes: TWO_PRODUCTS,
    prefix: "roberta.",
    encoder: Some(EncoderParts {
        positions: Some(FirstPosition::BehindPadding),
        ..PARTS
    }),
    ..ENCODER
};

pub(super) const XLM_ROBERTA: Family = Family {
    name: "XLMRoberta",
    architectures: &[
        "XLMRobertaForMaskedLM",
        "XLMRobertaForSequenceClassification",
        "XLMRobertaForTokenClassification",
        "XLMRobertaModel",
    ],
    model_type: "xlm-roberta",
    ..ROBERTA
};

/// The head of classifiers of texts that RoBERTa's successors have.
pub(super) const TWO_PRODUCTS: ClassHead = ClassHead {
    dense: Some("classifier.dense"),
    score: "classifier.out_proj",
    ..ENCODER.token_classes
};

/// The parts of a BERT, from which other families differ in some.
pub(super) const PARTS: EncoderParts = EncoderParts {
    activation: "hidden_act",
    positions: Some(FirstPosition::Row(0)),
    has_types: true,
    buckets: 0,
    norm: "embeddings.LayerNorm",
    last_norm: None,
    norm_bias: Bias::Always,
    layer: LayerNames {
        layers: "encoder.layer",
        qkv: &[
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
        ],
        o: "attention.output.dense",
        attention_norm: "attention.output.LayerNorm",
        up: "intermediate.dense",
        down: "output.dense",
        mlp_norm: "output.LayerNorm",
    },
    class_bias: Bias::Always,
    class_activation: Some(Activation::Tanh),
    class_pooling: None,
};
