//! Folders of models as tools have written them since 2019: golden models laid out anew, whose
//! answers must not change by a bit, and folders that are told for what they are.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

use prelude_server::{
    ApiKeys,
    assets::Assets,
    executor::ExecutorDtype,
    load::{LoadOptions, Loaded, load},
};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::{Value, json};

use crate::support::{TestServer, config, devices};

pub(super) type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// A copy of a golden model's folder, which is removed when it is dropped.
pub(super) struct Layout(pub(super) PathBuf);

impl Layout {
    pub(super) fn of(name: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let own = COUNT.fetch_add(1, Ordering::Relaxed);
        let own = format!("prelude-layout-{}-{own}", std::process::id());
        let layout = Self(std::env::temp_dir().join(own));
        copy(&golden(name), &layout.0);
        layout
    }

    /// Changes the tensors of `model.safetensors`.
    pub(super) fn tensors(&self, change: impl FnOnce(&mut Tensors)) {
        let path = self.0.join("model.safetensors");
        let bytes = fs::read(&path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let mut all: Tensors = { file.tensors().into_iter() }
            .map(|(name, of)| (name, (of.dtype(), of.shape().to_vec(), of.data().to_vec())))
            .collect();
        change(&mut all);
        let views = all.iter().map(|(name, (dtype, shape, data))| {
            let view = TensorView::new(*dtype, shape.clone(), data).unwrap();
            (name.as_str(), view)
        });
        // What is mapped elsewhere stays whole: the file is another one.
        fs::remove_file(&path).unwrap();
        fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
    }

    pub(super) fn write(&self, file: &str, text: &str) {
        let path = self.0.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Loads the folder in f32 under this name.
    pub(super) fn load(&self, name: &str) -> Result<Loaded, String> {
        let mut options = LoadOptions {
            name: Some(name.to_owned()),
            ..LoadOptions::default()
        };
        options.executor.dtype = Some(ExecutorDtype::F32);
        let assets = Assets::open(&self.0).map_err(|e| e.to_string())?;
        load(assets, &options, devices()).map_err(|e| e.to_string())
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(super) fn golden(name: &str) -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    match name.starts_with("demo-") {
        true => workspace.join("prelude-server/demo").join(name),
        false => workspace.join("golden").join(name).join("model"),
    }
}

/// Copies a folder with all that it holds.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let to = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => copy(&path, &to),
            false => drop(fs::copy(&path, &to).unwrap()),
        }
    }
}

/// The route that a golden model is asked at, and the field of an answer that has its numbers.
fn question(name: &str) -> (&'static str, Value, &'static str) {
    let texts = json!(["my card", "the card has not arrived"]);
    match name.rsplit('-').next().unwrap() {
        "embed" => ("/v1/embeddings", json!({"input": texts}), "data"),
        "rank" => (
            "/v1/rerank",
            json!({"query": "my card", "documents": texts}),
            "results",
        ),
        _ => ("/classify", json!({"input": texts}), "data"),
    }
}

/// Lays a golden model out anew: it must load, and answer as the golden one, bit for bit. Returns the
/// fingerprints of both.
fn check(name: &str, change: impl FnOnce(&Layout)) -> [String; 2] {
    let layout = Layout::of(name);
    let before = layout.load("golden").unwrap();
    change(&layout);
    let after = layout
        .load("changed")
        .unwrap_or_else(|e| panic!("{name}: {e}"));
    let fingerprints = [&before, &after].map(|of| of.model.fingerprint.clone());
    let server = TestServer::with(config(), ApiKeys::default(), vec![before, after]);
    let (path, body, field) = question(name);
    let [golden, changed] = ["golden", "changed"].map(|model| {
        let mut body = body.clone();
        body["model"] = json!(model);
        let answer = server.post(path, &body.to_string());
        assert_eq!(answer.status, 200, "{name}: {}", answer.body);
        answer.json()[field].clone()
    });
    assert!(golden[0].is_object(), "{golden}");
    assert_eq!(golden, changed, "{name}");
    fingerprints
}

