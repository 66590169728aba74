//! Granite. Granite Team, Granite 3.0 (2024), §2. Transformers has no classifiers of it.

use super::{Bias, DECODER, Family};

pub(super) const GRANITE: Family = Family {
    name: "Granite",
    architectures: &["GraniteForCausalLM", "GraniteModel"],
    model_type: "granite",
    biases: [
        Bias::Field("attention_bias"),
        Bias::Field("attention_bias"),
        Bias::Field("mlp_bias"),
    ],
    has_factors: true,
    ..DECODER
};
