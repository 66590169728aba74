//! Small models whose matrices are stored as published checkpoints in fp8 store them: e4m3, with a scale for
//! each block of 128 × 128.

use half::bf16;
use serde_json::{Map, json};

use crate::Checkpoint;

const HIDDEN: usize = 256;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;
/// Three blocks, of which gate and up have whole ones.
const INTERMEDIATE: usize = 384;
const EXPERTS: usize = 5;
const EXPERT_INTERMEDIATE: usize = 128;
const LAYERS: usize = 2;
const VOCAB: usize = 600;
const BLOCK: usize = 128;

/// The form in which the matrices of layers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// bf16.
    Bf16,
    /// e4m3 with scales of blocks, routers excepted.
    Blocks,
}

/// Returns a Qwen3 of two layers with random weights, stored with scales of blocks.
///
/// # Panics
/// If it is not read as a checkpoint: a defect.
#[must_use]
pub fn checkpoint() -> Checkpoint {
    let (config, weights) = files();
    Checkpoint::from_bytes(&config, weights).expect("the checkpoint is well formed")
}

/// Returns the checkpoint's `config.json` and `model.safetensors`.
#[must_use]
pub fn files() -> (Vec<u8>, Vec<u8>) {
    files_of(false, Stored::Blocks)
}

/// Returns a Qwen3-MoE with random weights, of a layer with experts and a layer with one MLP.
///
/// # Panics
/// If it is not read as a checkpoint: a defect.
#[must_use]
pub fn mixture(stored: Stored) -> Checkpoint {
    let (config, weights) = files_of(true, stored);
    Checkpoint::from_bytes(&config, weights).expect("the checkpoint is well formed")
}

/// Returns the contents of `config.json` and `model.safetensors`.
fn files_of(is_mixture: bool, stored: Stored) -> (Vec<u8>, Vec<u8>) {
    let mut config = json!({
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "attention_bias": false,
        "head_dim": HEAD_DIM,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "max_position_embeddings": 2048,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": true,
        "torch_dtype": "bfloat16",
        "vocab_size": VOCAB,
    });
    if stored == Stored::Blocks {
        config["quantization_config"] = json!({
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
        });
    }
    if is_mixture {
        for (name, value) in [
            ("architectures", json!(["Qwen3MoeForCausalLM"])),
            ("model_type", json!("qwen3_moe")),
            ("moe_intermediate_size", json!(EXPERT_INTERMEDIATE)),
            ("num_experts", json!(EXPERTS)),
            ("num_experts_per_tok", json!(2)),
            ("norm_topk_prob", json!(true)),
            ("mlp_only_layers", json!([1])),
        ] {
            config[name] = value;
        }
    }
    (config.to_string().into_bytes(), weights(is_mixture, stored))
}

/// Returns the content of `model.safetensors`.
fn weights(is_mixture: bool, stored: Stored) -> Vec<u8> {
    let mut file = File::default();
    let embeddings = (0..VOCAB * HIDDEN).map(|i| unit(1, i));
    file.add_bf16("embed_tokens.weight", &[VOCAB, HIDDEN], embeddings);
    file.add_norm("norm.weight", HIDDEN);
    for layer in 0..LAYERS {
        let at = |name: &str| format!("layers.{layer}.{name}");
        file.add_norm(&at("input_layernorm.weight"), HIDDEN);
        file.add_norm(&at("post_attention_layernorm.weight"), HIDDEN);
        file.add_norm(&at("self_attn.q_norm.weight"), HEAD_DIM);
        file.add_norm(&at("self_attn.k_norm.weight"), HEAD_DIM);
        let (q, kv) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
        let mut matrices = vec![
            ("self_attn.q_proj".to_owned(), q, HIDDEN),
            ("self_attn.k_proj".to_owned(), kv, HIDDEN),
            ("self_attn.v_proj".to_owned(), kv, HIDDEN),
            ("self_attn.o_proj".to_owned(), HIDDEN, q),
        ];
        let mut mlp = |name: &str, width: usize| {
            for part in ["gate", "up"] {
                matrices.push((format!("{name}.{part}_proj"), width, HIDDEN));
            }
            matrices.push((format!("{name}.down_proj"), HIDDEN, width));
        };
        if is_mixture && layer == 0 {
            for expert in 0..EXPERTS {
                mlp(&format!("mlp.experts.{expert}"), EXPERT_INTERMEDIATE);
            }
            let router = (0..EXPERTS * HIDDEN).map(|i| 0.2 * unit(3, i));
            file.add_bf16(&at("mlp.gate.weight"), &[EXPERTS, HIDDEN], router);
        } else {
            mlp("mlp", INTERMEDIATE);
        }
        for (i, (name, rows, columns)) in matrices.into_iter().enumerate() {
            let seed = 10 * layer + i;
            match stored {
                Stored::Bf16 => file.add_matrix(&at(&name), rows, columns, seed),
                Stored::Blocks => file.add_fp8(&at(&name), rows, columns, seed),
            }
        }
    }
    file.bytes()
}

