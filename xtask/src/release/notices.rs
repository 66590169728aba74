//! The packages, licences and required texts of others that a program contains.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::Path,
};

use anyhow::{Context as _, Result};

use crate::{metadata::Metadata, run::cargo};

/// Returns a text that lists the packages of others in the programs of `packages`, with their
/// licences' texts. Each package is there with the features that it is built with.
pub(super) fn of(packages: &[(&str, &str)]) -> Result<String> {
    let names = names(packages)?;
    let metadata = Metadata::load()?;
    let mut list = String::new();
    // Licences' texts, and the packages that have each: most are alike to the letter.
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in &metadata.packages {
        let id = format!("{} {}", package.name, package.version);
        if metadata.workspace_members.contains(&package.id) || !names.contains(&id) {
            continue;
        }
        let license = package.license.as_deref().unwrap_or("see its licence file");
        let from = package.repository.as_deref().unwrap_or("");
        writeln!(list, "{id}\t{license}\t{from}")?;
        let folder = package
            .manifest_path
            .parent()
            .context("a manifest is in a folder")?;
        for text in license_texts(folder)? {
            texts.entry(text).or_default().insert(id.clone());
        }
    }
    let mut all = format!("Packages of others in these programs:\n\n{list}");
    for (text, of) in texts {
        let of: Vec<_> = of.into_iter().collect();
        write!(all, "\n{}\n{}\n\n{text}", "-".repeat(79), of.join(", "))?;
    }
    Ok(all)
}

/// Returns the name and version of each package that is linked into the programs.
fn names(packages: &[(&str, &str)]) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for (package, features) in packages {
        let tree = cargo([
            "tree", "--locked", "-e", "normal", "--prefix", "none", "-f", "{p}",
        ])
        .args(["-p", package, "--features", features])
        .output()?;
        for line in tree.lines() {
            // "name v1.2.3 (proc-macro) (*)"
            let mut words = line.split_whitespace();
            if let (Some(name), Some(version)) = (words.next(), words.next()) {
                names.insert(format!("{name} {}", version.trim_start_matches('v')));
            }
        }
    }
    Ok(names)
}

/// Returns the texts of a package's licences and notices.
fn license_texts(folder: &Path) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    for entry in
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?
    {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_ascii_uppercase();
        let is_license = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT"];
        if is_license.iter().any(|begin| name.starts_with(begin)) && entry.path().is_file() {
            texts.push(fs::read_to_string(entry.path())?);
        }
    }
    Ok(texts)
}
