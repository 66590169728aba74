//! Configurations and tensors. The numbers are compared with the reference's by `decoder/tests.rs`,
//! which runs every golden model.

use prelude_core::Attention;
use serde_json::{Value, json};

use crate::{
    Activation, Checkpoint, Encoder, ModelConfig, ModelKind,
    naive::device::NaiveLoader,
    testing::{golden_models, model_folder},
};

/// Reads a small configuration of an architecture with these changes.
fn parse(architecture: &str, change: Value) -> Result<ModelConfig, String> {
    let mut config = json!({
        "architectures": [architecture], "vocab_size": 300, "max_position_embeddings": 130,
    });
    let shape = match architecture.starts_with("DistilBert") {
        true => json!({"dim": 48, "hidden_dim": 96, "n_layers": 2, "n_heads": 4}),
        false => json!({
            "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 4,
        }),
    };
    for map in [shape, change] {
        let map = map.as_object().unwrap().clone();
        config.as_object_mut().unwrap().extend(map);
    }
    let bytes = config.to_string();
    ModelConfig::from_json("config.json", bytes.as_bytes()).map_err(|e| e.to_string())
}

#[test]
fn shapes_by_family() {
    let check = |architecture, change, expected: (usize, usize, u64)| {
        let config = parse(architecture, change).unwrap();
        assert!(config.encoder.is_some());
        assert_eq!(config.attention, Attention::Full);
        assert_eq!((config.hidden_size, config.head_dim), (48, 12));
        assert_eq!(config.intermediate_size, 96);
        let eps = (f64::from(config.norm_eps) * 1e12).round() as u64;
        let positions = config.max_position_embeddings;
        assert_eq!(
            (positions, config.num_ids(), eps),
            expected,
            "{architecture}"
        );
    };
    check("BertModel", json!({}), (130, 600, 1));
    check("BertModel", json!({"type_vocab_size": 1}), (130, 300, 1));
    let eps = json!({"type_vocab_size": 1, "layer_norm_eps": 2e-12});
    check("XLMRobertaModel", eps.clone(), (128, 300, 2));
    let padding = json!({"type_vocab_size": 1, "pad_token_id": 0});
    check("RobertaForMaskedLM", padding, (129, 300, 1));
    // Transformers reads neither types nor an epsilon for DistilBERT.
    check("DistilBertModel", eps, (130, 300, 1));
    // MPNet's padding token is 1 whatever the file says.
    check("MPNetModel", json!({"pad_token_id": 0}), (128, 300, 1));
    let eps = json!({"norm_eps": 2e-12, "layer_norm_eps": 1e-3});
    check("ModernBertModel", eps, (130, 300, 2));
}

#[test]
fn layers_of_modernbert_by_both_spellings() {
    let read = |change| parse("ModernBertModel", change).map(|c| (c.rope, c.local.unwrap()));
    let theta = |change: Value| {
        let (global, local) = read(change).unwrap();
        (global.theta, local.rope.theta)
    };
    assert_eq!(theta(json!({})), (160_000.0, 10_000.0));
    let old = json!({"global_rope_theta": 5e4, "local_rope_theta": 7e3});
    assert_eq!(theta(old), (5e4, 7e3));
    let new = json!({
        "rope_parameters": {"sliding_attention": {"rope_theta": 9e3, "rope_type": "default"}},
        "global_rope_theta": 5e4, "local_rope_theta": 7e3,
    });
    assert_eq!(theta(new), (5e4, 9e3));
    let local = |change: Value| read(change).map(|(_, local)| (local.layers, local.window));
    let three = |change: Value| {
        let mut change = change;
        change["num_hidden_layers"] = json!(3);
        local(change)
    };
    assert_eq!(three(json!({})), Ok((vec![false, true, true], 64)));
    let named = json!({
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "local_attention": 7,
    });
    assert_eq!(three(named), Ok((vec![true, false, true], 3)));
    let check = |change: Value, part: &str| {
        let error = local(change).unwrap_err();
        assert!(error.contains(part), "{error}");
    };
    check(
        json!({"layer_types": ["full_attention"]}),
        "`layer_types` must have 2 entries",
    );
    let other = json!({"layer_types": ["full_attention", "chunked_attention"]});
    check(other, "layer type \"chunked_attention\"");
    let flat = json!({"rope_parameters": {"rope_theta": 5e4}});
    check(flat, "`rope_parameters.rope_theta`");
    let scaled = json!({"rope_parameters": {"full_attention": {"rope_type": "dynamic"}}});
    check(scaled, "rope type \"dynamic\"");
    check(
        json!({"rope_scaling": {"rope_type": "yarn"}}),
        "`rope_scaling`",
    );
    check(json!({"sliding_window": 64}), "`sliding_window`");
    check(
        json!({"classifier_pooling": "max"}),
        "`classifier_pooling` must be",
    );
    check(
        json!({"classifier_activation": "silu"}),
        "`classifier_activation` of \"silu\"",
    );
    let buckets = parse("MPNetModel", json!({"relative_attention_num_buckets": 64}));
    let error = buckets.unwrap_err();
    assert!(
        error.contains("`relative_attention_num_buckets` of 64"),
        "{error}"
    );
}

