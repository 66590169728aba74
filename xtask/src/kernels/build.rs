//! Images: one size-compressed fatbin a family, by content.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use anyhow::{Context as _, Result};
use prelude_kernels::{FAMILIES, Family, MANIFEST};
use serde::Serialize;

use super::compiler::{Compiler, VERSION};
use crate::run::{program, root};

/// Real architectures in an image; the PTX of the oldest serves what is not listed.
const TARGETS: &[&str] = &["80", "89", "90", "120"];
/// The architecture of families with Hopper's own instructions.
const HOPPER: &[&str] = &["90a"];

/// Returns the real architectures in a family's image.
pub(super) fn targets(family: &Family) -> &'static [&'static str] {
    match family.is_of_hopper() {
        true => HOPPER,
        false => TARGETS,
    }
}

/// Returns the real architectures in images.
pub(super) fn all_targets() -> impl Iterator<Item = &'static str> {
    TARGETS.iter().chain(HOPPER).copied()
}

/// The entry of a kernel image in `target/kernels/manifest.json`.
#[derive(Serialize)]
struct Entry {
    /// [`Family::hash`] of what it was compiled from.
    source: String,
    compiler: &'static str,
    targets: &'static [&'static str],
    bytes: u64,
}

pub(super) fn folder() -> PathBuf {
    root().join("target/kernels")
}

/// Compiles what has changed; returns the images in the order of [`FAMILIES`].
pub(super) fn images(compiler: &Compiler) -> Result<Vec<PathBuf>> {
    let folder = folder();
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        while let Some(family) = FAMILIES.get(next.fetch_add(1, Ordering::Relaxed)) {
            image(compiler, family, &folder)?;
        }
        Ok(())
    };
    let workers = thread::available_parallelism()
        .map_or(1, usize::from)
        .min(8);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|w| w.join().expect("a worker does not panic"))
    })?;
    Ok(FAMILIES.iter().map(|f| path(f, &folder)).collect())
}

/// Returns the path of an image, whose name holds the hash, so that a stale image is never taken
/// for a fresh one.
fn path(family: &Family, folder: &Path) -> PathBuf {
    folder.join(format!("{}-{}.fatbin", family.name, &family.hash()[..16]))
}

fn image(compiler: &Compiler, family: &Family, folder: &Path) -> Result<()> {
    let image = path(family, folder);
    if image.exists() {
        return Ok(());
    }
    let sources = root().join("kernels");
    let partial = image.with_extension("partial");
    let mut nvcc = program(compiler.nvcc())
        .args(Family::options())
        .args([
            "-fatbin",
            "--compress-mode=size",
            "-Werror",
            "all-warnings",
            "-I",
        ])
        .args([sources.join("include")]);
    for target in targets(family) {
        nvcc = nvcc.args([format!("-gencode=arch=compute_{target},code=sm_{target}")]);
    }
    if !family.is_of_hopper() {
        nvcc = nvcc.args(["-gencode=arch=compute_80,code=compute_80"]);
    }
    nvcc.args(["-o"])
        .args([&partial, &sources.join(format!("src/{}.cu", family.name))])
        .run()?;
    fs::rename(&partial, &image).with_context(|| format!("cannot rename {}", partial.display()))
}

pub(super) fn run(compiler: &Compiler) -> Result<()> {
    let images = images(compiler)?;
    let mut manifest = BTreeMap::new();
    let mut total = 0;
    for (family, image) in FAMILIES.iter().zip(images) {
        let bytes = fs::metadata(&image)?.len();
        total += bytes;
        println!("{:<16} {bytes:>8} bytes", family.name);
        fs::copy(&image, folder().join(format!("{}.fatbin", family.name)))?;
        let entry = Entry {
            source: family.hash(),
            compiler: VERSION,
            targets: targets(family),
            bytes,
        };
        manifest.insert(family.name, entry);
    }
    fs::write(
        folder().join(MANIFEST),
        serde_json::to_string_pretty(&manifest)?,
    )?;
    println!("{total} bytes in {}", folder().display());
    println!("PRELUDE_KERNEL_IMAGES names that folder to builds whose program is to carry them");
    Ok(())
}
