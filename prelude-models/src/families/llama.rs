//! Llama. Touvron et al., LLaMA (2023), §2.2.

use super::{Bias, DECODER, Family};

pub(super) const LLAMA: Family = Family {
    name: "Llama",
    architectures: &[
        "LlamaForCausalLM",
        "LlamaForSequenceClassification",
        "LlamaForTokenClassification",
        "LlamaModel",
    ],
    model_type: "llama",
    biases: [
        Bias::Field("attention_bias"),
        Bias::Field("attention_bias"),
        Bias::Field("mlp_bias"),
    ],
    ..DECODER
};
