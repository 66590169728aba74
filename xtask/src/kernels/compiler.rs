//! NVIDIA's CUDA 13.0 compiler in one folder, from PyPI wheels: no root, no GPU, no driver.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process,
};

use anyhow::{Context as _, Result, bail};

use crate::{files, packages, run::program};

/// Wheels, all under one folder. `cuobjdump` and `nvdisasm` are of the first versions on PyPI.
const WHEELS: &[&str] = &[
    "nvidia-cuda-cccl==13.0.85",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-cuobjdump==13.2.86",
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-cuda-nvdisasm==13.2.86",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-nvvm==13.0.88",
];

/// Part of images' hashes.
pub(super) const VERSION: &str = "nvcc 13.0.88";

/// Must assemble: only the right compiler knows it.
const PROBE: &str = "__global__ void k() { asm volatile(\"wgmma.fence.sync.aligned;\"); }\n";

pub(super) struct Compiler {
    folder: PathBuf,
}

impl Compiler {
    fn folder() -> Result<PathBuf> {
        let cache = match env::var_os("XDG_CACHE_HOME") {
            Some(cache) => PathBuf::from(cache),
            None => PathBuf::from(env::var_os("HOME").context("HOME is not set")?).join(".cache"),
        };
        Ok(cache.join("prelude/cuda-13.0"))
    }

    fn complete(folder: &Path) -> bool {
        let list = fs::read_to_string(folder.join(".complete")).unwrap_or_default();
        WHEELS.iter().all(|w| list.lines().any(|line| line == *w))
    }

    /// Returns the compiler, if it was set up before.
    pub(super) fn find() -> Result<Self> {
        let folder = Self::folder()?;
        if !Self::complete(&folder) {
            bail!("the CUDA compiler is not set up; run `cargo xtask kernels setup`");
        }
        Ok(Self { folder })
    }

    /// Returns the compiler, downloaded if need be (270 MB).
    pub(super) fn set_up() -> Result<Self> {
        let compiler = Self {
            folder: Self::folder()?,
        };
        if Self::complete(&compiler.folder) {
            return Ok(compiler);
        }
        if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            bail!("the wheels are for Linux on x86-64 only");
        }
        compiler.download()?;
        compiler.probe()?;
        Ok(compiler)
    }

    fn download(&self) -> Result<()> {
        let parent = self.folder.parent().context("the cache has a folder")?;
        let new = parent.join(format!("cuda-13.0.new.{}", process::id()));
        let site = new.join("site");
        packages::wheels(&site, WHEELS)?;
        let cuda = site.join("nvidia/cu13");
        // The licence texts stay with the files.
        for entry in fs::read_dir(&site)? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "dist-info") {
                let name = path.file_name().context("an entry has a name")?.to_owned();
                fs::rename(&path, cuda.join(name))?;
            }
        }
        // nvcc looks for lib64 when it links.
        #[cfg(unix)]
        std::os::unix::fs::symlink("lib", cuda.join("lib64"))?;
        fs::write(cuda.join(".complete"), WHEELS.join("\n") + "\n")?;
        files::remove(&self.folder)?;
        fs::rename(&cuda, &self.folder)?;
        fs::remove_dir_all(&new)?;
        Ok(())
    }

    fn probe(&self) -> Result<()> {
        let folder = crate::run::root().join("target/kernels");
        fs::create_dir_all(&folder)?;
        let (source, image) = (folder.join("probe.cu"), folder.join("probe.cubin"));
        fs::write(&source, PROBE)?;
        program(self.nvcc())
            .args(["-cubin", "-gencode=arch=compute_90a,code=sm_90a", "-o"])
            .args([&image, &source])
            .run()
            .context("the downloaded compiler does not work; nvcc also needs g++ 6 to 15")
    }

    pub(super) fn nvcc(&self) -> PathBuf {
        self.folder.join("bin/nvcc")
    }

    pub(super) fn cuobjdump(&self) -> PathBuf {
        self.folder.join("bin/cuobjdump")
    }
}
