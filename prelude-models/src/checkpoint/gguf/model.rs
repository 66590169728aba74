//! The model that a GGUF file holds: its configuration as `config.json` would have it, and its
//! tensors under the names that Prelude's definitions read.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use super::{
    super::stored::{Entry, Form, Quantised, Stored},
    header::{Header, Info, Type, Value},
};
use crate::{DType, Llama3, TensorView};

/// The architectures that are read, with transformers' names of the class and of the model type.
const ARCHITECTURES: [(&str, &str, &str); 3] = [
    ("llama", "LlamaForCausalLM", "llama"),
    ("qwen2", "Qwen2ForCausalLM", "qwen2"),
    ("qwen3", "Qwen3ForCausalLM", "qwen3"),
];

/// Settings of an architecture that change no number, or are compared with others by [`config`].
const KNOWN: [&str; 19] = [
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.freq_base",
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "vocab_size",
    "expert_count",
    "expert_used_count",
    "tensor_data_layout",
];

/// Divisors of rotary frequencies, which stand for Llama 3's scaling.
const ROPE_FACTORS: &str = "rope_freqs.weight";

/// Returns the file's architecture.
fn architecture(header: &Header) -> Result<(&'static str, &'static str, &'static str), String> {
    let name = header.text("general.architecture")?;
    let name = name.ok_or_else(|| "setting \"general.architecture\" is missing".to_owned())?;
    let found = ARCHITECTURES.into_iter().find(|(own, ..)| *own == name);
    found.ok_or_else(|| {
        let known = ARCHITECTURES.map(|(own, ..)| own).join(", ");
        format!("architecture {name:?} is not read from GGUF files; known: {known}")
    })
}

/// Returns the model's shape as a `config.json`.
///
/// # Errors
/// A description of a setting that is missing, malformed or not read.
pub(super) fn config(header: &Header, bytes: &[u8]) -> Result<Json, String> {
    let (name, class, model_type) = architecture(header)?;
    check_known(header, name)?;
    let at = |field: &str| format!("{name}.{field}");
    let count = |field: &str| {
        let found = header.unsigned(&at(field))?;
        found.ok_or_else(|| format!("setting {:?} is missing", at(field)))
    };
    let (hidden, heads) = (count("embedding_length")?, count("attention.head_count")?);
    let kv_heads = header.unsigned(&at("attention.head_count_kv"))?;
    let head_dim = match header.unsigned(&at("attention.key_length"))? {
        Some(len) => len,
        None => hidden.checked_div(heads).unwrap_or(0),
    };
    for field in ["attention.value_length", "rope.dimension_count"] {
        if header
            .unsigned(&at(field))?
            .is_some_and(|len| len != head_dim)
        {
            return Err(format!("setting {:?} is not the size of a head", at(field)));
        }
    }
    let embedding = header
        .tensors
        .iter()
        .find(|of| of.name == "token_embd.weight");
    let embedding = embedding.ok_or_else(|| "it has no tensor \"token_embd.weight\"".to_owned())?;
    let vocab = embedding.shape.first().copied().unwrap_or(0);
    if let Some(Value::List(tokens)) = header.settings.get("tokenizer.ggml.tokens")
        && *tokens != vocab as u64
    {
        return Err(format!("it has {tokens} tokens and {vocab} embeddings"));
    }
    let is_tied = !header.tensors.iter().any(|of| of.name == "output.weight");
    let mut config = json!({
        "architectures": [class],
        "model_type": model_type,
        "hidden_size": hidden,
        "intermediate_size": count("feed_forward_length")?,
        "num_hidden_layers": count("block_count")?,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads.unwrap_or(heads),
        "head_dim": head_dim,
        "vocab_size": vocab,
        "max_position_embeddings": count("context_length")?,
        "rms_norm_eps": header.float(&at("attention.layer_norm_rms_epsilon"))?,
        "rope_theta": header.float(&at("rope.freq_base"))?.unwrap_or(10_000.0),
        "rope_scaling": rope_scaling(header, bytes, name)?,
        "tie_word_embeddings": is_tied,
        "dtype": saved_in(header),
    });
    if let Some(id) = header.unsigned("tokenizer.ggml.eos_token_id")? {
        config["eos_token_id"] = json!(id);
    }
    Ok(config)
}

