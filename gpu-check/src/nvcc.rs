//! Kernels compiled where they run, for a GPU that no carried image fits.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use prelude_exec_cuda::measure::Target;
use prelude_kernels::{FAMILIES, Family, MANIFEST};
use serde_json::{Value, json};

/// Characters of what the compiler says that a message repeats.
const SAID_MAX: usize = 600;

/// Returns the compiler, if this machine has one.
pub(crate) fn find() -> Option<PathBuf> {
    prelude_measure::process::find(&["nvcc", "/usr/local/cuda/bin/nvcc"])
}

/// Compiles every family of the carried sources for the target into a folder of images.
pub(crate) fn compile(home: &Path, folder: &Path, target: &Target) -> Result<()> {
    let nvcc = find().context("and there is no nvcc here to compile kernels with")?;
    let facts = target.facts().context("no GPU to compile for")?;
    compile_with(&nvcc, home, folder, facts.compute_capability)
}

fn compile_with(nvcc: &Path, home: &Path, folder: &Path, (major, minor): (i32, i32)) -> Result<()> {
    let sources = home.join("kernels");
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut manifest = BTreeMap::new();
    let is_hopper = (major, minor) == (9, 0);
    for family in FAMILIES.iter().filter(|f| is_hopper || !f.is_of_hopper()) {
        check_source(&sources, family)?;
        let special = if family.is_of_hopper() { "a" } else { "" };
        // A part that says nothing is taken for hung.
        println!("     compiling {}", family.name);
        let image = folder.join(format!("{}.fatbin", family.name));
        let output = Command::new(nvcc)
            .args(Family::options())
            .args(["-fatbin", "-I"])
            .arg(sources.join("include"))
            .arg(format!(
                "-gencode=arch=compute_{major}{minor}{special},code=sm_{major}{minor}{special}"
            ))
            .arg("-o")
            .args([&image, &sources.join(format!("src/{}.cu", family.name))])
            .output()
            .with_context(|| format!("cannot start {}", nvcc.display()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let said: String = said.chars().take(SAID_MAX).collect();
            bail!(
                "{} does not compile {}: {said}",
                nvcc.display(),
                family.name
            );
        }
        let entry = json!({"source": family.hash(), "bytes": fs::metadata(&image)?.len()});
        manifest.insert(family.name, entry);
    }
    let manifest: BTreeMap<&str, Value> = manifest;
    fs::write(folder.join(MANIFEST), serde_json::to_vec(&manifest)?)
        .with_context(|| format!("cannot write {MANIFEST}"))
}

/// Checks that the carried source is the one that this program was built with: parameter structs
/// have to match.
fn check_source(sources: &Path, family: &Family) -> Result<()> {
    let path = sources.join(format!("src/{}.cu", family.name));
    let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    if text != family.source {
        bail!(
            "{} is not the source that this program was built with",
            path.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::results::tests::Folder;

    /// Returns a compiler that is a script; `-o` and the two paths behind it are its last
    /// arguments.
    fn compiler(folder: &Folder, script: &str) -> PathBuf {
        let path = folder.0.join("nvcc");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn home() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    /// An executor loads the images that the compiler makes.
    #[test]
    fn compiled_images_are_found() {
        let folder = Folder::new("nvcc");
        let script = r#"echo "$@" >> "$0.log"; while [ $# -gt 2 ]; do shift; done; cp "$2" "$1""#;
        let nvcc = compiler(&folder, script);
        let images = folder.0.join("images");
        compile_with(&nvcc, &home(), &images, (9, 0)).unwrap();
        let found = prelude_kernels::Images::open(&images).unwrap();
        for family in FAMILIES {
            assert_eq!(found.load(family).unwrap(), family.source.as_bytes());
        }
        let asked = fs::read_to_string(folder.0.join("nvcc.log")).unwrap();
        assert_eq!(asked.lines().count(), FAMILIES.len());
        for (line, family) in asked.lines().zip(FAMILIES) {
            let target = if family.is_of_hopper() {
                "sm_90a "
            } else {
                "sm_90 "
            };
            assert!(line.contains(&format!("code={target}")), "{line}");
        }
        // Other GPUs have no use for what is of Hopper alone.
        let images = folder.0.join("other");
        compile_with(&nvcc, &home(), &images, (8, 0)).unwrap();
        let found = prelude_kernels::Images::open(&images).unwrap();
        for family in FAMILIES {
            assert_eq!(found.load(family).is_ok(), !family.is_of_hopper());
        }
    }

    #[test]
    fn the_compiler_s_refusal_is_reported() {
        let folder = Folder::new("nvcc-refuses");
        let nvcc = compiler(&folder, "echo 'no such architecture' >&2; exit 1");
        let error = compile_with(&nvcc, &home(), &folder.0.join("images"), (9, 0));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("no such architecture"), "{error}");
    }

    #[test]
    fn sources_of_another_build_are_refused() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels");
        let family = &FAMILIES[0];
        check_source(&sources, family).unwrap();
        let folder = Folder::new("sources");
        fs::create_dir_all(folder.0.join("src")).unwrap();
        fs::write(folder.0.join(format!("src/{}.cu", family.name)), "// other").unwrap();
        let error = check_source(&folder.0, family).unwrap_err().to_string();
        assert!(error.contains("is not the source"), "{error}");
    }
}