/// Tensors that no model reads may be there, of any type.
#[test]
fn unread_tensors_may_have_any_type() {
    let cases: [(&str, &[(&str, Dtype)]); 8] = [
        (
            "rand-bert-embed",
            &[
                ("embeddings.position_ids", Dtype::I64),
                ("cls.predictions.bias", Dtype::F8_E4M3),
            ],
        ),
        (
            "rand-bert-rank",
            &[("bert.embeddings.position_ids", Dtype::I64)],
        ),
        (
            "rand-roberta-cls2",
            &[
                ("roberta.embeddings.position_ids", Dtype::I64),
                ("roberta.embeddings.token_type_ids", Dtype::I32),
            ],
        ),
        (
            "rand-xlmr-rank",
            &[("roberta.embeddings.position_ids", Dtype::I64)],
        ),
        (
            "rand-mpnet-embed",
            &[("embeddings.position_ids", Dtype::I64)],
        ),
        (
            "rand-distilbert-cls2",
            &[("distilbert.embeddings.position_ids", Dtype::I64)],
        ),
        (
            "rand-modernbert-embed",
            &[
                ("rotary_emb.full_attention_inv_freq", Dtype::F64),
                ("decoder.weight", Dtype::BOOL),
            ],
        ),
        (
            "rand-cls3",
            &[
                ("model.layers.0.self_attn.rotary_emb.inv_freq", Dtype::F64),
                ("lm_head.weight", Dtype::U8),
            ],
        ),
    ];
    for (name, tensors) in cases {
        let [golden, changed] = check(name, |layout| {
            layout.tensors(|all| {
                for (tensor, dtype) in tensors {
                    let bytes = vec![0x7f; 8 * dtype.bitsize() / 8];
                    all.insert((*tensor).to_owned(), (*dtype, vec![1, 8], bytes));
                }
            });
        });
        assert_eq!(golden, changed, "{name}");
    }
}

/// A tensor that is read must be of numbers, and an unknown name is refused.
#[test]
fn read_tensors_are_numbers() {
    let refused = |tensor: &str, part: &str| {
        let layout = Layout::of("rand-bert-cls3");
        layout.tensors(|all| {
            let shape = all
                .get(tensor)
                .map_or_else(|| vec![3], |(_, shape, _)| shape.clone());
            let bytes = vec![0; 8 * shape.iter().product::<usize>()];
            all.insert(tensor.to_owned(), (Dtype::I64, shape, bytes));
        });
        let error = layout.load("changed").map(drop).unwrap_err();
        assert!(error.contains(tensor) && error.contains(part), "{error}");
    };
    refused("classifier.bias", "type I64");
    refused("bert.embeddings.other_ids", "unexpected");
}

/// Renames the tensors of a golden model.
fn rename(layout: &Layout, name: impl Fn(&str) -> String) {
    layout.tensors(|all| {
        let renamed = std::mem::take(all).into_iter();
        *all = renamed.map(|(old, tensor)| (name(&old), tensor)).collect();
    });
}

/// Sets fields of a JSON file, whose values are written as they are, JSON or not.
fn set(layout: &Layout, file: &str, fields: &str) {
    let text = fs::read_to_string(layout.0.join(file)).unwrap();
    let (_, rest) = text.split_once('{').unwrap();
    // Of two fields with one name the last is taken; the first would be the file's own.
    let (rest, _) = rest.rsplit_once('}').unwrap();
    layout.write(file, &format!("{{{rest}, {fields}}}"));
}

#[test]
fn names_and_folders_of_old_tools() {
    // Norms of checkpoints that were made from TensorFlow's.
    check("rand-bert-rank", |layout| {
        rename(layout, |name| {
            let name = name.replace("LayerNorm.weight", "LayerNorm.gamma");
            name.replace("LayerNorm.bias", "LayerNorm.beta")
        });
    });
    // A body with the names of a whole model, and its head.
    for (name, prefix) in [
        ("rand-bert-embed", "bert."),
        ("rand-mpnet-embed", "mpnet."),
        ("rand-modernbert-embed", "model."),
        ("rand-embed", "model."),
    ] {
        check(name, |layout| {
            rename(layout, |name| format!("{prefix}{name}"));
        });
    }
    // The folders of sentence-transformers before 2020.
    check("rand-bert-embed", |layout| {
        let body = layout.0.join("0_Transformer");
        fs::create_dir(&body).unwrap();
        for file in fs::read_dir(&layout.0).unwrap() {
            let file = file.unwrap();
            let name = file.file_name();
            if file.path().is_file() && name != "modules.json" {
                fs::rename(file.path(), body.join(name)).unwrap();
            }
        }
        let modules = fs::read_to_string(layout.0.join("modules.json")).unwrap();
        let moved = modules.replacen("\"path\": \"\"", "\"path\": \"0_Transformer\"", 1);
        assert_ne!(modules, moved);
        layout.write("modules.json", &moved);
    });
    // The places of modules in newer releases.
    check("rand-bert-embed", |layout| {
        let modules = fs::read_to_string(layout.0.join("modules.json")).unwrap();
        let moved = modules
            .replace("models.Transformer", "base.modules.transformer.Transformer")
            .replace(
                "models.Pooling",
                "sentence_transformer.modules.pooling.Pooling",
            )
            .replace("models.Normalize", "base.modules.normalize.Normalize");
        layout.write("modules.json", &moved);
    });
}

