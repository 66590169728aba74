//! `prelude cuda`: what this machine has of CUDA, and NVIDIA's libraries from NVIDIA's wheels.
//!
//! We ship no library of NVIDIA's: pip of this machine fetches them, and checks them against the
//! hashes below.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use prelude_server::executor::{CudaConfig, cuda_info};

pub(crate) use prelude_server::executor::CudaPlaces;

use super::{Code, Failure, print, say};
use crate::args::CudaCommand;

/// A wheel, with the SHA-256 of its files for 64-bit Linux on x86.
struct Wheel {
    requirement: &'static str,
    sha256: &'static str,
    megabytes: u32,
}

const CUBLAS: Wheel = Wheel {
    requirement: "nvidia-cublas==13.1.0.3",
    sha256: "ee8722c1f0145ab246bccb9e452153b5e0515fd094c3678df50b2a0888b8b171",
    megabytes: 423,
};
const NVRTC: Wheel = Wheel {
    requirement: "nvidia-cuda-nvrtc==13.0.88",
    sha256: "ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575",
    megabytes: 91,
};

const LICENCE: &str = "These libraries are NVIDIA's, under its CUDA Toolkit end user licence: \
                       https://docs.nvidia.com/cuda/eula/";

pub(crate) fn run(command: &CudaCommand) -> Result<(), Failure> {
    match command {
        CudaCommand::Info { device } => inform(*device),
        CudaCommand::Install { nvrtc, dir } => install(*nvrtc, dir.clone()),
    }
}

/// Where this process looks for libraries and keeps kernels: the environment and the user's
/// folders.
pub(crate) fn places() -> CudaPlaces {
    let first = env::var_os("PRELUDE_CUDA_LIBS").map(|paths| {
        env::split_paths(&paths)
            .filter(|p| !p.as_os_str().is_empty())
            .collect()
    });
    let mut fallback: Vec<PathBuf> = data_folder().into_iter().collect();
    fallback.extend(site_packages());
    fallback.extend(toolkits());
    CudaPlaces {
        first: first.unwrap_or_default(),
        fallback,
        cache: user_folder("XDG_CACHE_HOME", ".cache").map(|f| f.join("prelude/kernels")),
    }
}

/// Where `install` puts libraries.
fn data_folder() -> Option<PathBuf> {
    user_folder("XDG_DATA_HOME", ".local/share").map(|folder| folder.join("prelude/cuda"))
}

fn user_folder(variable: &str, in_home: &str) -> Option<PathBuf> {
    let absolute = |name: &str| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|p| p.is_absolute())
    };
    absolute(variable).or_else(|| absolute("HOME").map(|home| home.join(in_home)))
}

/// Isolated: otherwise modules of the current folder, which may be a model's that someone
/// downloaded, would go before Python's own.
fn python() -> Command {
    let mut command = Command::new("python3");
    command.arg("-I");
    command
}

/// The active Python's packages: a machine with torch has the libraries there.
fn site_packages() -> Option<PathBuf> {
    let script = "import sysconfig; print(sysconfig.get_path('platlib'))";
    let output = python().args(["-c", script]).output().ok()?;
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    (output.status.success() && path.is_absolute()).then_some(path)
}

/// `/usr/local/cuda*`, the newest name first.
fn toolkits() -> Vec<PathBuf> {
    let entries = fs::read_dir("/usr/local").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .filter(|e| e.file_name().to_string_lossy().starts_with("cuda"))
        .map(|e| e.path())
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found
}

fn inform(device: u32) -> Result<(), Failure> {
    let mut text = String::new();
    for line in cuda_info(device, &CudaConfig::default(), &places())? {
        text.push_str(&line);
        text.push('\n');
    }
    print(&text)
}

