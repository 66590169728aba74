//! What is recognised, what is refused, and the heads beside a product in f64.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::*;
use crate::{Checkpoint, testing::folder};

/// A copy of a golden decision model that a test changes.
struct Copy(PathBuf);

impl Copy {
    fn of(name: &str, test: &str) -> Self {
        let from = folder(&format!("decision/{name}/model"));
        let id = format!("prelude-decision-{}-{name}-{test}", std::process::id());
        let to = std::env::temp_dir().join(id);
        let _ = fs::remove_dir_all(&to);
        copy(&from, &to);
        Self(to)
    }

    fn open(&self) -> Result<Checkpoint, String> {
        Checkpoint::open(&self.0).map_err(|e| e.to_string())
    }

    /// Changes fields of a document.
    fn set(&self, file: &str, fields: Value) {
        let path = self.0.join(file);
        let mut document: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        document
            .as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        fs::write(path, document.to_string()).unwrap();
    }

    /// The folder is refused with these words.
    fn refused(&self, words: &[&str]) {
        let error = self.open().map(|_| ()).unwrap_err();
        for word in words {
            assert!(error.contains(word), "{error}: no {word:?}");
        }
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => copy(&path, &target),
            false => fs::write(target, fs::read(path).unwrap()).unwrap(),
        }
    }
}

#[test]
fn formats_are_recognised_by_their_files() {
    for (name, format, most) in [
        ("laya", "laya", Some(512)),
        ("laya-mm", "laya", Some(700)),
        ("kev-qwen3", "kev", None),
        ("decision2-qwen3", "decision2", Some(2048)),
        ("d3-qwen3", "d3", Some(4096)),
    ] {
        let folder = folder(&format!("decision/{name}/model"));
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let decision = checkpoint.decision().unwrap();
        assert_eq!(
            (decision.format().name(), decision.max_tokens()),
            (format, most)
        );
        let markers = checkpoint
            .config()
            .encoder
            .as_ref()
            .and_then(|of| of.markers);
        assert_eq!(markers.is_some(), format == "laya");
        checkpoint.check_tensors().unwrap();
    }
}

/// The rows of the specification's list of what is refused, and files of two formats.
#[test]
fn files_of_other_formats_are_refused_by_name() {
    let check = |files: &[&str], words: &[&str]| {
        let found = refused_files(|file| files.contains(&file)).unwrap();
        for word in words {
            assert!(found.contains(word), "{files:?}: {found}");
        }
    };
    for (file, _) in REFUSED {
        check(&[file, "config.json"], &[file]);
        check(&[file, "rl_agent_config.json"], &[file]);
    }
    check(
        &["decision_config.json"],
        &["decision_config.json", "readout.safetensors"],
    );
    check(
        &["head.pt", "rl_agent_config.json"],
        &["head.pt", "rl_agent_config.json", "a Kev"],
    );
    check(
        &[
            "readout.safetensors",
            "decision_head.safetensors",
            "decision_config.json",
        ],
        &["readout.safetensors", "decision_head.safetensors"],
    );
    check(&["head.pt", "calibration.json"], &["calibration.json"]);
    check(
        &["readout.safetensors"],
        &["the head of a decision model", "decision_config.json"],
    );
    check(&["decision_head.safetensors"], &["decision_config.json"]);
    for files in [
        &["config.json"][..],
        &["rl_agent_config.json"],
        &["readout.safetensors", "decision_config.json"],
        &["head.pt", "training_config.json"],
        &[
            "decision_head.safetensors",
            "decision_config.json",
            "calibration.json",
            "score_bias.json",
        ],
    ] {
        assert_eq!(
            refused_files(|file| files.contains(&file)),
            None,
            "{files:?}"
        );
    }
}

#[test]
fn another_laya_is_refused() {
    let model = Copy::of("laya", "fields");
    let check = |fields: Value, words: &[&str]| {
        let model = Copy::of("laya", "one-field");
        model.set(laya::CONFIG, fields);
        model.refused(words);
    };
    check(
        json!({"option_layout": "parallel"}),
        &["option_layout", "parallel"],
    );
    check(json!({"layout": 2}), &["`layout`"]);
    check(json!({"max_len": 9000}), &["max_len", "8192"]);
    check(json!({"head_layers": -1}), &["head_layers"]);
    model.set(laya::CONFIG, json!({"option_layout": "sequential"}));
    model.open().unwrap().check_tensors().unwrap();
    model.set(laya::CONFIG, json!({"head_layers": 1}));
    let error = model.open().unwrap().check_tensors().unwrap_err();
    assert!(error.to_string().contains("head.layers.1"), "{error}");
}

