//! Golden models and arrays for this crate's tests.

use std::path::PathBuf;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::Checkpoint;

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Where the checkpoint of a golden lies.
pub(crate) fn model_folder(golden: &str) -> PathBuf {
    if golden.starts_with("demo-") {
        root().join("prelude-server/demo").join(golden)
    } else {
        root().join("golden").join(golden).join("model")
    }
}

/// All models with golden outputs: name and checkpoint.
pub(crate) fn golden_models() -> Vec<(String, Checkpoint)> {
    let mut names: Vec<String> = std::fs::read_dir(root().join("golden"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("golden.json").exists())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(names.len() >= 6, "golden data is missing: {names:?}");
    names
        .into_iter()
        .map(|name| {
            let checkpoint = Checkpoint::open(&model_folder(&name)).unwrap();
            (name, checkpoint)
        })
        .collect()
}

/// The reference outputs of one model.
pub(crate) struct Golden {
    /// `golden.json`.
    pub(crate) document: Value,
    bytes: Vec<u8>,
}

pub(crate) fn golden_tensors(name: &str) -> Golden {
    let folder = root().join("golden").join(name);
    let json = std::fs::read(folder.join("golden.json")).unwrap();
    Golden {
        document: serde_json::from_slice(&json).unwrap(),
        bytes: std::fs::read(folder.join("golden.safetensors")).unwrap(),
    }
}

impl Golden {
    fn words(&self, array: &str, dtype: Dtype) -> Vec<[u8; 4]> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = file.tensor(array).unwrap();
        assert_eq!(tensor.dtype(), dtype);
        tensor.data().as_chunks::<4>().0.to_vec()
    }

    pub(crate) fn f32(&self, array: &str) -> Vec<f32> {
        let words = self.words(array, Dtype::F32);
        words.into_iter().map(f32::from_le_bytes).collect()
    }

    pub(crate) fn i32(&self, array: &str) -> Vec<i32> {
        let words = self.words(array, Dtype::I32);
        words.into_iter().map(i32::from_le_bytes).collect()
    }

    /// Token ids of every prompt.
    pub(crate) fn prompts(&self) -> Vec<Vec<u32>> {
        let tokens = self.i32("tokens");
        self.i32("offsets")
            .windows(2)
            .map(|w| {
                let ids = &tokens[w[0] as usize..w[1] as usize];
                ids.iter().map(|&id| u32::try_from(id).unwrap()).collect()
            })
            .collect()
    }
}
