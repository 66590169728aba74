//! Model folders that measurements make: a demo model with a longer context, and random weights of
//! a published shape.

use std::{
    fs::{self, File},
    io::{BufWriter, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use prelude_server::demo;
use serde_json::{Map, Value, json};

use super::Config;
use crate::random::Random;

/// Number of tokens of the demo models' vocabulary.
pub(crate) const VOCABULARY: u32 = 4_096;

/// Makes the demo language model with a context of `tokens` tokens, and returns its folder. What it
/// answers beyond its trained context means nothing; what it computes is the same.
pub(super) fn demo_with_context(config: &Config, tokens: u32) -> Result<PathBuf> {
    let from = config.models.join(demo::LM.name);
    let folder = folder_like(&from, config, &format!("demo-lm-{tokens}"), tokens)?;
    let mut settings: Value = serde_json::from_slice(demo::LM.config)?;
    settings["max_position_embeddings"] = json!(tokens);
    write_json(&folder.join("config.json"), &settings)?;
    copy(&from, &folder, "model.safetensors")?;
    Ok(folder)
}

/// Makes a model of random weights in the shape of Qwen3-0.6B, but of `layers` layers and with the
/// demo model's vocabulary, and returns its folder.
pub(super) fn qwen3_0_6b(config: &Config, layers: u32, context: u32) -> Result<PathBuf> {
    let from = config.models.join(demo::LM.name);
    let name = format!("qwen3-0.6b-shape-{layers}-{context}");
    let folder = folder_like(&from, config, &name, context)?;
    let shape = Shape::qwen3_0_6b(layers, VOCABULARY);
    write_json(&folder.join("config.json"), &shape.config(context))?;
    shape.write(&folder.join("model.safetensors"))?;
    Ok(folder)
}

/// Makes a model of random weights in the shape of Qwen3-0.6B, all of it, without a tokenizer, in a
/// folder below `out`, unless it is there, and returns that folder.
pub(crate) fn whole_qwen3_0_6b(out: &Path) -> Result<PathBuf> {
    const CONTEXT: u32 = 2_048;
    let folder = out.join("models").join("qwen3-0.6b-random");
    let weights = folder.join("model.safetensors");
    if weights.exists() {
        return Ok(folder);
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let shape = Shape::qwen3_0_6b(28, 151_936);
    write_json(&folder.join("config.json"), &shape.config(CONTEXT))?;
    // Renamed when it is whole.
    let part = folder.join("model.part");
    shape.write(&part)?;
    fs::rename(&part, &weights).with_context(|| format!("cannot make {}", weights.display()))?;
    Ok(folder)
}

/// Makes the folder `name` below the folder for output, with the tokenizer of `from` for prompts of
/// up to `context` tokens.
fn folder_like(from: &Path, config: &Config, name: &str, context: u32) -> Result<PathBuf> {
    let folder = config.out.join("models").join(name);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    copy(from, &folder, "tokenizer.json")?;
    let mut settings: Value = serde_json::from_slice(demo::LM.tokenizer_config)?;
    settings["model_max_length"] = json!(context);
    write_json(&folder.join("tokenizer_config.json"), &settings)?;
    Ok(folder)
}

fn copy(from: &Path, to: &Path, file: &str) -> Result<()> {
    let from = from.join(file);
    fs::copy(&from, to.join(file)).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}

fn write_json(path: &Path, value: &Value) -> Result<()> {
    fs::write(path, value.to_string()).with_context(|| format!("cannot write {}", path.display()))
}

/// The shape of a Qwen3 model with tied embeddings.
struct Shape {
    hidden: u32,
    intermediate: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    layers: u32,
    vocabulary: u32,
}

impl Shape {
    const fn qwen3_0_6b(layers: u32, vocabulary: u32) -> Self {
        Self {
            hidden: 1_024,
            intermediate: 3_072,
            heads: 16,
            kv_heads: 8,
            head_dim: 128,
            layers,
            vocabulary,
        }
    }

    fn config(&self, context: u32) -> Value {
        json!({
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "attention_bias": false,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "max_position_embeddings": context,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1_000_000,
            "tie_word_embeddings": true,
            "torch_dtype": "bfloat16",
            "vocab_size": self.vocabulary,
        })
    }

    /// Returns the names and shapes of all tensors, in the order of the file.
    fn tensors(&self) -> Vec<Tensor> {
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut all = vec![
            (
                "embed_tokens".to_owned(),
                vec![self.vocabulary, self.hidden],
            ),
            ("norm".to_owned(), vec![self.hidden]),
        ];
        for layer in 0..self.layers {
            let of_layer: [(&str, Vec<u32>); 11] = [
                ("input_layernorm", vec![self.hidden]),
                ("post_attention_layernorm", vec![self.hidden]),
                ("self_attn.q_proj", vec![q, self.hidden]),
                ("self_attn.k_proj", vec![kv, self.hidden]),
                ("self_attn.v_proj", vec![kv, self.hidden]),
                ("self_attn.o_proj", vec![self.hidden, q]),
                ("self_attn.q_norm", vec![self.head_dim]),
                ("self_attn.k_norm", vec![self.head_dim]),
                ("mlp.gate_proj", vec![self.intermediate, self.hidden]),
                ("mlp.up_proj", vec![self.intermediate, self.hidden]),
                ("mlp.down_proj", vec![self.hidden, self.intermediate]),
            ];
            let named = of_layer.map(|(name, shape)| (format!("layers.{layer}.{name}"), shape));
            all.extend(named);
        }
        let named = |(name, shape)| Tensor::new(format!("model.{name}.weight"), shape);
        all.into_iter().map(named).collect()
    }

    fn write(&self, path: &Path) -> Result<()> {
        write_tensors(path, &self.tensors())
    }
}

/// The name and the shape of a tensor.
pub(crate) struct Tensor {
    name: String,
    shape: Vec<u32>,
}

impl Tensor {
    pub(crate) const fn new(name: String, shape: Vec<u32>) -> Self {
        Self { name, shape }
    }

    /// Returns the number of its elements.
    pub(crate) fn len(&self) -> u64 {
        self.shape.iter().map(|&n| u64::from(n)).product()
    }

    /// Returns an element: norms are 1, biases are 0, weights are uniform between -0.03 and 0.03.
    fn element(&self, random: &mut Random) -> f32 {
        match self.shape.len() {
            1 if self.name.ends_with("bias") => 0.0,
            1 => 1.0,
            _ => 0.03 * uniform(random),
        }
    }
}

/// Writes a safetensors file of random weights in bfloat16.
pub(crate) fn write_tensors(path: &Path, tensors: &[Tensor]) -> Result<()> {
    let mut head = Map::new();
    let mut end = 0u64;
    for tensor in tensors {
        let from = end;
        end += 2 * tensor.len();
        let about = json!({"dtype": "BF16", "shape": tensor.shape, "data_offsets": [from, end]});
        head.insert(tensor.name.clone(), about);
    }
    let head = Value::Object(head).to_string();
    let file = File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
    let mut out = BufWriter::new(file);
    out.write_all(&(head.len() as u64).to_le_bytes())?;
    out.write_all(head.as_bytes())?;
    let mut random = Random::new(1);
    for tensor in tensors {
        for _ in 0..tensor.len() {
            // A bf16 is the upper half of an f32.
            let value = tensor.element(&mut random);
            out.write_all(&value.to_bits().to_le_bytes()[2..])?;
        }
    }
    out.flush()
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Returns a number between -1 and 1.
fn uniform(random: &mut Random) -> f32 {
    let bits = u16::try_from(random.next() >> 48).expect("16 bits are left");
    f32::from(bits) / 32_768.0 - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_model_loads_with_its_shape() {
        let folder = std::env::temp_dir().join(format!("prelude-shape-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let shape = Shape {
            hidden: 64,
            intermediate: 96,
            heads: 4,
            kv_heads: 2,
            head_dim: 32,
            layers: 2,
            vocabulary: VOCABULARY,
        };
        write_json(&folder.join("config.json"), &shape.config(512)).unwrap();
        shape.write(&folder.join("model.safetensors")).unwrap();
        let checkpoint = prelude_models::Checkpoint::open(&folder).unwrap();
        let config = prelude_exec_cpu::CpuConfig::default();
        let pool = std::sync::Arc::new(prelude_exec_cpu::ComputePool::new(1));
        prelude_exec_cpu::CpuExecutor::new(&checkpoint, config, pool).unwrap();
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn random_weights_lie_around_zero() {
        let mut random = Random::new(7);
        let values: Vec<f32> = (0..10_000).map(|_| uniform(&mut random)).collect();
        assert!(values.iter().all(|value| (-1.0..1.0).contains(value)));
        let mean = values.iter().sum::<f32>() / 10_000.0;
        assert!(mean.abs() < 0.05, "{mean}");
    }
}