#[test]
fn temperatures_of_a_laya_are_clamped() {
    let fields = json!({
        "temperature": [0.1, "2.5", "NaN"],
        "temperature_by_options": {"choice:2": 9, "choice:3-5": "x", "score:11+": true, "noul:2": 0.6,
            "noul:7": 3},
    });
    let map = fields.as_object().unwrap();
    let found = laya::temperatures(&crate::json::Fields::new("t", map)).unwrap();
    let check = |question, n, expected: f64| assert_eq!(found.of(question, n), expected);
    check(QuestionType::Choice, 1, 5.0);
    check(QuestionType::Choice, 2, 5.0);
    check(QuestionType::Choice, 5, 1.0);
    check(QuestionType::Choice, 6, 0.5);
    check(QuestionType::Score, 10, 2.5);
    check(QuestionType::Score, 11, 1.0);
    check(QuestionType::Noul, 2, 0.6);
    check(QuestionType::Noul, 3, 1.0);
}

#[test]
fn another_code_readout_is_refused() {
    let check = |fields: Value, words: &[&str]| {
        let model = Copy::of("d3-qwen3", "one-field");
        model.set(codes::CONFIG, fields);
        model.refused(words);
    };
    check(json!({"format_version": 2}), &["format_version"]);
    check(json!({"format_id": "d4"}), &["format_id", "d4"]);
    check(json!({"prompt": "jeff"}), &["prompt", "jeff"]);
    check(json!({"prompt_layout": 1}), &["prompt_layout"]);
    check(json!({"attention_mode": "sliding"}), &["attention_mode"]);
    check(json!({"pooling": "mean"}), &["pooling"]);
    check(json!({"readout_dtype": "bfloat16"}), &["readout_dtype"]);
    check(json!({"temperature": 0}), &["temperature"]);
    check(json!({"codes": ["A"]}), &["codes"]);
    check(json!({"token_ids": vec![1; 255]}), &["codes"]);
    check(json!({"codes": null}), &["codes", "format_version"]);
    let whole = Copy::of("d3-qwen3", "whole");
    whole.set(
        codes::CONFIG,
        json!({"attention_mode": "noncausal_full_attention"}),
    );
    let checkpoint = whole.open().unwrap();
    assert_eq!(checkpoint.config().attention, Attention::Full);
}

#[test]
fn another_decision2_is_refused() {
    let check = |file: &str, fields: Value, words: &[&str]| {
        let model = Copy::of("decision2-qwen3", "one-field");
        fs::remove_file(model.0.join("MODEL_MANIFEST.json")).unwrap();
        model.set(file, fields);
        model.refused(words);
    };
    check(
        "config.json",
        json!({"format_version": 3}),
        &["format_version"],
    );
    check(
        "config.json",
        json!({"decision_format": "x"}),
        &["decision_format"],
    );
    check(
        "config.json",
        json!({"package_schema": "dev3"}),
        &["package_schema"],
    );
    check(
        "config.json",
        json!({"model_config": "../a.json"}),
        &["model_config", "inside"],
    );
    check(
        "config.json",
        json!({"backbone": {"config": "/etc/config.json"}}),
        &["backbone"],
    );
    check(
        decision2::CONFIG,
        json!({"prompt_version": "v2"}),
        &["prompt_version"],
    );
    check(
        decision2::CONFIG,
        json!({"head_variant": "split"}),
        &["head_variant"],
    );
    check(
        decision2::CONFIG,
        json!({"head_dim": 21}),
        &["key.weight", "[20, 64]"],
    );
    check(decision2::CONFIG, json!({"extra": 1}), &["extra"]);
    let cold = json!({"temperature_by_type": {"choice": 0.01, "noul": 1, "score": 1}});
    check(
        decision2::CALIBRATION,
        cold,
        &["temperature_by_type.choice"],
    );
    check(
        decision2::CALIBRATION,
        json!({"calibration_version": "2"}),
        &["calibration_version"],
    );
    check(
        decision2::SCORE_BIAS,
        json!({"offsets": {"3": [1, 2]}}),
        &["offsets"],
    );
    let changed = Copy::of("decision2-qwen3", "digest");
    changed.set(decision2::SCORE_BIAS, json!({"fit": 1}));
    changed.refused(&["score_bias.json", "SHA-256"]);
    let adapter = Copy::of("decision2-qwen3", "adapter");
    adapter.set("MODEL_MANIFEST.json", json!({"profile": "qwen-adapter"}));
    adapter.refused(&["profile", "adapter"]);
}

