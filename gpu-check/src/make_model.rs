//! Checkpoints with random weights, of real models' shapes: nothing to download, and the same bits
//! on every machine.
//!
//! Each weight is a function of the model's seed, its tensor's number and its place, so that all
//! processors make them at once. Scales are those of the golden random models: matrices at about
//! 1.3 / √width and norm weights between 0.5 and 1.5 (q and k: up to 2.25), so that attention is
//! sharp and a forgotten norm or a wrong head shows; embeddings such that the logits that are made
//! with them again spread by about 4.

use std::{
    borrow::Cow,
    fs,
    path::{Path, PathBuf},
    thread,
};

use anyhow::{Context as _, Result, bail};
use half::bf16;
use prelude_models::ModelConfig;
use safetensors::{Dtype, View};
use serde_json::json;

use crate::{batches::mix, values::BLOCK};

/// Weights that one thread makes at a time.
const CHUNK: usize = 1 << 20;
/// Says that a folder is complete, and of what.
const COMPLETE: &str = "made.json";

/// A model that can be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    seed: u64,
    /// True if matrices of layers are stored in e4m3, with a scale for each block of 128 × 128.
    fp8: bool,
    pub(crate) sizes: Sizes,
}

/// Sizes of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) hidden: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) mlp: usize,
    pub(crate) vocab: usize,
}

const OF_4B: Sizes = Sizes {
    hidden: 2560,
    layers: 36,
    heads: 32,
    kv_heads: 8,
    head_dim: 128,
    mlp: 9728,
    vocab: 151_936,
};

pub(crate) const SHAPES: [Shape; 6] = [
    Shape {
        name: "qwen3-0.6b",
        seed: 1,
        fp8: false,
        sizes: Sizes {
            hidden: 1024,
            layers: 28,
            heads: 16,
            kv_heads: 8,
            head_dim: 128,
            mlp: 3072,
            vocab: 151_936,
        },
    },
    Shape {
        name: "qwen3-4b",
        seed: 2,
        fp8: false,
        sizes: OF_4B,
    },
    Shape {
        name: "qwen3-4b-fp8",
        seed: 5,
        fp8: true,
        sizes: OF_4B,
    },
    // For walks without a GPU: the emulation takes a second for a million products.
    Shape {
        name: "tiny",
        seed: 3,
        fp8: false,
        sizes: Sizes {
            hidden: 64,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 32,
            mlp: 128,
            vocab: 520,
        },
    },
    // All matrices have whole blocks.
    Shape {
        name: "tiny-fp8",
        seed: 6,
        fp8: true,
        sizes: Sizes {
            hidden: 128,
            layers: 2,
            heads: 4,
            kv_heads: 4,
            head_dim: 32,
            mlp: 128,
            vocab: 520,
        },
    },
    // To be served: more ids than the tokenizer has, as in the large ones.
    Shape {
        name: "tiny-served",
        seed: 4,
        fp8: false,
        sizes: Sizes {
            hidden: 64,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 32,
            mlp: 128,
            vocab: 4160,
        },
    },
];

pub(crate) fn shape(name: &str) -> Result<Shape> {
    let found = SHAPES.iter().find(|s| s.name == name).copied();
    let names: Vec<_> = SHAPES.iter().map(|s| s.name).collect();
    found.with_context(|| format!("no shape `{name}`; there are: {}", names.join(", ")))
}

/// The distribution of a tensor's weights.
#[derive(Clone, Copy, Debug)]
enum Spread {
    /// Around 0, with this standard deviation.
    Around(f32),
    /// Numbers between these two.
    Between(f32, f32),
}

/// A tensor that is made when it is written.
struct Made {
    counter: u64,
    dims: Vec<usize>,
    spread: Spread,
    dtype: Dtype,
}

impl Made {
    fn len(&self) -> usize {
        self.dims.iter().product()
    }

    fn bits(&self, i: usize) -> u64 {
        mix(self.counter.wrapping_add(i as u64))
    }

