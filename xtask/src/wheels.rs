//! Programs and libraries of others, from Python wheels in a folder of `target`.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

use crate::{files, run::program};

/// Installs these wheels into a folder of their own, unless they are there.
pub(crate) fn install(folder: &Path, wheels: &[&str]) -> Result<()> {
    let complete = folder.join(".complete");
    let list = wheels.join("\n");
    if fs::read_to_string(&complete).is_ok_and(|text| text == list) {
        return Ok(());
    }
    files::remove(folder)?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    program("python3")
        .args(["-m", "pip", "install", "--quiet", "--no-deps"])
        .args(["--disable-pip-version-check", "--only-binary=:all:"])
        .args(["--target".as_ref(), folder.as_os_str()])
        .args(wheels)
        .run()?;
    fs::write(complete, list)?;
    Ok(())
}
