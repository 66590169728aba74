//! Qwen2, Qwen3 and its mixture of experts. Qwen Team, Qwen2 (2024), §2.2.1, and Qwen3 (2025), §2.

use super::{Bias, DECODER, Family};

pub(super) const QWEN2: Family = Family {
    name: "Qwen2",
    architectures: &[
        "Qwen2ForCausalLM",
        "Qwen2ForSequenceClassification",
        "Qwen2ForTokenClassification",
        "Qwen2Model",
    ],
    model_type: "qwen2",
    biases: [Bias::Always, Bias::Never, Bias::Never],
    ..DECODER
};

pub(crate) const QWEN3: Family = Family {
    name: "Qwen3",
    architectures: &[
        "Qwen3ForCausalLM",
        "Qwen3ForSequenceClassification",
        "Qwen3ForTokenClassification",
        "Qwen3Model",
    ],
    model_type: "qwen3",
    qk_norm: true,
    ..DECODER
};

pub(super) const QWEN3_MOE: Family = Family {
    name: "Qwen3Moe",
    architectures: &[
        "Qwen3MoeForCausalLM",
        "Qwen3MoeForSequenceClassification",
        "Qwen3MoeForTokenClassification",
        "Qwen3MoeModel",
    ],
    model_type: "qwen3_moe",
    qk_norm: true,
    has_experts: true,
    ..DECODER
};