/// Returns the element type of the weights as `config.json` would name it: that of a type of less than
/// 32 bits, if one is there, since norms are in F32 in all files.
fn saved_in(header: &Header) -> &'static str {
    let has = |of: fn(&Type) -> bool| header.tensors.iter().any(|info| of(&info.dtype));
    if has(|of| matches!(of, Type::F16 | Type::Q8_0)) {
        "float16"
    } else if has(|of| matches!(of, Type::Bf16)) {
        "bfloat16"
    } else {
        "float32"
    }
}

/// Refuses settings of the architecture that are not read, mixtures, and parts of split files.
fn check_known(header: &Header, name: &str) -> Result<(), String> {
    let own = |setting: &String| {
        let field = setting.strip_prefix(name)?.strip_prefix('.')?;
        (!KNOWN.contains(&field)).then(|| setting.clone())
    };
    if let Some(setting) = header.settings.keys().find_map(own) {
        return Err(format!("setting {setting:?} is not read"));
    }
    if header.unsigned(&format!("{name}.expert_count"))? > Some(0) {
        return Err("mixtures of experts are not read from GGUF files".to_owned());
    }
    if header.unsigned("split.count")? > Some(1) {
        return Err("it is a part of a model in several files; join them first".to_owned());
    }
    Ok(())
}

/// Returns the scaling of rotary embeddings as `config.json` would have it.
fn rope_scaling(header: &Header, bytes: &[u8], name: &str) -> Result<Json, String> {
    let at = |field: &str| format!("{name}.rope.scaling.{field}");
    let factors = header.tensors.iter().find(|of| of.name == ROPE_FACTORS);
    let kind = header.text(&at("type"))?.filter(|kind| *kind != "none");
    match (kind, factors) {
        (None, None) => Ok(Json::Null),
        (None, Some(factors)) => llama3_scaling(header, bytes, name, factors),
        (Some(_), Some(_)) => Err(format!("tensor {ROPE_FACTORS:?} beside {:?}", at("type"))),
        (Some(kind), None) => {
            let mut scaling = json!({"rope_type": kind});
            if let Some(factor) = header.float(&at("factor"))? {
                scaling["factor"] = json!(factor);
            }
            if let Some(original) = header.unsigned(&at("original_context_length"))? {
                scaling["original_max_position_embeddings"] = json!(original);
            }
            Ok(scaling)
        }
    }
}

/// Returns the scaling that made the divisors of rotary frequencies. The file has nothing but the
/// divisors: the parameters are those of published models, and the divisors must be theirs.
fn llama3_scaling(header: &Header, bytes: &[u8], name: &str, info: &Info) -> Result<Json, String> {
    if info.dtype != Type::F32 {
        return Err(format!("tensor {ROPE_FACTORS:?} has type {:?}", info.dtype));
    }
    let view = TensorView {
        dtype: DType::F32,
        shape: info.shape.clone(),
        bytes: &bytes[info.bytes.clone()],
    };
    let mut found = Vec::with_capacity(view.len());
    view.read_f32(0..view.len(), &mut found);
    let theta = header.float(&format!("{name}.rope.freq_base"))?;
    let theta = theta.unwrap_or(10_000.0);
    let factor = f64::from(found.iter().copied().fold(1.0, f32::max));
    // What published models share.
    let llama3 = Llama3 {
        factor,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192,
    };
    let is_of = |(i, &divisor): (usize, &f32)| {
        let frequency = theta.powf(-(i as f64) / found.len() as f64) as f32;
        let expected = frequency / llama3.scaled(frequency);
        (divisor / expected - 1.0).abs() < 1e-4
    };
    if !found.iter().enumerate().all(is_of) {
        return Err(format!(
            "the divisors {ROPE_FACTORS:?} are not those of Llama 3"
        ));
    }
    Ok(json!({
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": llama3.low_freq_factor,
        "high_freq_factor": llama3.high_freq_factor,
        "original_max_position_embeddings": llama3.original_max_position_embeddings,
    }))
}

