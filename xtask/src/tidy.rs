//! Checks that no compiler makes.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

mod cycles;
mod functions;
mod map;
mod papers;
mod sizes;

use crate::{
    files,
    metadata::{Dependency, Metadata},
    run,
};
pub(crate) use sizes::update;

/// Tests, benches and examples may also use the oracle and what it needs, and the scheduler.
const DEV_EXTRA: &[&str] = &["prelude-exec-cpu", "prelude-models", "prelude-sched"];

/// Crates whose tests may use one more crate.
const DEV_EXTRA_OF: &[(&str, &str)] = &[("prelude-bench", "prelude-epp")];

/// The places in which `unsafe` code may be (ARCHITECTURE.md, invariant 9): files, or folders
/// ending in `/`.
const UNSAFE_LEAVES: &[&str] = &[
    "fasttoken/src/compare.rs",
    "fasttoken/src/parallel/job.rs",
    "fasttoken/python/src/buffer.rs",
    "fasttoken/src/prefetch.rs",
    "fasttoken/src/scan/fill.rs",
    "fasttoken/src/scan/class_masks/",
    "fasttoken/src/store/flat.rs",
    "fasttoken/src/store/file_bytes.rs",
    "prelude-models/src/checkpoint/map.rs",
    "prelude-exec-cpu/src/heap.rs",
    "prelude-exec-cpu/src/kernels/aarch64/",
    "prelude-exec-cpu/src/kernels/x86/",
    "prelude-exec-cpu/src/kernels/simd.rs",
    "prelude-exec-cpu/src/packed/map.rs",
    "prelude-exec-cpu/src/pool.rs",
    "kernels/src/emu/ffi.rs",
    "prelude-exec-cuda/src/kernels/",
    "prelude-exec-cuda/src/memory/",
];

pub(crate) fn run() -> Result<()> {
    let metadata = Metadata::load()?;
    let map = map::Map::read(&run::root().join("ARCHITECTURE.md"))?;
    let mut faults = Vec::new();
    arrows(&metadata, &map, &mut faults);
    map::types(&metadata, &map, &mut faults)?;
    manifests(&metadata, &mut faults);
    sources(&metadata, &mut faults)?;
    cycles::check(&metadata, &mut faults)?;
    functions::check(&metadata, &mut faults)?;
    golden_notes(&mut faults)?;
    papers::check(&run::root(), &mut faults)?;
    sizes::check(&metadata, &mut faults)?;
    if faults.is_empty() {
        println!(
            "tidy: the map's arrows and types, manifests, unsafe leaves, cycles of modules, \
             lengths of functions, golden notes, the page of the papers and sizes are in order"
        );
        return Ok(());
    }
    for fault in &faults {
        println!("tidy: {fault}");
    }
    bail!("{} fault(s)", faults.len());
}

/// The tokenizer's race, a workspace of its own.
const RACE: &str = "bench/tokenizer";

/// Returns the names and folders of our crates, [`RACE`] among them.
fn crates(metadata: &Metadata) -> impl Iterator<Item = (&str, PathBuf)> {
    let folder = |manifest: &Path| manifest.parent().map(Path::to_owned).unwrap_or_default();
    let members = metadata.members();
    let members = members.map(move |package| (&*package.name, folder(&package.manifest_path)));
    members.chain([(RACE, run::root().join(RACE))])
}

/// Compares direct normal dependencies between our crates with the list in ARCHITECTURE.md.
fn arrows(metadata: &Metadata, map: &map::Map, faults: &mut Vec<String>) {
    let ours: BTreeSet<&str> = metadata.members().map(|p| p.name.as_str()).collect();
    for (from, to) in &map.arrows {
        for name in to.iter().chain([from]) {
            if !ours.contains(name.as_str()) {
                faults.push(format!(
                    "ARCHITECTURE.md lists {name}, which is no crate of ours"
                ));
            }
        }
    }
    for package in metadata.members() {
        let Some(allowed) = map.arrows.get(&package.name) else {
            faults.push(format!("ARCHITECTURE.md does not list {}", package.name));
            continue;
        };
        let depends = |name: &&String| {
            let found = |d: &Dependency| d.name == **name && d.kind.is_none();
            !package.dependencies.iter().any(found)
        };
        for name in allowed.iter().filter(depends) {
            faults.push(format!(
                "ARCHITECTURE.md lists {} -> {name}, and there is no such dependency",
                package.name
            ));
        }
        for dependency in &package.dependencies {
            let name = dependency.name.as_str();
            let dev = dependency.kind.as_deref() == Some("dev");
            let extra = DEV_EXTRA_OF.contains(&(package.name.as_str(), name));
            let fine = !ours.contains(name)
                || allowed.contains(name)
                || (dev && (DEV_EXTRA.contains(&name) || extra || name == package.name));
            if !fine {
                faults.push(format!(
                    "{} must not depend on {name} (ARCHITECTURE.md)",
                    package.name
                ));
            }
        }
    }
}

