//! The tensors of a dense decoder, from a source of them.

use super::{Decoder, Gemma, GemmaLayer, Head, Layer, Mlp};
use crate::{
    Error, Expert, ExpertsConfig, ModelConfig, ModelKind,
    families::ClassHead,
    source::{Place, TensorSource},
};

impl<W> Decoder<W> {
    /// Makes the model of the tensors that it asks `source` for.
    pub(crate) fn define<S: TensorSource<Weight = W>>(
        config: &ModelConfig,
        kind: &ModelKind,
        source: &mut S,
    ) -> Result<Self, Error> {
        let (hidden, family, scales) = (config.hidden_size, config.family, &config.scales);
        let tied = *kind == ModelKind::CausalLm && config.tie_word_embeddings;
        let embed = source.table(family.words, [config.vocab_size, hidden], tied)?;
        let layers = (0..config.num_hidden_layers)
            .map(|i| Layer::define(source, i, config))
            .collect::<Result<_, _>>()?;
        let norm = source.norm("norm", hidden, (1.0, norm_offset(config)))?;
        let head_norm = match kind {
            ModelKind::CausalLm if scales.logits != 1.0 => {
                let factor = 1.0 / scales.logits;
                Some(source.norm("norm", hidden, (factor, norm_offset(config)))?)
            }
            _ => None,
        };
        let mut classes = |of: &ClassHead, labels: &[String]| {
            let score = source.head(of.score, labels.len(), (hidden, of.score_bias))?;
            Ok::<_, Error>(Head::Score(score))
        };
        let head = match kind {
            ModelKind::CausalLm if tied => Head::Tied,
            ModelKind::CausalLm => {
                Head::Vocabulary(source.head("lm_head", config.vocab_size, (hidden, false))?)
            }
            ModelKind::SequenceClassification { labels } => classes(&family.text_classes, labels)?,
            ModelKind::TokenClassification { labels } => classes(&family.token_classes, labels)?,
            ModelKind::Embedding { .. } => Head::None,
        };
        let dense = source.dense(&config.dense)?;
        let rope = source.rope("rope", &config.rope, config.head_dim)?;
        let gemma = match config.local.as_ref().zip(config.gate) {
            None => None,
            Some((local, activation)) => Some(Gemma {
                local_rope: source.rope(
                    "rope of layers with a window",
                    &local.rope,
                    config.head_dim,
                )?,
                window: local.window,
                activation,
                logit_cap: scales.logit_cap,
            }),
        };
        Ok(Self {
            hidden,
            intermediate: config.intermediate_size,
            shape: config.attn_shape(),
            eps: config.norm_eps,
            embed_scale: scales.embed,
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

/// Returns what is added to the stored weights of norms: a Gemma's are stored less 1.
fn norm_offset(config: &ModelConfig) -> f32 {
    if config.family.gemma.is_some() {
        1.0
    } else {
        0.0
    }
}

impl<W> Layer<W> {
    fn define<S: TensorSource<Weight = W>>(
        source: &mut S,
        layer: usize,
        config: &ModelConfig,
    ) -> Result<Self, Error> {
        let (hidden, head_dim, biases) = (config.hidden_size, config.head_dim, config.biases);
        let at = |name: &str| format!("layers.{layer}.{name}");
        let mut norm =
            |name: &str, width: usize| source.norm(&at(name), width, (1.0, norm_offset(config)));
        let qk_norm = match config.family.qk_norm {
            true => Some((
                norm("self_attn.q_norm", head_dim)?,
                norm("self_attn.k_norm", head_dim)?,
            )),
            false => None,
        };
        let gemma = match &config.local {
            None => None,
            Some(local) => Some(GemmaLayer {
                attention_post_norm: norm("post_attention_layernorm", hidden)?,
                mlp_post_norm: norm("post_feedforward_layernorm", hidden)?,
                is_local: local.layers[layer],
            }),
        };
        // The norm that others have before the MLP is one behind attention in Gemma.
        let before_mlp = match gemma {
            None => "post_attention_layernorm",
            Some(_) => "pre_feedforward_layernorm",
        };
        let (input_norm, mlp_norm) = (norm("input_layernorm", hidden)?, norm(before_mlp, hidden)?);
        let [q, k, v, o] = ["q", "k", "v", "o"].map(|p| at(&format!("self_attn.{p}_proj")));
        let queries = config.num_attention_heads * head_dim;
        let keys = config.num_key_value_heads * head_dim;
        Ok(Self {
            input_norm,
            mlp_norm,
            qkv: source.linear(
                &at("self_attn.qkv_proj"),
                &[(&q, queries), (&k, keys), (&v, keys)],
                (hidden, biases.qkv),
            )?,
            qk_norm,
            o: source.linear(&o, &[(&o, hidden)], (queries, biases.o))?,
            mlp: match config.experts_of(layer) {
                None => {
                    let size = (hidden, config.intermediate_size);
                    let of_layer = (biases.mlp, Place::Layer);
                    let [gate_up, down] = ["gate_up", "down"]
                        .map(|product| mlp_product(source, &at("mlp"), product, size, of_layer));
                    Mlp::Dense {
                        gate_up: gate_up?,
                        down: down?,
                    }
                }
                Some(experts) => Mlp::Experts {
                    router: {
                        let name = at("mlp.gate");
                        let parts = [(&*name, experts.count)];
                        source.linear_at(&name, &parts, (hidden, false), Place::Head)?
                    },
                    experts: load_experts(source, &at("mlp.experts"), hidden, experts)?,
                },
            },
            gemma,
        })
    }
}

/// Returns a product of the MLP `name` for states and intermediates of these widths: gate and up in
/// one, or down.
fn mlp_product<S: TensorSource>(
    source: &mut S,
    name: &str,
    product: &str,
    (hidden, width): (usize, usize),
    (biased, place): (bool, Place),
) -> Result<S::Weight, Error> {
    let [gate, up, down] = ["gate", "up", "down"].map(|part| format!("{name}.{part}_proj"));
    match product {
        "down" => source.linear_at(&down, &[(&down, hidden)], (width, biased), place),
        _ => source.linear_at(
            &format!("{name}.{product}_proj"),
            &[(&gate, width), (&up, width)],
            (hidden, biased),
            place,
        ),
    }
}

/// Returns the products of all experts of a layer, each kind of product in one stack.
fn load_experts<S: TensorSource>(
    source: &mut S,
    name: &str,
    hidden: usize,
    experts: &ExpertsConfig,
) -> Result<Vec<Expert<S::Weight>>, Error> {
    let size = (hidden, experts.intermediate_size);
    let mut stack = |product: &str| {
        let matrix = |e: usize| {
            let place = Place::Stack((e, experts.count));
            mlp_product(
                source,
                &format!("{name}.{e}"),
                product,
                size,
                (false, place),
            )
        };
        (0..experts.count)
            .map(matrix)
            .collect::<Result<Vec<_>, Error>>()
    };
    let (gate_up, down) = (stack("gate_up")?, stack("down")?);
    let experts = gate_up.into_iter().zip(down);
    Ok(experts
        .map(|(gate_up, down)| Expert { gate_up, down })
        .collect())
}
