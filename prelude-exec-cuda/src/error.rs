//! Errors of the executor.

use std::path::PathBuf;

use prelude_core::ExecutorError;
use thiserror::Error;

/// The reason why an executor cannot be made, or a step cannot run.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// No driver is installed, or it does not start.
    #[error("no NVIDIA driver: {why}; install driver 580 or newer, or run on the CPU")]
    NoDriver {
        /// The attempt that failed.
        why: String,
    },
    /// The driver does not know this version of CUDA.
    #[error(
        "the NVIDIA driver supports CUDA {found}, but CUDA {need} is needed; install driver 580 \
         or newer, or 525 at least with libraries of CUDA 12"
    )]
    DriverTooOld {
        /// CUDA version of the driver, such as `12.8`.
        found: String,
        /// Oldest version that works.
        need: String,
    },
    /// The driver sees no such GPU.
    #[error("no GPU {ordinal}: the driver sees {count}")]
    NoDevice {
        /// The GPU asked for.
        ordinal: u32,
        /// The number of devices.
        count: u32,
    },
    /// The GPU is too old.
    #[error(
        "the GPU has compute capability {compute_capability}, but 8.0 or newer is needed (Ampere)"
    )]
    Unsupported {
        /// The GPU's compute capability, such as `7.5`.
        compute_capability: String,
    },
    /// A library of NVIDIA's was not found.
    #[error(
        "{name} was not found in {}; install NVIDIA's wheels (`pip install {}`), or name its folder \
         in PRELUDE_CUDA_LIBS",
        list(searched),
        wheels(name)
    )]
    LibraryMissing {
        /// File name.
        name: &'static str,
        /// The places that were searched, in order.
        searched: Vec<PathBuf>,
    },
    /// A library of NVIDIA's is of another version than the bindings to it.
    #[error(
        "{name} is version {found}, but {need} is needed; put the folder of the right one first \
         in PRELUDE_CUDA_LIBS"
    )]
    LibraryVersion {
        /// File name.
        name: &'static str,
        /// The library's version, or why the library does not say it.
        found: String,
        /// Versions that work.
        need: &'static str,
    },
    /// A library of NVIDIA's lacks a function that it should have.
    #[error(
        "{name} has no `{symbol}`; put the folder of another version first in PRELUDE_CUDA_LIBS"
    )]
    LibrarySymbol {
        /// File name.
        name: &'static str,
        /// The function.
        symbol: &'static str,
    },
    /// No compiled form of a kernel fits the GPU.
    #[error("no compiled kernels `{name}` for this GPU: {hint}")]
    KernelImageMissing {
        /// The family.
        name: String,
        /// A remedy.
        hint: String,
    },
    /// The GPU has too little free memory. Only at start: a step takes none.
    #[error(
        "{stage} needs {asked} bytes of GPU memory, {free} are free; lower `kv_bytes`, \
         `max_step_tokens` or `max_context_len`"
    )]
    OutOfMemory {
        /// The purpose of the memory.
        stage: String,
        /// Bytes asked for.
        asked: u64,
        /// Bytes free then.
        free: u64,
    },
    /// A kernel or a copy could not be queued, or its arguments are not what it takes.
    #[error("{kernel}: {code}")]
    Launch {
        /// The kernel, or the kind of copy.
        kernel: &'static str,
        /// The driver's error, or the rule that is broken.
        code: String,
    },
    /// The GPU or its context is lost: nothing works from here on.
    #[error("the GPU is lost after {kernel}: {code}")]
    DeviceLost {
        /// The driver's error.
        code: String,
        /// The kernel or copy that was waited for.
        kernel: &'static str,
    },
    /// Some other call of the driver, or of a library of NVIDIA's, failed.
    #[error("{call}: {code}")]
    Driver {
        /// The call.
        call: &'static str,
        /// The driver's or the library's error.
        code: String,
    },
    /// A setting out of range.
    #[error("`{field}` {what}")]
    Config {
        /// The field of [`crate::CudaConfig`].
        field: &'static str,
        /// The rule that is broken, with the values.
        what: String,
    },
    /// A weight that does not fit its use.
    #[error("{name}: {what}")]
    Weight {
        /// The weight's name in the checkpoint.
        name: String,
        /// The rule that is broken, with the values.
        what: String,
    },
    /// The model cannot be read, is not one that Prelude knows, or has a shape without kernels.
    #[error("{0}")]
    Model(String),
    /// An operation that the model needs and that no kernel computes yet.
    #[error(
        "the GPU executor has no kernels for {what}, which the model needs; run it on the CPU \
         (`--device cpu`)"
    )]
    NoKernels {
        /// The operation.
        what: &'static str,
    },
    /// A step asked for more activations than the arena holds.
    #[error(transparent)]
    Arena(#[from] prelude_models::step::ArenaFull),
    /// A batch that the step's fixed buffers do not hold.
    #[error("the step does not fit: {0}")]
    Step(String),
}

impl Error {
    pub(crate) const fn no_kernels(what: &'static str) -> Self {
        Self::NoKernels { what }
    }

    pub(crate) fn config(field: &'static str, what: impl Into<String>) -> Self {
        Self::Config {
            field,
            what: what.into(),
        }
    }

    pub(crate) fn weight(name: &str, what: impl Into<String>) -> Self {
        Self::Weight {
            name: name.to_owned(),
            what: what.into(),
        }
    }

    pub(crate) fn launch(kernel: &'static str, code: impl Into<String>) -> Self {
        Self::Launch {
            kernel,
            code: code.into(),
        }
    }
}

impl From<prelude_models::Error> for Error {
    fn from(error: prelude_models::Error) -> Self {
        Self::Model(error.to_string())
    }
}

/// A lost device ends the engine; anything else ends the step.
impl From<Error> for ExecutorError {
    fn from(error: Error) -> Self {
        match error {
            Error::DeviceLost { .. } => Self::Lost(error.to_string()),
            _ => Self::Step(error.to_string()),
        }
    }
}

/// Returns the packages that hold a library of this name.
fn wheels(name: &str) -> &'static str {
    match name.ends_with(".12") {
        true => "nvidia-cublas-cu12 nvidia-cuda-nvrtc-cu12",
        false => "nvidia-cublas nvidia-cuda-nvrtc",
    }
}

fn list(paths: &[PathBuf]) -> String {
    let paths: Vec<_> = paths.iter().map(|p| p.display().to_string()).collect();
    paths.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_what_to_do() {
        let missing = Error::LibraryMissing {
            name: "libcublasLt.so.13",
            searched: vec!["/a".into(), "/b".into()],
        };
        let text = missing.to_string();
        assert!(
            text.contains("/a, /b") && text.contains("pip install nvidia-cublas"),
            "{text}"
        );
        let lost = Error::DeviceLost {
            code: "CUDA_ERROR_ILLEGAL_ADDRESS".to_owned(),
            kernel: "rms_norm",
        };
        assert!(matches!(ExecutorError::from(lost), ExecutorError::Lost(_)));
        let step = Error::launch("rms_norm", "too wide");
        assert_eq!(
            ExecutorError::from(step),
            ExecutorError::Step("rms_norm: too wide".to_owned())
        );
    }
}