    fn weight(&self, i: usize) -> f32 {
        let bits = self.bits(i);
        // Two numbers in [0, 1), 24 bits each.
        let unit = |bits: u64| (bits & 0xff_ffff) as f32 / 16_777_216.0;
        let (a, b) = (unit(bits), unit(bits >> 32));
        match self.spread {
            // A triangle on -1..1 has a variance of 1/6.
            Spread::Around(deviation) => (a - b) * 6f32.sqrt() * deviation,
            Spread::Between(low, high) => low + (high - low) * a,
        }
    }

    /// Returns a number in e4m3 whose size is between 1 and 3.75, by its bits.
    fn e4m3(&self, i: usize) -> u8 {
        let bits = self.bits(i);
        (0x38 + (bits & 0xf) as u8) | (bits >> 8 & 0x80) as u8
    }

    /// Returns the bytes of all numbers, made by all processors.
    fn bytes<T: bytemuck::Pod + Send>(&self, number: impl Fn(usize) -> T + Sync) -> Vec<u8> {
        let mut numbers = vec![T::zeroed(); self.len()];
        let workers = thread::available_parallelism().map_or(1, usize::from);
        let each = numbers.len().div_ceil(workers).next_multiple_of(CHUNK);
        thread::scope(|scope| {
            for (i, part) in numbers.chunks_mut(each).enumerate() {
                let number = &number;
                scope.spawn(move || {
                    for (at, to) in (i * each..).zip(part) {
                        *to = number(at);
                    }
                });
            }
        });
        bytemuck::cast_slice(&numbers).to_vec()
    }
}

impl View for Made {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.dims
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Owned(match self.dtype {
            Dtype::F8_E4M3 => self.bytes(|i| self.e4m3(i)),
            Dtype::F32 => self.bytes(|i| self.weight(i)),
            _ => self.bytes(|i| bf16::from_f32(self.weight(i))),
        })
    }

    fn data_len(&self) -> usize {
        self.len() * self.dtype.bitsize() / 8
    }
}

/// Returns all tensors of a model, by name.
fn tensors(seed: u64, shape: &Sizes, fp8: bool) -> Vec<(String, Made)> {
    let (h, d) = (shape.hidden, shape.head_dim);
    let mut list = Vec::new();
    let mut put = |name: String, dims: &[usize], spread, dtype| {
        // Tensors are 2⁴⁰ counters apart, seeds 2⁵⁶.
        let counter = (seed << 56) | ((list.len() as u64) << 40);
        let dims = dims.to_vec();
        list.push((
            name,
            Made {
                counter,
                dims,
                spread,
                dtype,
            },
        ));
    };
    let mut add = |name: String, dims: &[usize], spread| match spread {
        Spread::Around(deviation) if fp8 && name.contains("_proj") => {
            put(name.clone(), dims, spread, Dtype::F8_E4M3);
            // Scales of numbers whose mean square is 2.3².
            let of_blocks = [dims[0].div_ceil(BLOCK), dims[1].div_ceil(BLOCK)];
            let scales = Spread::Between(0.5 * deviation / 2.3, 1.5 * deviation / 2.3);
            put(format!("{name}_scale_inv"), &of_blocks, scales, Dtype::F32);
        }
        _ => put(name, dims, spread, Dtype::BF16),
    };
    let matrix = |width: usize| Spread::Around(1.3 / (width as f32).sqrt());
    let norm = Spread::Between(0.5, 1.5);
    let sharp = Spread::Between(0.75, 2.25);
    let table = Spread::Around(4.0 / (h as f32).sqrt());
    add(
        "model.embed_tokens.weight".to_owned(),
        &[shape.vocab, h],
        table,
    );
    for layer in 0..shape.layers {
        let mut of_layer = |name: &str, dims: &[usize], spread| {
            add(format!("model.layers.{layer}.{name}.weight"), dims, spread);
        };
        let (q, kv) = (shape.heads * d, shape.kv_heads * d);
        of_layer("input_layernorm", &[h], norm);
        of_layer("self_attn.q_proj", &[q, h], matrix(h));
        of_layer("self_attn.k_proj", &[kv, h], matrix(h));
        of_layer("self_attn.v_proj", &[kv, h], matrix(h));
        of_layer("self_attn.o_proj", &[h, q], matrix(q));
        of_layer("self_attn.q_norm", &[d], sharp);
        of_layer("self_attn.k_norm", &[d], sharp);
        of_layer("post_attention_layernorm", &[h], norm);
        of_layer("mlp.gate_proj", &[shape.mlp, h], matrix(h));
        of_layer("mlp.up_proj", &[shape.mlp, h], matrix(h));
        of_layer("mlp.down_proj", &[h, shape.mlp], matrix(shape.mlp));
    }
    add("model.norm.weight".to_owned(), &[h], norm);
    list
}

