//! Adapters of golden models, merged by hand in f64, and those that are refused.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
};

use prelude_core::Pooling;
use safetensors::{Dtype, tensor::TensorView as Stored};
use serde_json::{Value, json};

use crate::{
    Checkpoint, DType, Error, ModelKind, naive::device::NaiveLoader, testing::model_folder,
};

/// Tensors of an adapter: type, shape, numbers.
type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<f32>)>;

/// A folder that is removed when dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let own = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("prelude-adapter-{}-{own}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn write(&self, file: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.0.join(file), bytes).unwrap();
    }
}

fn encode(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    let of = |x: &f32| match dtype {
        Dtype::BF16 => half::bf16::from_f32(*x).to_le_bytes().to_vec(),
        Dtype::F16 => half::f16::from_f32(*x).to_le_bytes().to_vec(),
        Dtype::I64 => vec![0; 8],
        _ => x.to_le_bytes().to_vec(),
    };
    values.iter().flat_map(of).collect()
}

fn serialize(tensors: &Tensors) -> Vec<u8> {
    let bytes = tensors.iter().map(|(name, (dtype, shape, values))| {
        (name.as_str(), *dtype, shape.clone(), encode(*dtype, values))
    });
    let bytes: Vec<_> = bytes.collect();
    let views = bytes.iter().map(|(name, dtype, shape, bytes)| {
        (*name, Stored::new(*dtype, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize(views, None).unwrap()
}

/// Returns a tensor of numbers between -1 and 1 that bf16 has, which differ from name to name.
fn random(name: &str, dtype: Dtype, shape: &[usize]) -> (Dtype, Vec<usize>, Vec<f32>) {
    let mut state = name.bytes().fold(7, |state: u64, byte| {
        state.wrapping_mul(31) + u64::from(byte)
    });
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        half::bf16::from_f32((state >> 40) as f32 / (1 << 23) as f32 - 1.0).to_f32()
    };
    let values = (0..shape.iter().product()).map(|_| next()).collect();
    (dtype, shape.to_vec(), values)
}

/// Puts the two matrices of a module `[outputs, inputs]` to an adapter's tensors.
fn add(tensors: &mut Tensors, module: &str, [outputs, inputs]: [usize; 2], rank: usize) {
    for (part, shape) in [("A", [rank, inputs]), ("B", [outputs, rank])] {
        let name = format!("base_model.model.{module}.lora_{part}.weight");
        tensors.insert(name.clone(), random(&name, Dtype::F32, &shape));
    }
}

/// Opens an adapter of a golden model with these tensors, and these fields beside the usual ones.
fn open(base: &str, tensors: &Tensors, fields: Value) -> Result<Checkpoint, Error> {
    let folder = Folder::new();
    folder.write("adapter_config.json", config(fields).to_string());
    folder.write("adapter_model.safetensors", serialize(tensors));
    Checkpoint::open_adapter(&folder.0, &model_folder(base))
}

/// Returns what PEFT writes, with changes.
fn config(fields: Value) -> Value {
    let mut config = json!({
        "alpha_pattern": {}, "auto_mapping": null, "base_model_name_or_path": "base",
        "bias": "none", "corda_config": null, "eva_config": null, "exclude_modules": null,
        "fan_in_fan_out": false, "inference_mode": true, "init_lora_weights": true,
        "layer_replication": null, "layers_pattern": null, "layers_to_transform": null,
        "loftq_config": {}, "lora_alpha": 6, "lora_bias": false, "lora_dropout": 0.05,
        "megatron_config": null, "megatron_core": "megatron.core", "modules_to_save": null,
        "peft_type": "LORA", "r": 4, "rank_pattern": {}, "revision": null,
        "target_modules": ["q_proj", "v_proj"], "target_parameters": null,
        "task_type": "CAUSAL_LM", "trainable_token_indices": null, "use_dora": false,
        "use_rslora": false
    });
    let fields = fields.as_object().unwrap().clone();
    config.as_object_mut().unwrap().extend(fields);
    config
}

fn values(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let tensor = checkpoint.read(name).unwrap();
    let mut values = Vec::new();
    tensor.view().read_f32(0..tensor.view().len(), &mut values);
    values
}

/// Compares a merged matrix with `W + s·B·A` in f64.
fn check_sum(
    base: &str,
    merged: &Checkpoint,
    (name, scale): (&str, f64),
    (a, b): (&[f32], &[f32]),
) {
    let plain = Checkpoint::open(&model_folder(base)).unwrap();
    let (dtype, shape) = merged.form(name).unwrap();
    let (rows, columns) = (shape[0], shape[1]);
    assert_eq!((dtype, shape), (DType::F32, plain.form(name).unwrap().1));
    let (before, after) = (values(&plain, name), values(merged, name));
    let rank = a.len() / columns;
    assert_eq!((a.len(), b.len()), (rank * columns, rows * rank));
    for row in 0..rows {
        for column in 0..columns {
            let w = f64::from(before[row * columns + column]);
            let terms = (0..rank)
                .map(|k| scale * f64::from(b[row * rank + k]) * f64::from(a[k * columns + column]));
            let expected = w + terms.clone().sum::<f64>();
            let magnitude = w.abs() + terms.map(f64::abs).sum::<f64>();
            let found = f64::from(after[row * columns + column]);
            let error = (found - expected).abs();
            assert!(
                error <= 1e-6 * magnitude,
                "{name}[{row}, {column}]: {found} for {expected}"
            );
        }
    }
}

#[test]
fn sums_are_those_of_f64() {
    let modules = [
        ("model.layers.0.self_attn.q_proj", [48, 48]),
        ("model.layers.1.self_attn.v_proj", [16, 48]),
        ("model.layers.1.mlp.down_proj", [48, 104]),
        ("lm_head", [288, 48]),
    ];
    let check = |dtype, fields: Value, (rank, scale): (usize, f64)| {
        let mut tensors = Tensors::new();
        for (module, shape) in modules {
            add(&mut tensors, module, shape, rank);
        }
        for (of, ..) in tensors.values_mut() {
            *of = dtype;
        }
        let merged = open("rand-llama", &tensors, fields).unwrap();
        for (module, _) in modules {
            let part = |part| &tensors[&format!("base_model.model.{module}.lora_{part}.weight")].2;
            let of = (&*format!("{module}.weight"), scale);
            check_sum("rand-llama", &merged, of, (part("A"), part("B")));
        }
        let plain = Checkpoint::open(&model_folder("rand-llama")).unwrap();
        let other = "model.layers.1.self_attn.q_proj.weight";
        assert_eq!(merged.stored_parts(other), plain.stored_parts(other));
        assert_eq!(merged.form(other), plain.form(other));
        assert!(merged.names().eq(plain.names()));
        crate::Decoder::load(&merged, 16, &mut NaiveLoader::default()).unwrap();
    };
    check(Dtype::F32, json!({}), (4, 1.5));
    check(Dtype::BF16, json!({"use_rslora": true}), (4, 3.0));
    check(Dtype::F16, json!({"r": 9, "use_rslora": true}), (9, 2.0));
    check(Dtype::F32, json!({"r": 1, "lora_alpha": 0.3}), (1, 0.3));
    check(Dtype::F32, json!({"r": null, "lora_alpha": null}), (8, 1.0));
}

/// Tables have matrices of their own, which are transposed.
#[test]
fn tables_are_adapted() {
    let module = "bert.embeddings.word_embeddings";
    let name = |part| format!("base_model.model.{module}.lora_embedding_{part}");
    let mut tensors = Tensors::new();
    tensors.insert(name('A'), random("a", Dtype::F32, &[4, 310]));
    tensors.insert(name('B'), random("b", Dtype::F32, &[48, 4]));
    let merged = open("rand-bert-cls3", &tensors, json!({"task_type": null})).unwrap();
    let transposed = |part| {
        let (_, shape, values) = &tensors[&name(part)];
        let (rows, columns) = (shape[0], shape[1]);
        let places = (0..columns).flat_map(|c| (0..rows).map(move |r| r * columns + c));
        places.map(|at| values[at]).collect::<Vec<_>>()
    };
    let (left, right) = (transposed('A'), transposed('B'));
    let weight = format!("{module}.weight");
    check_sum("rand-bert-cls3", &merged, (&weight, 1.5), (&right, &left));
}

/// An adapter of a body alone has names without what they begin with beside a head, and the reverse.
#[test]
fn names_are_those_of_a_body_or_of_a_whole_model() {
    let check = |base: &str, module: &str, shape, name: &str| {
        let mut tensors = Tensors::new();
        add(&mut tensors, module, shape, 4);
        let merged = open(base, &tensors, json!({"task_type": "FEATURE_EXTRACTION"})).unwrap();
        assert_eq!(merged.form(name).unwrap().0, DType::F32);
        assert_eq!(merged.stored_parts(name).len(), 4, "{name}");
    };
    let (short, long) = (
        "layers.0.self_attn.o_proj",
        "model.layers.0.self_attn.o_proj",
    );
    check("rand-llama", short, [48, 48], &format!("{long}.weight"));
    check("rand-embed", long, [72, 120], &format!("{short}.weight"));
    check("rand-embed", short, [72, 120], &format!("{short}.weight"));
}

#[test]
fn a_base_in_fp8_is_widened() {
    let of = |part: &str| format!("model.layers.0.self_attn.{part}_proj");
    let mut tensors = Tensors::new();
    add(&mut tensors, &of("v"), [16, 48], 4);
    let fields = json!({"task_type": null});
    let merged = open("rand-fp8-cls3", &tensors, fields).unwrap();
    let name = format!("{}.weight", of("v"));
    let part = |part| &*tensors[&format!("base_model.model.{}.lora_{part}.weight", of("v"))].2;
    check_sum(
        "rand-fp8-cls3",
        &merged,
        (&name, 1.5),
        (part("A"), part("B")),
    );
    assert!(merged.fp8(&name).is_none());
    assert!(merged.fp8(&format!("{}.weight", of("k"))).is_some());
    crate::Decoder::load(&merged, 16, &mut NaiveLoader::default()).unwrap();
}

/// Modules behind a body are those of the adapter's folder, if it has a list of them.
#[test]
fn modules_are_the_adapters_or_the_bases() {
    let folder = Folder::new();
    let mut tensors = Tensors::new();
    add(&mut tensors, "encoder.layer.1.output.dense", [72, 88], 4);
    folder.write("adapter_model.safetensors", serialize(&tensors));
    let fields = config(json!({"task_type": "FEATURE_EXTRACTION"}));
    folder.write("adapter_config.json", fields.to_string());
    let check = |pooling, normalise| {
        let base = model_folder("rand-bert-embed");
        let merged = Checkpoint::open_adapter(&folder.0, &base).unwrap();
        assert_eq!(*merged.kind(), ModelKind::Embedding { pooling, normalise });
    };
    check(Pooling::First, true);
    let module = |class: &str, path: &str| json!({"type": format!("sentence_transformers.models.{class}"), "path": path});
    let modules = json!([module("Transformer", ""), module("Pooling", "1_Pooling")]);
    folder.write("modules.json", modules.to_string());
    fs::create_dir(folder.0.join("1_Pooling")).unwrap();
    let pooling = r#"{"pooling_mode_mean_tokens": true}"#;
    folder.write("1_Pooling/config.json", pooling);
    check(Pooling::Mean, false);
    // Products behind a base's pooling stay.
    let mut tensors = Tensors::new();
    add(&mut tensors, "layers.0.self_attn.q_proj", [48, 48], 4);
    let merged = open("rand-gemma3-embed", &tensors, json!({"task_type": null})).unwrap();
    assert_eq!(merged.config().dense.len(), 2);
    crate::Decoder::load(&merged, 16, &mut NaiveLoader::default()).unwrap();
}

/// An adapter of all products changes some that the model does not read.
#[test]
fn parts_that_are_not_read_may_be_adapted() {
    let mut tensors = Tensors::new();
    let module = "encoder.layer.1.output.dense";
    add(&mut tensors, module, [72, 88], 4);
    add(&mut tensors, "pooler.dense", [72, 72], 4);
    add(&mut tensors, "cls.predictions.transform.dense", [72, 72], 4);
    let fields = json!({"task_type": "FEATURE_EXTRACTION"});
    let merged = open("rand-bert-embed", &tensors, fields).unwrap();
    assert!(merged.form("pooler.dense.weight").is_none());
    let name = format!("{module}.weight");
    assert_eq!(merged.stored_parts(&name).len(), 4);
}

/// Returns an adapter of a classifier: one product, and the modules that are saved whole.
fn of_classes(module: (&str, [usize; 2]), saved: &[(&str, &[usize])]) -> Tensors {
    let mut tensors = Tensors::new();
    add(&mut tensors, module.0, module.1, 4);
    for (name, shape) in saved {
        let name = format!("base_model.model.{name}");
        tensors.insert(name.clone(), random(&name, Dtype::F32, shape));
    }
    tensors
}

#[test]
fn bases_become_classifiers() {
    let check = |base: &str, tensors: &Tensors, task: &str, beside: &Value, expected: &[&str]| {
        let folder = Folder::new();
        let mut fields = json!({"task_type": task, "modules_to_save": ["classifier", "score"]});
        if task.starts_with("For") {
            fields["task_type"] = Value::Null;
            fields["auto_mapping"] = json!({"base_model_class": format!("Bert{task}")});
        }
        folder.write("adapter_config.json", config(fields).to_string());
        folder.write("adapter_model.safetensors", serialize(tensors));
        if beside.is_object() {
            folder.write("config.json", beside.to_string());
        }
        let merged = Checkpoint::open_adapter(&folder.0, &model_folder(base)).unwrap();
        let of_tokens = matches!(merged.kind(), ModelKind::TokenClassification { .. });
        assert_eq!(of_tokens, task.contains("TOKEN"));
        let (ModelKind::SequenceClassification { labels }
        | ModelKind::TokenClassification { labels }) = merged.kind()
        else {
            panic!("{:?}", merged.kind());
        };
        assert_eq!(labels, expected);
        let loader = &mut NaiveLoader::default();
        match &merged.config().encoder {
            None => drop(crate::Decoder::load(&merged, 16, loader).unwrap()),
            Some(encoder) => drop(crate::Encoder::load(&merged, encoder, 16, loader).unwrap()),
        }
        merged
    };
    let q_proj = ("model.layers.0.self_attn.q_proj", [192, 192]);
    let (none, plain) = (&Value::Null, ["LABEL_0", "LABEL_1", "LABEL_2"]);
    for part in ["", "modules_to_save.default.", "modules_to_save."] {
        let name = &*format!("score.{part}weight");
        let tensors = of_classes(q_proj, &[(name, &[3, 192])]);
        let merged = check("demo-lm", &tensors, "SEQ_CLS", none, &plain);
        let saved = &tensors[&format!("base_model.model.{name}")].2;
        assert_eq!(&values(&merged, "score.weight"), saved);
    }
    let tensors = of_classes(q_proj, &[("score.weight", &[2, 192])]);
    let named = &json!({"id2label": {"1": "b", "0": "a"}, "problem_type": "regression"});
    let merged = check("demo-lm", &tensors, "SEQ_CLS", named, &["a", "b"]);
    let activation = merged.config().class_activation;
    assert_eq!(activation, crate::ClassActivation::Identity);
    // Names of another number of classes are another head's.
    let tensors = of_classes(q_proj, &[("score.weight", &[3, 192])]);
    check("demo-lm", &tensors, "SEQ_CLS", named, &plain);
    let head = &[("score.weight", &[3, 192][..]), ("score.bias", &[3])];
    let tensors = of_classes(q_proj, head);
    check("demo-lm", &tensors, "TOKEN_CLS", none, &plain);
    // A classifier's own names, where the saved head has as many rows, and else none.
    let bert = |rows: usize, width: usize| {
        let value = ("bert.encoder.layer.1.attention.self.value", [width, width]);
        let head: [(&str, &[usize]); 2] = [
            ("classifier.weight", &[rows, width]),
            ("classifier.bias", &[rows]),
        ];
        of_classes(value, &head)
    };
    let own = ["negative", "neutral", "positive"];
    check("rand-bert-cls3", &bert(3, 48), "SEQ_CLS", none, &own);
    check("rand-bert-cls3", &bert(2, 48), "SEQ_CLS", none, &plain[..2]);
    check("rand-bert-cls3", &bert(3, 48), "TOKEN_CLS", none, &own);
    // A bare body gets the head beside it, and its own pooler is the head's first product.
    for task in ["SEQ_CLS", "ForSequenceClassification"] {
        check("rand-bert-embed", &bert(3, 72), task, none, &plain);
    }
}

fn assert_error(found: Result<Checkpoint, Error>, part: &str) {
    let error = found.unwrap_err().to_string();
    assert!(error.contains(part), "{part}: {error}");
}

#[test]
fn what_would_not_be_merged_exactly_is_refused_by_name() {
    let mut tensors = Tensors::new();
    add(&mut tensors, "model.layers.0.self_attn.q_proj", [48, 48], 4);
    let check = |field: &str, value: Value| {
        let found = open("rand-llama", &tensors, json!({field: value}));
        assert_error(found, &format!("adapter_config.json: `{field}`"));
    };
    check("peft_type", json!("IA3"));
    check("peft_type", Value::Null);
    check("task_type", json!("QUESTION_ANS"));
    check("bias", json!("lora_only"));
    check("use_dora", json!(true));
    check("use_qalora", json!(true));
    check("lora_bias", json!(true));
    check("fan_in_fan_out", json!(true));
    check("ensure_weight_tying", json!(true));
    check("rank_pattern", json!({"q_proj": 8}));
    check("alpha_pattern", json!({"q_proj": 8}));
    check("layer_replication", json!([[0, 2]]));
    check("trainable_token_indices", json!([1]));
    check("target_parameters", json!(["mlp.experts.down_proj"]));
    check("megatron_config", json!({}));
    check("alora_invocation_tokens", json!([1]));
    for init in [
        "pissa",
        "pissa_niter_4",
        "olora",
        "corda",
        "loftq",
        "lora_ga",
    ] {
        check("init_lora_weights", json!(init));
    }
    check("r", json!(0));
    check("lora_alpha", json!("NaN"));
    check("modules_to_save", json!([1]));
    // What only makes an adapter leaves no trace.
    let made = json!({"eva_config": {"rho": 2.0}, "init_lora_weights": "eva", "zeta": 1});
    let warnings = open("rand-llama", &tensors, made).unwrap().warnings;
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0].contains("adapter_config.json has fields"),
        "{warnings:?}"
    );
}

#[test]
fn tensors_must_fit_the_base() {
    let q_proj = "model.layers.0.self_attn.q_proj";
    let (a, b) = (
        format!("base_model.model.{q_proj}.lora_A.weight"),
        format!("base_model.model.{q_proj}.lora_B.weight"),
    );
    let check_on = |base: &str, fields: Value, change: &dyn Fn(&mut Tensors), part: &str| {
        let mut tensors = Tensors::new();
        let width = if base == "demo-lm" { 192 } else { 48 };
        add(&mut tensors, q_proj, [width, width], 4);
        change(&mut tensors);
        assert_error(open(base, &tensors, fields), part);
    };
    let check = |change: &dyn Fn(&mut Tensors), part: &str| {
        check_on("rand-llama", json!({}), change, part);
    };
    check(
        &|t| drop(t.remove(&b)),
        &format!("missing base_model.model.{q_proj}.lora_B"),
    );
    check(
        &|t| drop(t.remove(&a)),
        &format!("missing base_model.model.{q_proj}.lora_A"),
    );
    let wide = |name: &str, shape: [usize; 2]| (name.to_owned(), random("x", Dtype::F32, &shape));
    check(
        &|t| t.extend([wide(&a, [4, 47])]),
        &format!("misshaped {a} [4, 47] instead of [4, 48]"),
    );
    check(
        &|t| t.extend([wide(&a, [3, 48])]),
        &format!("misshaped {a} [3, 48] instead of [4, 48]"),
    );
    check(
        &|t| t.extend([wide(&b, [48, 3])]),
        &format!("misshaped {b} [48, 3] instead of [48, 4]"),
    );
    let other = "base_model.model.model.layers.7.mlp.up_proj";
    check(
        &|t| add(t, "model.layers.7.mlp.up_proj", [104, 48], 4),
        &format!("unexpected {other}.lora_A.weight, {other}.lora_B.weight"),
    );
    for name in [
        "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector",
        "base_model.model.score.weight",
        "q_proj.lora_A.weight",
        "base_model.model.prompt",
    ] {
        check(
            &|t| t.extend([wide(name, [4, 48])]),
            &format!("unexpected {name}"),
        );
    }
    // A name twice, by two spellings.
    let twice = format!("base_model.model.{q_proj}.lora_A.default.weight");
    check(
        &|t| t.extend([wide(&twice, [4, 48])]),
        "unexpected base_model.model",
    );
    let head = "base_model.model.lm_head.weight";
    check(
        &|t| t.extend([wide(head, [280, 48])]),
        "lm_head.weight [280, 48] instead of [288, 48]",
    );
    check(&|t| t.get_mut(&a).unwrap().0 = Dtype::I64, "has type I64");
    check(&|t| t.clear(), "it has no tensors");
    let saved = json!({"modules_to_save": ["lm_head"]});
    check_on(
        "rand-llama",
        saved,
        &|_| (),
        "missing base_model.model.lm_head.weight",
    );
    let class = json!({"task_type": "SEQ_CLS", "modules_to_save": ["classifier", "score"]});
    check_on(
        "rand-llama",
        class,
        &|_| (),
        "missing base_model.model.score.weight",
    );
    // The embedding matrix of a tied model is its output head.
    let words = "base_model.model.model.embed_tokens.weight";
    let tied = &|t: &mut Tensors| t.extend([wide(words, [4096, 192])]);
    check_on("demo-lm", json!({}), tied, "which is the output head too");
    let added = &|t: &mut Tensors| add(t, "model.embed_tokens", [4096, 192], 4);
    check_on("demo-lm", json!({}), added, "which is the output head too");
    let added = &|t: &mut Tensors| add(t, "lm_head", [4096, 192], 4);
    check_on(
        "demo-lm",
        json!({}),
        added,
        "unexpected base_model.model.lm_head",
    );
    check_on(
        "rand-gguf-llama",
        json!({}),
        &|_| (),
        "an adapter of a GGUF file",
    );
    check_on(
        "rand-gemma3",
        json!({"task_type": "TOKEN_CLS"}),
        &|_| (),
        "ForTokenClassification",
    );
}

/// Both matrices of a tied model, saved whole, are two.
#[test]
fn a_saved_head_unties_a_model() {
    let mut tensors = Tensors::new();
    for (name, seed) in [("model.embed_tokens", "x"), ("lm_head", "y")] {
        let name = format!("base_model.model.{name}.weight");
        tensors.insert(name, random(seed, Dtype::BF16, &[4096, 192]));
    }
    let merged = open(
        "demo-lm",
        &tensors,
        json!({"modules_to_save": ["embed_tokens", "lm_head"]}),
    );
    let merged = merged.unwrap();
    assert!(!merged.config().tie_word_embeddings);
    let saved = &tensors["base_model.model.lm_head.weight"].2;
    assert_eq!(&values(&merged, "lm_head.weight"), saved);
    crate::Decoder::load(&merged, 16, &mut NaiveLoader::default()).unwrap();
}

#[test]
fn weights_say_what_to_do() {
    let folder = Folder::new();
    let open = || Checkpoint::open_adapter(&folder.0, &model_folder("rand-llama"));
    assert_error(open(), "adapter_config.json");
    folder.write("adapter_config.json", config(json!({})).to_string());
    assert_error(open(), "read from its adapter_model.safetensors");
    folder.write("adapter_model.bin", b"");
    assert_error(open(), "Convert adapter_model.bin once");
    folder.write("adapter_model.safetensors", b"");
    assert_error(open(), "adapter_model.safetensors is not a valid");
}

/// Adapters are merged as peft's `merge_and_unload` merges them in float32, whose results
/// `golden/tools/make_adapter_golden.py` recorded.
#[test]
fn merged_models_are_those_of_peft() {
    for (name, base) in [
        ("decoder", "rand-qwen2"),
        ("rslora", "rand-llama"),
        ("encoder", "rand-bert-embed"),
        ("classifier", "rand-qwen2"),
    ] {
        let folder = crate::testing::folder("adapters").join(name);
        let checkpoint = Checkpoint::open_adapter(&folder, &model_folder(base)).unwrap();
        checkpoint.check_tensors().unwrap();
        let file = fs::read(folder.join("merged.safetensors")).unwrap();
        let merged = safetensors::SafeTensors::deserialize(&file).unwrap();
        assert!(merged.len() > 4, "{name}");
        // An embedder reads no pooler.
        let read = merged
            .iter()
            .filter(|(name, _)| !name.starts_with("pooler."));
        for (tensor, expected) in read {
            let found = checkpoint.read(tensor).unwrap();
            let mut numbers = Vec::new();
            found.view().read_f32(0..found.view().len(), &mut numbers);
            let (expected, _) = expected.data().as_chunks::<4>();
            assert_eq!(numbers.len(), expected.len(), "{name}: {tensor}");
            for (found, expected) in numbers.iter().zip(expected) {
                let expected = f32::from_le_bytes(*expected);
                assert!(
                    (found - expected).abs() < 1e-5,
                    "{name}: {tensor}: {found} {expected}"
                );
            }
        }
        let is_classifier = matches!(checkpoint.kind(), ModelKind::SequenceClassification { labels } if labels.len() == 3);
        assert_eq!(is_classifier, name == "classifier");
    }
}
