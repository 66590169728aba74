//! A small model whose matrices are stored as published checkpoints in fp8 store them: e4m3, with a scale
//! for each block of 128 × 128.

use half::bf16;
use serde_json::{Map, json};

use crate::Checkpoint;

const HIDDEN: usize = 256;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;
/// Three blocks, of which gate and up have whole ones.
const INTERMEDIATE: usize = 384;
const LAYERS: usize = 2;
const VOCAB: usize = 600;
const BLOCK: usize = 128;

/// Returns a Qwen3 of two layers with random weights.
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
    let config = json!({
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
        "quantization_config": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
        },
    });
    (config.to_string().into_bytes(), weights())
}

/// Returns the content of `model.safetensors`.
fn weights() -> Vec<u8> {
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
        for (i, (name, rows, columns)) in [
            ("self_attn.q_proj", q, HIDDEN),
            ("self_attn.k_proj", kv, HIDDEN),
            ("self_attn.v_proj", kv, HIDDEN),
            ("self_attn.o_proj", HIDDEN, q),
            ("mlp.gate_proj", INTERMEDIATE, HIDDEN),
            ("mlp.up_proj", INTERMEDIATE, HIDDEN),
            ("mlp.down_proj", HIDDEN, INTERMEDIATE),
        ]
        .into_iter()
        .enumerate()
        {
            file.add_fp8(&at(name), rows, columns, 10 * layer + i);
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
