//! The tensors of a dense decoder.

use super::Shapes;
use crate::{ModelConfig, ModelKind};

/// Returns the beginning of the names of the body's tensors: embedding models are saved from the
/// bare body.
pub(crate) fn prefix(contains: impl Fn(&str) -> bool) -> &'static str {
    match contains("embed_tokens.weight") {
        true => "",
        false => "model.",
    }
}

/// Returns names and shapes of all tensors that a decoder reads.
pub(super) fn shapes(config: &ModelConfig, kind: &ModelKind, prefix: &str) -> Shapes {
    let (h, i, d) = (
        config.hidden_size,
        config.intermediate_size,
        config.head_dim,
    );
    let q = config.num_attention_heads * d;
    let kv = config.num_key_value_heads * d;
    let mut tensors = Shapes::new();
    let mut add = |name: String, shape: &[usize]| {
        tensors.insert(name, shape.to_vec());
    };
    add(
        format!("{prefix}embed_tokens.weight"),
        &[config.vocab_size, h],
    );
    add(format!("{prefix}norm.weight"), &[h]);
    for layer in 0..config.num_hidden_layers {
        let mut at = |name: &str, shape: &[usize]| {
            add(format!("{prefix}layers.{layer}.{name}"), shape);
        };
        at("input_layernorm.weight", &[h]);
        at("post_attention_layernorm.weight", &[h]);
        if config.gemma.is_some() {
            at("pre_feedforward_layernorm.weight", &[h]);
            at("post_feedforward_layernorm.weight", &[h]);
        }
        if config.qk_norm {
            at("self_attn.q_norm.weight", &[d]);
            at("self_attn.k_norm.weight", &[d]);
        }
        let biases = config.biases;
        let mut mlp = |name: &str, i: usize, biased: bool| {
            for (part, [out, input]) in [("gate", [i, h]), ("up", [i, h]), ("down", [h, i])] {
                at(&format!("{name}.{part}_proj.weight"), &[out, input]);
                if biased {
                    at(&format!("{name}.{part}_proj.bias"), &[out]);
                }
            }
        };
        match config.experts_of(layer) {
            None => mlp("mlp", i, biases.mlp),
            Some(experts) => {
                for expert in 0..experts.count {
                    let name = format!("mlp.experts.{expert}");
                    mlp(&name, experts.intermediate_size, false);
                }
                at("mlp.gate.weight", &[experts.count, h]);
            }
        }
        for (part, [out, input], biased) in [
            ("self_attn.q_proj", [q, h], biases.qkv),
            ("self_attn.k_proj", [kv, h], biases.qkv),
            ("self_attn.v_proj", [kv, h], biases.qkv),
            ("self_attn.o_proj", [h, q], biases.o),
        ] {
            at(&format!("{part}.weight"), &[out, input]);
            if biased {
                at(&format!("{part}.bias"), &[out]);
            }
        }
    }
    match kind {
        ModelKind::CausalLm if config.tie_word_embeddings => (),
        ModelKind::CausalLm => add("lm_head.weight".to_owned(), &[config.vocab_size, h]),
        ModelKind::SequenceClassification { labels } => {
            add("score.weight".to_owned(), &[labels.len(), h]);
        }
        ModelKind::TokenClassification { labels } => {
            add("score.weight".to_owned(), &[labels.len(), h]);
            add("score.bias".to_owned(), &[labels.len()]);
        }
        ModelKind::Embedding { .. } => (),
    }
    tensors
}

/// The head of a language model: tied checkpoints often hold a copy of the embedding matrix, and
/// bodies saved from a language model keep the head.
const HEAD: [&str; 4] = [
    "lm_head.weight",
    "lm_head.weight_scale",
    "lm_head.weight_scale_inv",
    "lm_head.input_scale",
];

/// Scales with which other servers keep queries, keys and values in fp8, as several releases of
/// llm-compressor and of transformers name them.
const CACHE_SCALES: [&str; 7] = [
    ".self_attn.q_scale",
    ".self_attn.k_scale",
    ".self_attn.v_scale",
    ".self_attn.kv_scale",
    ".self_attn.q_proj.output_scale",
    ".self_attn.k_proj.output_scale",
    ".self_attn.v_proj.output_scale",
];

/// Returns true for a tensor that the reference does not read either where it is not among the
/// model's.
pub(super) fn is_unread(name: &str) -> bool {
    // Llama's first checkpoints hold frequencies, which follow from the configuration.
    HEAD.contains(&name)
        || name.contains("rotary_emb.")
        || CACHE_SCALES.iter().any(|end| name.ends_with(end))
}