/// Returns the names and shapes of all tensors of a model.
pub(crate) fn tensor_shapes(sizes: &Sizes) -> Vec<(String, Vec<usize>)> {
    let tensors = tensors(0, sizes, false).into_iter();
    tensors.map(|(name, made)| (name, made.dims)).collect()
}

fn config(shape: &Sizes) -> serde_json::Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": false,
        "attention_dropout": 0.0,
        // No id ends a text: lengths are then what was asked for.
        "bos_token_id": null,
        "eos_token_id": [],
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.mlp,
        "max_position_embeddings": 40_960,
        "max_window_layers": shape.layers,
        "model_type": "qwen3",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": 1e-6,
        "rope_scaling": null,
        "rope_theta": 1_000_000,
        "sliding_window": null,
        "tie_word_embeddings": true,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0",
        "use_cache": true,
        "use_sliding_window": false,
        "vocab_size": shape.vocab,
    })
}

/// Returns the configuration of a model of these sizes.
pub(crate) fn config_of(sizes: &Sizes) -> Result<ModelConfig> {
    let text = config(sizes).to_string();
    Ok(ModelConfig::from_json("config.json", text.as_bytes())?)
}

/// Writes a checkpoint; one that is there and complete is left alone. Bytes of its weights.
///
/// # Errors
/// If the shape is none, or the folder cannot be written.
pub(crate) fn make(
    name: &str,
    layers: Option<usize>,
    tokenizer: &Path,
    folder: &Path,
) -> Result<u64> {
    let Shape {
        seed,
        fp8,
        mut sizes,
        ..
    } = shape(name)?;
    let layers = layers.unwrap_or(sizes.layers);
    if layers == 0 || layers > sizes.layers {
        bail!("{name} has 1 to {} layers, not {layers}", sizes.layers);
    }
    sizes.layers = layers;
    let made = json!({"format": 1, "shape": name, "layers": layers}).to_string();
    let weights = folder.join("model.safetensors");
    if fs::read_to_string(folder.join(COMPLETE)).is_ok_and(|text| text == made) {
        return Ok(fs::metadata(&weights)?.len());
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(tokenizer.join(file), folder.join(file))
            .with_context(|| format!("cannot copy {}", tokenizer.join(file).display()))?;
    }
    let write = |file: &str, text: String| {
        let path = folder.join(file);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    let mut config = config(&sizes);
    if fp8 {
        config["quantization_config"] = json!({
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
        });
    }
    write("config.json", serde_json::to_string_pretty(&config)?)?;
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    safetensors::serialize_to_file(tensors(seed, &sizes, fp8), Some(metadata), &weights)
        .with_context(|| format!("cannot write {}", weights.display()))?;
    write(COMPLETE, made)?;
    Ok(fs::metadata(&weights)?.len())
}

/// Returns the folder of a checkpoint among others.
pub(crate) fn folder(models: &Path, name: &str, layers: Option<usize>) -> PathBuf {
    match layers {
        Some(layers) => models.join(format!("{name}-{layers}-layers")),
        None => models.join(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::Folder;

    fn demo() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../prelude-server/demo/demo-lm")
    }

    #[test]
    fn a_model_is_the_same_bits_however_it_is_cut() {
        let made = Made {
            counter: 5 << 40,
            dims: vec![3, CHUNK],
            spread: Spread::Around(0.5),
            dtype: Dtype::BF16,
        };
        let whole = made.data();
        let piece = (CHUNK - 5..CHUNK + 5).map(|i| bf16::from_f32(made.weight(i)));
        let piece: Vec<bf16> = piece.collect();
        let at = 2 * (CHUNK - 5);
        assert_eq!(whole[at..at + 20], *bytemuck::cast_slice::<_, u8>(&piece));
        let values: Vec<f64> = bytemuck::pod_collect_to_vec::<u8, bf16>(&whole)
            .into_iter()
            .map(f64::from)
            .collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let deviation = (values.iter().map(|v| v * v).sum::<f64>() / n).sqrt();
        assert!(
            mean.abs() < 2e-3 && (deviation - 0.5).abs() < 2e-3,
            "{mean} {deviation}"
        );
    }

    #[test]
    fn a_made_checkpoint_opens() {
        let folder = Folder::new("make-model");
        let bytes = make("tiny", Some(1), &demo(), &folder.0).unwrap();
        assert_eq!(make("tiny", Some(1), &demo(), &folder.0).unwrap(), bytes);
        let checkpoint = prelude_models::Checkpoint::open(&folder.0).unwrap();
        let config = checkpoint.config();
        assert_eq!((config.num_hidden_layers, config.vocab_size), (1, 520));
        assert!(make("tiny", Some(3), &demo(), &folder.0).is_err());
        let error = make("huge", None, &demo(), &folder.0)
            .unwrap_err()
            .to_string();
        assert!(error.contains("qwen3-0.6b"), "{error}");
    }

    /// Matrices in fp8 have whole blocks, and what they are times their scales is about as large as in
    /// bf16.
    #[test]
    fn matrices_in_fp8_are_as_large_as_others() {
        let folder = Folder::new("make-fp8");
        make("tiny-fp8", None, &demo(), &folder.0).unwrap();
        let checkpoint = prelude_models::Checkpoint::open(&folder.0).unwrap();
        assert_eq!(checkpoint.config().hidden_size, 128);
        let sizes = shape("tiny-fp8").unwrap().sizes;
        let made = tensors(6, &sizes, true);
        let of = |name: &str| {
            let name = format!("model.layers.1.mlp.down_proj.weight{name}");
            let (_, made) = made.iter().find(|(other, _)| *other == name).unwrap();
            made
        };
        let (numbers, scales) = (of("").data(), of("_scale_inv").data());
        let scale: f32 = bytemuck::pod_read_unaligned(&scales[..4]);
        assert_eq!((numbers.len(), scales.len()), (128 * 128, 4));
        assert!((0.5..1.5).contains(&(scale * 2.3 * 128f32.sqrt() / 1.3)));
        let value = |bits: &u8| {
            let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
            (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7)
        };
        let squares: f32 = numbers.iter().map(|bits| value(bits).powi(2)).sum();
        let size = (squares / numbers.len() as f32).sqrt();
        assert!((size - 2.3).abs() < 0.05, "{size}");
        assert!(
            (0.4..0.6).contains(&(numbers.iter().filter(|x| **x > 127).count() as f32 / 16384.0))
        );
    }

    /// Counted in the specification of the model: 440.4 M weights of layers, 155.6 M of the table.
    #[test]
    fn the_real_shapes_have_their_real_sizes() {
        let check = |name: &str, millions: f64| {
            let shape = shape(name).unwrap();
            let all: usize = tensors(shape.seed, &shape.sizes, false)
                .iter()
                .map(|t| t.1.len())
                .sum();
            assert!((all as f64 / 1e6 - millions).abs() < 1.0, "{name}: {all}");
        };
        check("qwen3-0.6b", 596.0);
        check("qwen3-4b", 4022.5);
    }
}
