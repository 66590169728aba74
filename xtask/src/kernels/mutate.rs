//! Mutation tests: each patch of `kernels/mutants.toml` is a plausible mistake, which some test
//! must catch.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::{
    files::{self, copy_folder},
    run::root,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutants {
    mutant: Vec<Mutant>,
}

/// A mistake.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutant {
    /// Family and mistake, for people.
    name: String,
    /// The path below `kernels/`.
    file: String,
    /// Text that occurs once in the file.
    find: String,
    replace: String,
    /// Tests that should notice: a filter.
    test: String,
}

impl Mutants {
    fn read() -> Result<Self> {
        let text = fs::read_to_string(root().join("kernels/mutants.toml"));
        toml::from_str(&text.context("kernels/mutants.toml")?).context("kernels/mutants.toml")
    }
}

impl Mutant {
    /// Returns the file with the mistake.
    fn apply(&self, text: &str) -> Result<String> {
        let found = text.matches(&self.find).count();
        if found != 1 {
            bail!("`{}` occurs {found} times in {}", self.find, self.file);
        }
        Ok(text.replace(&self.find, &self.replace))
    }
}

pub(super) fn run(filter: Option<&str>) -> Result<()> {
    let kernels = root().join("kernels");
    let mutants = Mutants::read()?;
    let binary = super::test_binary()?;
    let copy = root().join("target/kernels-mutant");
    let mut survivors = Vec::new();
    let mut count = 0;
    for mutant in &mutants.mutant {
        if filter.is_some_and(|f| !mutant.name.contains(f)) {
            continue;
        }
        count += 1;
        let caught = is_caught(mutant, &kernels, &copy, &binary)
            .with_context(|| format!("mutant `{}`", mutant.name))?;
        println!(
            "{} {}",
            if caught { "caught  " } else { "SURVIVED" },
            mutant.name
        );
        if !caught {
            survivors.push(mutant.name.as_str());
        }
    }
    println!("{} of {count} mutants caught", count - survivors.len());
    if count == 0 {
        bail!("no mutant has a name like that");
    }
    if !survivors.is_empty() {
        bail!("no test noticed: {}", survivors.join("; "));
    }
    Ok(())
}

fn is_caught(mutant: &Mutant, kernels: &Path, copy: &Path, binary: &Path) -> Result<bool> {
    files::remove(copy)?;
    for folder in ["emu", "include/prelude", "src"] {
        copy_folder(&kernels.join(folder), &copy.join(folder), |_| true)?;
    }
    let path = copy.join(&mutant.file);
    let text = fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    fs::write(&path, mutant.apply(&text)?)?;
    let output = Command::new(binary)
        .arg(&mutant.test)
        .env("PRELUDE_EMU_SOURCES", copy)
        .env("RUST_BACKTRACE", "0")
        .output()
        .context("cannot start the tests")?;
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    if said.contains("does not compile") {
        bail!("it does not compile:\n{said}");
    }
    if said.contains("SKIP") || said.contains("running 0 tests") {
        bail!("nothing was run:\n{said}");
    }
    Ok(!output.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that is rewritten takes its mistakes along.
    #[test]
    fn every_mistake_has_its_place() {
        let mutants = Mutants::read().unwrap();
        assert!(!mutants.mutant.is_empty());
        for mutant in &mutants.mutant {
            let path = root().join("kernels").join(&mutant.file);
            let text = fs::read_to_string(path).unwrap();
            let changed = mutant.apply(&text);
            let changed = changed.unwrap_or_else(|why| panic!("{}: {why:#}", mutant.name));
            assert_ne!(changed, text, "{} changes nothing", mutant.name);
        }
    }
}