fn manifests(metadata: &Metadata, faults: &mut Vec<String>) {
    for package in metadata.members() {
        let folder = package
            .manifest_path
            .parent()
            .map(PathBuf::from)
            .unwrap_or_default();
        if package.name == "xtask" {
            continue;
        }
        if package.description.is_none() || package.license.as_deref() != Some("MIT OR Apache-2.0")
        {
            faults.push(format!(
                "{}: description or licence is missing",
                package.name
            ));
        }
        let readme = fs::read_to_string(folder.join("README.md")).unwrap_or_default();
        if readme.lines().count() < 5 {
            faults.push(format!("{}: README.md says too little", package.name));
        }
        let manifest = fs::read_to_string(&package.manifest_path).unwrap_or_default();
        if !manifest.contains("[lints]\nworkspace = true") {
            faults.push(format!(
                "{}: does not inherit the workspace's lints",
                package.name
            ));
        }
    }
}

/// Checks that `unsafe` is only in the leaf modules, that crates without leaves forbid it, and that
/// no machine's paths are anywhere.
fn sources(metadata: &Metadata, faults: &mut Vec<String>) -> Result<()> {
    let root = run::root();
    for package in metadata.members() {
        let folder = package
            .manifest_path
            .parent()
            .map(PathBuf::from)
            .unwrap_or_default();
        let has_leaf = UNSAFE_LEAVES
            .iter()
            .any(|leaf| leaf.starts_with(&format!("{}/", relative(&root, &folder))));
        let crate_root = folder.join("src/lib.rs");
        if crate_root.exists() {
            let wanted = if has_leaf {
                "#![deny(unsafe_code)]"
            } else {
                "#![forbid(unsafe_code)]"
            };
            if !fs::read_to_string(&crate_root)?.contains(wanted) {
                faults.push(format!("{}/src/lib.rs lacks {wanted}", package.name));
            }
        }
        for file in rust_files(&folder.join("src"))? {
            let name = relative(&root, &file);
            let leaf = UNSAFE_LEAVES
                .iter()
                .any(|l| name == *l || l.ends_with('/') && name.starts_with(l));
            let text = fs::read_to_string(&file)?;
            let unsafe_line = text.lines().position(has_unsafe);
            if let (false, Some(line)) = (leaf, unsafe_line) {
                faults.push(format!(
                    "{name}:{}: unsafe code outside its leaves",
                    line + 1
                ));
            }
        }
    }
    Ok(())
}

fn has_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    let after = code
        .split_once("unsafe ")
        .map(|(_, after)| after.trim_start());
    after.is_some_and(|a| {
        ["{", "fn", "impl", "extern"]
            .iter()
            .any(|form| a.starts_with(form))
    })
}

fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = files::below(folder)?;
    files.retain(|path| path.extension().is_some_and(|end| end == "rs"));
    Ok(files)
}

fn relative(root: &Path, file: &Path) -> String {
    file.strip_prefix(root)
        .unwrap_or(file)
        .to_string_lossy()
        .replace('\\', "/")
}

/// Checks that every file or folder of golden data is explained.
fn golden_notes(faults: &mut Vec<String>) -> Result<()> {
    let folder = run::root().join("golden");
    let notes = fs::read_to_string(folder.join("README.md")).unwrap_or_default();
    for entry in fs::read_dir(&folder).context("cannot list golden/")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name != "README.md" && !notes.contains(&name) {
            faults.push(format!(
                "golden/README.md does not say how golden/{name} was made"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_is_seen_in_code_and_not_in_comments() {
        // Assembled, or this file would be found too.
        let line = |after: &str| format!("    pub {} {after}", "unsafe");
        assert!(has_unsafe(&line("{ x() }")));
        assert!(has_unsafe(&line("fn f() {")));
        assert!(!has_unsafe(&format!("// {}", line("{ x() }"))));
        assert!(!has_unsafe("#![forbid(unsafe_code)]"));
    }
}
