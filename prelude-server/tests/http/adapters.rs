//! LoRA adapters, each against its base with weights that were merged by hand and saved in f32: answers
//! must not differ by a bit.

use std::{collections::BTreeMap, fs, path::Path};

use prelude_server::{ApiKeys, assets::Assets};
use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value, json};

use crate::{
    layouts::{Layout, Tensors, golden},
    support::{TestServer, config},
};

/// The two matrices of each adapted module, `[RANK, inputs]` and `[outputs, RANK]`.
type Pairs = BTreeMap<&'static str, [Vec<f32>; 2]>;

const RANK: usize = 3;
/// `lora_alpha` / `r`.
const SCALE: f32 = 2.0;

/// Returns matrices for modules `[outputs, inputs]`.
fn pairs(modules: &[(&'static str, [usize; 2])]) -> Pairs {
    let mut state = 7_u32;
    let mut numbers = |len: usize| {
        let next = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 25) as f32 - 0.25
        };
        (0..len).map(next).collect::<Vec<f32>>()
    };
    let pair = |(name, [outputs, inputs]): &(&'static str, [usize; 2])| {
        (*name, [numbers(RANK * inputs), numbers(outputs * RANK)])
    };
    modules.iter().map(pair).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Makes a folder that of an adapter of a golden model.
fn adapt(layout: &Layout, base: &str, (pairs, saved): (&Pairs, &Tensors), fields: &Value) {
    let mut config = json!({
        "peft_type": "LORA", "r": RANK, "lora_alpha": SCALE * RANK as f32,
        "base_model_name_or_path": golden(base),
    });
    extend(&mut config, fields);
    fs::remove_dir_all(&layout.0).unwrap();
    layout.write("adapter_config.json", &config.to_string());
    let mut all = Tensors::new();
    for (name, [a, b]) in pairs {
        let of = |part: char| format!("base_model.model.{name}.lora_{part}.weight");
        all.insert(of('A'), (Dtype::F32, vec![RANK, a.len() / RANK], bytes(a)));
        all.insert(of('B'), (Dtype::F32, vec![b.len() / RANK, RANK], bytes(b)));
    }
    for (name, tensor) in saved {
        all.insert(format!("base_model.model.{name}"), tensor.clone());
    }
    let views = all.iter().map(|(name, (dtype, shape, data))| {
        (name, TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    let file = safetensors::serialize(views, None).unwrap();
    fs::write(layout.0.join("adapter_model.safetensors"), file).unwrap();
}

fn extend(object: &mut Value, more: &Value) {
    let more = more.as_object().unwrap().clone();
    object.as_object_mut().unwrap().extend(more);
}

/// Merges an adapter into all tensors of its base: `W + s·B·A` in f32.
fn merge(all: &mut Tensors, pairs: &Pairs, saved: &Tensors) {
    all.extend(saved.clone());
    for (name, [a, b]) in pairs {
        let (dtype, shape, data) = all.get_mut(&format!("{name}.weight")).unwrap();
        assert_eq!(*dtype, Dtype::BF16);
        let halves = data.as_chunks().0.iter();
        let widened = halves.map(|x| f32::from_bits(u32::from(u16::from_le_bytes(*x)) << 16));
        let mut values: Vec<f32> = widened.collect();
        for (at, x) in values.iter_mut().enumerate() {
            let (row, column) = (at / shape[1], at % shape[1]);
            let mut sum = 0.0;
            for k in 0..RANK {
                sum += b[row * RANK + k] * a[k * shape[1] + column];
            }
            *x += SCALE * sum;
        }
        (*dtype, *data) = (Dtype::F32, bytes(&values));
    }
}

/// Serves an adapter, its base with merged weights and these fields of `config.json`, and the base:
/// the first two must answer alike, and otherwise than the last.
fn check(
    base: &str,
    parts: (&Pairs, &Tensors),
    (fields, of_merged): (Value, Value),
    (path, body, field): (&str, Value, &str),
) {
    let layouts = [0, 1, 2].map(|_| Layout::of(base));
    let [merged, adapter, _] = &layouts;
    adapt(adapter, base, parts, &fields);
    merged.tensors(|all| merge(all, parts.0, parts.1));
    let text = fs::read(merged.0.join("config.json")).unwrap();
    let mut document: Value = serde_json::from_slice(&text).unwrap();
    extend(&mut document, &of_merged);
    merged.write("config.json", &document.to_string());
    let names = ["merged", "adapter", "base"];
    let loaded = [0, 1, 2].map(|i| layouts[i].load(names[i]).unwrap());
    let [_, with, without] = [0, 1, 2].map(|i| loaded[i].model.fingerprint.clone());
    assert_ne!(with, without, "{base}");
    // Another factor makes another model.
    let mut changed = fields;
    changed["lora_alpha"] = json!(1);
    adapt(adapter, base, parts, &changed);
    let other = adapter.load("other").unwrap();
    assert_ne!(with, other.model.fingerprint, "{base}");
    other.engine.stop();
    let server = TestServer::with(config(), ApiKeys::default(), loaded.into());
    let [merged, adapter, plain] = names.map(|model| {
        let mut body = body.clone();
        body["model"] = json!(model);
        let answer = server.post(path, &body.to_string());
        match answer.status {
            200 => Ok(answer.json()[field].clone()),
            _ => Err(answer.body),
        }
    });
    assert_eq!(adapter.as_ref().unwrap(), &merged.unwrap(), "{base}");
    assert_ne!(adapter, plain, "{base}");
}

#[test]
fn an_adapter_gives_the_bits_of_merged_weights() {
    let none = Tensors::new();
    // A part of a stack of three alone, and parts of both products of the MLP.
    let lm = pairs(&[
        ("model.layers.0.self_attn.q_proj", [192, 192]),
        ("model.layers.0.self_attn.v_proj", [64, 192]),
        ("model.layers.2.mlp.up_proj", [512, 192]),
        ("model.layers.2.mlp.down_proj", [192, 512]),
    ]);
    let body = json!({"prompt": "Where is my", "max_tokens": 4, "temperature": 0, "logprobs": 2});
    let asked = ("/v1/completions", body, "choices");
    let fields = json!({"task_type": "CAUSAL_LM"});
    check("demo-lm", (&lm, &none), (fields, json!({})), asked);
    let bert = pairs(&[
        ("bert.encoder.layer.0.attention.self.query", [48, 48]),
        ("bert.encoder.layer.1.intermediate.dense", [104, 48]),
        ("bert.embeddings.word_embeddings", [310, 48]),
    ]);
    let texts = json!({"input": ["my card", "the card has not arrived"]});
    let asked = ("/classify", texts, "data");
    let same = (json!({}), json!({}));
    check("rand-bert-cls3", (&bert, &none), same, asked.clone());
    // A head of its own on a language model, in place of the vocabulary's.
    let numbers = (0..3 * 192).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0);
    let head = bytes(&numbers.collect::<Vec<_>>());
    let saved = Tensors::from([("score.weight".to_owned(), (Dtype::F32, vec![3, 192], head))]);
    let class = json!({"architectures": ["Qwen3ForSequenceClassification"], "num_labels": 3});
    let fields = json!({"task_type": "SEQ_CLS", "modules_to_save": ["classifier", "score"]});
    check("demo-lm", (&lm, &saved), (fields, class), asked);
}

/// As Kev is published beside a plain Qwen3.
#[test]
fn an_adapter_beside_a_head_is_a_decision_model() {
    let kev = "decision/kev-qwen3";
    let [merged, adapter, base] = [0, 1, 2].map(|_| Layout::of(kev));
    let (none, pairs) = (
        Tensors::new(),
        pairs(&[
            ("layers.0.self_attn.q_proj", [128, 64]),
            ("layers.3.mlp.down_proj", [64, 160]),
        ]),
    );
    merged.tensors(|all| merge(all, &pairs, &none));
    fs::remove_file(base.0.join("head.pt")).unwrap();
    let beside = json!({"base_model_name_or_path": base.0});
    adapt(&adapter, kev, (&pairs, &none), &beside);
    fs::copy(merged.0.join("head.pt"), adapter.0.join("head.pt")).unwrap();
    let whole = Layout::of(kev);
    let models = [
        ("merged", &merged),
        ("adapter", &adapter),
        ("whole", &whole),
    ];
    let loaded = models.map(|(name, layout)| layout.load(name).unwrap());
    let server = TestServer::with(config(), ApiKeys::default(), loaded.into());
    let [merged, adapter, whole] = models.map(|(model, _)| {
        let body = json!({
            "model": model,
            "state": "My card has not arrived",
            "questions": {
                "lost": {"type": "noul", "instructions": "Is a card missing?"},
                "topic": {"type": "choice", "criteria": {"card": "a card", "money": null}},
            },
        });
        let answer = server.post("/v1/systemone", &body.to_string());
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()["answers"].clone()
    });
    assert_eq!(adapter, merged);
    assert_ne!(adapter, whole);
}

#[test]
fn files_of_the_tokenizer_are_the_adapters_if_it_has_them() {
    let base = "rand-bert-cls3";
    let layout = Layout::of(base);
    let value = pairs(&[("bert.encoder.layer.0.attention.self.value", [48, 48])]);
    let elsewhere = json!({"base_model_name_or_path": "none/such"});
    adapt(&layout, base, (&value, &Tensors::new()), &elsewhere);
    let open = || Assets::open_adapter(&layout.0, &golden(base), None).map_err(|e| e.to_string());
    let own = layout.0.file_name().unwrap().to_str().unwrap().to_owned();
    assert_eq!(open().unwrap().name, own);
    assert!(Assets::open(&layout.0).is_err());
    let text = fs::read_to_string(golden(base).join("tokenizer.json")).unwrap();
    layout.write("tokenizer.json", &text);
    layout.write("tokenizer_config.json", r#"{"model_max_length": 9}"#);
    assert_eq!(open().unwrap().max_len, Some(9));
    layout.write("tokenizer.json", "{}");
    assert!(open().is_err());
    // No adapter, no base, and a model beside the adapter.
    let check = |adapter: &Path, base: &Path, part: &str| {
        let found = Assets::open_adapter(adapter, base, None);
        let error = found.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    check(&golden(base), &golden(base), "is no LoRA adapter");
    check(&layout.0, &layout.0.join("none"), "is not a folder");
    check(&layout.0, &layout.0, "is a LoRA adapter");
    layout.write("model.safetensors", "");
    check(&layout.0, &golden(base), "beside a whole model");
}