/// Returns a number in -1..1, a function of seed and place.
fn unit(seed: usize, i: usize) -> f32 {
    let mixed = ((seed as u64) << 32 | i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let bits = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40;
    bits as f32 / 8_388_608.0 - 1.0
}

/// A file of tensors in the making.
#[derive(Default)]
struct File {
    header: Map<String, serde_json::Value>,
    data: Vec<u8>,
}

impl File {
    fn add(&mut self, name: &str, dtype: &str, shape: &[usize], bytes: &[u8]) {
        let start = self.data.len();
        self.data.extend_from_slice(bytes);
        let entry =
            json!({"dtype": dtype, "shape": shape, "data_offsets": [start, self.data.len()]});
        self.header.insert(format!("model.{name}"), entry);
    }

    fn add_bf16(&mut self, name: &str, shape: &[usize], values: impl Iterator<Item = f32>) {
        let bytes: Vec<u8> = values
            .flat_map(|x| bf16::from_f32(x).to_le_bytes())
            .collect();
        self.add(name, "BF16", shape, &bytes);
    }

    fn add_norm(&mut self, name: &str, width: usize) {
        self.add_bf16(name, &[width], (0..width).map(|i| 1.0 + 0.3 * unit(2, i)));
    }

    /// Adds a matrix in bf16 of numbers up to an eighth, whose rows are of different sizes.
    fn add_matrix(&mut self, name: &str, rows: usize, columns: usize, seed: usize) {
        let size = |row: usize| 0.125 * (0.6 + 0.4 * unit(200 + seed, row));
        let values = (0..rows * columns).map(|i| size(i / columns) * unit(100 + seed, i));
        self.add_bf16(&format!("{name}.weight"), &[rows, columns], values);
    }

    /// Adds a matrix of numbers between 16 and 448 with either sign, and scales by which no element is
    /// larger than an eighth.
    fn add_fp8(&mut self, name: &str, rows: usize, columns: usize, seed: usize) {
        let byte = |i: usize| {
            let x = unit(100 + seed, i);
            // Exponents of 11 to 15, any mantissa but that of NaN.
            let magnitude = 88 + (x.abs() * 38.9) as u8;
            if x < 0.0 { magnitude | 0x80 } else { magnitude }
        };
        let bytes: Vec<u8> = (0..rows * columns).map(byte).collect();
        self.add(
            &format!("{name}.weight"),
            "F8_E4M3",
            &[rows, columns],
            &bytes,
        );
        let shape = [rows.div_ceil(BLOCK), columns.div_ceil(BLOCK)];
        let scales = (0..shape[0] * shape[1]).map(|i| {
            let scale = 0.125 / 448.0 * (0.6 + 0.4 * unit(200 + seed, i));
            scale.to_le_bytes()
        });
        let bytes: Vec<u8> = scales.flatten().collect();
        self.add(&format!("{name}.weight_scale_inv"), "F32", &shape, &bytes);
    }

    fn bytes(self) -> Vec<u8> {
        let header = serde_json::Value::Object(self.header).to_string();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(header.as_bytes());
        file.extend(self.data);
        file
    }
}
