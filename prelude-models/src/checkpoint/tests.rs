//! Checkpoints on disk and in memory, whole and damaged.

use std::{collections::HashMap, fs, path::PathBuf};

use proptest::prelude::*;
use safetensors::{Dtype, tensor::TensorView as Stored};

use super::{
    weights::{INDEX_FILE, PICKLED, SINGLE_FILE},
    *,
};
use crate::{
    DType, WeightLoader,
    naive::device::NaiveLoader,
    testing::{golden_models, model_folder},
};

const CONFIG: &str = r#"{"architectures":["Qwen3ForSequenceClassification"],"hidden_size":4,
    "intermediate_size":6,"num_hidden_layers":1,"num_attention_heads":2,"num_key_value_heads":1,
    "head_dim":2,"vocab_size":5,"max_position_embeddings":16,"id2label":{"0":"a","1":"b","2":"c"}}"#;

/// Returns the shapes of a tiny classifier's tensors.
fn shapes() -> BTreeMap<String, Vec<usize>> {
    let layer = "model.layers.0.";
    let mut shapes = BTreeMap::from([
        ("model.embed_tokens.weight".to_owned(), vec![5, 4]),
        ("model.norm.weight".to_owned(), vec![4]),
        ("score.weight".to_owned(), vec![3, 4]),
    ]);
    for (name, shape) in [
        ("input_layernorm", vec![4]),
        ("post_attention_layernorm", vec![4]),
        ("self_attn.q_norm", vec![2]),
        ("self_attn.k_norm", vec![2]),
        ("self_attn.q_proj", vec![4, 4]),
        ("self_attn.k_proj", vec![2, 4]),
        ("self_attn.v_proj", vec![2, 4]),
        ("self_attn.o_proj", vec![4, 4]),
        ("mlp.gate_proj", vec![6, 4]),
        ("mlp.up_proj", vec![6, 4]),
        ("mlp.down_proj", vec![4, 6]),
    ] {
        shapes.insert(format!("{layer}{name}.weight"), shape);
    }
    shapes
}

/// A file written by the reference implementation of the format, in bf16 ones.
fn serialize(shapes: &BTreeMap<String, Vec<usize>>) -> Vec<u8> {
    let data: HashMap<&str, Vec<u8>> = shapes
        .iter()
        .map(|(name, shape)| (name.as_str(), [0x80, 0x3f].repeat(shape.iter().product())))
        .collect();
    let views = shapes.iter().map(|(name, shape)| {
        let view = Stored::new(Dtype::BF16, shape.clone(), &data[name.as_str()]).unwrap();
        (name.clone(), view)
    });
    safetensors::serialize(views, None).unwrap()
}

fn open(weights: Vec<u8>) -> Result<Checkpoint, Error> {
    Checkpoint::from_bytes(CONFIG.as_bytes(), weights)
}

/// A device that accepts everything and keeps nothing.
struct Sink;

impl WeightLoader for Sink {
    type Weight = ();
    type Error = std::convert::Infallible;

