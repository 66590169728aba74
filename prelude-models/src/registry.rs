//! Architecture names and the definitions that implement them.

use crate::{Checkpoint, Error, Model, Ops, Qwen3, WeightLoader};

/// Model definitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Qwen3,
}

const ARCHITECTURES: [(&str, Family); 3] = [
    ("Qwen3ForCausalLM", Family::Qwen3),
    ("Qwen3ForSequenceClassification", Family::Qwen3),
    ("Qwen3Model", Family::Qwen3),
];

/// Loads whatever model the checkpoint holds, for positions `0..max_positions`.
///
/// # Errors
/// [`Error::Architecture`] for a name that no definition has, [`Error::Tensors`] if the tensors
/// are not the architecture's, [`Error::NotFinite`] for damaged weights, [`Error::Loader`] for
/// what the device says.
pub fn load_model<O, L>(
    checkpoint: &Checkpoint,
    max_positions: usize,
    loader: &mut L,
) -> Result<Box<dyn Model<O>>, Error>
where
    O: Ops,
    O::Weight: Send + Sync + 'static,
    L: WeightLoader<Weight = O::Weight>,
{
    match family(&checkpoint.config().architecture)? {
        Family::Qwen3 => Ok(Box::new(Qwen3::load(checkpoint, max_positions, loader)?)),
    }
}

fn family(architecture: &str) -> Result<Family, Error> {
    ARCHITECTURES
        .iter()
        .find(|(name, _)| *name == architecture)
        .map(|&(_, family)| family)
        .ok_or_else(|| Error::Architecture {
            name: architecture.to_owned(),
            known: ARCHITECTURES.map(|(name, _)| name).join(", "),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_architectures_are_named() {
        assert_eq!(family("Qwen3ForCausalLM").unwrap(), Family::Qwen3);
        let error = family("LlamaForCausalLM").unwrap_err().to_string();
        assert!(error.contains("\"LlamaForCausalLM\" is not supported; known: Qwen3ForCausalLM"));
    }
}
