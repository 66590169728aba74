//! Checks that crates can be published under their names, and build with the oldest compiler they
//! promise.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail};

use crate::{
    files,
    metadata::{Metadata, Package},
    run::{cargo, program, root},
};

/// The oldest compiler of `fasttoken`; its Cargo.toml says so too.
const FASTTOKEN_RUST: &str = "1.89";

/// A package that every registry index has: the check of names is skipped where even this one is
/// not found.
const KNOWN_PACKAGE: &str = "serde";

/// Crates whose tests need nothing beside their package, and run from it. The others' tests, which
/// read golden data of the repository, are type-checked.
const SELF_CONTAINED: &[&str] = &[
    "fasttoken",
    "prelude-core",
    "prelude-hub",
    "prelude-kernels",
    "prelude-kv",
    "prelude-kv-events",
    "prelude-measure",
    "prelude-router",
    "prelude-sched",
];

/// Features that tests need. In the repository the crates' dependencies on themselves turn them on,
/// which packages cannot have.
const TEST_FEATURES: &str = "prelude-kernels/emu,prelude-exec-cuda/emu,prelude-exec-cuda/measure";

/// The manifest of the workspace of unpacked crates, up to its list of packages. Dependencies have the
/// profile that they have in the repository, so that those built there are used again.
const WORKSPACE: &str = r#"[workspace]
resolver = "3"
members = ["*-*"]

[profile.dev]
opt-level = 1
debug = false

[profile.dev.package."*"]
opt-level = 2

[patch.crates-io]
"#;

/// Makes the package of every crate that is published, and unpacks all of them into a workspace of
/// their own, where the repository's files beside a package do not exist. Type-checks libraries,
/// programs, tests and examples there, and runs the tests of [`SELF_CONTAINED`] crates. Then asks the
/// registry's index whether the names are free or ours. Returns a line about the names, since that
/// part is skipped without a network.
pub(crate) fn publish() -> Result<String> {
    let metadata = Metadata::load()?;
    let (published, private): (Vec<_>, Vec<_>) = metadata
        .members()
        .partition(|package| package.is_published());
    let excluded = private.iter().flat_map(|p| ["--exclude", &p.name]);
    let workspace = ["--workspace", "--allow-dirty", "--no-verify"];
    cargo(["publish", "--dry-run"])
        .args(workspace)
        .args(excluded.clone())
        .run()?;
    // The dry run leaves no archives behind.
    cargo(["package"]).args(workspace).args(excluded).run()?;
    let folder = files::target().join("unpacked");
    files::remove(&folder)?;
    unpack_all(&published, &folder)?;
    check_unpacked(&folder)?;
    files::remove(&folder)?;
    check_names(&published)
}

/// Unpacks the archives into a folder, and makes that a workspace in which the packages find each
/// other as they would in the registry.
fn unpack_all(packages: &[&Package], into: &Path) -> Result<()> {
    fs::create_dir_all(into).with_context(|| format!("cannot make {}", into.display()))?;
    let mut manifest = WORKSPACE.to_owned();
    for package in packages {
        let folder = format!("{}-{}", package.name, package.version);
        let archive = root().join(format!("target/package/{folder}.crate"));
        // Files in archives are of one old time, by which cargo would think them built already.
        program("tar")
            .args(["-xmzf".as_ref(), archive.as_os_str()])
            .args(["-C".as_ref(), into.as_os_str()])
            .run()?;
        manifest += &format!("{} = {{ path = \"{folder}\" }}\n", package.name);
    }
    let write = |name: &str, text: &[u8]| {
        let path = into.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    write("Cargo.toml", manifest.as_bytes())?;
    // The versions that everything else is tested with.
    write("Cargo.lock", &fs::read(root().join("Cargo.lock"))?)
}

/// Type-checks all packages of a folder, and runs the tests of those that need nothing else.
fn check_unpacked(folder: &Path) -> Result<()> {
    let manifest = folder.join("Cargo.toml");
    let there = |command: &str| {
        cargo([command, "--target-dir"])
            .args([files::target()])
            .args(["--manifest-path".as_ref(), manifest.as_os_str()])
    };
    there("check")
        .args(["--workspace", "--all-targets"])
        .args(["--features", TEST_FEATURES])
        .run()?;
    there("test")
        .args(SELF_CONTAINED.iter().flat_map(|name| ["-p", name]))
        .args(["--features", "prelude-kernels/emu"])
        .run()
}

/// Fails if a package of the registry has the name of one of our crates and is not ours.
fn check_names(published: &[&Package]) -> Result<String> {
    let info = |name: &str| cargo(["info", "--quiet", "--registry", "crates-io", name]);
    if !info(KNOWN_PACKAGE).succeeds() {
        return Ok("SKIP names: the registry's index cannot be reached".to_owned());
    }
    let mut taken = Vec::new();
    for package in published {
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
        published.len()
    ))
}

/// Returns true if `cargo info` printed a package whose repository is not `ours`. An empty text
/// means that no package has the name.
fn is_foreign(info: &str, ours: Option<&str>) -> bool {
    let repository = info.lines().find_map(|l| l.strip_prefix("repository: "));
    !info.trim().is_empty() && (repository.is_none() || repository != ours)
}

/// Builds `fasttoken` with the oldest compiler it promises. Returns a line that says so, or why the
/// check was skipped. Clippy's `incompatible_msrv` looks at every call in any case.
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
