//! Reference outputs: `golden/*/golden.json` and `golden.safetensors`. See `golden/README.md`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Reference outputs of one model.
pub(crate) struct Golden {
    /// Folder under `golden/`.
    pub(crate) name: String,
    /// Folder of the checkpoint.
    pub(crate) model: PathBuf,
    /// Token ids of the prompts.
    pub(crate) prompts: Vec<Vec<u32>>,
    /// Index of each prompt's first token in arrays with a row per token.
    pub(crate) offsets: Vec<usize>,
    document: Value,
    bytes: Vec<u8>,
}

/// All models with reference outputs, by name.
pub(crate) fn all() -> Vec<Golden> {
    let entries = fs::read_dir(root().join("golden")).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("golden.json").exists())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names.into_iter().map(Golden::read).collect()
}

impl Golden {
    fn read(name: String) -> Self {
        let folder = root().join("golden").join(&name);
        let document = fs::read(folder.join("golden.json")).unwrap();
        let model = if folder.join("model").exists() {
            folder.join("model")
        } else {
            root().join("prelude-server/demo").join(&name)
        };
        let mut golden = Self {
            name,
            model,
            prompts: Vec::new(),
            offsets: Vec::new(),
            document: serde_json::from_slice(&document).unwrap(),
            bytes: fs::read(folder.join("golden.safetensors")).unwrap(),
        };
        let tokens = golden.ids("tokens").0;
        let offsets = golden.ids("offsets").0;
        golden.offsets = offsets.iter().map(|&o| o as usize).collect();
        golden.prompts = golden
            .offsets
            .windows(2)
            .map(|w| tokens[w[0]..w[1]].iter().map(|&id| id as u32).collect())
            .collect();
        golden
    }

    fn array(&self, name: &str, dtype: Dtype) -> (Vec<[u8; 4]>, usize) {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = file.tensor(name).unwrap();
        assert_eq!(tensor.dtype(), dtype, "{name}");
        let width = tensor.shape()[1..].iter().product();
        (tensor.data().as_chunks().0.to_vec(), width)
    }

    /// A float array of the float32 run and the width of its rows.
    pub(crate) fn f32(&self, name: &str) -> (Vec<f32>, usize) {
        let (words, width) = self.array(name, Dtype::F32);
        (words.into_iter().map(f32::from_le_bytes).collect(), width)
    }

    /// An array of ids and the width of its rows.
    pub(crate) fn ids(&self, name: &str) -> (Vec<i32>, usize) {
        let (words, width) = self.array(name, Dtype::I32);
        (words.into_iter().map(i32::from_le_bytes).collect(), width)
    }

    /// Whether the model has this array.
    pub(crate) fn has(&self, name: &str) -> bool {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        file.tensor(name).is_ok()
    }

    /// Indices or ids listed in `golden.json`.
    pub(crate) fn list(&self, key: &str) -> Vec<usize> {
        let list = self.document[key].as_array().unwrap();
        list.iter().map(|v| v.as_u64().unwrap() as usize).collect()
    }

    /// Largest and mean difference between the reference's own f32 and bf16 runs.
    pub(crate) fn noise(&self, entry: &str) -> (f64, f64) {
        let entry = &self.document["tolerances"]["f32 against bf16"][entry];
        let number = |key: &str| entry[key].as_f64().unwrap();
        (number("max"), number("mean"))
    }

    /// Factor on cos and sin.
    pub(crate) fn attention_scaling(&self) -> f64 {
        self.document["rope"]["attention_scaling"].as_f64().unwrap()
    }
}
