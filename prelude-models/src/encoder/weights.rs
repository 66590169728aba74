//! The tensors of an encoder, from a source of them.

use super::{
    Encoder, Layer, Norm,
    heads::{Classes, Dense, Heads},
    markers::Markers,
};
use crate::{
    EncoderConfig, Error, ModelConfig, ModelKind,
    families::{ClassHead, EncoderParts},
    source::{Form, TensorSource},
};

impl<W> Encoder<W> {
    /// Makes the model of the tensors that it asks `source` for. The tensors of norms have the names
    /// `norm_parts`.
    pub(crate) fn define<S: TensorSource<Weight = W>>(
        (config, encoder): (&ModelConfig, &EncoderConfig),
        kind: &ModelKind,
        norm_parts: [&'static str; 2],
        source: &mut S,
    ) -> Result<Self, Error> {
        let (hidden, family) = (config.hidden_size, config.family);
        let Some(parts) = &family.encoder else {
            unreachable!("the family of an encoder has an encoder's parts");
        };
        let norms = Norms {
            parts: norm_parts,
            width: hidden,
            has_bias: encoder.norm_bias,
        };
        let words = source.table(family.words, [config.vocab_size, hidden], false)?;
        let positions = parts
            .positions
            .map(|_| position_table(source, (config, encoder)))
            .transpose()?;
        let size = [encoder.token_types, hidden];
        let types = parts
            .has_types
            .then(|| source.table("embeddings.token_type_embeddings", size, false))
            .transpose()?;
        let layers = (0..config.num_hidden_layers)
            .map(|i| Layer::define(source, i, (config, parts), norms))
            .collect::<Result<_, _>>()?;
        let norm = norms.of_body(source, parts.norm)?;
        let last_norm = parts
            .last_norm
            .map(|name| norms.of_body(source, name))
            .transpose()?;
        let buckets = encoder.relative_buckets;
        let distance_bias = (buckets > 0)
            .then(|| distance_bias(source, buckets, config.num_attention_heads))
            .transpose()?;
        let ropes = match &config.local {
            None => None,
            Some(local) => Some([
                source.rope("rope", &config.rope, config.head_dim)?,
                source.rope("rope", &local.rope, config.head_dim)?,
            ]),
        };
        let markers = Markers::of(source, hidden, encoder)?;
        let pooled = source.dense(&config.dense)?;
        let classes = match kind {
            ModelKind::SequenceClassification { labels } => Some((&family.text_classes, labels)),
            ModelKind::TokenClassification { labels } => Some((&family.token_classes, labels)),
            ModelKind::CausalLm | ModelKind::Embedding { .. } => None,
        };
        let with_eps = (encoder, config.norm_eps);
        let classes = classes
            .map(|(head, labels)| classes_of(source, head, labels.len(), with_eps, norms))
            .transpose()?;
        Ok(Self {
            hidden,
            intermediate: config.intermediate_size,
            shape: config.attn_shape(),
            activation: encoder.activation,
            eps: config.norm_eps,
            num_words: u32::try_from(config.vocab_size)
                .expect("the configuration bounds the vocabulary"),
            num_types: u32::try_from(encoder.token_types)
                .expect("the configuration bounds the types"),
            words,
            positions,
            types,
            distance_bias,
            ropes,
            window: config.local.as_ref().map(|local| local.window),
            norm,
            layers,
            last_norm,
            markers,
            heads: Heads { classes, pooled },
            has_mean_classes: encoder.has_mean_classes(),
        })
    }
}

/// Returns the rows of the position table that positions have, from position 0 on.
fn position_table<S: TensorSource>(
    source: &mut S,
    (config, encoder): (&ModelConfig, &EncoderConfig),
) -> Result<S::Weight, Error> {
    let first = encoder.position_offset;
    let form = Form::Table {
        rows: first..first + config.max_position_embeddings,
        is_head: false,
    };
    let name = source.of_body("embeddings.position_embeddings.weight");
    source.tensor(name, &[encoder.position_rows, config.hidden_size], form)
}

/// Returns the head that tells so many labels apart.
fn classes_of<S: TensorSource>(
    source: &mut S,
    head: &ClassHead,
    labels: usize,
    (encoder, eps): (&EncoderConfig, f32),
    norms: Norms,
) -> Result<Classes<S::Weight>, Error> {
    let hidden = norms.width;
    let norm = head
        .norm
        .map(|name| norms.whole(source, name))
        .transpose()?;
    let dense = match head.dense {
        Some(name) => Some(Dense {
            hidden,
            weight: source.head(name, hidden, (hidden, encoder.class_bias))?,
            activation: encoder.class_activation,
            norm: norm.map(|norm| (norm, eps)),
        }),
        None => None,
    };
    Ok(Classes {
        dense,
        score: source.head(head.score, labels, (hidden, head.score_bias))?,
    })
}

/// Distances from which on all are in one bucket.
const REACH: i32 = 128;

/// Returns the bucket of the position of a key less that of a query: half of the buckets are for keys
/// behind the query; of those, half are for a distance each and the others grow with it, in f32 as the
/// reference computes them. Raffel et al., T5 (2020), §2.1.
fn bucket_of(distance: i32, buckets: usize) -> usize {
    let side = buckets / 2;
    let exact = side / 2;
    let first = if distance > 0 { side } else { 0 };
    let distance = distance.unsigned_abs() as usize;
    if distance < exact {
        return first + distance;
    }
    let growth = (distance as f32 / exact as f32).ln();
    let whole = (f64::from(REACH) / exact as f64).ln() as f32;
    let beyond = (growth / whole * (side - exact) as f32) as usize;
    first + (exact + beyond).min(side - 1)
}

/// Returns what distances add to scores, head by head and distance by distance, from a table of
/// buckets: [`crate::Distances::bias`].
fn distance_bias<S: TensorSource>(
    source: &mut S,
    buckets: usize,
    heads: usize,
) -> Result<S::Weight, Error> {
    let by_distance = |table: &[f32]| {
        let of_head = |head: usize| {
            (-REACH..=REACH).map(move |distance| table[bucket_of(distance, buckets) * heads + head])
        };
        (0..heads).flat_map(of_head).collect()
    };
    let name = source.of_body("encoder.relative_attention_bias.weight");
    source.tensor(name, &[buckets, heads], Form::Made(&by_distance))
}

impl<W> Layer<W> {
    fn define<S: TensorSource<Weight = W>>(
        source: &mut S,
        layer: usize,
        (config, parts): (&ModelConfig, &EncoderParts),
        norms: Norms,
    ) -> Result<Self, Error> {
        let (hidden, width, biases) = (config.hidden_size, config.intermediate_size, config.biases);
        let names = &parts.layer;
        let at = |name: &str| format!("{}.{layer}.{name}", names.layers);
        let is_pre_norm = parts.last_norm.is_some();
        let qkv: Vec<String> = names.qkv.iter().map(|name| at(name)).collect();
        let outputs = 3 * hidden / qkv.len();
        let of_qkv: Vec<(&str, usize)> = qkv.iter().map(|name| (&**name, outputs)).collect();
        let stacked = match &qkv[..] {
            [one] => one.clone(),
            _ => at("qkv"),
        };
        let [o, up, down] = [names.o, names.up, names.down].map(at);
        let up_width = if is_pre_norm { 2 * width } else { width };
        Ok(Self {
            qkv: source.linear(&stacked, &of_qkv, (hidden, biases.qkv))?,
            o: source.linear(&o, &[(&o, hidden)], (hidden, biases.o))?,
            up: source.linear(&up, &[(&up, up_width)], (hidden, biases.mlp))?,
            down: source.linear(&down, &[(&down, hidden)], (width, biases.mlp))?,
            attention_norm: match layer {
                0 if is_pre_norm => None,
                _ => Some(norms.of_body(source, &at(names.attention_norm))?),
            },
            mlp_norm: norms.of_body(source, &at(names.mlp_norm))?,
            is_local: config
                .local
                .as_ref()
                .is_some_and(|local| local.layers[layer]),
        })
    }
}

/// The form of an encoder's norms.
#[derive(Clone, Copy)]
struct Norms {
    /// The names of weight and bias.
    parts: [&'static str; 2],
    width: usize,
    has_bias: bool,
}

impl Norms {
    fn of_body<S: TensorSource>(
        self,
        source: &mut S,
        name: &str,
    ) -> Result<Norm<S::Weight>, Error> {
        let name = source.of_body(name);
        self.whole(source, &name)
    }

