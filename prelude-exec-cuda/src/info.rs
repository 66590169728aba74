//! What can be said about CUDA on this machine.

use crate::{
    CudaConfig,
    kernels::libs::{self, Found, Library},
    memory::context::Context,
};

/// A line for each thing: driver, GPU, libraries with their paths, kernels. What is missing is
/// said with what to do about it.
#[must_use]
pub fn info(config: &CudaConfig) -> Vec<String> {
    let mut lines = Vec::new();
    match Context::open(config.device) {
        Ok(gpu) => {
            let (major, minor) = gpu.compute_capability;
            lines.push(format!("driver      CUDA {}", gpu.driver));
            lines.push(format!(
                "GPU {}       {}, compute capability {major}.{minor}, {} multiprocessors, {} MiB",
                config.device,
                gpu.name,
                gpu.multiprocessors,
                gpu.total_bytes >> 20
            ));
        }
        Err(error) => lines.push(format!("GPU {}       {error}", config.device)),
    }
    for (name, library) in [("cuBLASLt", Library::CublasLt), ("NVRTC", Library::Nvrtc)] {
        let place = match libs::open(library, config) {
            Ok(Found::At(path)) => path.display().to_string(),
            Ok(Found::Loader) => format!("{}, by the system's loader", library.file()),
            Err(error) => error.to_string(),
        };
        lines.push(format!("{name:<11} {place}"));
    }
    let cache = config
        .cache_dir
        .as_ref()
        .map_or_else(|| "none".to_owned(), |path| path.display().to_string());
    let families: Vec<_> = kernels::FAMILIES.iter().map(|f| f.name).collect();
    lines.push(format!(
        "kernels     {} families: {}",
        families.len(),
        families.join(", ")
    ));
    lines.push(format!("cache       {cache}"));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On every machine: nothing panics, and each thing has its line.
    #[test]
    fn says_what_is_there_and_what_is_not() {
        let lines = info(&CudaConfig::default()).join("\n");
        for name in ["GPU 0", "cuBLASLt", "NVRTC", "kernels", "rms_norm", "cache"] {
            assert!(lines.contains(name), "{lines}");
        }
    }
}
