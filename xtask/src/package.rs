//! Checks that crates can be published under their names, and build with the oldest compiler they
//! promise.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail};

use crate::{
    metadata::Metadata,
    run::{cargo, root},
};

/// The oldest compiler of `fasttoken`; its Cargo.toml says so too.
const FASTTOKEN_RUST: &str = "1.89";

/// A package that every registry index has: the check of names is skipped where even this one is
/// not found.
const KNOWN_PACKAGE: &str = "serde";

/// Packages `fasttoken`, builds it from the package as its users will, type-checks the tests that
/// the package holds, and asks the registry's index whether the names of our crates are free or
/// ours. Returns a line about the names, since that part is skipped without a network.
pub(crate) fn publish() -> Result<String> {
    cargo(["publish", "--dry-run", "--allow-dirty", "-p", "fasttoken"]).run()?;
    // The dry run leaves no archive behind.
    cargo(["package", "--no-verify", "--allow-dirty", "-p", "fasttoken"]).run()?;
    check_packaged_tests("fasttoken")?;
    check_names()
}

/// Type-checks the tests of a package that `cargo package` made, in a copy outside this workspace,
/// where files beside the package do not exist.
fn check_packaged_tests(name: &str) -> Result<()> {
    let metadata = Metadata::load()?;
    let package = metadata
        .members()
        .find(|p| p.name == name)
        .with_context(|| format!("no package {name}"))?;
    let folder = format!("{name}-{}", package.version);
    let archive = root().join(format!("target/package/{folder}.crate"));
    let copy = std::env::temp_dir().join(format!("packaged-{folder}-{}", std::process::id()));
    fs::create_dir_all(&copy).with_context(|| format!("cannot make {}", copy.display()))?;
    let checked = unpack(&archive, &copy).and_then(|()| {
        let manifest = copy.join(&folder).join("Cargo.toml");
        cargo(["check", "--tests", "--manifest-path"])
            .args([manifest.as_os_str()])
            .args(["--target-dir", "target/packaged"])
            .run()
    });
    fs::remove_dir_all(&copy).with_context(|| format!("cannot remove {}", copy.display()))?;
    checked
}

fn unpack(archive: &Path, into: &Path) -> Result<()> {
    crate::run::program("tar")
        .args(["-xzf".as_ref(), archive.as_os_str()])
        .args(["-C".as_ref(), into.as_os_str()])
        .run()
}

/// Fails if a package of the registry has the name of one of our crates and is not ours.
fn check_names() -> Result<String> {
    let info = |name: &str| cargo(["info", "--quiet", "--registry", "crates-io", name]);
    if !info(KNOWN_PACKAGE).succeeds() {
        return Ok("SKIP names: the registry's index cannot be reached".to_owned());
    }
    let metadata = Metadata::load()?;
    let published = || metadata.members().filter(|p| p.is_published());
    let mut taken = Vec::new();
    for package in published() {
        let Ok(text) = info(&package.name).output_of_any_status() else {
            continue;
        };
        if is_foreign(&text, package.repository.as_deref()) {
            taken.push(package.name.as_str());
        }
    }
    if !taken.is_empty() {
        bail!(
            "other people's packages have these names in the registry: {}; rename ours",
            taken.join(", ")
        );
    }
    Ok(format!(
        "pass; the names of {} crates are free or ours",
        published().count()
    ))
}

/// Returns true if `cargo info` printed a package whose repository is not `ours`. An empty text
/// means that no package has the name.
fn is_foreign(info: &str, ours: Option<&str>) -> bool {
    let repository = info.lines().find_map(|l| l.strip_prefix("repository: "));
    !info.trim().is_empty() && (repository.is_none() || repository != ours)
}

/// Builds `fasttoken` with the oldest compiler it promises. Returns a line that says so, or why the check was skipped. Clippy's `incompatible_msrv` looks
/// at every call in any case.
pub(crate) fn oldest_compiler() -> Result<String> {
    let toolchain = |args: &[&str]| crate::run::cargo_of(FASTTOKEN_RUST, args);
    if !toolchain(&["--version"]).succeeds() {
        return Ok(format!(
            "SKIP msrv: no toolchain {FASTTOKEN_RUST} (`rustup toolchain install {FASTTOKEN_RUST}`)"
        ));
    }
    toolchain(&[
        "check",
        "-p",
        "fasttoken",
        "--features",
        "cli",
        "--target-dir",
        "target/msrv",
    ])
    .run()?;
    Ok(format!("msrv: fasttoken builds with {FASTTOKEN_RUST}"))
}

#[cfg(test)]
mod tests {
    use super::is_foreign;

    #[test]
    fn a_name_is_foreign_if_another_repository_has_it() {
        let ours = Some("https://example.org/ours");
        assert!(!is_foreign("", ours));
        assert!(!is_foreign(
            "x\nrepository: https://example.org/ours\n",
            ours
        ));
        assert!(is_foreign(
            "x\nrepository: https://example.org/theirs\n",
            ours
        ));
        assert!(is_foreign("x\nversion: 0.1.0\n", ours));
        assert!(is_foreign("x\nversion: 0.1.0\n", None));
    }
}
