//! The tensors of an encoder whose layers end with norms.

use super::{DISTANCES, Shapes, TOKEN_SCORE, modern_names};
use crate::{EncoderConfig, ModelConfig, ModelKind};

/// Returns the beginning of the names of the body's tensors: a bare body is saved without one.
pub(crate) fn prefix(contains: impl Fn(&str) -> bool, encoder: &EncoderConfig) -> &'static str {
    let words = match encoder.modern {
        None => "embeddings.word_embeddings",
        Some(_) => modern_names::WORDS,
    };
    match contains(&format!("{words}.weight")) {
        true => "",
        false => encoder.family.prefix(),
    }
}

/// Returns the names of the two tensors of a norm: old checkpoints, made from TensorFlow's, have names
/// of their own, which transformers reads too.
pub(crate) fn norm_parts(contains: impl Fn(&str) -> bool, prefix: &str) -> [&'static str; 2] {
    match contains(&format!("{prefix}embeddings.LayerNorm.gamma")) {
        true => ["gamma", "beta"],
        false => ["weight", "bias"],
    }
}

/// Returns names and shapes of all tensors that an encoder reads.
pub(super) fn shapes(
    config: &ModelConfig,
    encoder: &EncoderConfig,
    kind: &ModelKind,
    (prefix, norm_parts): (&str, [&str; 2]),
) -> Shapes {
    let (h, i) = (config.hidden_size, config.intermediate_size);
    let mut tensors = Shapes::new();
    let mut add = |name: String, shape: &[usize]| {
        tensors.insert(name, shape.to_vec());
    };
    let mut tables = vec![
        ("word_embeddings", config.vocab_size),
        ("position_embeddings", encoder.position_rows),
    ];
    if encoder.family.has_types() {
        tables.push(("token_type_embeddings", encoder.token_types));
    }
    for (table, rows) in tables {
        add(format!("{prefix}embeddings.{table}.weight"), &[rows, h]);
    }
    let names = encoder.family.layer_names();
    let [q, k, v] = names.qkv;
    let mut norms = vec![format!("{prefix}embeddings.LayerNorm")];
    let mut products = Vec::new();
    for layer in 0..config.num_hidden_layers {
        let at = |name: &str| format!("{prefix}{}.{layer}.{name}", names.layers);
        norms.extend([names.attention_norm, names.output_norm].map(at));
        let square = [q, k, v, names.o].map(|name| (at(name), h, h));
        products.extend(square);
        products.extend([(at(names.up), i, h), (at(names.down), h, i)]);
    }
    match kind {
        ModelKind::SequenceClassification { labels } => {
            let [dense, score] = encoder.family.head_names();
            products.push((dense.to_owned(), h, h));
            products.push((score.to_owned(), labels.len(), h));
        }
        ModelKind::TokenClassification { labels } => {
            products.push((TOKEN_SCORE.to_owned(), labels.len(), h));
        }
        ModelKind::CausalLm | ModelKind::Embedding { .. } => {}
    }
    if encoder.relative_buckets > 0 {
        let shape = [encoder.relative_buckets, config.num_attention_heads];
        add(format!("{prefix}{DISTANCES}.weight"), &shape);
    }
    for norm in norms {
        for part in norm_parts {
            add(format!("{norm}.{part}"), &[h]);
        }
    }
    for (product, outputs, inputs) in products {
        add(format!("{product}.weight"), &[outputs, inputs]);
        add(format!("{product}.bias"), &[outputs]);
    }
    tensors
}

/// Heads that predict words, and the pooler of a bare body: neither embeddings nor classes read them
/// where they are not among the model's tensors.
const HEADS: [&str; 6] = [
    "cls.",
    "lm_head.",
    "vocab_layer_norm.",
    "vocab_projector.",
    "vocab_transform.",
    "pooler.",
];

/// Buffers that count positions and name types, which transformers saved before 4.31.
const BUFFERS: [&str; 2] = ["embeddings.position_ids", "embeddings.token_type_ids"];

/// Returns true for a tensor that the reference does not read either where it is not among the
/// model's.
pub(super) fn is_unread(prefix: &str, name: &str) -> bool {
    let own = name.strip_prefix(prefix).unwrap_or(name);
    BUFFERS.iter().any(|end| own.ends_with(end)) || HEADS.iter().any(|part| own.starts_with(part))
}