#[test]
fn damaged_heads_of_a_kev_are_refused() {
    let model = Copy::of("kev-qwen3", "damage");
    let path = model.0.join(kev::HEAD);
    let whole = fs::read(&path).unwrap();
    let find = |part: &[u8]| whole.windows(part.len()).position(|at| at == part).unwrap();
    let check = |part: &str, other: &str, words: &[&str]| {
        assert_eq!(part.len(), other.len());
        let mut bytes = whole.clone();
        bytes[find(part.as_bytes())..][..part.len()].copy_from_slice(other.as_bytes());
        fs::write(&path, bytes).unwrap();
        model.refused(words);
    };
    // The archive has a checksum of the pickle, so the machine is asked alone about what it says.
    check("option_isolation", "option_isolatioN", &[kev::HEAD]);
    for len in [0, 1, 100, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..len]).unwrap();
        model.refused(&[kev::HEAD]);
    }
}

#[test]
fn heads_compute_what_their_formulas_say() {
    let (hidden, d, n) = (40, 24, 3);
    let number = |i: usize| ((i * 7919 % 613) as f32 / 613.0 - 0.5) * 0.8;
    let mut tensors = HeadTensors::new("t", {
        let tensor = |(name, shape): (&str, Vec<usize>), seed: usize| {
            let len: usize = shape.iter().product();
            (
                name.to_owned(),
                shape,
                (0..len).map(|i| number(i + seed)).collect(),
            )
        };
        let sizes = [
            ("a.weight", vec![hidden]),
            ("a.bias", vec![hidden]),
            ("b.weight", vec![hidden]),
            ("b.bias", vec![hidden]),
            ("k", vec![d, hidden]),
            ("q", vec![d, hidden]),
            ("m", vec![d, hidden]),
            ("mb", vec![d]),
            ("n", vec![d, hidden]),
            ("w", vec![1, d]),
        ];
        sizes
            .into_iter()
            .zip((0..).step_by(31))
            .map(|(size, seed)| tensor(size, seed))
            .collect::<Vec<_>>()
    });
    let mut take = |name: &str, bias: &str, outputs| {
        Linear::take(&mut tensors, [name, bias], [outputs, hidden]).unwrap()
    };
    let (key, query, option_mlp, query_mlp) = (
        take("k", "", d),
        take("q", "", d),
        take("m", "mb", d),
        take("n", "", d),
    );
    let out = Linear::take(&mut tensors, ["w", ""], [1, d]).unwrap();
    let head = DecisionHead::Segments {
        option_norm: LayerNorm::take(&mut tensors, "a", hidden).unwrap(),
        query_norm: LayerNorm::take(&mut tensors, "b", hidden).unwrap(),
        key,
        query,
        option_mlp,
        query_mlp,
        out,
    };
    tensors.finish().unwrap();
    let states: Vec<Vec<f32>> = (0..=n)
        .map(|at| {
            (0..hidden)
                .map(|i| number(i * 3 + at * 101) * 4.0)
                .collect()
        })
        .collect();
    let found = head.logits(n, &states);
    let wide = |i: usize| f64::from(number(i));
    let norm = |x: &[f32], seed: usize| -> Vec<f64> {
        let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let mean = x.iter().sum::<f64>() / hidden as f64;
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / hidden as f64;
        { x.iter().enumerate() }
            .map(|(i, x)| {
                (x - mean) / (variance + 1e-5).sqrt() * wide(i + seed) + wide(i + seed + 31)
            })
            .collect()
    };
    let product = |x: &[f64], seed: usize| -> Vec<f64> {
        (0..d)
            .map(|o| {
                (0..hidden)
                    .map(|i| x[i] * wide(o * hidden + i + seed))
                    .sum()
            })
            .collect()
    };
    let q = norm(&states[n], 62);
    let (pointer, of_query) = (product(&q, 155), product(&q, 248));
    for (option, found) in states[..n].iter().zip(&found) {
        let option = norm(option, 0);
        let bilinear: f64 = product(&option, 124)
            .iter()
            .zip(&pointer)
            .map(|(a, b)| a * b)
            .sum();
        let inner = product(&option, 186);
        let mlp: f64 = (0..d)
            .map(|i| {
                crate::naive::activate(
                    inner[i] + wide(i + 217) + of_query[i],
                    crate::Activation::Gelu,
                ) * wide(i + 279)
            })
            .sum();
        let expected = bilinear / (d as f64).sqrt() + mlp;
        assert!(
            (f64::from(*found) - expected).abs() < 1e-5,
            "{found} {expected}"
        );
    }
}

#[test]
fn a_softmax_is_divided_by_its_temperature() {
    let p = softmax(&[1.0, 3.0], 2.0);
    let expected = 1.0 / (1.0 + (-1.0f64).exp());
    assert!((p[1] - expected).abs() < 1e-12, "{p:?}");
    let offsets = Temperatures::by_type([1.0, 2.0, 3.0]);
    assert_eq!(offsets.of(QuestionType::Score, 4), 2.0);
}
