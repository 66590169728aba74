//! The tensors of a dense decoder: their names and shapes in a checkpoint, and their loading.

use super::{Decoder, Gemma, GemmaLayer, Head, Layer, Mlp};
use crate::{
    Checkpoint, Error, Expert, ModelConfig, ModelKind, RopeConfig, WeightLoader,
    source::{WeightSource, loader_error},
    tensors,
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
        checkpoint.check_tensors()?;
        let config = checkpoint.config();
        let kind = checkpoint.kind();
        let mut source = WeightSource {
            checkpoint,
            prefix: tensors::decoder_prefix(|name| checkpoint.contains(name)),
            loader,
        };
        let tied = *kind == ModelKind::CausalLm && config.tie_word_embeddings;
        let embed = source.embedding("embed_tokens", tied)?;
        let layers = (0..config.num_hidden_layers)
            .map(|i| Layer::load(&mut source, i, config))
            .collect::<Result<_, _>>()?;
        let norm = source.norm("norm", norm_offset(config))?;
        let granite = config.granite.as_ref();
        let head_norm = match granite {
            Some(granite) if *kind == ModelKind::CausalLm => {
                Some(source.scaled_norm("norm", 1.0 / granite.logits_scaling as f32)?)
            }
            _ => None,
        };
        let head = match kind {
            ModelKind::CausalLm if tied => Head::Tied,
            ModelKind::CausalLm => Head::Vocabulary(source.head("lm_head", false)?),
            ModelKind::SequenceClassification { .. } => Head::Score(source.head("score", false)?),
            ModelKind::TokenClassification { .. } => Head::Score(source.head("score", true)?),
            ModelKind::Embedding { .. } => Head::None,
        };
        let dense = source.dense()?;
        let mut rotations = |rope: &RopeConfig, name| {
            let inv_freq = rope.inv_freq(config.head_dim);
            let table = source
                .loader
                .rope(&inv_freq, rope.attention_scaling(), max_positions);
            table.map_err(|e| loader_error(name, e))
        };
        let rope = rotations(&config.rope, "rope")?;
        let gemma = match &config.gemma {
            None => None,
            Some(gemma) => Some(Gemma {
                local_rope: rotations(&gemma.local_rope, "rope of layers with a window")?,
                window: gemma.window,
                activation: gemma.activation,
                logit_cap: gemma.logit_cap,
            }),
        };
        Ok(Self {
            hidden: config.hidden_size,
            intermediate: config.intermediate_size,
            shape: config.attn_shape(),
            eps: granite.map_or(config.rms_norm_eps, |of| of.eps(config.rms_norm_eps)),
            embed_scale: match (&config.gemma, granite) {
                (Some(gemma), _) => gemma.embed_scale,
                (None, Some(granite)) => granite.embed_scale(),
                (None, None) => 1.0,
            },
            embed,
            layers,
            norm,
            head_norm,
            rope,
            head,
            gemma,
            dense,
            experts: config.experts.clone(),
        })
    }
}

/// Returns what is added to the stored weights of norms.
fn norm_offset(config: &ModelConfig) -> f32 {
    if config.gemma.is_some() { 1.0 } else { 0.0 }
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
        let mut norm = |name: &str| source.norm(&at(name), norm_offset(config));
        let qk_norm = match config.qk_norm {
            true => Some((norm("self_attn.q_norm")?, norm("self_attn.k_norm")?)),
            false => None,
        };
        // The norm that others have before the MLP is one behind attention in Gemma.
        let before_mlp = match config.gemma {
            None => "post_attention_layernorm",
            Some(_) => "pre_feedforward_layernorm",
        };
        let gemma = match &config.gemma {
            None => None,
            Some(gemma) => Some(GemmaLayer {
                attention_post_norm: norm("post_attention_layernorm")?,
                mlp_post_norm: norm("post_feedforward_layernorm")?,
                is_local: gemma.local_layers[layer],
            }),
        };
        Ok(Self {
            input_norm: norm("input_layernorm")?,
            mlp_norm: norm(before_mlp)?,
            qkv: source.linear(&at("self_attn.qkv_proj"), &[&q, &k, &v], biases.qkv)?,
            qk_norm,
            o: source.linear(&o, &[&o], biases.o)?,
            mlp: match config.experts_of(layer) {
                None => {
                    let [gate_up, down] = load_mlp(source, &at("mlp"), biases.mlp)?;
                    Mlp::Dense { gate_up, down }
                }
                Some(experts) => Mlp::Experts {
                    router: source.router(&at("mlp.gate"))?,
                    experts: load_experts(source, &at("mlp.experts"), experts.count)?,
                },
            },
            gemma,
        })
    }
}

/// Returns the products of one MLP: gate and up in one, and down.
fn load_mlp<L: WeightLoader>(
    source: &mut WeightSource<'_, L>,
    name: &str,
    biased: bool,
) -> Result<[L::Weight; 2], Error> {
    let [gate, up, down] = ["gate", "up", "down"].map(|p| format!("{name}.{p}_proj"));
    Ok([
        source.linear(&format!("{name}.gate_up_proj"), &[&gate, &up], biased)?,
        source.linear(&down, &[&down], biased)?,
    ])
}

/// Returns the products of all experts of a layer, each kind of product in one stack.
fn load_experts<L: WeightLoader>(
    source: &mut WeightSource<'_, L>,
    name: &str,
    count: usize,
) -> Result<Vec<Expert<L::Weight>>, Error> {
    let mut stack = |product: &str, parts: &[&str]| {
        let matrix = |e: usize| {
            let parts = parts.iter().map(|part| format!("{name}.{e}.{part}_proj"));
            let parts: Vec<String> = parts.collect();
            let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
            source.linear_of_stack(&format!("{name}.{e}.{product}_proj"), (e, count), &parts)
        };
        (0..count).map(matrix).collect::<Result<Vec<_>, Error>>()
    };
    let gate_up = stack("gate_up", &["gate", "up"])?;
    let down = stack("down", &["down"])?;
    let experts = gate_up.into_iter().zip(down);
    Ok(experts
        .map(|(gate_up, down)| Expert { gate_up, down })
        .collect())
}
