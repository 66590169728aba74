//! GGUF files that are damaged, or hold what is not read. Whole models are compared with
//! transformers by the golden data `rand-gguf-llama` and `rand-gguf-qwen2`.

use std::borrow::Cow;

use proptest::prelude::*;

use super::{header::Value, *};
use crate::{DType, ModelKind};

/// A setting as it is written: name, number of the type, bytes of the value.
type Setting = (&'static str, u32, Vec<u8>);

fn text(value: &str) -> Vec<u8> {
    [&(value.len() as u64).to_le_bytes(), value.as_bytes()].concat()
}

fn count(name: &'static str, value: u32) -> Setting {
    (name, 4, value.to_le_bytes().to_vec())
}

/// A tensor as it is written: name, shape (outermost first), number of the type, bytes.
type Stored = (String, Vec<u64>, u32, Vec<u8>);

fn ones(name: &str, shape: &[u64]) -> Stored {
    let count = shape.iter().product::<u64>() as usize;
    let bytes = 1f32.to_le_bytes().repeat(count);
    (name.to_owned(), shape.to_vec(), 0, bytes)
}

/// A file of version 3.
fn file(settings: &[Setting], tensors: &[Stored]) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((settings.len() as u64).to_le_bytes());
    for (name, number, value) in settings {
        bytes.extend(text(name));
        bytes.extend(number.to_le_bytes());
        bytes.extend(value);
    }
    let mut data = Vec::new();
    for (name, shape, number, values) in tensors {
        bytes.extend(text(name));
        bytes.extend((shape.len() as u32).to_le_bytes());
        for size in shape.iter().rev() {
            bytes.extend(size.to_le_bytes());
        }
        bytes.extend(number.to_le_bytes());
        bytes.extend((data.len() as u64).to_le_bytes());
        data.extend(values);
        data.resize(data.len().next_multiple_of(32), 0);
    }
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.extend(data);
    bytes
}

fn settings() -> Vec<Setting> {
    vec![
        ("general.architecture", 8, text("qwen2")),
        count("qwen2.context_length", 16),
        count("qwen2.embedding_length", 4),
        count("qwen2.block_count", 1),
        count("qwen2.feed_forward_length", 6),
        count("qwen2.attention.head_count", 2),
        count("qwen2.attention.head_count_kv", 1),
        (
            "qwen2.attention.layer_norm_rms_epsilon",
            6,
            1e-6f32.to_le_bytes().to_vec(),
        ),
        ("tokenizer.chat_template", 8, text("{{ 1 }}")),
    ]
}

fn tensors() -> Vec<Stored> {
    let layer = |name: &str| format!("blk.0.{name}");
    vec![
        ones("token_embd.weight", &[5, 4]),
        ones("output_norm.weight", &[4]),
        ones(&layer("attn_norm.weight"), &[4]),
        ones(&layer("ffn_norm.weight"), &[4]),
        ones(&layer("attn_q.weight"), &[4, 4]),
        ones(&layer("attn_q.bias"), &[4]),
        ones(&layer("attn_k.weight"), &[2, 4]),
        ones(&layer("attn_k.bias"), &[2]),
        ones(&layer("attn_v.weight"), &[2, 4]),
        ones(&layer("attn_v.bias"), &[2]),
        ones(&layer("attn_output.weight"), &[4, 4]),
        ones(&layer("ffn_gate.weight"), &[6, 4]),
        ones(&layer("ffn_up.weight"), &[6, 4]),
        ones(&layer("ffn_down.weight"), &[4, 6]),
    ]
}

fn open(bytes: Vec<u8>) -> Result<Checkpoint, Error> {
    Checkpoint::of_gguf("m.gguf".to_owned(), Bytes::Memory(Cow::Owned(bytes)))
}

#[test]
fn a_file_is_a_checkpoint() {
    let checkpoint = open(file(&settings(), &tensors())).unwrap();
    let config = checkpoint.config();
    assert_eq!(config.architecture, "Qwen2ForCausalLM");
    assert_eq!((config.vocab_size, config.head_dim), (5, 2));
    assert!(config.tie_word_embeddings);
    assert_eq!(*checkpoint.kind(), ModelKind::CausalLm);
    assert_eq!(checkpoint.chat_template(), Some("{{ 1 }}"));
    let up = checkpoint
        .read("model.layers.0.mlp.up_proj.weight")
        .unwrap();
    assert_eq!((up.dtype, &up.shape[..]), (DType::F32, &[6, 4][..]));
    assert_eq!(up.bytes, 1f32.to_le_bytes().repeat(24));
}

/// Checks that a file is refused with these words.
fn refused(settings: &[Setting], tensors: &[Stored], part: &str) {
    let error = open(file(settings, tensors)).unwrap_err().to_string();
    assert!(error.contains(part) && error.contains("m.gguf"), "{error}");
}