    /// Returns the norm of this whole name; without a bias in the checkpoint, one of zeros.
    fn whole<S: TensorSource>(self, source: &mut S, name: &str) -> Result<Norm<S::Weight>, Error> {
        let [weight, bias] = self.parts.map(|part| format!("{name}.{part}"));
        Ok(Norm {
            weight: source.tensor(weight, &[self.width], Form::Vector)?,
            bias: match self.has_bias {
                true => source.tensor(bias, &[self.width], Form::Vector)?,
                false => source.zeros(bias, self.width)?,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Places where transformers' formula begins a new bucket of 32, as it prints them.
    #[test]
    fn distances_fall_into_buckets() {
        let check = |distance, expected| {
            assert_eq!(bucket_of(distance, 32), expected, "{distance}");
        };
        for distance in 0..8 {
            check(-distance, distance as usize);
        }
        check(1, 17);
        check(7, 23);
        let first_of_bucket = [
            (8, 8),
            (12, 9),
            (16, 10),
            (23, 11),
            (32, 12),
            (46, 13),
            (64, 14),
            (91, 15),
        ];
        for (distance, bucket) in first_of_bucket {
            check(-distance, bucket);
            check(distance, 16 + bucket);
            check(1 - distance, bucket - 1);
        }
        check(-REACH, 15);
        check(REACH, 31);
        check(-10_000, 15);
    }
}
