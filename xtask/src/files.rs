//! Folders and files below them.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::run::root;

/// Returns the folder of cargo's output.
pub(crate) fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into)
}

/// Removes a folder if it exists.
pub(crate) fn remove(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}

/// Copies one file.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to)
        .map(drop)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

/// Copies the files of a folder, and of the folders in it, that `keep` returns true for.
pub(crate) fn copy_folder(from: &Path, to: &Path, keep: fn(&Path) -> bool) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    for path in below(from)?.into_iter().filter(|path| keep(path)) {
        let to = to.join(path.strip_prefix(from)?);
        fs::create_dir_all(to.parent().unwrap_or(&to))?;
        copy(&path, &to)?;
    }
    Ok(())
}

/// Returns the files of a folder and of the folders in it, in the order of their names.
pub(crate) fn below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        let entries = fs::read_dir(&folder);
        for entry in entries.with_context(|| format!("cannot list {}", folder.display()))? {
            let path = entry?.path();
            let into = if path.is_dir() { &mut open } else { &mut files };
            into.push(path);
        }
    }
    files.sort();
    Ok(files)
}
