//! Every golden model on every path, against recorded outputs of the reference implementation.

use prelude_core::{Normalise, OutputHead, Pooling, RowOutput};
use safetensors::SafeTensors;

use crate::{
    CpuConfig, CpuDtype,
    testing::{executor, prompt, run_oneshot, variants},
};

/// Largest difference of logits and log-probabilities in f32. Correct implementations differ by
/// up to 6e-5 (4e-4 with sharp weights and long prompts).
const F32_LOGITS: f32 = 2e-3;
/// The same for components of vectors of length 1.
const F32_UNIT: f32 = 1e-5;

struct Golden {
    bytes: Vec<u8>,
    /// Largest difference of f32 and bf16 in the reference implementation, by array.
    document: serde_json::Value,
}

impl Golden {
    fn open(name: &str) -> Self {
        let folder = format!("{}/../golden/{name}", env!("CARGO_MANIFEST_DIR"));
        let json = std::fs::read(format!("{folder}/golden.json")).unwrap();
        Self {
            bytes: std::fs::read(format!("{folder}/golden.safetensors")).unwrap(),
            document: serde_json::from_slice(&json).unwrap(),
        }
    }

    fn words<T>(&self, name: &str, read: fn([u8; 4]) -> T) -> Option<Vec<T>> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = file.tensor(name).ok()?;
        let words = tensor.data().as_chunks::<4>().0.iter().copied();
        Some(words.map(read).collect())
    }

    fn f32(&self, name: &str) -> Option<Vec<f32>> {
        self.words(&format!("f32.{name}"), f32::from_le_bytes)
    }

    fn prompts(&self) -> Vec<(usize, Vec<u32>)> {
        let tokens = self.words("tokens", u32::from_le_bytes).unwrap();
        let offsets = self.words("offsets", u32::from_le_bytes).unwrap();
        offsets
            .windows(2)
            .map(|w| (w[0] as usize, tokens[w[0] as usize..w[1] as usize].to_vec()))
            .collect()
    }
}
