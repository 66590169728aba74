//! A tiny Qwen3 checkpoint with random weights, made in memory.

use prelude_models::Checkpoint;

/// Ids of the tiny model's vocabulary.
pub(crate) const VOCAB: u32 = 61;

const HIDDEN: usize = 24;
const LAYERS: usize = 2;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 8;
const MLP: usize = 40;

/// A two-layer causal model: grouped queries, tied head, widths that are no multiples of 16.
/// Scales are large enough that attention is sharp and every token matters.
pub(crate) fn checkpoint(seed: u64) -> Checkpoint {
    let config = serde_json::json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu",
        "hidden_size": HIDDEN, "intermediate_size": MLP, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "vocab_size": VOCAB, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "tie_word_embeddings": true, "torch_dtype": "float32",
        "eos_token_id": 0,
    });
    let mut random = Random(seed);
    let mut tensors: Vec<(String, Vec<usize>, Vec<f32>)> = Vec::new();
    let mut add = |name: String, shape: &[usize], scale: f32, around: f32| {
        let n = shape.iter().product();
        let values = (0..n).map(|_| around + scale * random.next()).collect();
        tensors.push((name, shape.to_vec(), values));
    };
    add(
        "model.embed_tokens.weight".to_owned(),
        &[VOCAB as usize, HIDDEN],
        1.0,
        0.0,
    );
    for layer in 0..LAYERS {
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        add(name("input_layernorm"), &[HIDDEN], 0.5, 1.0);
        add(name("post_attention_layernorm"), &[HIDDEN], 0.5, 1.0);
        add(
            name("self_attn.q_proj"),
            &[HEADS * HEAD_DIM, HIDDEN],
            0.4,
            0.0,
        );
        add(
            name("self_attn.k_proj"),
            &[KV_HEADS * HEAD_DIM, HIDDEN],
            0.4,
            0.0,
        );
        add(
            name("self_attn.v_proj"),
            &[KV_HEADS * HEAD_DIM, HIDDEN],
            0.4,
            0.0,
        );
        add(
            name("self_attn.o_proj"),
            &[HIDDEN, HEADS * HEAD_DIM],
            0.4,
            0.0,
        );
        add(name("self_attn.q_norm"), &[HEAD_DIM], 0.5, 2.0);
        add(name("self_attn.k_norm"), &[HEAD_DIM], 0.5, 2.0);
        add(name("mlp.gate_proj"), &[MLP, HIDDEN], 0.4, 0.0);
        add(name("mlp.up_proj"), &[MLP, HIDDEN], 0.4, 0.0);
        add(name("mlp.down_proj"), &[HIDDEN, MLP], 0.4, 0.0);
    }
    add("model.norm.weight".to_owned(), &[HIDDEN], 0.5, 1.0);
    Checkpoint::from_bytes(config.to_string().as_bytes(), safetensors(&tensors))
        .expect("the tiny checkpoint is well formed")
}

/// The container: header length, JSON header, little-endian data.
fn safetensors(tensors: &[(String, Vec<usize>, Vec<f32>)]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, shape, values) in tensors {
        let start = data.len();
        data.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        let entry = serde_json::json!(
            { "dtype": "F32", "shape": shape, "data_offsets": [start, data.len()] }
        );
        header.insert(name.clone(), entry);
    }
    let mut header = serde_json::Value::Object(header).to_string();
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    file
}

/// Uniform in -1..1, the same on every machine (Steele et al., `SplitMix`, OOPSLA 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        #[expect(clippy::cast_precision_loss, reason = "23 bits fit an f32")]
        let unit = (z >> 41) as f32 / (1u64 << 23) as f32;
        unit.mul_add(2.0, -1.0)
    }
}
