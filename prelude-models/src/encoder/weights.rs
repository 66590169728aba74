//! The tensors of an encoder: their names and shapes in a checkpoint, and their loading.

use super::{
    Encoder, Layer, Norm,
    heads::{Classes, Dense, Heads},
};
use crate::{
    Checkpoint, DType, EncoderConfig, Error, ModelKind, TensorView, WeightLoader,
    source::{WeightSource, loader_error},
    tensors::{DISTANCES, TOKEN_SCORE, encoder_prefix, norm_parts},
};

impl<W> Encoder<W> {
    /// Converts the checkpoint's weights.
    ///
    /// # Errors
    /// [`Error::Tensors`] if names or shapes are not the architecture's, [`Error::NotFinite`] for damaged
    /// weights, [`Error::Loader`] for what the device says.
    pub fn load<L: WeightLoader<Weight = W>>(
        checkpoint: &Checkpoint,
        encoder: &EncoderConfig,
        loader: &mut L,
    ) -> Result<Self, Error> {
        let config = checkpoint.config();
        let contains = |name: &str| checkpoint.contains(name);
        let prefix = encoder_prefix(contains, encoder);
        checkpoint.check_tensors()?;
        let mut source = WeightSource {
            checkpoint,
            prefix,
            loader,
        };
        let parts = norm_parts(contains, prefix);
        let words = source.embedding("embeddings.word_embeddings", false)?;
        let positions = position_table(&mut source, encoder, config.max_position_embeddings)?;
        let types = match encoder.family.has_types() {
            true => Some(source.embedding("embeddings.token_type_embeddings", false)?),
            false => None,
        };
        let layers = (0..config.num_hidden_layers)
            .map(|i| Layer::load(&mut source, i, encoder, parts))
            .collect::<Result<_, _>>()?;
        let norm = Norm::load(&mut source, "embeddings.LayerNorm", parts)?;
        let distance_bias = match encoder.relative_buckets {
            0 => None,
            buckets => Some(distance_bias(&mut source, buckets)?),
        };
        let pooled = source.dense()?;
        let classes = match checkpoint.kind() {
            ModelKind::SequenceClassification { .. } => {
                let [dense, score] = encoder.family.head_names();
                Some(Classes {
                    dense: Some(Dense {
                        hidden: config.hidden_size,
                        weight: source.head(dense, true)?,
                        activation: encoder.family.head_activation(),
                        norm: None,
                    }),
                    score: source.head(score, true)?,
                })
            }
            ModelKind::TokenClassification { .. } => Some(Classes {
                dense: None,
                score: source.head(TOKEN_SCORE, true)?,
            }),
            ModelKind::CausalLm | ModelKind::Embedding { .. } => None,
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
            positions,
            types,
            distance_bias,
            norm,
            layers,
            heads: Heads { classes, pooled },
        })
    }
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
fn distance_bias<L: WeightLoader>(
    source: &mut WeightSource<'_, L>,
    buckets: usize,
) -> Result<L::Weight, Error> {
    let name = format!("{}{DISTANCES}.weight", source.prefix);
    let tensor = source.finite(&name)?;
    let view = tensor.view();
    let mut table = Vec::new();
    view.read_f32(0..view.len(), &mut table);
    let heads = view.shape[1];
    let of_head = |head: usize| {
        let table = &table;
        (-REACH..=REACH).map(move |distance| table[bucket_of(distance, buckets) * heads + head])
    };
    let bytes: Vec<u8> = (0..heads)
        .flat_map(of_head)
        .flat_map(f32::to_le_bytes)
        .collect();
    let expanded = TensorView {
        dtype: DType::F32,
        shape: vec![bytes.len() / size_of::<f32>()],
        bytes: &bytes,
    };
    let loaded = source.loader.vector(&name, &expanded);
    loaded.map_err(|e| loader_error(&name, e))
}

impl<W> Layer<W> {
    fn load<L: WeightLoader<Weight = W>>(
        source: &mut WeightSource<'_, L>,
        layer: usize,
        encoder: &EncoderConfig,
        parts: [&str; 2],
    ) -> Result<Self, Error> {
        let names = encoder.family.layer_names();
        let at = |name: &str| format!("{}.{layer}.{name}", names.layers);
        let [q, k, v] = names.qkv.map(at);
        let [o, up, down] = [names.o, names.up, names.down].map(at);
        Ok(Self {
            qkv: source.linear(&at("qkv"), &[&q, &k, &v], true)?,
            o: source.linear(&o, &[&o], true)?,
            attention_norm: Norm::load(source, &at(names.attention_norm), parts)?,
            up: source.linear(&up, &[&up], true)?,
            down: source.linear(&down, &[&down], true)?,
            output_norm: Norm::load(source, &at(names.output_norm), parts)?,
        })
    }
}

impl<W> Norm<W> {
    fn load<L: WeightLoader<Weight = W>>(
        source: &mut WeightSource<'_, L>,
        name: &str,
        [weight, bias]: [&str; 2],
    ) -> Result<Self, Error> {
        Ok(Self {
            weight: source.tensor(&format!("{name}.{weight}"))?,
            bias: source.tensor(&format!("{name}.{bias}"))?,
        })
    }
}

/// Returns the rows of the position table that positions have, from position 0 on.
fn position_table<L: WeightLoader>(
    source: &mut WeightSource<'_, L>,
    encoder: &EncoderConfig,
    positions: usize,
) -> Result<L::Weight, Error> {
    let name = format!("{}embeddings.position_embeddings.weight", source.prefix);
    let tensor = source.finite(&name)?;
    let view = tensor.view();
    let row_bytes = view.bytes.len() / encoder.position_rows;
    let rows = TensorView {
        dtype: view.dtype,
        shape: vec![positions, view.shape[1]],
        bytes: &view.bytes[encoder.position_offset * row_bytes..][..positions * row_bytes],
    };
    let loaded = source.loader.embedding(&name, &rows, false);
    source.checkpoint.release(&name);
    loaded.map_err(|e| loader_error(&name, e))
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
