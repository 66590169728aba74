//! The tokenizer that the repository of the paper's authors uses: their fork of fastokens.
//!
//! It has the name of a published rival and so cannot be compiled in beside it. It is compiled in
//! another build of this bench, which takes part as a build that `--also` names.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use crate::{also::Also, engines::Who};

const GIT: &str = "https://github.com/rucnyz/fastokens";
const REVISION: &str = "a7a066284ba6c2be5115f408ce2e25618e01f5be";
const TITLE: &str = "fasttoken of the paper (rucnyz/fastokens a7a0662)";

/// The value of `--without`.
pub(crate) const KEY: &str = "paper";

/// Builds it below `out`.
///
/// # Errors
/// There is no Cargo, no network, no C compiler, or it does not compile.
pub(crate) fn install(out: &Path) -> Result<()> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = folder(out);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let read = fs::read_to_string(own.join("Cargo.toml")).context("cannot read Cargo.toml")?;
    fs::write(folder.join("Cargo.toml"), manifest(&read, own)?)?;
    fs::copy(own.join("Cargo.lock"), folder.join("Cargo.lock"))?;
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--manifest-path"]);
    cargo.arg(folder.join("Cargo.toml"));
    cargo.arg("--target-dir").arg(folder.join("target"));
    let status = cargo.status().context("cannot start cargo")?;
    ensure!(status.success(), "cargo failed: {status}");
    Ok(())
}

/// Returns the other build, if it is there.
pub(crate) fn installed(out: &Path) -> Option<Result<Also>> {
    let program = program(out);
    let there = program.is_file();
    there.then(|| Also::new(TITLE, Who::Fastokens, program))
}

fn folder(out: &Path) -> PathBuf {
    out.join("paper-tokenizer")
}

fn program(out: &Path) -> PathBuf {
    let file = format!("bench-tokenizer{}", std::env::consts::EXE_SUFFIX);
    folder(out).join("target/release").join(file)
}

/// Returns the manifest of this bench, which lies at `own`, with the fork in place of the published
/// version.
fn manifest(text: &str, own: &Path) -> Result<String> {
    let published = |line: &&str| line.starts_with("fastokens = ");
    let count = text.lines().filter(published).count();
    ensure!(count == 1, "the manifest names fastokens {count} times");
    let sources = own.join("src/main.rs");
    let mut made = String::new();
    for line in text.lines() {
        if published(&line) {
            made.push_str(&format!(
                "fastokens = {{ git = {GIT:?}, rev = {REVISION:?} }}"
            ));
        } else {
            let crates = format!("path = \"{}/", own.join("../..").display());
            made.push_str(&line.replace("path = \"../../", &crates));
        }
        made.push('\n');
    }
    made.push_str(&format!(
        "\n[[bin]]\nname = \"bench-tokenizer\"\npath = {sources:?}\n"
    ));
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_names_the_fork_and_our_sources() {
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        let text = fs::read_to_string(own.join("Cargo.toml")).expect("our manifest");
        let made = manifest(&text, own).expect("names fastokens once");
        assert!(made.contains(&format!("git = \"{GIT}\", rev = \"{REVISION}\"")));
        assert!(
            !made.contains("=0.3.5") && !made.contains("\"../../"),
            "{made}"
        );
        assert!(made.contains(&format!("path = {:?}", own.join("src/main.rs"))));
        assert!(manifest("[dependencies]\n", own).is_err());
    }

    #[test]
    fn nothing_takes_part_that_is_not_there() {
        assert!(installed(Path::new("/nonexistent")).is_none());
    }
}
