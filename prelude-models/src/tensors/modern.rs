//! The tensors of a ModernBERT.

use super::{
    Shapes,
    modern_names::{EMBEDDING_NORM, HEAD_DENSE, HEAD_NORM, LAST_NORM, SCORE, WORDS},
};
use crate::{ModelConfig, ModelKind, ModernConfig};

/// Returns names and shapes of all tensors that a ModernBERT reads.
pub(super) fn shapes(
    config: &ModelConfig,
    modern: &ModernConfig,
    kind: &ModelKind,
    prefix: &str,
) -> Shapes {
    let (h, i) = (config.hidden_size, config.intermediate_size);
    let mut tensors = Shapes::new();
    let mut add = |name: String, shape: &[usize]| {
        tensors.insert(name, shape.to_vec());
    };
    add(format!("{prefix}{WORDS}.weight"), &[config.vocab_size, h]);
    let mut norms = vec![
        format!("{prefix}{EMBEDDING_NORM}"),
        format!("{prefix}{LAST_NORM}"),
    ];
    let mut products = Vec::new();
    let biases = config.biases;
    for layer in 0..config.num_hidden_layers {
        let at = |name: &str| format!("{prefix}layers.{layer}.{name}");
        if layer > 0 {
            norms.push(at("attn_norm"));
        }
        norms.push(at("mlp_norm"));
        products.extend([
            (at("attn.Wqkv"), 3 * h, h, biases.qkv),
            (at("attn.Wo"), h, h, biases.o),
            (at("mlp.Wi"), 2 * i, h, biases.mlp),
            (at("mlp.Wo"), h, i, biases.mlp),
        ]);
    }
    match kind {
        ModelKind::SequenceClassification { labels }
        | ModelKind::TokenClassification { labels } => {
            norms.push(HEAD_NORM.to_owned());
            products.push((HEAD_DENSE.to_owned(), h, h, modern.class_bias));
            products.push((SCORE.to_owned(), labels.len(), h, true));
        }
        ModelKind::CausalLm | ModelKind::Embedding { .. } => {}
    }
    for norm in norms {
        add(format!("{norm}.weight"), &[h]);
        if modern.norm_bias {
            add(format!("{norm}.bias"), &[h]);
        }
    }
    for (product, outputs, inputs, biased) in products {
        add(format!("{product}.weight"), &[outputs, inputs]);
        if biased {
            add(format!("{product}.bias"), &[outputs]);
        }
    }
    tensors
}

/// Returns true for a tensor that the reference does not read either where it is not among the
/// model's: heads that predict words, and frequencies, which follow from the configuration.
pub(super) fn is_unread(embeds: bool, name: &str) -> bool {
    name.starts_with("decoder.")
        || name.contains("rotary_emb.")
        || (embeds && name.starts_with("head."))
}
