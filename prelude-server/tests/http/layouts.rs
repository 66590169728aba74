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

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// A copy of a golden model's folder, which is removed when it is dropped.
struct Layout(PathBuf);

impl Layout {
    fn of(name: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let own = COUNT.fetch_add(1, Ordering::Relaxed);
        let own = format!("prelude-layout-{}-{own}", std::process::id());
        let layout = Self(std::env::temp_dir().join(own));
        copy(&golden(name), &layout.0);
        layout
    }

    /// Changes the tensors of `model.safetensors`.
    fn tensors(&self, change: impl FnOnce(&mut Tensors)) {
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

    fn write(&self, file: &str, text: &str) {
        let path = self.0.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Loads the folder in f32 under this name.
    fn load(&self, name: &str) -> Result<Loaded, String> {
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

fn golden(name: &str) -> PathBuf {
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

/// A tensor that is read must be of numbers, and one that nobody knows is refused.
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