#[test]
fn activations_are_obeyed_or_refused() {
    let read = |architecture, field: &str, name| {
        let config = parse(architecture, json!({ field: name }));
        config.map(|config| config.encoder.unwrap().activation)
    };
    let bert = |name| read("BertModel", "hidden_act", name);
    assert_eq!(bert("gelu"), Ok(Activation::Gelu));
    assert_eq!(bert("gelu_new"), Ok(Activation::GeluTanh));
    assert_eq!(bert("relu"), Ok(Activation::Relu));
    assert!(
        bert("silu")
            .unwrap_err()
            .contains("`hidden_act` of \"silu\"")
    );
    let distil = read("DistilBertModel", "activation", "swish").unwrap_err();
    assert!(distil.contains("`activation` of \"swish\""), "{distil}");
}

#[test]
fn fields_that_change_numbers_are_refused() {
    let check = |change: Value, part: &str| {
        let error = parse("BertModel", change).unwrap_err();
        assert!(error.contains(part), "{error}");
    };
    check(
        json!({"position_embedding_type": "relative_key"}),
        "`position_embedding_type`",
    );
    check(json!({"is_decoder": true}), "`is_decoder` of true");
    check(json!({"pruned_heads": {"0": [1]}}), "`pruned_heads`");
    check(json!({"quantization_config": {}}), "`quantization_config`");
    check(
        json!({"model_type": "roberta"}),
        "`model_type` of \"roberta\"",
    );
    check(json!({"model_type": "electra"}), "`model_type`");
    check(json!({"num_attention_heads": 5}), "`num_attention_heads`");
    check(json!({"layer_norm_eps": 0}), "`layer_norm_eps`");
    check(json!({"type_vocab_size": 0}), "`type_vocab_size`");
    let error = parse("RobertaModel", json!({"pad_token_id": 200})).unwrap_err();
    assert!(
        error.contains("`max_position_embeddings` must be above 201"),
        "{error}"
    );
}

