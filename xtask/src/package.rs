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

/// One example of each published library that uses it alone, with its arguments, but for `prelude-hub`,
/// whose example downloads; [`MODEL`] is a
/// model's folder. Each asserts what it finds.
const EXAMPLES: &[(&str, &[&str])] = &[
    ("count_tokens", &[]),
    ("one_request", &[]),
    ("shared_prefix", &[]),
    ("by_hand", &[]),
    ("labels", &[]),
    ("follow", &[]),
    ("where_prompts_go", &[]),
    ("two_ways", &[]),
    ("list", &[]),
    ("simulate", &[]),
    ("exchanges", &[]),
    ("inspect", &[MODEL]),
    ("step", &[MODEL]),
    ("this_machine", &[]),
    ("classify", &[MODEL, "660", "319", "281"]),
    ("own_policy", &[MODEL]),
    ("in_process", &[]),
    ("without_http", &[MODEL]),
];

/// Stands for the folder of the demo's language model, as the server's package has it.
const MODEL: &str = "MODEL";

/// The page of the guide with the manifest of a server of one's own, and the file that it shows.
const OWN_SERVER: &str = "docs/own-server.md";
const OWN_SERVER_FILE: &str = "examples/own_endpoint.rs";

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
/// programs, tests and examples there, runs the tests of [`SELF_CONTAINED`] crates, the [`EXAMPLES`],
/// and the guide's server of one's own. Then asks the
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
    run_unpacked(&folder)?;
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
    for package in packages {
        // What runs for a moment only is sooner built than optimised.
        let computes = package.name == "prelude-exec-cpu";
        if !computes && !SELF_CONTAINED.contains(&&*package.name) {
            manifest += &format!("[profile.dev.package.{}]\nopt-level = 0\n", package.name);
        }
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

/// Builds and runs the examples of the packages, and the guide's server of one's own as the one file
/// of a package beside them.
fn run_unpacked(folder: &Path) -> Result<()> {
    let page = fs::read_to_string(root().join(OWN_SERVER)).context(OWN_SERVER)?;
    let manifest = page.split("```manifest\n").nth(1);
    let manifest = manifest.and_then(|rest| rest.split("```").next());
    let server = fs::read_dir(folder)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.join(OWN_SERVER_FILE).exists())
        .context("no package has the guide's server")?;
    let own = folder.join("own-server");
    fs::create_dir_all(own.join("src"))?;
    fs::copy(server.join(OWN_SERVER_FILE), own.join("src/main.rs"))?;
    let manifest = manifest.with_context(|| format!("{OWN_SERVER} shows no manifest"))?;
    fs::write(own.join("Cargo.toml"), manifest)?;
    // Programs and examples that are not run are not linked.
    let examples = EXAMPLES.iter().flat_map(|(name, _)| ["--example", name]);
    cargo(["build", "--workspace", "--bin", "desk", "--target-dir"])
        .args([files::target()])
        .args([
            "--manifest-path".as_ref(),
            folder.join("Cargo.toml").as_os_str(),
        ])
        .args(["--features", TEST_FEATURES])
        .args(examples)
        .run()?;
    let model = server.join("demo/demo-lm");
    let built = files::target().join("debug");
    for (name, args) in EXAMPLES {
        let args = args.iter().map(|arg| match *arg {
            MODEL => model.as_os_str(),
            arg => arg.as_ref(),
        });
        program(built.join("examples").join(name))
            .args(args)
            .run()?;
    }
    program(built.join("desk")).run()
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
