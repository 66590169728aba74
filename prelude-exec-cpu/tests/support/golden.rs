//! Reference outputs, of whose arrays a model has those that parity asks for.

use std::path::PathBuf;

use prelude_models::conformance::golden;

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
    recorded: golden::Golden,
}

/// All models with reference outputs, by name.
pub(crate) fn all() -> Vec<Golden> {
    golden::names().into_iter().map(Golden::read).collect()
}

impl Golden {
    fn read(name: String) -> Self {
        let recorded = golden::Golden::open(&golden::folder(&name)).unwrap();
        let prompts = recorded.prompts();
        assert!(!prompts.is_empty(), "{name} has no prompts");
        Self {
            model: golden::model_folder(&name),
            name,
            offsets: prompts.iter().map(|prompt| prompt.offset).collect(),
            prompts: prompts.into_iter().map(|prompt| prompt.tokens).collect(),
            recorded,
        }
    }

    /// A float array of the float32 run and the width of its rows.
    pub(crate) fn f32(&self, name: &str) -> (Vec<f32>, usize) {
        self.recorded.f32(name).unwrap()
    }

    /// An array of ids and the width of its rows.
    pub(crate) fn ids(&self, name: &str) -> (Vec<i32>, usize) {
        self.recorded.i32(name).unwrap()
    }

    /// Returns true if the model has this array.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.recorded.f32(name).is_some()
    }

    /// Returns the indices or ids listed in `golden.json`.
    pub(crate) fn list(&self, key: &str) -> Vec<usize> {
        let list = self.recorded.document()[key].as_array().unwrap();
        list.iter().map(|v| v.as_u64().unwrap() as usize).collect()
    }

    /// Largest and mean difference between the reference's own f32 and bf16 runs.
    pub(crate) fn noise(&self, entry: &str) -> (f64, f64) {
        self.recorded.bf16_error(entry).unwrap()
    }

    /// Factor on cos and sin.
    pub(crate) fn attention_scaling(&self) -> f64 {
        let rope = &self.recorded.document()["rope"];
        rope["attention_scaling"].as_f64().unwrap()
    }
}
