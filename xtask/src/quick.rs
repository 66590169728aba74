//! The loop while working: format, tidy, lints and tests of the crates that differ from a branch, and
//! of those that stand on them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    TEST_FEATURES,
    metadata::Metadata,
    run::{Invocation, cargo, program},
};

/// Files that all crates are built by, or that tests of many crates read.
const OF_ALL: [&str; 4] = ["Cargo.toml", "rust-toolchain.toml", ".cargo/", "golden/"];

/// Crates, and the crates of ours that each depends on, for its tests too.
type Graph<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Checks what differs from the branch `base`, the working tree included.
pub(crate) fn run(base: &str) -> Result<()> {
    let metadata = Metadata::load()?;
    let files = changed(base)?;
    for file in files
        .lines()
        .filter(|file| OF_ALL.iter().any(|of_all| file.starts_with(of_all)))
    {
        println!("{file} concerns every crate: `cargo xtask ci` checks them all");
    }
    let folders: BTreeMap<&str, &str> = { metadata.members() }
        .map(|package| (package.folder(), &*package.name))
        .collect();
    let differing: BTreeSet<&str> = files
        .lines()
        .filter_map(|file| owner(&folders, file))
        .collect();
    let crates = standing_on(&graph(&metadata), &differing);
    let list = |names: &BTreeSet<&str>| names.iter().copied().collect::<Vec<_>>().join(", ");
    println!(
        "differing from {base}: {}; with what stands on them: {}",
        list(&differing),
        list(&crates)
    );
    let packages: Vec<&str> = crates.iter().flat_map(|name| ["-p", *name]).collect();
    let is_built = |feature: &&str| crates.contains(feature.split('/').next().unwrap_or_default());
    let features: Vec<&str> = TEST_FEATURES.split(',').filter(is_built).collect();
    let mut failed = Vec::new();
    let mut step = |name, invocation: Invocation| {
        println!("\n=== {name} ===");
        let start = Instant::now();
        if let Err(error) = invocation.run() {
            println!("FAIL {name}: {error:#}");
            failed.push(name);
        }
        println!("{name}: {:.1} s", start.elapsed().as_secs_f64());
    };
    step("fmt", cargo(["fmt", "--all", "--", "--check"]));
    step("tidy", cargo(["xtask", "tidy"]));
    if !crates.is_empty() {
        let features = features.join(",");
        let of = |command| cargo([command, "--features", &features]).args(&packages);
        step(
            "clippy",
            of("clippy").args(["--all-targets", "--", "-D", "warnings"]),
        );
        step("test", of("test"));
    }
    ensure!(failed.is_empty(), "quick failed: {}", failed.join(", "));
    Ok(())
}

/// Returns the paths that differ from where this branch left `base`, one in a line.
fn changed(base: &str) -> Result<String> {
    let git = |args: &[&str]| program("git").args(args).output();
    let left = git(&["merge-base", base, "HEAD"]);
    let left = left.with_context(|| format!("no branch {base}; name another with --base"))?;
    let tracked = git(&["diff", "--name-only", left.trim()])?;
    Ok(tracked + &git(&["ls-files", "--others", "--exclude-standard"])?)
}

/// Returns the crate with the innermost folder that a file is in.
fn owner<'a>(folders: &BTreeMap<&str, &'a str>, file: &str) -> Option<&'a str> {
    let mut above = Path::new(file).ancestors().filter_map(Path::to_str);
    above.find_map(|folder| folders.get(folder).copied())
}

fn graph(metadata: &Metadata) -> Graph<'_> {
    let names: BTreeSet<&str> = metadata.members().map(|package| &*package.name).collect();
    let depends = metadata.members().map(|package| {
        let all = package
            .dependencies
            .iter()
            .map(|dependency| &*dependency.name);
        (
            &*package.name,
            all.filter(|name| names.contains(name)).collect(),
        )
    });
    depends.collect()
}

/// Returns the named crates and all that depend on one of them, on whatever way.
fn standing_on<'a>(graph: &Graph<'a>, names: &BTreeSet<&'a str>) -> BTreeSet<&'a str> {
    let mut found = names.clone();
    loop {
        let depends = |(_, on): &(&&str, &BTreeSet<&str>)| !on.is_disjoint(&found);
        let more: BTreeSet<&str> = graph
            .iter()
            .filter(depends)
            .map(|(name, _)| *name)
            .collect();
        if more.is_subset(&found) {
            return found;
        }
        found.extend(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_on_a_change_is_checked_too() {
        let graph = Graph::from([
            ("a", [].into()),
            ("b", ["a"].into()),
            ("c", ["b"].into()),
            ("d", [].into()),
        ]);
        let check = |names: &[&'static str], expected: &[&'static str]| {
            let found = standing_on(&graph, &names.iter().copied().collect());
            assert_eq!(found, expected.iter().copied().collect(), "{names:?}");
        };
        check(&[], &[]);
        check(&["a"], &["a", "b", "c"]);
        check(&["c", "d"], &["c", "d"]);
    }

    #[test]
    fn a_file_is_of_the_innermost_crate() {
        let folders = BTreeMap::from([("a", "a"), ("a/python", "a-python")]);
        assert_eq!(owner(&folders, "a/src/b.rs"), Some("a"));
        assert_eq!(owner(&folders, "a/python/src/b.rs"), Some("a-python"));
        assert_eq!(owner(&folders, "docs/a.md"), None);
    }
}
