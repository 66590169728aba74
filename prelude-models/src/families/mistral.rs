//! Mistral. Jiang et al., Mistral 7B (2023), §2.

use super::{Bias, DECODER, Family};

pub(super) const MISTRAL: Family = Family {
    name: "Mistral",
    architectures: &[
        "MistralForCausalLM",
        "MistralForSequenceClassification",
        "MistralForTokenClassification",
        "MistralModel",
    ],
    model_type: "mistral",
    biases: [Bias::Never; 3],
    is_served_in_window: true,
    ..DECODER
};
