//! `config.json` of Gemma 2 and Gemma 3, as transformers 5.24 reads it and older releases wrote it, as
//! far as it differs from that of other decoders.

use super::{Effect, Field};

rows! {
    CONFIG, "config.json of a Gemma";
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
