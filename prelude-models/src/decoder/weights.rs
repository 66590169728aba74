//! The tensors of a dense decoder: their names and shapes in a checkpoint, and their loading.

use std::collections::BTreeMap;

use super::{Decoder, Head, Layer};
use crate::{
    Checkpoint, Error, ModelConfig, ModelKind, WeightLoader,
    source::{WeightSource, loader_error},
};

impl<W> Decoder<W> {
    /// Converts the checkpoint's weights, with rotations for positions `0..max_positions`.
    ///
    /// # Errors
    /// [`Error::Tensors`] if names or shapes are not the architecture's, [`Error::NotFinite`] for damaged
    /// weights, [`Error::Loader`] for what the device says.
    pub fn load<L: WeightLoader<Weight = W>>(
        checkpoint: &Checkpoint,
        max_positions: usize,
        loader: &mut L,
    ) -> Result<Self, Error> {
        check_tensors(checkpoint)?;
        let config = checkpoint.config();
        let kind = checkpoint.kind();
        let mut source = WeightSource {
            checkpoint,
            prefix: prefix(checkpoint),
            loader,
        };
        let tied = *kind == ModelKind::CausalLm && config.tie_word_embeddings;
        let embed = source.embedding("embed_tokens", tied)?;
        let layers = (0..config.num_hidden_layers)
            .map(|i| Layer::load(&mut source, i, config))
            .collect::<Result<_, _>>()?;
        let norm = source.vector("norm")?;
        let head = match kind {
            ModelKind::CausalLm if tied => Head::Tied,
            ModelKind::CausalLm => Head::Vocabulary(source.head("lm_head", false)?),
            ModelKind::SequenceClassification { .. } => Head::Score(source.head("score", false)?),
            // No decoder's architecture classifies tokens.
            ModelKind::TokenClassification { .. } | ModelKind::Embedding { .. } => Head::None,
        };
        let inv_freq = config.rope.inv_freq(config.head_dim);
        let rope = source
            .loader
            .rope(&inv_freq, config.rope.attention_scaling(), max_positions)
            .map_err(|e| loader_error("rope", e))?;
        Ok(Self {
            hidden: config.hidden_size,
            intermediate: config.intermediate_size,
            shape: config.attn_shape(),
            eps: config.rms_norm_eps,
            embed,
            layers,
            norm,
            rope,
            head,
        })
    }
}

impl<W> Layer<W> {
    fn load<L: WeightLoader<Weight = W>>(
        source: &mut WeightSource<'_, L>,
        layer: usize,
        config: &ModelConfig,
    ) -> Result<Self, Error> {
        let biases = config.biases;
        let at = |name: &str| format!("layers.{layer}.{name}");
        let [q, k, v, o] = ["q", "k", "v", "o"].map(|p| at(&format!("self_attn.{p}_proj")));
        let [gate, up, down] = ["gate", "up", "down"].map(|p| at(&format!("mlp.{p}_proj")));
        let qk_norm = match config.qk_norm {
            true => Some((
                source.vector(&at("self_attn.q_norm"))?,
                source.vector(&at("self_attn.k_norm"))?,
            )),
            false => None,
        };
        Ok(Self {
            input_norm: source.vector(&at("input_layernorm"))?,
            qkv: source.linear(&at("self_attn.qkv_proj"), &[&q, &k, &v], biases.qkv)?,
            qk_norm,
            o: source.linear(&o, &[&o], biases.o)?,
            post_norm: source.vector(&at("post_attention_layernorm"))?,
            gate_up: source.linear(&at("mlp.gate_up_proj"), &[&gate, &up], biases.mlp)?,
            down: source.linear(&down, &[&down], biases.mlp)?,
        })
    }
}

/// Returns the prefix of tensors' names: embedding models are saved from the bare body.
fn prefix(checkpoint: &Checkpoint) -> &'static str {
    if checkpoint.contains("embed_tokens.weight") {
        ""
    } else {
        "model."
    }
}

/// Names and shapes of all tensors that [`Decoder::load`] reads.
fn expected(config: &ModelConfig, kind: &ModelKind, prefix: &str) -> BTreeMap<String, Vec<usize>> {
    let (h, i, d) = (
        config.hidden_size,
        config.intermediate_size,
        config.head_dim,
    );
    let q = config.num_attention_heads * d;
    let kv = config.num_key_value_heads * d;
    let mut tensors = BTreeMap::new();
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
        if config.qk_norm {
            at("self_attn.q_norm.weight", &[d]);
            at("self_attn.k_norm.weight", &[d]);
        }
        let biases = config.biases;
        for (part, [out, input], biased) in [
            ("mlp.gate_proj", [i, h], biases.mlp),
            ("mlp.up_proj", [i, h], biases.mlp),
            ("mlp.down_proj", [h, i], biases.mlp),
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
        ModelKind::TokenClassification { .. } | ModelKind::Embedding { .. } => (),
    }
    tensors
}

fn check_tensors(checkpoint: &Checkpoint) -> Result<(), Error> {
    let config = checkpoint.config();
    let expected = expected(config, checkpoint.kind(), prefix(checkpoint));
    // Published tied checkpoints often hold a copy of the embedding matrix as head, and bodies
    // saved from a language model keep its head; Llama's first checkpoints hold frequencies, which
    // follow from the configuration. The reference reads none of them.
    checkpoint.check_tensors(&config.architecture, &expected, |name| {
        name == "lm_head.weight" || name.ends_with(".self_attn.rotary_emb.inv_freq")
    })
}
