//! Gemma 2 and Gemma 3. Gemma Team, Gemma 2 (2024), §2, and Gemma 3 (2025), §2.

use super::{DECODER, Family, GemmaParts, LocalFields, RopeFields};
use crate::field::rows;

pub(super) const GEMMA2: Family = Family {
    name: "Gemma2",
    architectures: &[
        "Gemma2ForCausalLM",
        "Gemma2ForSequenceClassification",
        "Gemma2ForTokenClassification",
        "Gemma2Model",
    ],
    model_type: "gemma2",
    own_fields: FIELDS,
    is_tied: true,
    local: Some(LocalFields {
        window: ("sliding_window", 4096),
        has_window: true,
        first: 1,
        every: (None, 2),
        ropes: None,
    }),
    gemma: Some(GemmaParts {
        title: "Gemma 2",
        attention_cap: Some(50.0),
        logit_cap: Some(30.0),
        may_look_ahead: false,
    }),
    ..DECODER
};

/// Transformers has no classifier of tokens, and the names without `Text` are of models that see
/// pictures, too.
pub(super) const GEMMA3: Family = Family {
    name: "Gemma3",
    architectures: &[
        "Gemma3ForCausalLM",
        "Gemma3TextForSequenceClassification",
        "Gemma3TextModel",
    ],
    model_type: "gemma3_text",
    qk_norm: true,
    local: Some(LocalFields {
        window: ("sliding_window", 4096),
        has_window: true,
        first: 1,
        every: (Some("sliding_window_pattern"), 6),
        ropes: Some([
            RopeFields {
                theta: "rope_theta",
                default: 1e6,
            },
            RopeFields {
                theta: "rope_local_base_freq",
                default: 1e4,
            },
        ]),
    }),
    gemma: Some(GemmaParts {
        title: "Gemma 3",
        attention_cap: None,
        logit_cap: None,
        may_look_ahead: true,
    }),
    ..GEMMA2
};

// As transformers 5.24 reads the file and older releases wrote it.
rows! {
    FIELDS, "config.json of a Gemma";
    Refused(r#""gemma2""#, r#""gemma3_text""#) ["model_type"]
        "transformers takes the class from it, which must be that of `architectures`";
    Checked ["hidden_activation"]
        "`gelu_pytorch_tanh` if the file does not say, `gelu_new`, `gelu` or `relu`, of the MLP's gate";
    NoEffect ["hidden_act"] "`hidden_activation` is read";
    Obeyed ["query_pre_attn_scalar"]
        "attention's scores are divided by its root, 256 if the file does not say";
    Obeyed ["attn_logit_softcapping"]
        "bound of attention's scores in Gemma 2, 50 if the file does not say; refused in Gemma 3, where transformers does not use it";
    Obeyed ["final_logit_softcapping"]
        "bound of a language model's logits; if the file does not say, 30 in Gemma 2 and none in Gemma 3";
    Obeyed ["layer_types", "sliding_window_pattern"]
        "layers with a window: by name, or if the file does not say all but every second in Gemma 2, and in Gemma 3 all but every sixth or as the pattern says";
    Obeyed ["sliding_window"]
        "tokens that a token sees in layers with a window, itself included, 4096 if the file does not say; half of them on either side where tokens see later ones";
    Obeyed ["rope_local_base_freq"]
        "base of the rotary frequencies of layers with a window in Gemma 3, 10000 if the file does not say";
    Obeyed ["rope_parameters"]
        "rotary frequencies: in Gemma 3 a set for each kind of layers";
    Obeyed ["use_bidirectional_attention"]
        "true: every token sees the whole text, which is served of embedders of Gemma 3 and refused of others";
    Refused("true") ["is_causal"] "no Gemma reads it";
    NoEffect ["_sliding_window_pattern"] "a note of transformers; `layer_types` is read";
    NoEffect ["cache_implementation"] "transformers' cache";
}
