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