#[test]
fn fields_as_other_tools_write_them() {
    // Python reads numbers that JSON does not have.
    check("rand-bert-cls3", |layout| {
        set(
            layout,
            "config.json",
            r#""pad_token_id": -1, "limit": [NaN, -Infinity]"#,
        );
        set(
            layout,
            "tokenizer_config.json",
            r#""model_max_length": Infinity"#,
        );
    });
    check("rand-cls3", |layout| {
        set(layout, "config.json", r#""pad_token_id": -1"#);
    });
    // Fields that a family's class does not read.
    for name in [
        "rand-modernbert-cls3",
        "rand-distilbert-cls2",
        "rand-mpnet-cls2",
    ] {
        check(name, |layout| {
            let fields = r#""position_embedding_type": "sans_pos", "is_decoder": true"#;
            set(layout, "config.json", fields);
        });
    }
    // A body without a class is that of its type.
    for name in [
        "rand-bert-embed",
        "rand-mpnet-embed",
        "rand-modernbert-embed",
        "rand-embed",
    ] {
        check(name, |layout| {
            set(layout, "config.json", r#""architectures": null"#);
        });
    }
    // Weights in fp8 beside scales of a cache.
    check("rand-fp8-cls3", |layout| {
        let path = layout.0.join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        config["quantization_config"]["kv_cache_scheme"] = json!({"num_bits": 8, "type": "float"});
        layout.write("config.json", &config.to_string());
        layout.tensors(|all| {
            for name in ["k_scale", "v_scale", "k_proj.output_scale"] {
                let name = format!("model.layers.0.self_attn.{name}");
                all.insert(name, (Dtype::F32, vec![1], vec![0; 4]));
            }
        });
    });
}

#[test]
fn default_prompts_and_sizes_are_obeyed() {
    let layout = Layout::of("rand-bert-embed");
    let plain = layout.load("golden").unwrap();
    layout.write(
        "config_sentence_transformers.json",
        r#"{"prompts": {"query": "find: ", "document": ""}, "default_prompt_name": "query",
            "truncate_dim": 8}"#,
    );
    let changed = layout.load("changed").unwrap();
    let server = TestServer::with(config(), ApiKeys::default(), vec![plain, changed]);
    let ask = |path: &str, body: Value| {
        let answer = server.post(path, &body.to_string());
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()
    };
    let vector = |model: &str, input: Value, more: Value| {
        let mut body = json!({"model": model, "input": input});
        let more = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(more);
        ask("/v1/embeddings", body)["data"][0]["embedding"].clone()
    };
    let text = json!("my card");
    let expected = vector("golden", json!("find: my card"), json!({"dimensions": 8}));
    assert_eq!(vector("changed", text.clone(), json!({})), expected);
    // What a request says wins.
    let plain = vector("golden", text.clone(), json!({"dimensions": 9}));
    let asked = json!({"dimensions": 9, "prompt_name": "document"});
    assert_eq!(vector("changed", text, asked), plain);
    // Ids are a whole text.
    let ids = json!([2, 30, 31, 3]);
    let plain = vector("golden", ids.clone(), json!({"dimensions": 8}));
    assert_eq!(vector("changed", ids, json!({})), plain);
    // The other routes to a vector.
    let body = |model: &str, text: &str| json!({"model": model, "texts": [text]});
    let of_cohere = |body: Value| ask("/v2/embed", body)["embeddings"]["float"][0].clone();
    let mut cut = body("golden", "find: my card");
    cut["output_dimension"] = json!(8);
    assert_eq!(of_cohere(body("changed", "my card")), of_cohere(cut));
    let of_type = |mut body: Value, input_type: &str| {
        body["input_type"] = json!(input_type);
        body["output_dimension"] = json!(8);
        of_cohere(body)
    };
    // As it is, where the model has no prompt for the use.
    let plain = of_type(body("golden", "my card"), "clustering");
    assert_eq!(of_type(body("changed", "my card"), "clustering"), plain);
    let of_tei = |body: Value| ask("/embed", body)[0].clone();
    let found = of_tei(json!({"model": "changed", "inputs": "my card"}));
    assert_eq!(found, expected);
}

/// Folders that are no model of Prelude's are told for what they are, with what to do.
#[test]
fn folders_are_told_for_what_they_are() {
    let told = |name: &str, change: &dyn Fn(&Layout), parts: &[&str]| {
        let layout = Layout::of(name);
        change(&layout);
        let error = layout.load("changed").map(drop).unwrap_err();
        for part in parts {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert!(error.lines().count() <= 2, "{error}");
    };
    let remove = |layout: &Layout, file: &str| fs::remove_file(layout.0.join(file)).unwrap();
    let adapter = r#"{"base_model_name_or_path": "Qwen/Qwen3-0.6B", "revision": "v2"}"#;
    told(
        "rand-cls3",
        &|layout| layout.write("adapter_config.json", adapter),
        &["an adapter", "beside a whole model", "Qwen/Qwen3-0.6B"],
    );
    told(
        "rand-cls3",
        &|layout| {
            layout.write("adapter_config.json", adapter);
            layout.write("adapter_model.safetensors", "");
            remove(layout, "model.safetensors");
        },
        &[
            "is a LoRA adapter (adapter_config.json) of \"Qwen/Qwen3-0.6B\" at revision \"v2\"",
            "--base",
        ],
    );
    told(
        "rand-bert-embed",
        &|layout| {
            layout.write("onnx/model.onnx", "");
            remove(layout, "model.safetensors");
        },
        &["is an ONNX export"],
    );
    let table = r#"[{"type": "sentence_transformers.models.StaticEmbedding", "path": ""}]"#;
    told(
        "rand-bert-embed",
        &|layout| {
            layout.write("modules.json", table);
            remove(layout, "config.json");
        },
        &["is a static embedding"],
    );
    told(
        "rand-bert-embed",
        &|layout| layout.write("config.json", r#"{"architectures": ["StaticModel"]}"#),
        &["is a static embedding"],
    );
    told(
        "rand-bert-embed",
        &|layout| {
            let table = r#"{"normalize": true, "embedding_dtype": "int8"}"#;
            layout.write("config.json", table);
        },
        &["is a static embedding"],
    );
    told(
        "rand-bert-cls3",
        &|layout| {
            for step in ["checkpoint-500", "checkpoint-1500"] {
                copy(&golden("rand-bert-cls3"), &layout.0.join(step));
            }
            remove(layout, "config.json");
            remove(layout, "model.safetensors");
        },
        &["is the output of a training", "checkpoint-1500"],
    );
    told(
        "rand-bert-cls3",
        &|layout| {
            copy(&golden("rand-bert-cls3"), &layout.0.join("model"));
            remove(layout, "config.json");
            remove(layout, "model.safetensors");
        },
        &["has no model of its own", "/model"],
    );
    for (files, named) in [
        (&["vocab.txt"][..], "vocab.txt"),
        (&["vocab.json", "merges.txt"], "vocab.json and merges.txt"),
    ] {
        told(
            "rand-bert-cls3",
            &|layout| {
                files.iter().for_each(|file| layout.write(file, ""));
                remove(layout, "tokenizer.json");
            },
            &["has no tokenizer.json", named, "AutoTokenizer"],
        );
    }
    told(
        "rand-bert-cls3",
        &|layout| {
            layout.write("config.json", r#"{"architectures": ["DebertaV2Model"]}"#);
        },
        &["\"DebertaV2Model\" is not supported", "docs/models.md"],
    );
    let custom = r#"[{"type": "custom_st.Transformer", "path": ""}]"#;
    told(
        "rand-bert-embed",
        &|layout| layout.write("modules.json", custom),
        &["module \"custom_st.Transformer\""],
    );
}

/// Files beside a model that would change its answers.
#[test]
fn files_that_decide_are_refused_by_name() {
    for (file, words) in [
        ("decision_config.json", "has decision_config.json, "),
        ("readout.safetensors", "has readout.safetensors, "),
        ("joint_head.safetensors", "has joint_head.safetensors, "),
        ("head.safetensors", "has head.safetensors, "),
        ("temperatures.json", "has temperatures.json, "),
        ("answer_codes.json", "has answer_codes.json, "),
        // Formats that are served, of which the rest is missing.
        ("head.pt", "head.pt is no archive"),
        ("rl_agent_config.json", "encoder/config.json"),
    ] {
        let layout = Layout::of("demo-lm");
        layout.write(file, "{}");
        let error = layout.load("changed").map(drop).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
}
