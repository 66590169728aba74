//! A description of CUDA on this machine.

use crate::{
    CudaConfig,
    kernels::{image::Images, lt},
    memory::{
        context::Context,
        libs::{self, Found, Library},
    },
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
    lines.push(match lt::version(config) {
        Ok((version, path)) => format!("cuBLASLt    {version}, {}", path.display()),
        Err(error) => format!("cuBLASLt    {error}"),
    });
    lines.push(match libs::open(Library::Nvrtc, config) {
        Ok(Found::At(path)) => format!("NVRTC       {}", path.display()),
        Ok(Found::Loader) => format!(
            "NVRTC       {}, by the system's loader",
            Library::Nvrtc.file()
        ),
        Err(error) => format!("NVRTC       {error}"),
    });
    let cache = config
        .cache_dir
        .as_ref()
        .map_or_else(|| "none".to_owned(), |path| path.display().to_string());
    let families: Vec<_> = prelude_kernels::FAMILIES.iter().map(|f| f.name).collect();
    lines.push(format!(
        "kernels     {} families: {}",
        families.len(),
        families.join(", ")
    ));
    let mut images: Vec<_> = Images::new(config).places().collect();
    if images.is_empty() {
        images.push("none: NVRTC compiles what the cache lacks".to_owned());
    }
    lines.push(format!("images      {}", images.join(", ")));
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
        for name in [
            "GPU 0", "cuBLASLt", "NVRTC", "kernels", "rms_norm", "images", "cache",
        ] {
            assert!(lines.contains(name), "{lines}");
        }
    }
}
