//! `config.json` in its spellings, whole, wrong and damaged.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::testing::golden_models;

fn minimal() -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"], "hidden_size": 96, "intermediate_size": 200,
        "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2,
        "head_dim": 24, "vocab_size": 4096, "max_position_embeddings": 4096,
    })
}

fn parse(change: Value) -> Result<ModelConfig, String> {
    let mut config = minimal();
    for (key, value) in change.as_object().unwrap() {
        config[key] = value.clone();
    }
    ModelConfig::from_json("config.json", config.to_string().as_bytes()).map_err(|e| e.to_string())
}

fn refuses(change: Value, part: &str) {
    let error = parse(change.clone()).expect_err(&change.to_string());
    assert!(error.contains(part), "{error}");
}

#[test]
fn defaults_and_derived_values() {
    let config = parse(json!({})).unwrap();
    assert_eq!(config.norm_eps, 1e-6);
    assert!(!config.tie_word_embeddings && config.biases == Biases::default());
    assert!(config.eos_token_ids.is_empty());
    assert_eq!(config.labels, ["LABEL_0", "LABEL_1"]);
    assert_eq!(parse(json!({"head_dim": null})).unwrap().head_dim, 12);
    let shape = config.attn_shape();
    assert_eq!((shape.qkv_width(), shape.out_width()), (12 * 24, 8 * 24));
    assert_eq!(shape.scale, 24f32.powf(-0.5));
}

/// Attention that looks ahead is served of embedders, whose kind is not known here.
#[test]
fn two_fields_say_that_attention_looks_ahead() {
    let read = |change: Value| parse(change).unwrap().attention;
    assert_eq!(read(json!({})), Attention::Causal);
    assert_eq!(
        read(json!({"is_causal": true, "use_bidirectional_attention": false})),
        Attention::Causal
    );
    assert_eq!(read(json!({"is_causal": false})), Attention::Full);
    assert_eq!(
        read(json!({"use_bidirectional_attention": true})),
        Attention::Full
    );
    refuses(json!({"is_causal": 0}), "`is_causal` must be true or false");
}

#[test]
fn lists_and_labels() {
    let eos = |v: Value| parse(json!({ "eos_token_id": v })).unwrap().eos_token_ids;
    assert_eq!(eos(json!(7)), [7]);
    assert_eq!(eos(json!([7, 9])), [7, 9]);
    let map: serde_json::Map<String, Value> = (0..12)
        .rev()
        .map(|i| (i.to_string(), json!(format!("class {i}"))))
        .collect();
    let labels = parse(json!({ "id2label": map })).unwrap().labels;
    assert_eq!((&*labels[2], &*labels[11]), ("class 2", "class 11"));
}

#[test]
fn bad_values_are_named() {
    refuses(
        json!({"hidden_size": 0}),
        "`hidden_size` must be an integer in 1..=",
    );
    refuses(json!({"hidden_size": null}), "`hidden_size` is missing");
    refuses(json!({"hidden_size": "96"}), "not \"96\"");
    refuses(json!({"hidden_size": 1u64 << 60}), "`hidden_size`");
    refuses(json!({"num_hidden_layers": -1}), "`num_hidden_layers`");
    refuses(json!({"num_attention_heads": 0}), "`num_attention_heads`");
    refuses(
        json!({"num_key_value_heads": 3}),
        "must divide the 8 query heads",
    );
    refuses(json!({"head_dim": 25}), "must be even");
    refuses(json!({"head_dim": null, "hidden_size": 97}), "is missing");
    refuses(json!({"vocab_size": 1u64 << 40}), "`vocab_size`");
    refuses(
        json!({"max_position_embeddings": 1.5}),
        "`max_position_embeddings`",
    );
    refuses(json!({"rms_norm_eps": 0}), "`rms_norm_eps`");
    refuses(json!({"eos_token_id": 4096}), "outside the vocabulary");
    refuses(
        json!({"eos_token_id": [1, "x"]}),
        "a token id or a list of them",
    );
    refuses(json!({"architectures": []}), "`architectures` is missing");
    refuses(
        json!({"id2label": {"0": "a", "2": "b"}}),
        "\"2\" does not fit",
    );
    refuses(json!({"id2label": {"0": "a", "00": "b"}}), "does not fit");
    refuses(json!({"id2label": {}}), "`id2label`");
    refuses(
        json!({"hidden_act": "gelu"}),
        "`hidden_act` of \"gelu\" (only",
    );
    refuses(
        json!({"use_sliding_window": true}),
        "`use_sliding_window` of true (only false",
    );
    refuses(json!({"layer_types": ["sliding_attention"]}), "layer type");
    refuses(
        json!({"quantization_config": {"quant_method": "awq"}}),
        "`quantization_config`",
    );
    refuses(json!({"torch_dtype": "float8"}), "float8");
}