/// Returns the tensors under transformers' names.
///
/// # Errors
/// The name of a tensor that no definition reads.
pub(super) fn entries(header: &Header) -> Result<Vec<Entry>, String> {
    let (name, ..) = architecture(header)?;
    let heads = |field| header.unsigned(&format!("{name}.attention.{field}"));
    let query_heads = heads("head_count")?.unwrap_or(1);
    let kv_heads = heads("head_count_kv")?.unwrap_or(query_heads);
    let of_layers: BTreeMap<&str, &str> = LAYER_TENSORS.into_iter().collect();
    let of_model = |of: &&Info| of.name != ROPE_FACTORS;
    let entry = |of: &Info| {
        let unknown = || format!("tensor {:?} has no place in {name:?}", of.name);
        let renamed = renamed(&of.name, &of_layers).ok_or_else(unknown)?;
        // The file has the rows of each head in the order of llama.cpp's rotation.
        let is_paired = |part: &str| name == "llama" && of.name.ends_with(part);
        let heads = if is_paired(".attn_q.weight") {
            Some(query_heads)
        } else if is_paired(".attn_k.weight") {
            Some(kv_heads)
        } else {
            None
        };
        let rows = of.shape.first().copied().unwrap_or(0);
        let head_rows = heads.map(|heads| {
            let heads = usize::try_from(heads).ok().filter(|&heads| heads > 0)?;
            let is_whole = rows.is_multiple_of(heads.checked_mul(2)?);
            is_whole.then_some(rows / heads)
        });
        let head_rows = match head_rows {
            None => None,
            Some(Some(rows)) => Some(rows),
            Some(None) => return Err(format!("tensor {:?} has no whole heads", of.name)),
        };
        Ok(Entry {
            name: renamed,
            dtype: match of.dtype {
                Type::F32 => Stored::Float(DType::F32),
                Type::F16 => Stored::Float(DType::F16),
                Type::Bf16 => Stored::Float(DType::Bf16),
                Type::Q8_0 => Stored::Quantised(Quantised {
                    form: Form::Q8_0,
                    dtype: DType::Bf16,
                }),
            },
            shape: of.shape.clone(),
            bytes: of.bytes.clone(),
            paired_rows: head_rows,
        })
    };
    header.tensors.iter().filter(of_model).map(entry).collect()
}

/// Names of a layer's tensors in GGUF and in transformers.
const LAYER_TENSORS: [(&str, &str); 14] = [
    ("attn_norm.weight", "input_layernorm.weight"),
    ("ffn_norm.weight", "post_attention_layernorm.weight"),
    ("attn_q.weight", "self_attn.q_proj.weight"),
    ("attn_k.weight", "self_attn.k_proj.weight"),
    ("attn_v.weight", "self_attn.v_proj.weight"),
    ("attn_q.bias", "self_attn.q_proj.bias"),
    ("attn_k.bias", "self_attn.k_proj.bias"),
    ("attn_v.bias", "self_attn.v_proj.bias"),
    ("attn_output.weight", "self_attn.o_proj.weight"),
    ("attn_q_norm.weight", "self_attn.q_norm.weight"),
    ("attn_k_norm.weight", "self_attn.k_norm.weight"),
    ("ffn_gate.weight", "mlp.gate_proj.weight"),
    ("ffn_up.weight", "mlp.up_proj.weight"),
    ("ffn_down.weight", "mlp.down_proj.weight"),
];

/// Returns transformers' name of a tensor.
fn renamed(name: &str, of_layers: &BTreeMap<&str, &str>) -> Option<String> {
    match name {
        "token_embd.weight" => return Some("model.embed_tokens.weight".to_owned()),
        "output_norm.weight" => return Some("model.norm.weight".to_owned()),
        "output.weight" => return Some("lm_head.weight".to_owned()),
        _ => {}
    }
    let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
    let is_number = !layer.is_empty() && layer.bytes().all(|b| b.is_ascii_digit());
    let part = of_layers.get(part).filter(|_| is_number)?;
    Some(format!("model.layers.{layer}.{part}"))
}
