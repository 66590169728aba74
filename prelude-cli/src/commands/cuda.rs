//! `prelude cuda info`: the parts of CUDA that this machine has.

use std::{env, fs, path::PathBuf, process::Command};

use prelude_server::executor::{CudaConfig, CudaPlaces, cuda_info};

use super::{Failure, print};

/// Prints driver, GPU, libraries with their paths, and kernels.
pub(crate) fn info(device: u32) -> Result<(), Failure> {
    let mut text = String::new();
    for line in cuda_info(device, &CudaConfig::default(), &places())? {
        text.push_str(&line);
        text.push('\n');
    }
    print(&text)
}

/// Returns the folders in which this process looks for libraries and keeps kernels, from the
/// environment and the usual places.
pub(crate) fn places() -> CudaPlaces {
    let first = env::var_os("PRELUDE_CUDA_LIBS").map(|paths| {
        env::split_paths(&paths)
            .filter(|p| !p.as_os_str().is_empty())
            .collect()
    });
    let mut fallback = python_packages();
    fallback.extend(toolkits());
    CudaPlaces {
        first: first.unwrap_or_default(),
        fallback,
        cache: cache_folder().map(|folder| folder.join("prelude/kernels")),
    }
}

/// Returns the user's folder of caches.
fn cache_folder() -> Option<PathBuf> {
    let absolute = |name: &str| {
        let folder = env::var_os(name).map(PathBuf::from);
        folder.filter(|folder| folder.is_absolute())
    };
    absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))
}

/// Returns the folders of the active Python's packages: pip puts NVIDIA's wheels there.
fn python_packages() -> Vec<PathBuf> {
    let script = "import site, sysconfig; print('\\n'.join([sysconfig.get_path('platlib')]\
                  + site.getsitepackages() + [site.getusersitepackages()]))";
    let Ok(output) = python().args(["-c", script]).output() else {
        return Vec::new();
    };
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let folders = lines.lines().map(PathBuf::from);
    folders.filter(|folder| folder.is_absolute()).collect()
}

/// Returns a command that runs Python without modules of the current folder, which may be a
/// downloaded model's.
fn python() -> Command {
    let mut command = Command::new("python3");
    command.arg("-I");
    command
}

/// Returns the folders `/usr/local/cuda*`, the newest name first.
fn toolkits() -> Vec<PathBuf> {
    let entries = fs::read_dir("/usr/local").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .filter(|e| e.file_name().to_string_lossy().starts_with("cuda"))
        .map(|e| e.path())
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model's folder may hold a `sysconfig.py`, which must not run.
    #[test]
    fn python_ignores_the_current_folder() {
        if Command::new("python3").arg("--version").output().is_err() {
            let _ = std::io::Write::write_all(
                &mut std::io::stderr(),
                b"SKIP: no python3: its isolation is not tested\n",
            );
            return;
        }
        let folder = env::temp_dir().join(format!("prelude-python-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("sysconfig.py"), "open('ran', 'w')").unwrap();
        let output = python()
            .args(["-c", "import sysconfig"])
            .current_dir(&folder)
            .output()
            .unwrap();
        let ran = folder.join("ran").exists();
        fs::remove_dir_all(&folder).unwrap();
        assert!(output.status.success() && !ran);
    }
}