/// Every weight is loaded once, under the name that it has in the file.
#[test]
fn weights_by_family() {
    let mut seen = 0;
    for (name, checkpoint) in golden_models() {
        let Some(encoder) = checkpoint.config().encoder.clone() else {
            continue;
        };
        let mut loader = NaiveLoader::default();
        let is_embedder = matches!(checkpoint.kind(), ModelKind::Embedding { .. });
        let names = checkpoint.names().count();
        if checkpoint.config().local.is_some() {
            let model = Encoder::load(&checkpoint, &encoder, 160, &mut loader).unwrap();
            assert_eq!(model.heads.classes.is_some(), !is_embedder, "{name}");
            assert_eq!(model.has_mean_classes, name == "rand-modernbert-rank");
            let local: Vec<bool> = model.layers.iter().map(|layer| layer.is_local).collect();
            let expected: &[bool] = match &*name {
                "rand-modernbert-rank" => &[true, false, true],
                "rand-modernbert-cls3" => &[false, true, true, false],
                "rand-modernbert-token3" => &[false, true, false],
                _ => &[false, true],
            };
            assert_eq!(local, expected, "{name}");
            let zeros = |name: &&String| name.ends_with("norm.bias") && !checkpoint.contains(name);
            let added = loader.names.iter().filter(zeros).count();
            let loaded = loader.names.len() + loader.biased.len() - added;
            assert_eq!(loaded, names, "{name}");
            seen += 1;
            continue;
        }
        let model = Encoder::load(&checkpoint, &encoder, 160, &mut loader).unwrap();
        assert_eq!(model.heads.classes.is_some(), !is_embedder, "{name}");
        let has_types = !name.contains("distilbert") && !name.contains("mpnet");
        assert_eq!(model.types.is_some(), has_types, "{name}");
        let has_bias = name.contains("mpnet");
        assert_eq!(model.distance_bias.is_some(), has_bias, "{name}");
        let positions = checkpoint.config().max_position_embeddings;
        assert_eq!(
            model.positions.unwrap().values.len(),
            positions * model.hidden
        );
        // Queries, keys and values are one matrix. Poolers of bodies are not read.
        let layers = checkpoint.config().num_hidden_layers;
        let loaded = loader.names.len() + 2 * layers;
        let biases = loader.biased.len() + 2 * layers;
        assert_eq!(loaded + biases, names, "{name}");
        seen += 1;
    }
    assert_eq!(seen, 18);
}

/// Norms of old checkpoints have a gamma and a beta.
#[test]
fn old_names_of_norms_are_read() {
    let folder = model_folder("rand-bert-cls3");
    let config = std::fs::read(folder.join("config.json")).unwrap();
    let mut weights = std::fs::read(folder.join("model.safetensors")).unwrap();
    let mut renamed = 0;
    // The header keeps its length.
    for (from, to) in [
        (b"LayerNorm.weight\":", b"LayerNorm.gamma\": "),
        (b"LayerNorm.bias\":  ", b"LayerNorm.beta\":  "),
    ] {
        let from = from.trim_ascii_end();
        let places: Vec<usize> = { weights.windows(from.len()).enumerate() }
            .filter(|(_, at)| *at == from)
            .map(|(at, _)| at)
            .collect();
        for at in places {
            weights[at..at + from.len()].copy_from_slice(&to[..from.len()]);
            renamed += 1;
        }
    }
    assert_eq!(renamed, 2 * 7);
    let checkpoint = Checkpoint::from_bytes(&config, weights).unwrap();
    assert!(checkpoint.contains("bert.embeddings.LayerNorm.gamma"));
    let encoder = checkpoint.config().encoder.clone().unwrap();
    let mut loader = NaiveLoader::default();
    assert!(Encoder::load(&checkpoint, &encoder, 160, &mut loader).is_ok());
    assert!(
        loader
            .names
            .contains(&"bert.embeddings.LayerNorm.beta".to_owned())
    );
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let folder = model_folder("rand-bert-cls3");
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let weights = std::fs::read(folder.join("model.safetensors")).unwrap();
    let error = |from: &str, to: &str| {
        let config = config.replace(from, to);
        let checkpoint = Checkpoint::from_bytes(config.as_bytes(), weights.clone()).unwrap();
        let encoder = checkpoint.config().encoder.clone().unwrap();
        let loaded = Encoder::load(&checkpoint, &encoder, 160, &mut NaiveLoader::default());
        loaded.map(drop).unwrap_err().to_string()
    };
    let types = error("\"type_vocab_size\": 2", "\"type_vocab_size\": 3");
    assert!(
        types.contains("bert.embeddings.token_type_embeddings.weight [2, 48]"),
        "{types}"
    );
    let layers = error("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4");
    assert!(layers.contains("missing bert.encoder.layer.3."), "{layers}");
}
