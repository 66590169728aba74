//! Golden models for this crate's tests.

pub(crate) use crate::conformance::golden::{Golden, folder, model_folder};
use crate::{Checkpoint, conformance::golden};

/// Returns all models with golden outputs: name and checkpoint.
pub(crate) fn golden_models() -> Vec<(String, Checkpoint)> {
    let open = |name: String| {
        let checkpoint = Checkpoint::open(&model_folder(&name)).unwrap();
        (name, checkpoint)
    };
    golden::names().into_iter().map(open).collect()
}

/// Returns the reference outputs of one model.
pub(crate) fn golden_tensors(name: &str) -> Golden {
    Golden::open(&folder(name)).unwrap()
}
