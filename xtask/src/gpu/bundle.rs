//! The folder that is carried to a GPU.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};
use prelude_kernels::{Images, MANIFEST};
use serde_json::json;

use super::elf;
use crate::{
    files::{self, copy, copy_folder},
    kernels as compiled,
    run::{build_programs, cargo, program, root},
};

/// Most bytes of the folder's archive, which travels beside the working tree through doors of 64 MiB.
const ARCHIVE_BYTES_MAX: u64 = 32_000_000;

/// Bytes of the archive that grammars take, which only a bundle that stays here has.
const GRAMMAR_BYTES: u64 = 2_000_000;

/// Models and recorded outputs that go along.
const GOLDEN: [&str; 8] = [
    "demo-lm",
    "rand-untied-sharded",
    "rand-yarn-reward",
    "rand-embed",
    "rand-cls3",
    "rand-llama",
    "rand-mistral-cls3",
    "rand-qwen2",
];

/// Builds the bundle anew; its folder. One that is `carried` to a GPU has compiled kernels.
pub(super) fn build(carried: bool) -> Result<PathBuf> {
    // A walk without a GPU takes no times, so it takes the programs of other checks.
    let profile = if carried { "dist" } else { "release" };
    if carried {
        cargo(["build", "--profile", profile, "-p", "gpu-check"]).run()?;
        // Without grammars, 2 MB that no part uses.
        cargo(["build", "--profile", profile, "-p", "prelude-cli"])
            .args(["--no-default-features", "--features", "cuda"])
            .run()?;
    } else {
        build_programs()?;
    }
    let folder = root().join("target/gpu/bundle");
    files::remove(&folder)?;
    fs::create_dir_all(&folder).with_context(|| format!("{}", folder.display()))?;
    let built = files::target().join(profile);
    for (name, from) in [
        ("gpu-check", built.join("gpu-check")),
        ("prelude", built.join("prelude")),
    ] {
        let to = folder.join(name);
        program("strip").args(["-o"]).args([&to, &from]).run()?;
        elf::check(&to)?;
    }
    for name in ["run.sh", "parts.txt", "parity.py", "rivals.py"] {
        copy(&root().join("gpu-check").join(name), &folder.join(name))?;
    }
    for part in ["include", "src", "emu"] {
        let from = root().join("kernels").join(part);
        copy_folder(&from, &folder.join("kernels").join(part), is_source)?;
    }
    for name in GOLDEN {
        golden(name, &folder.join("golden").join(name))?;
    }
    images(&folder.join("images"), carried)?;
    let about = json!({
        "commit": commit(),
        "build": checksum(&folder.join("gpu-check"))?,
    });
    fs::write(
        folder.join("bundle.json"),
        serde_json::to_vec_pretty(&about)?,
    )?;
    let archive = archive(&folder)?;
    let bytes = fs::metadata(&archive)?.len();
    println!("{bytes} bytes in {}", archive.display());
    let most = ARCHIVE_BYTES_MAX + if carried { 0 } else { GRAMMAR_BYTES };
    ensure!(
        bytes <= most,
        "the bundle's archive has {bytes} bytes, more than {most}"
    );
    Ok(folder)
}

/// Returns true for a file that a compiler reads.
fn is_source(path: &Path) -> bool {
    let ends = ["cu", "cuh", "h", "cpp", "S", "inc"];
    path.extension()
        .is_some_and(|end| ends.iter().any(|e| end == *e))
}

/// Copies a golden model: recorded outputs, and the checkpoint that they are of.
fn golden(name: &str, to: &Path) -> Result<()> {
    let from = root().join("golden").join(name);
    let model = match name.starts_with("demo-") {
        true => root().join("prelude-server/demo").join(name),
        false => from.join("model"),
    };
    fs::create_dir_all(to)?;
    for file in ["golden.json", "golden.safetensors"] {
        copy(&from.join(file), &to.join(file))?;
    }
    copy_folder(&model, &to.join("model"), |_| true)
}

/// Copies compiled kernels into the bundle. Where no GPU is asked for they may be missing, if the
/// compiler is.
fn images(to: &Path, needed: bool) -> Result<()> {
    if let Some(missing) = without_compiler(compiled::find_compiler(), needed)? {
        println!("{missing}");
        return Ok(());
    }
    compiled::build_images().context("the kernels do not compile")?;
    let from = root().join("target/kernels");
    fs::create_dir_all(to)?;
    let images = Images::open(&from)?;
    for family in prelude_kernels::FAMILIES {
        // Fails on an image of other sources.
        images.load(family)?;
        let name = format!("{}.fatbin", family.name);
        copy(&from.join(&name), &to.join(&name))?;
    }
    copy(&from.join(MANIFEST), &to.join(MANIFEST))
}

/// Returns the note for a machine without a compiler, if none is needed.
fn without_compiler(found: Result<()>, needed: bool) -> Result<Option<String>> {
    match (found, needed) {
        (Ok(()), _) => Ok(None),
        (Err(error), false) => Ok(Some(format!(
            "SKIP: no compiled kernels in the bundle: {error:#}"
        ))),
        (Err(error), true) => Err(error.context(
            "a bundle without compiled kernels is of no use on a machine with neither NVRTC nor \
             nvcc",
        )),
    }
}

/// Returns the sources' commit, with `+` behind it if files differ from it.
fn commit() -> String {
    let git = |args: &[&str]| program("git").args(args).output().ok();
    let Some(head) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".to_owned();
    };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]);
    let mark = if changed.is_none_or(|c| !c.is_empty()) {
        "+"
    } else {
        ""
    };
    format!("{}{mark}", head.trim())
}

/// Returns the first digits of a file's SHA-256.
fn checksum(path: &Path) -> Result<String> {
    let output = program("sha256sum").args([path]).output()?;
    match output.get(..16) {
        Some(digits) => Ok(digits.to_owned()),
        None => bail!("sha256sum said `{output}`"),
    }
}

/// Packs the folder into `bundle.tar.gz` beside it, which is what travels.
fn archive(folder: &Path) -> Result<PathBuf> {
    let archive = folder.with_extension("tar.gz");
    let (parent, name) = (folder.parent(), folder.file_name());
    let (parent, name) = parent.zip(name).context("a folder has a name")?;
    program("tar")
        .args(["-czf".as_ref(), archive.as_os_str(), "-C".as_ref()])
        .args([parent.as_os_str(), name])
        .run()?;
    Ok(archive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_for_a_gpu_has_kernels() {
        let missing = || Err(anyhow::anyhow!("no compiler"));
        let error = format!("{:#}", without_compiler(missing(), true).unwrap_err());
        assert!(
            error.contains("neither NVRTC nor nvcc: no compiler"),
            "{error}"
        );
        let said = without_compiler(missing(), false).unwrap().unwrap();
        assert!(
            said.starts_with("SKIP: ") && said.ends_with("no compiler"),
            "{said}"
        );
        for needed in [false, true] {
            assert!(without_compiler(Ok(()), needed).unwrap().is_none());
        }
    }
}