/// Nothing is padded, so whatever tools say of padding is fine.
#[test]
fn any_padding_token_is_fine() {
    for padding in [json!(-1), json!(4096), json!(null)] {
        parse(json!({ "pad_token_id": padding })).unwrap();
    }
}

/// Without a class the type says the body, as transformers' AutoModel has it.
#[test]
fn a_missing_class_is_the_body_of_the_type() {
    let body = |model_type: &str| parse(json!({"architectures": null, "model_type": model_type}));
    let config = body("qwen3").unwrap();
    assert_eq!(config.architecture, "Qwen3Model");
    assert!(config.warnings[0].contains("`architectures` is missing"));
    assert_eq!(body("bert").unwrap().architecture, "BertModel");
    refuses(
        json!({"architectures": [], "model_type": "t5"}),
        "`architectures` is missing",
    );
}

#[test]
fn windows_that_are_off_are_fine() {
    parse(json!({"sliding_window": 4096, "use_sliding_window": false, "max_window_layers": 2}))
        .unwrap();
}

/// Files in the form of published ones, read without a warning but of the window.
#[test]
fn published_forms_are_read() {
    let check = |document: Value, expected: (usize, usize, bool), warned: bool| {
        let text = document.to_string();
        let config = ModelConfig::from_json("config.json", text.as_bytes()).unwrap();
        let got = (
            config.head_dim,
            config.max_position_embeddings,
            config.biases.qkv,
        );
        assert_eq!(got, expected);
        let told: Vec<_> = config
            .warnings
            .iter()
            .map(|w| w.contains("window"))
            .collect();
        assert_eq!(
            told,
            vec![true; usize::from(warned)],
            "{:?}",
            config.warnings
        );
    };
    check(
        json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
            "attention_bias": false, "attention_dropout": 0.0, "mlp_bias": false,
            "bos_token_id": 128_000, "eos_token_id": [128_001, 128_008, 128_009],
            "head_dim": 64, "hidden_size": 2048, "intermediate_size": 8192,
            "initializer_range": 0.02, "max_position_embeddings": 131_072,
            "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
            "pretraining_tp": 1, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0,
            "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192, "rope_type": "llama3"},
            "tie_word_embeddings": true, "torch_dtype": "bfloat16",
            "transformers_version": "4.45.0", "use_cache": true, "vocab_size": 128_256,
        }),
        (64, 131_072, false),
        false,
    );
    check(
        json!({
            "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
            "attention_dropout": 0.0, "bos_token_id": 151_643, "eos_token_id": 151_645,
            "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864,
            "max_position_embeddings": 32_768, "max_window_layers": 21,
            "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
            "rms_norm_eps": 1e-6, "rope_theta": 1e6, "sliding_window": 32_768,
            "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_mrope": false,
            "transformers_version": "4.43.1", "use_cache": true,
            "use_sliding_window": false, "vocab_size": 151_936,
        }),
        (64, 32_768, true),
        false,
    );
    check(
        json!({
            "architectures": ["MistralModel"], "model_type": "mistral", "hidden_act": "silu",
            "bos_token_id": 1, "eos_token_id": 2, "hidden_size": 4096,
            "initializer_range": 0.02, "intermediate_size": 14_336,
            "max_position_embeddings": 32_768, "num_attention_heads": 32,
            "num_hidden_layers": 32, "num_key_value_heads": 8, "pad_token_id": 2,
            "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "sliding_window": 4096,
            "tie_word_embeddings": false, "torch_dtype": "float16",
            "transformers_version": "4.34.0", "use_cache": false, "vocab_size": 32_000,
        }),
        (128, 4096, false),
        true,
    );
}