    fn linear(
        &mut self,
        _: &str,
        _: &[TensorView<'_>],
        _: &[TensorView<'_>],
    ) -> Result<(), Self::Error> {
        Ok(())
    }

    fn embedding(&mut self, _: &str, _: &TensorView<'_>, _: bool) -> Result<(), Self::Error> {
        Ok(())
    }

    fn vector(&mut self, _: &str, _: &TensorView<'_>) -> Result<(), Self::Error> {
        Ok(())
    }

    fn norm(&mut self, _: &str, _: &TensorView<'_>, _: f32) -> Result<(), Self::Error> {
        Ok(())
    }

    fn rope(&mut self, _: &[f32], _: f32, _: usize) -> Result<(), Self::Error> {
        Ok(())
    }
}

fn load(checkpoint: &Checkpoint) -> Result<(), Error> {
    let Some(encoder) = &checkpoint.config().encoder else {
        return crate::Decoder::load(checkpoint, 16, &mut Sink).map(drop);
    };
    crate::Encoder::load(checkpoint, encoder, 16, &mut Sink).map(drop)
}

fn assert_error<T>(result: Result<T, Error>, part: &str) {
    let error = result.err().expect("an error").to_string();
    assert!(error.contains(part), "{error}");
}

#[test]
fn a_file_in_memory_loads() {
    let checkpoint = open(serialize(&shapes())).unwrap();
    assert_eq!(checkpoint.names().count(), shapes().len());
    let score = checkpoint.tensor("score.weight").unwrap();
    assert_eq!((score.dtype, &*score.shape), (DType::Bf16, &[3, 4][..]));
    let mut values = Vec::new();
    score.read_f32(0..score.len(), &mut values);
    assert_eq!(values, [1.0; 12]);
    load(&checkpoint).unwrap();
    assert_error(
        checkpoint.tensor("lm_head.weight"),
        "has no tensor \"lm_head.weight\"",
    );
}

/// Weights in fp8 and their scales may be damaged as others may: the tensor and the element are named.
#[test]
fn blocks_in_fp8_are_looked_at() {
    let check = |tensor: &str, at: usize, bytes: &[u8], part: &str| {
        let (config, mut weights) = crate::conformance::fp8::files();
        let len = u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
        let header: serde_json::Value = serde_json::from_slice(&weights[8..8 + len]).unwrap();
        let start = header[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
        weights[8 + len + start + at..][..bytes.len()].copy_from_slice(bytes);
        let result = load(&Checkpoint::from_bytes(&config, weights).unwrap());
        match part {
            "" => result.unwrap(),
            part => assert_error(result, part),
        }
    };
    let down = "model.layers.1.mlp.down_proj.weight";
    let scales = format!("{down}_scale_inv");
    check(down, 300, &[0x7e], "");
    check(down, 300, &[0x7f], "element 300");
    check(down, 256 * 384 - 1, &[0xff], "element 98303");
    // The second row of blocks, its last block.
    let at = 128 * 384 + 256;
    for scale in [f32::NAN, f32::INFINITY, 1e37] {
        check(
            &scales,
            5 * 4,
            &scale.to_le_bytes(),
            &format!("element {at}"),
        );
    }
    check(&scales, 5 * 4, &0f32.to_le_bytes(), "");
}

#[test]
fn tensors_must_be_those_of_the_architecture() {
    let check = |change: fn(&mut BTreeMap<String, Vec<usize>>), part: &str| {
        let mut shapes = shapes();
        change(&mut shapes);
        let result = load(&open(serialize(&shapes)).unwrap());
        if part.is_empty() {
            result.unwrap();
        } else {
            assert_error(result, part);
        }
    };
    check(
        |s| {
            s.remove("model.norm.weight");
        },
        "missing model.norm.weight",
    );
    check(
        |s| {
            s.insert("model.layers.0.self_attn.q_proj.bias".to_owned(), vec![4]);
        },
        "unexpected model.layers.0.self_attn.q_proj.bias",
    );
    check(
        |s| {
            s.insert("score.weight".to_owned(), vec![4, 4]);
        },
        "misshaped score.weight [4, 4] instead of [3, 4]",
    );
    check(
        |s| s.retain(|name, _| !name.contains("mlp")),
        "missing model.layers.0.mlp.down_proj.weight, model.layers.0.mlp.gate_proj.weight, model.layers.0.mlp.up_proj.weight",
    );
    check(|s| s.retain(|_, shape| shape.len() == 1), "and 6 more");
    // A head that a classifier does not read is no reason to refuse one.
    check(
        |s| {
            s.insert("lm_head.weight".to_owned(), vec![5, 4]);
        },
        "",
    );
}

/// Tensors that are not read count neither in plans, nor in packed files, nor in fingerprints.
#[test]
fn unread_tensors_are_not_there() {
    let names = shapes();
    let mut tensors: Vec<_> = { names.iter() }
        .map(|(name, shape)| {
            let bytes = [0x80, 0x3f].repeat(shape.iter().product());
            (name.clone(), Dtype::BF16, shape.clone(), bytes)
        })
        .collect();
    let plain = open(serialize(&names)).unwrap();
    for (name, dtype) in [
        ("lm_head.weight", Dtype::I64),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", Dtype::F64),
        ("model.layers.0.self_attn.k_scale", Dtype::F32),
    ] {
        let bytes = vec![0xff; dtype.bitsize()];
        tensors.push((name.to_owned(), dtype, vec![8], bytes));
    }
    let views = { tensors.iter() }.map(|(name, dtype, shape, bytes)| {
        (name, Stored::new(*dtype, shape.clone(), bytes).unwrap())
    });
    let checkpoint = open(safetensors::serialize(views, None).unwrap()).unwrap();
    assert!(checkpoint.names().eq(plain.names()));
    assert_eq!(checkpoint.weight_bytes(), plain.weight_bytes());
    load(&checkpoint).unwrap();
}

#[test]
fn attention_biases_are_read_if_configured() {
    let config = CONFIG.replacen('{', r#"{"attention_bias":true,"#, 1);
    let open = |shapes: &BTreeMap<String, Vec<usize>>| {
        Checkpoint::from_bytes(config.as_bytes(), serialize(shapes)).unwrap()
    };
    assert_error(
        load(&open(&shapes())),
        "missing model.layers.0.self_attn.k_proj.bias",
    );
    let mut biased = shapes();
    for (part, out) in [("q", 4), ("k", 2), ("v", 2), ("o", 4)] {
        let name = format!("model.layers.0.self_attn.{part}_proj.bias");
        biased.insert(name, vec![out]);
    }
    let mut loader = NaiveLoader::default();
    crate::Decoder::load(&open(&biased), 16, &mut loader).unwrap();
    let layer = "model.layers.0.self_attn";
    let expected = [
        (format!("{layer}.qkv_proj.weight"), 8),
        (format!("{layer}.o_proj.weight"), 4),
    ];
    assert_eq!(loader.biased, expected);
}

#[test]
fn damaged_values_are_named() {
    let mut weights = serialize(&shapes());
    let checkpoint = open(weights.clone()).unwrap();
    let norm = checkpoint.tensors["model.norm.weight"].1.bytes.clone();
    weights[norm.start + 4..][..2].copy_from_slice(&[0xc0, 0x7f]);
    assert_error(
        load(&open(weights).unwrap()),
        "\"model.norm.weight\" has a non-finite value at element 2",
    );
}

#[test]
fn other_element_types_are_refused_by_name() {
    let view = Stored::new(Dtype::I64, vec![1], &[0; 8]).unwrap();
    let weights = safetensors::serialize([("score.weight", view)], None).unwrap();
    assert_error(
        open(weights).unwrap().tensor("score.weight"),
        "\"score.weight\" has type I64",
    );
}

/// A folder that is removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("prelude-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("config.json"), CONFIG).unwrap();
        Self(folder)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.0.join(name), bytes).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn shards_and_their_index_must_agree() {
    let folder = Folder::new("shards");
    let (mut one, mut two) = (shapes(), shapes());
    one.retain(|name, _| name.contains("layers"));
    two.retain(|name, _| !name.contains("layers"));
    folder.write("1.safetensors", serialize(&one));
    folder.write("2.safetensors", serialize(&two));
    let index = |change: fn(&mut serde_json::Map<String, serde_json::Value>)| {
        let mut map = serde_json::Map::new();
        for (shapes, file) in [(&one, "1.safetensors"), (&two, "2.safetensors")] {
            map.extend(shapes.keys().map(|name| (name.clone(), file.into())));
        }
        change(&mut map);
        folder.write(
            INDEX_FILE,
            serde_json::json!({ "weight_map": map }).to_string(),
        );
        Checkpoint::open(&folder.0)
    };
    load(&index(|_| ()).unwrap()).unwrap();
    assert_error(
        index(|map| {
            map.insert("extra".to_owned(), "1.safetensors".into());
        }),
        "tensor \"extra\" is in none of the shards",
    );
    assert_error(
        index(|map| {
            map.insert("score.weight".to_owned(), "1.safetensors".into());
        }),
        "should be in 1.safetensors, but is in 2.safetensors",
    );
    assert_error(
        index(|map| {
            map.remove("score.weight");
        }),
        "the index lacks: score.weight",
    );
    assert_error(
        index(|map| {
            map.insert("extra".to_owned(), "3.safetensors".into());
        }),
        "cannot read",
    );
    assert_error(
        index(|map| {
            map.insert("extra".to_owned(), "../1.safetensors".into());
        }),
        "not the name of a file",
    );
    // The same tensor in two shards.
    folder.write("3.safetensors", serialize(&two));
    assert_error(
        index(|map| {
            map.insert("extra".to_owned(), "3.safetensors".into());
        }),
        "is also in 2.safetensors",
    );
}

#[test]
fn folders_without_weights_say_what_to_do() {
    let folder = Folder::new("empty");
    assert_error(
        Checkpoint::open(&folder.0),
        "holds no weights: Prelude reads",
    );
    folder.write(PICKLED, b"");
    assert_error(
        Checkpoint::open(&folder.0),
        "Convert pytorch_model.bin once, in the folder: python -c \"import torch, safetensors.torch",
    );
    folder.write(SINGLE_FILE, b"");
    assert_error(
        Checkpoint::open(&folder.0),
        "model.safetensors is not a valid",
    );
    fs::remove_file(folder.0.join("config.json")).unwrap();
    assert_error(Checkpoint::open(&folder.0), "config.json");
}

#[test]
fn golden_models_open_from_disk_and_memory() {
    for (name, mapped) in golden_models() {
        let folder = model_folder(&name);
        let Ok(weights) = fs::read(folder.join(SINGLE_FILE)) else {
            let is_gguf = mapped.files[0].name.ends_with(".gguf");
            let is_sharded = mapped.files.len() == 2;
            assert!(is_gguf || is_sharded, "{name} is neither sharded nor GGUF");
            continue;
        };
        let read = |file: &str| fs::read(folder.join(file)).ok();
        let of_dense = |file: &str| {
            let read = |of: &crate::DenseConfig| read(&format!("{}/{file}", of.folder)).unwrap();
            mapped.config.dense.iter().map(read).collect::<Vec<_>>()
        };
        let configs = of_dense("config.json");
        let dense = mapped.config.dense.iter().zip(&configs);
        let dense = dense.zip(of_dense(SINGLE_FILE));
        let embedded = Checkpoint::from_files(CheckpointFiles {
            config: &read("config.json").unwrap(),
            generation_config: read("generation_config.json").as_deref(),
            modules: read("modules.json").as_deref(),
            pooling: read("1_Pooling/config.json").as_deref(),
            normalize: None,
            dense: dense
                .map(|((of, config), weights)| DenseFiles {
                    folder: &of.folder,
                    config,
                    weights: weights.into(),
                })
                .collect(),
            logit_score: None,
            weights: weights.into(),
        })
        .unwrap();
        assert_eq!(mapped.tensors, embedded.tensors);
        assert_eq!(mapped.kind, embedded.kind);
        assert_eq!(mapped.generation, embedded.generation);
        load(&embedded).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Any damage to a file: a typed error, or a model whose tensors can all be looked at.
    #[test]
    fn damaged_checkpoints_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = serialize(&shapes());
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(checkpoint) = open(bytes) {
            for name in checkpoint.names() {
                if let Ok(view) = checkpoint.tensor(name) {
                    prop_assert_eq!(view.len() * view.dtype.size(), view.bytes.len());
                }
            }
            let _ = load(&checkpoint);
        }
    }
}
