//! A description of CUDA on this machine.

use crate::{
    CudaConfig, Error,
    kernels::{image::Images, lt, nvrtc::Nvrtc},
    memory::{
        context::{Context, Seen},
        libs,
    },
};

/// Returns the name of the configuration's GPU if models can run on it: if there are a driver, the GPU
/// and kernels. Nothing is taken of it.
///
/// # Errors
/// The first thing that is missing, with what to do about it.
pub fn usable_gpu(config: &CudaConfig) -> Result<String, Error> {
    let seen = Seen::find(config.device)?;
    Images::new(config).check()?;
    Ok(seen.name)
}

/// Returns a line for whether models can run on the GPU, or why not, and one for each thing: driver,
/// GPU, libraries with their paths, kernels. What is missing is said with what to do about it.
#[must_use]
pub fn info(config: &CudaConfig) -> Vec<String> {
    let mut lines = vec![match usable_gpu(config) {
        Ok(name) => format!(
            "yes         models can run on GPU {}, {name}",
            config.device
        ),
        Err(error) => format!(
            "no          models cannot run on GPU {}: {error}",
            config.device
        ),
    }];
    match Context::open(config.device) {
        Ok(gpu) => {
            let (major, minor) = gpu.compute_capability;
            lines.push(match libs::majors() {
                [12] => format!("driver      CUDA {}: with libraries of CUDA 12", gpu.driver),
                _ => format!("driver      CUDA {}", gpu.driver),
            });
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
    lines.push(match Nvrtc::open(libs::majors(), config) {
        Ok(nvrtc) => format!(
            "NVRTC       {}, {}",
            nvrtc.version(),
            nvrtc.path().display()
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

    /// `info` does not panic on any machine, and reports each thing in a line.
    #[test]
    fn says_what_is_there_and_what_is_not() {
        let config = CudaConfig::default();
        let first = &info(&config)[0];
        match usable_gpu(&config) {
            Ok(name) => assert!(first.starts_with("yes ") && first.contains(&name)),
            Err(error) => assert!(first.starts_with("no ") && first.ends_with(&error.to_string())),
        }
        let lines = info(&config).join("\n");
        for name in [
            "GPU 0", "cuBLASLt", "NVRTC", "kernels", "rms_norm", "images", "cache",
        ] {
            assert!(lines.contains(name), "{lines}");
        }
    }
}
