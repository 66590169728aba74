//! NVIDIA's libraries as far as they work without a GPU and a driver: NVRTC, which compiles
//! kernels where no image fits and does not take all that nvcc takes; cuBLASLt, whose numbers and
//! sizes are compared with ours.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::{
    packages,
    run::{self, root},
};

/// The wheels of NVRTC (90 MB each) and their folders: for today's drivers, and for those of CUDA 12.
const NVRTC: [(&str, &[&str]); 2] = [
    ("nvrtc", &["nvidia-cuda-nvrtc==13.0.88"]),
    ("nvrtc12", &["nvidia-cuda-nvrtc-cu12==12.9.86"]),
];
/// The wheel of cuBLASLt (423 MB), and those of the headers that its own include.
const CUBLASLT: &[&str] = &[
    "nvidia-cublas==13.1.0.3",
    "nvidia-cuda-cccl==13.0.85",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
];

/// Returns the folders with NVRTC, downloaded if need be.
pub(super) fn set_up() -> Result<Vec<PathBuf>> {
    let folders = NVRTC.iter().map(|(name, of)| wheels(name, of));
    folders.collect()
}

/// Returns a folder with cuBLASLt and its headers, downloaded if need be.
pub(super) fn set_up_cublaslt() -> Result<PathBuf> {
    wheels("cublaslt", CUBLASLT)
}

fn wheels(name: &str, wheels: &[&str]) -> Result<PathBuf> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        bail!("the wheels are for Linux on x86-64 only");
    }
    let folder = root().join("target/kernels").join(name);
    packages::wheels(&folder, wheels)?;
    Ok(folder)
}

/// Compiles what has changed since the last time, by all of them at once: each uses one core.
pub(super) fn run(folders: &[PathBuf]) -> Result<()> {
    let compile =
        |folder| move || test("nvrtc_compiles_every_family", "PRELUDE_TEST_NVRTC", folder);
    run::all_at_once(folders.iter().map(|folder| compile(folder)))
}

/// Compares numbers with the header, and makes every description by the library.
pub(super) fn run_cublaslt(folder: &Path) -> Result<()> {
    test("the_real_library", "PRELUDE_TEST_CUBLASLT", folder)
}

fn test(name: &str, variable: &str, folder: &Path) -> Result<()> {
    crate::unit_tests(name)
        .args(["--", "--nocapture"])
        .env(variable, folder)
        .run()
}
