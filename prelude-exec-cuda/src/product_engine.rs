//! The code that multiplies matrices, and the reason for it.

use std::{fmt, path::PathBuf};

use crate::Error;

/// The code that runs an executor's matrix products.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ProductEngine {
    /// NVIDIA's library.
    CublasLt {
        /// The library's version, such as `13.1.0`.
        version: String,
        /// The library's file.
        library: PathBuf,
        /// The files and the table of measured algorithms, or why there is none, and what was
        /// measured at start.
        plans: String,
        /// The number of algorithms for the model's products from each source.
        counts: PlanCounts,
    },
    /// Our own kernel, because the library cannot be used.
    GemmMma {
        /// The reason why the library cannot be used.
        why: Error,
    },
    /// Our own kernel, because [`crate::CudaConfig::deterministic`] asks for equal bits.
    Deterministic,
    /// Our own kernel in the emulation, which has no library.
    #[cfg(feature = "emu")]
    Emulated,
}

/// Numbers of shapes of products, by the source of the algorithm that was chosen for them at start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanCounts {
    /// Measured on this machine before: the files in the cache folder.
    pub file: usize,
    /// Measured on a GPU of this kind: a table that the program carries.
    pub table: usize,
    /// Measured at this start.
    pub measured: usize,
    /// Not measured: the first choice of the library's heuristic.
    pub heuristic: usize,
    /// Shapes for which the library has no algorithm: our own kernel computes them.
    pub none: usize,
}

impl fmt::Display for PlanCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            table,
            measured,
            heuristic,
            none,
        } = self;
        write!(
            f,
            "{file} from the file, {table} from the table, {measured} measured now, \
             {heuristic} from the heuristic"
        )?;
        match none {
            0 => Ok(()),
            _ => write!(f, ", {none} by gemm_mma"),
        }
    }
}

impl fmt::Display for ProductEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CublasLt {
                version,
                library,
                plans,
                counts,
            } => write!(
                f,
                "products by cuBLASLt {version} ({}), algorithms: {counts} ({plans})",
                library.display()
            ),
            Self::GemmMma { why } => write!(f, "products by gemm_mma, slower: {why}"),
            Self::Deterministic => f.write_str("products by gemm_mma, for equal bits"),
            #[cfg(feature = "emu")]
            Self::Emulated => f.write_str("products by gemm_mma, emulated"),
        }
    }
}
