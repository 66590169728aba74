//! The code that multiplies matrices, and the reason for it.

use std::{fmt, path::PathBuf};

use crate::Error;

/// The code that runs an executor's matrix products.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ProductEngine {
    /// NVIDIA's library.
    CublasLt {
        /// Its version, such as `13.1.0`.
        version: String,
        /// Its file.
        library: PathBuf,
        /// A description of the measured plans in use, and of their source.
        plans: String,
    },
    /// Our own kernel, because the library cannot be used.
    GemmMma {
        /// Why not.
        why: Error,
    },
    /// Our own kernel, because [`crate::CudaConfig::deterministic`] asks for equal bits.
    Deterministic,
    /// Our own kernel in the emulation, which has no library.
    #[cfg(feature = "emu")]
    Emulated,
}

impl fmt::Display for ProductEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CublasLt {
                version,
                library,
                plans,
            } => write!(
                f,
                "products by cuBLASLt {version} ({}), measured plans: {plans}",
                library.display()
            ),
            Self::GemmMma { why } => write!(f, "products by gemm_mma, slower: {why}"),
            Self::Deterministic => f.write_str("products by gemm_mma, for equal bits"),
            #[cfg(feature = "emu")]
            Self::Emulated => f.write_str("products by gemm_mma, emulated"),
        }
    }
}
