//! The code that computes: arithmetic and instructions.

use serde::{Deserialize, Serialize};

use super::{Isa, Supported};

/// Arithmetic of weights, products and the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum CpuDtype {
    /// f32 throughout. Weights that a checkpoint stores as bf16 stay so in memory: they widen
    /// exactly, at half the bytes.
    F32,
    /// Weights and KV cache in bf16; hidden states, sums and softmax in f32. On
    /// [`Isa::AmxBf16`], [`Isa::Avx512Bf16`] and [`Isa::NeonBf16`] the inputs of products are
    /// rounded to bf16 as well.
    Bf16,
}

/// The form in which rows enter products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputForm {
    /// Rounded to pairs of bf16 and cut into tiles.
    Tiles,
    /// Rounded to pairs of bf16.
    Bf16,
    /// Unchanged.
    F32,
}

impl InputForm {
    /// Returns the form that suits the instructions.
    pub(crate) fn of(isa: Supported, dtype: CpuDtype) -> Self {
        match (dtype, isa.isa()) {
            (CpuDtype::Bf16, Isa::AmxBf16) => Self::Tiles,
            (CpuDtype::Bf16, Isa::Avx512Bf16 | Isa::NeonBf16) => Self::Bf16,
            _ => Self::F32,
        }
    }
}

/// The code that was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backend {
    /// The instructions.
    pub(crate) isa: Supported,
    /// The form in which rows enter products that are not rounded.
    pub(crate) act: InputForm,
}