#[test]
fn unsupported_settings_are_named() {
    let with = |own: Setting| {
        let mut all = settings();
        all.retain(|(name, ..)| *name != own.0);
        all.push(own);
        all
    };
    let check = |own: Setting, part: &str| refused(&with(own), &tensors(), part);
    check(("general.architecture", 8, text("mamba")), "\"mamba\"");
    check(count("qwen2.attention.sliding_window", 3), "sliding_window");
    check(count("qwen2.expert_count", 8), "mixtures");
    check(count("split.count", 2), "several files");
    check(count("qwen2.attention.value_length", 3), "value_length");
    check(("qwen2.block_count", 8, text("x")), "must be a count");
    check(("qwen2.rope.scaling.type", 8, text("longrope")), "longrope");
    let mut list = 4u32.to_le_bytes().to_vec();
    list.extend(1u64.to_le_bytes());
    list.extend(2u32.to_le_bytes());
    check(("qwen2.attention.head_count", 9, list), "must be a count");
    let mut tokens = 8u32.to_le_bytes().to_vec();
    tokens.extend(1u64.to_le_bytes());
    tokens.extend(text("a"));
    check(("tokenizer.ggml.tokens", 9, tokens), "1 tokens and 5");
    check(count("general.alignment", 3), "alignment is 3");
    let mut twice = settings();
    twice.push(count("qwen2.block_count", 1));
    refused(&twice, &tensors(), "appears twice");
    let mut none = settings();
    none.remove(0);
    refused(&none, &tensors(), "general.architecture");
}

#[test]
fn tensors_that_are_not_read_are_named() {
    let with = |own: Stored| {
        let mut all = tensors();
        all.push(own);
        all
    };
    let check = |own: Stored, part: &str| refused(&settings(), &with(own), part);
    let of_type = |number, size| ("x".to_owned(), vec![1, 32], number, vec![0; size]);
    check(of_type(12, 18), "Q4_K");
    check(of_type(99, 18), "type 99");
    check(ones("blk.0.attn_sinks.weight", &[4]), "attn_sinks");
    check(ones("blk.x.attn_q.weight", &[4]), "blk.x");
    check(ones("token_embd.weight", &[5, 4]), "appears twice");
    let mut odd = of_type(8, 34);
    odd.1 = vec![2, 16];
    check(odd, "whole number of blocks");
    let divisor = 2f32.to_le_bytes().to_vec();
    let divisor = ("rope_freqs.weight".to_owned(), vec![1], 0, divisor);
    check(divisor, "are not those of Llama 3");
}

#[test]
fn other_containers_are_named() {
    let check = |bytes: Vec<u8>, part: &str| {
        let error = open(bytes).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    check(Vec::new(), "truncated");
    check(b"GGML1234".to_vec(), "does not begin with");
    let mut old = file(&settings(), &tensors());
    old[4] = 1;
    check(old, "version is 1");
    let whole = file(&settings(), &tensors());
    check(whole[..whole.len() - 40].to_vec(), "truncated");
}

#[test]
fn blocks_are_widened() {
    // Two blocks with scales of a half and of 2.
    let block = |scale: f32, first: i8| {
        let mut bytes = half::f16::from_f32(scale).to_le_bytes().to_vec();
        bytes.extend((0..32).map(|i| (first + i).cast_unsigned()));
        bytes
    };
    let mut all = tensors();
    all[0] = (
        "token_embd.weight".to_owned(),
        vec![2, 32],
        8,
        [block(0.5, -16), block(2.0, 90)].concat(),
    );
    let checkpoint = open(file(&settings(), &all)).unwrap();
    let found = checkpoint.read("model.embed_tokens.weight").unwrap();
    assert_eq!((found.dtype, &found.shape[..]), (DType::Bf16, &[2, 32][..]));
    let mut values = Vec::new();
    found.view().read_f32(0..64, &mut values);
    let first = (0..32).map(|i| (i - 16) as f32 * 0.5);
    let second = (0..32).map(|i| (i + 90) as f32 * 2.0);
    assert_eq!(values, first.chain(second).collect::<Vec<_>>());
}

#[test]
fn lists_are_counted() {
    let mut list = 8u32.to_le_bytes().to_vec();
    list.extend(2u64.to_le_bytes());
    list.extend([text("a"), text("bc")].concat());
    let header = Header::parse(&file(&[("x", 9, list)], &[])).unwrap();
    assert_eq!(header.settings["x"], Value::List(2));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever is done to a valid file: an answer, and if it is yes, tensors in the file.
    #[test]
    fn damaged_files_never_panic(
        edits in prop::collection::vec((0usize..1600, any::<u8>()), 0..6),
        cut in prop::option::of(0usize..2400),
    ) {
        let mut bytes = file(&settings(), &tensors());
        for (at, value) in edits {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut);
        }
        if let Ok(header) = Header::parse(&bytes) {
            for tensor in &header.tensors {
                prop_assert!(bytes.get(tensor.bytes.clone()).is_some());
            }
        }
        if let Ok(checkpoint) = open(bytes) {
            for name in checkpoint.names() {
                let _ = checkpoint.read(name);
            }
        }
    }
}