fn install(nvrtc: bool, dir: Option<PathBuf>) -> Result<(), Failure> {
    let own = dir.is_none();
    let target = dir.or_else(data_folder).ok_or_else(|| {
        let message = "no home folder is known; name one with --dir";
        Failure::new(Code::Failed, message)
    })?;
    let mut wheels = vec![&CUBLAS];
    if nvrtc {
        wheels.push(&NVRTC);
    }
    let requirements = requirements(&wheels);
    let by_hand = || {
        let names: Vec<_> = wheels.iter().map(|w| w.requirement).collect();
        format!(
            "run this where pip is, and copy the folder here:\n  pip install --no-deps --target {} {}",
            target.display(),
            names.join(" ")
        )
    };
    if !(cfg!(target_os = "linux") && cfg!(target_arch = "x86_64")) {
        let message = "NVIDIA's libraries are known here for Linux on x86-64 only";
        return Err(Failure::new(Code::Failed, message));
    }
    let pip = python().args(["-m", "pip", "--version"]).output();
    if !pip.is_ok_and(|o| o.status.success()) {
        let message = format!("this machine's python3 has no pip; {}", by_hand());
        return Err(Failure::new(Code::Failed, message));
    }
    let megabytes: u32 = wheels.iter().map(|w| w.megabytes).sum();
    say(format_args!("{LICENCE}"));
    say(format_args!(
        "fetching {megabytes} MB into {}",
        target.display()
    ));
    let status = with_fresh_folder(&target, |fresh| {
        let (list, site) = (fresh.join("requirements.txt"), fresh.join("site"));
        fs::write(&list, &requirements)?;
        let mut pip = python();
        pip.args(["-m", "pip", "install", "--no-deps", "--require-hashes"]);
        pip.args(["--only-binary", ":all:", "--target"]);
        let status = pip.arg(&site).arg("--requirement").arg(list).status()?;
        if status.success() {
            merge(&site, &target)?;
        }
        Ok(status)
    });
    match status {
        Ok(status) if status.success() => {}
        Ok(_) => {
            let message = format!("pip did not install them; {}", by_hand());
            return Err(Failure::new(Code::Failed, message));
        }
        Err(e) => {
            let message = format!("cannot install into {}: {e}", target.display());
            return Err(Failure::new(Code::Failed, message));
        }
    }
    if own {
        say(format_args!("done; `prelude cuda info` shows them"));
    } else {
        say(format_args!(
            "done; set PRELUDE_CUDA_LIBS={}",
            target.display()
        ));
    }
    Ok(())
}

/// Lines of a requirements file that pip checks hashes by.
fn requirements(wheels: &[&Wheel]) -> String {
    let line = |w: &&Wheel| format!("{} --hash=sha256:{}\n", w.requirement, w.sha256);
    wheels.iter().map(line).collect()
}

/// Runs `f` on a new folder within `target`, and removes it. pip must not write to `target`
/// itself: to replace a package it deletes whole folders, and `nvidia` is shared by many.
fn with_fresh_folder<T>(
    target: &Path,
    f: impl FnOnce(&Path) -> std::io::Result<T>,
) -> std::io::Result<T> {
    let fresh = target.join(format!(".prelude-install-{}", std::process::id()));
    fs::create_dir_all(target)?;
    fs::create_dir(&fresh)?;
    let result = f(&fresh);
    let _ = fs::remove_dir_all(&fresh);
    result
}

/// Moves all files below `from` to the same places below `to`; what else is there stays.
fn merge(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let place = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            merge(&entry.path(), &place)?;
        } else {
            fs::rename(entry.path(), place)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wheels_are_pinned_by_hash() {
        let text = requirements(&[&CUBLAS, &NVRTC]);
        for line in text.lines() {
            let (requirement, hash) = line.split_once(" --hash=sha256:").unwrap();
            assert!(requirement.starts_with("nvidia-") && requirement.contains("=="));
            assert_eq!(hash.len(), 64);
        }
        assert_eq!(text.lines().count(), 2);
    }

    fn folder(name: &str) -> PathBuf {
        env::temp_dir().join(format!("prelude-{name}-{}", std::process::id()))
    }

    #[test]
    fn installing_keeps_what_others_put_there() {
        let target = folder("install");
        let write = |path: PathBuf, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(target.join("nvidia/cudnn/lib/libcudnn.so"), "theirs");
        write(target.join("nvidia/cu13/lib/libcublasLt.so.13"), "old");
        with_fresh_folder(&target, |fresh| {
            write(fresh.join("site/nvidia/cu13/lib/libcublasLt.so.13"), "new");
            merge(&fresh.join("site"), &target)
        })
        .unwrap();
        let failed: std::io::Result<()> = with_fresh_folder(&target, |fresh| {
            write(fresh.join("site/half"), "a wheel");
            Err(std::io::Error::other("pip"))
        });
        let read = |path: &str| fs::read_to_string(target.join(path)).unwrap();
        let texts = [
            read("nvidia/cudnn/lib/libcudnn.so"),
            read("nvidia/cu13/lib/libcublasLt.so.13"),
        ];
        let left = fs::read_dir(&target).unwrap().count();
        fs::remove_dir_all(&target).unwrap();
        assert_eq!(texts, ["theirs", "new"]);
        assert_eq!(
            (left, failed.is_err()),
            (1, true),
            "fresh folders are removed"
        );
    }

    /// A model's folder may hold a `sysconfig.py`; it must not run.
    #[test]
    fn python_ignores_the_current_folder() {
        if Command::new("python3").arg("--version").output().is_err() {
            let _ = std::io::Write::write_all(
                &mut std::io::stderr(),
                b"SKIP: no python3: its isolation is not tested\n",
            );
            return;
        }
        let folder = folder("python");
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