/// A Mistral is served up to its window, where the window is the whole text.
#[test]
fn windows_bound_the_texts_of_a_mistral() {
    let check = |window: Value, expected: usize| {
        let named = json!({"architectures": ["MistralModel"], "sliding_window": window});
        let config = parse(named).unwrap();
        assert_eq!(config.max_position_embeddings, expected);
        let told = config
            .warnings
            .iter()
            .any(|w| w.contains("`sliding_window`"));
        assert_eq!(told, expected < 4096, "{:?}", config.warnings);
    };
    check(json!(1000), 1000);
    check(json!(4096), 4096);
    check(json!(9999), 4096);
    check(json!(null), 4096);
}

#[test]
fn families_have_their_parts() {
    let of = |name: &str| parse(json!({ "architectures": [name] })).unwrap();
    assert!(of("Qwen3Model").family.qk_norm);
    assert!(!of("Qwen2Model").family.qk_norm && of("Qwen2Model").biases.qkv);
    refuses(
        json!({"architectures": ["LlamaModel"], "model_type": "qwen3"}),
        "`model_type` of \"qwen3\" beside an architecture of Llama",
    );
    // The architecture is named before anything else that is wrong with such a file.
    refuses(
        json!({"architectures": ["ElectraModel"], "hidden_act": "gelu"}),
        "architecture \"ElectraModel\" is not supported",
    );
}

#[test]
fn golden_configs() {
    for (name, checkpoint) in golden_models() {
        let c = checkpoint.config();
        let expected = match &*name {
            "demo-lm" | "demo-classifier" => (192, 6, 2, 32, 4096),
            "rand-untied-sharded" => (96, 8, 2, 24, 4096),
            "rand-yarn-reward" => (80, 8, 1, 32, 4096),
            "rand-embed" => (72, 3, 3, 40, 4079),
            "rand-cls3" => (56, 4, 2, 16, 4096),
            "rand-llama" | "rand-llama-cls3" => (48, 3, 1, 16, 288),
            "rand-mistral-cls3" => (48, 4, 1, 16, 288),
            "rand-qwen2" | "rand-qwen2-reward" | "rand-qwen2-whole" => (64, 4, 2, 16, 288),
            "rand-bert-cls3" => (48, 4, 4, 12, 310),
            "rand-bert-rank" => (64, 2, 2, 32, 300),
            "rand-bert-embed" => (72, 3, 3, 24, 300),
            "rand-roberta-cls2" => (40, 4, 4, 10, 340),
            "rand-xlmr-rank" => (48, 6, 6, 8, 320),
            "rand-distilbert-cls2" => (56, 2, 2, 28, 300),
            "rand-modernbert-cls3" => (48, 4, 4, 12, 330),
            "rand-modernbert-rank" => (64, 2, 2, 32, 330),
            "rand-modernbert-embed" => (40, 2, 2, 20, 330),
            "rand-modernbert-token5" => (40, 4, 4, 10, 330),
            "rand-mpnet-embed" => (48, 4, 4, 12, 310),
            "rand-mpnet-cls2" => (40, 2, 2, 20, 310),
            "rand-bert-token5" => (48, 4, 4, 12, 300),
            "rand-xlmr-token3" => (40, 2, 2, 20, 320),
            "rand-distilbert-token3" => (40, 2, 2, 20, 300),
            "rand-distilbert-rank" => (48, 2, 2, 24, 300),
            "rand-mpnet-token3" => (48, 3, 3, 16, 310),
            "rand-modernbert-token3" => (48, 3, 3, 16, 330),
            "rand-gemma2" => (64, 4, 2, 24, 288),
            "rand-gemma3" => (48, 3, 1, 32, 288),
            "rand-gemma3-embed" => (48, 3, 1, 16, 288),
            "rand-qwen3-token4" => (48, 4, 2, 16, 288),
            "rand-qwen3-moe" => (48, 4, 2, 16, 288),
            "rand-fp8-block" => (48, 4, 2, 16, 288),
            "rand-fp8-cls3" => (48, 3, 1, 16, 288),
            "rand-gguf-llama" | "rand-gguf-qwen2" => (64, 4, 2, 16, 288),
            "rand-granite" => (48, 3, 1, 16, 288),
            other => panic!("no expectation for {other}"),
        };
        let got = (
            c.hidden_size,
            c.num_attention_heads,
            c.num_key_value_heads,
            c.head_dim,
            c.vocab_size,
        );
        assert_eq!(got, expected, "{name}");
    }
}

