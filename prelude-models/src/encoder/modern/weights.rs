//! The tensors of a ModernBERT: their names and shapes in a checkpoint, and their loading.

use super::{
    super::{
        Norm,
        heads::{Classes, Dense, Heads},
    },
    ModernEncoder, ModernLayer,
};
use crate::{
    Checkpoint, DType, EncoderConfig, Error, ModelConfig, ModelKind, ModernConfig, TensorView,
    WeightLoader,
    source::{WeightSource, loader_error},
    tensors::{
        encoder_prefix,
        modern_names::{EMBEDDING_NORM, HEAD_DENSE, HEAD_NORM, LAST_NORM, SCORE, WORDS},
    },
};

impl<W> ModernEncoder<W> {
    /// Converts the checkpoint's weights, with rotations for positions `0..max_positions`.
    ///
    /// # Errors
    /// [`Error::Tensors`] if names or shapes are not the architecture's, [`Error::NotFinite`] for damaged
    /// weights, [`Error::Loader`] for what the device says.
    pub fn load<L: WeightLoader<Weight = W>>(
        checkpoint: &Checkpoint,
        (encoder, modern): (&EncoderConfig, &ModernConfig),
        max_positions: usize,
        loader: &mut L,
    ) -> Result<Self, Error> {
        let config = checkpoint.config();
        let prefix = encoder_prefix(|name| checkpoint.contains(name), encoder);
        checkpoint.check_tensors()?;
        let mut source = WeightSource {
            checkpoint,
            prefix,
            loader,
        };
        let words = source.embedding(WORDS, false)?;
        let norm = (config.hidden_size, modern.norm_bias);
        let layers = (0..config.num_hidden_layers)
            .map(|i| ModernLayer::load(&mut source, i, config, modern))
            .collect::<Result<_, _>>()?;
        let embedding_norm = load_norm(&mut source, EMBEDDING_NORM, norm)?;
        let last_norm = load_norm(&mut source, LAST_NORM, norm)?;
        let mut rope = |rope: &crate::RopeConfig| {
            let inv_freq = rope.inv_freq(config.head_dim);
            let scaling = rope.attention_scaling();
            let loaded = source.loader.rope(&inv_freq, scaling, max_positions);
            loaded.map_err(|e| loader_error("rope", e))
        };
        let (rope, local_rope) = (rope(&config.rope)?, rope(&modern.local_rope)?);
        let pooled = source.dense()?;
        let classes = match checkpoint.kind() {
            ModelKind::CausalLm | ModelKind::Embedding { .. } => None,
            ModelKind::SequenceClassification { .. } | ModelKind::TokenClassification { .. } => {
                // The head lies outside the body.
                source.prefix = "";
                let head_norm = load_norm(&mut source, HEAD_NORM, norm)?;
                Some(Classes {
                    dense: Some(Dense {
                        hidden: config.hidden_size,
                        weight: source.head(HEAD_DENSE, modern.class_bias)?,
                        activation: modern.class_activation,
                        norm: Some((head_norm, encoder.layer_norm_eps)),
                    }),
                    score: source.head(SCORE, true)?,
                })
            }
        };
        Ok(Self {
            hidden: config.hidden_size,
            intermediate: config.intermediate_size,
            shape: config.attn_shape(),
            activation: encoder.activation,
            eps: encoder.layer_norm_eps,
            num_words: u32::try_from(config.vocab_size)
                .expect("the configuration bounds the vocabulary"),
            words,
            embedding_norm,
            rope,
            local_rope,
            window: modern.window,
            layers,
            last_norm,
            has_mean_classes: encoder.has_mean_classes(),
            heads: Heads { classes, pooled },
        })
    }
}

impl<W> ModernLayer<W> {
    fn load<L: WeightLoader<Weight = W>>(
        source: &mut WeightSource<'_, L>,
        layer: usize,
        config: &ModelConfig,
        modern: &ModernConfig,
    ) -> Result<Self, Error> {
        let at = |name: &str| format!("layers.{layer}.{name}");
        let norm = (config.hidden_size, modern.norm_bias);
        let mut linear = |name: &str, biased| {
            let name = at(name);
            source.linear(&name, &[&name], biased)
        };
        let biases = config.biases;
        Ok(Self {
            qkv: linear("attn.Wqkv", biases.qkv)?,
            o: linear("attn.Wo", biases.o)?,
            gate_up: linear("mlp.Wi", biases.mlp)?,
            down: linear("mlp.Wo", biases.mlp)?,
            attention_norm: match layer {
                0 => None,
                _ => Some(load_norm(source, &at("attn_norm"), norm)?),
            },
            mlp_norm: load_norm(source, &at("mlp_norm"), norm)?,
            is_local: modern.local_layers[layer],
        })
    }
}

/// Returns the norm `name` of `width` numbers; without a bias in the checkpoint, one of zeros.
fn load_norm<L: WeightLoader>(
    source: &mut WeightSource<'_, L>,
    name: &str,
    (width, has_bias): (usize, bool),
) -> Result<Norm<L::Weight>, Error> {
    let weight = source.tensor(&format!("{name}.weight"))?;
    let bias = format!("{name}.bias");
    let bias = match has_bias {
        true => source.tensor(&bias)?,
        false => {
            let zeros = TensorView {
                dtype: DType::F32,
                shape: vec![width],
                bytes: &vec![0; width * size_of::<f32>()],
            };
            let loaded = source.loader.vector(&bias, &zeros);
            loaded.map_err(|e| loader_error(&bias, e))?
        }
    };
    Ok(Norm { weight, bias })
}