/// Layers with experts, and what is refused of them.
#[test]
fn mixtures_of_experts() {
    let parse = |changes: Value| {
        let mut document = minimal_gemma(3);
        document["architectures"] = json!(["Qwen3MoeForCausalLM"]);
        document["model_type"] = json!("qwen3_moe");
        document["num_experts"] = json!(8);
        document["num_experts_per_tok"] = json!(2);
        document["moe_intermediate_size"] = json!(48);
        for (name, value) in changes.as_object().unwrap() {
            document[name] = value.clone();
        }
        let bytes = document.to_string();
        ModelConfig::from_json("config.json", bytes.as_bytes()).map_err(|e| e.to_string())
    };
    let experts = |changes: Value| parse(changes).unwrap().experts.unwrap();
    let plain = experts(json!({}));
    assert_eq!((plain.count, plain.intermediate_size), (8, 48));
    assert_eq!(
        (plain.routing.per_token, plain.routing.normalise),
        (2, false)
    );
    assert_eq!(plain.layers, [true; 7]);
    assert!(experts(json!({"norm_topk_prob": true})).routing.normalise);
    let some = experts(json!({"decoder_sparse_step": 2, "mlp_only_layers": [3]}));
    assert_eq!(some.layers, [false, true, false, false, false, true, false]);
    for (changes, part) in [
        (json!({"num_experts": null}), "`num_experts` is missing"),
        (
            json!({"num_experts_per_tok": 9}),
            "`num_experts_per_tok` must be",
        ),
        (
            json!({"mlp_only_layers": ["x"]}),
            "`mlp_only_layers` must be",
        ),
        (
            json!({"moe_intermediate_size": 0}),
            "`moe_intermediate_size`",
        ),
    ] {
        let error = parse(changes).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
}

fn minimal_gemma(number: u32) -> Value {
    let (architecture, model_type) = match number {
        2 => ("Gemma2ForCausalLM", "gemma2"),
        _ => ("Gemma3ForCausalLM", "gemma3_text"),
    };
    json!({
        "architectures": [architecture], "model_type": model_type, "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 7, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 100,
        "max_position_embeddings": 8192
    })
}

fn parse_gemma(number: u32, changes: Value) -> Result<ModelConfig, String> {
    let mut document = minimal_gemma(number);
    for (name, value) in changes.as_object().unwrap() {
        document[name] = value.clone();
    }
    let bytes = document.to_string();
    ModelConfig::from_json("config.json", bytes.as_bytes()).map_err(|e| e.to_string())
}

fn gemma(number: u32, changes: Value) -> ModelConfig {
    parse_gemma(number, changes).unwrap()
}

fn local(number: u32, changes: Value) -> LocalLayers {
    gemma(number, changes).local.unwrap()
}

/// Fields that a file leaves out get the defaults of transformers.
#[test]
fn defaults_of_gemmas() {
    let two = gemma(2, json!({}));
    assert_eq!(
        (two.scales.attention_cap, two.scales.logit_cap),
        (Some(50.0), Some(30.0))
    );
    let of_two = two.local.unwrap();
    assert_eq!((of_two.window, two.scales.embed), (4095, 8.0));
    let every_second = [true, false, true, false, true, false, true];
    assert_eq!(of_two.layers, every_second);
    assert_eq!(two.scales.attention, Some(1.0 / 16.0));
    assert_eq!(two.gate, Some(Activation::GeluTanh));
    let three = gemma(3, json!({}));
    assert_eq!(
        (three.scales.attention_cap, three.scales.logit_cap),
        (None, None)
    );
    let all_but_the_sixth = [true, true, true, true, true, false, true];
    let of_three = three.local.unwrap();
    assert_eq!(of_three.layers, all_but_the_sixth);
    assert_eq!(of_three.rope.theta, 1e4);
    let three = parse_gemma(3, json!({})).unwrap();
    assert_eq!((three.rope.theta, three.family.qk_norm), (1e6, true));
    assert!(three.tie_word_embeddings);
    let two = parse_gemma(2, json!({})).unwrap();
    assert_eq!((two.rope.theta, two.family.qk_norm), (1e4, false));
    // Its window does not bound the texts that are served.
    assert_eq!(two.max_position_embeddings, 8192);
}

#[test]
fn fields_of_gemmas() {
    let none = json!({"attn_logit_softcapping": null, "final_logit_softcapping": null});
    let two = gemma(2, none);
    assert_eq!(
        (two.scales.attention_cap, two.scales.logit_cap),
        (None, None)
    );
    assert_eq!(
        gemma(3, json!({"final_logit_softcapping": 9}))
            .scales
            .logit_cap,
        Some(9.0)
    );
    // A window counts the token itself; on both sides it is half the number.
    assert_eq!(local(3, json!({"sliding_window": 512})).window, 511);
    let ahead = json!({"sliding_window": 512, "use_bidirectional_attention": true});
    assert_eq!(local(3, ahead).window, 256);
    let pattern = local(3, json!({"sliding_window_pattern": 2})).layers;
    assert_eq!(pattern[..3], [true, false, true]);
    let bases = json!({"rope_theta": 5e5, "rope_local_base_freq": 2e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8}});
    let three = parse_gemma(3, bases).unwrap();
    assert_eq!(three.rope.theta, 5e5);
    assert_eq!(three.rope.scaling, crate::RopeScaling::Linear(8.0));
    let local = three.local.unwrap().rope;
    assert_eq!(
        (local.theta, local.scaling),
        (2e4, crate::RopeScaling::None)
    );
    let sets = json!({"rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 4, "rope_theta": 3e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e3}}});
    let three = parse_gemma(3, sets).unwrap();
    assert_eq!(three.rope.theta, 3e5);
    assert_eq!(three.rope.scaling, crate::RopeScaling::Linear(4.0));
    assert_eq!(three.local.unwrap().rope.theta, 1e3);
}

#[test]
fn gemmas_that_are_refused() {
    let check = |number: u32, changes: Value, part: &str| {
        let error = parse_gemma(number, changes).unwrap_err();
        assert!(error.contains(part), "{error}");
    };
    check(2, json!({"head_dim": null}), "`head_dim` is missing");
    check(
        3,
        json!({"num_key_value_heads": null}),
        "`num_key_value_heads` is missing",
    );
    check(
        3,
        json!({"attn_logit_softcapping": 50}),
        "`attn_logit_softcapping` of a Gemma 3",
    );
    check(
        2,
        json!({"attn_logit_softcapping": 0}),
        "`attn_logit_softcapping` must be",
    );
    check(
        2,
        json!({"use_bidirectional_attention": true}),
        "of true in a Gemma 2",
    );
    check(3, json!({"is_causal": false}), "`is_causal` of false");
    check(
        3,
        json!({"sliding_window": null}),
        "`sliding_window` must be",
    );
    check(
        3,
        json!({"layer_types": ["full_attention"]}),
        "`layer_types` must have 7",
    );
    check(
        3,
        json!({"hidden_activation": "silu"}),
        "`hidden_activation` of \"silu\"",
    );
    check(
        3,
        json!({"query_pre_attn_scalar": 0}),
        "`query_pre_attn_scalar`",
    );
    check(2, json!({"model_type": "gemma"}), "`model_type`");
    check(
        3,
        json!({"rope_parameters": {"rope_type": "default"}}),
        "no kind of layers",
    );
    let both = json!({"rope_scaling": {"rope_type": "linear", "factor": 8},
        "rope_parameters": {"full_attention": {"rope_type": "default"}}});
    check(3, both, "`rope_scaling` beside `rope_parameters`");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Random damage to a real configuration: an answer, never a panic.
    #[test]
    fn damaged_configs_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
    ) {
        let mut bytes = minimal().to_string().into_bytes();
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let _ = ModelConfig::from_json("config.json", &bytes);
    }

    /// Any number in any field, likewise, and what is accepted is within bounds.
    #[test]
    fn odd_numbers_never_panic(field in 0usize..9, value in any::<i64>(), tenths in any::<bool>()) {
        const FIELDS: [&str; 9] = [
            "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings", "rope_theta",
        ];
        let value = if tenths { json!(value as f64 / 10.0) } else { json!(value % 4096) };
        if let Ok(config) = parse(json!({ FIELDS[field]: value })) {
            prop_assert!(config.attn_shape().qkv_width() <= 3 * HEADS_MAX * HEAD_DIM_MAX);
            prop_assert!(config.rope.inv_freq(config.head_dim).iter().all(|f| f.is_finite()));
        }
    }
}

/// Factors of Granite, and what is refused of them.
#[test]
fn factors_of_granite() {
    let parse = |changes: Value| {
        let mut document = minimal_gemma(3);
        document["architectures"] = json!(["GraniteForCausalLM"]);
        document["model_type"] = json!("granite");
        for (name, value) in changes.as_object().unwrap() {
            document[name] = value.clone();
        }
        let bytes = document.to_string();
        ModelConfig::from_json("config.json", bytes.as_bytes()).map_err(|e| e.to_string())
    };
    // Transformers' defaults.
    let plain = parse(json!({})).unwrap();
    assert_eq!((plain.scales.embed, plain.norm_eps), (1.0, 1e-6));
    let config = parse(
        json!({"embedding_multiplier": 12, "residual_multiplier": 0.5,
        "attention_multiplier": 0.25, "logits_scaling": 8}),
    )
    .unwrap();
    assert_eq!(config.attn_shape().scale, 0.25);
    assert_eq!((config.scales.embed, config.norm_eps), (24.0, 4e-6));
    assert_eq!(config.scales.logits, 8.0);
    let refuses = |changes: Value, part: &str| {
        let error = parse(changes).unwrap_err();
        assert!(error.contains(part), "{error}");
    };
    refuses(json!({"logits_scaling": 6.0}), "no power of two");
    refuses(json!({"residual_multiplier": 0}), "`residual_multiplier`");
    refuses(
        json!({"architectures": ["GraniteMoeForCausalLM"]}),
        "\"GraniteMoeForCausalLM\" is not supported",
    );
    refuses(
        json!({"architectures": ["GraniteMoeHybridForCausalLM"]}),
        "\"GraniteMoeHybridForCausalLM\" is not supported",
    );
}
