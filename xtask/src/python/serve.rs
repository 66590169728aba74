//! The Python package `prelude_serve`: the wheel that holds the program and the module, and its tests.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use super::{Environment, find_wheel, wheel_builder};
use crate::{
    files,
    run::{self, cargo, program, root},
};

/// The folder of the package.
const PACKAGE: &str = "prelude-server/python";

/// The folder whose programs the wheel holds: a script that git tracks, and the built program.
const SCRIPTS: &str = "prelude-server/python/wheel/scripts";

/// Packages that the tests need.
const NEEDED: [&str; 1] = ["numpy"];

/// Packages that run the notebook as Jupyter does.
const NOTEBOOK: [&str; 2] = ["nbclient", "ipykernel"];

/// The checker of the package's types.
const TYPES: [&str; 1] = ["mypy>=1.18,<3"];

/// Builds the wheel with a program that was built in the same profile. `set_up` completes the command.
pub(crate) fn wheel(
    folder: &Path,
    built: &Path,
    profile: Option<&str>,
    set_up: impl FnOnce(run::Invocation) -> run::Invocation,
) -> Result<PathBuf> {
    let inside = root().join(SCRIPTS).join("prelude");
    program("strip")
        .args(["-o"])
        .args([inside.as_path(), built])
        .run()?;
    let made = wheel_builder(PACKAGE, folder, profile).and_then(|builder| set_up(builder).run());
    // An untracked program would get into the next wheel, whatever its version.
    fs::remove_file(&inside).with_context(|| format!("cannot remove {}", inside.display()))?;
    made?;
    find_wheel(folder, "prelude_serve")
}

/// Builds the wheel, installs it, and runs its tests. Returns what was left out.
pub(super) fn ci(folder: &Path) -> Result<Vec<String>> {
    // The program and the module at once: alone, the program would be built with fewer features of
    // what procedural macros use, and nearly all crates would be built again for the module.
    cargo(["build", "-p", "prelude-server", "-p", "prelude-python"]).run()?;
    let built = files::target().join("debug/prelude");
    let wheel = wheel(&folder.join("wheels"), &built, Some("dev"), |builder| {
        builder
    })?;
    let environment = Environment::make(folder.join("serve"))?;
    let mut skipped = Vec::new();
    for (packages, what) in [
        (&NEEDED[..], "all that returns arrays"),
        (&NOTEBOOK[..], "the notebook in Jupyter's runner"),
        (&TYPES[..], "the check of types"),
    ] {
        if let Err(error) = environment.install(packages) {
            skipped.push(format!("SKIP {what}: {error:#}"));
        }
    }
    environment.install_wheel(&wheel)?;
    test(&environment, "test_*.py")?;
    Ok(skipped)
}

/// Runs the tests whose names match a pattern.
fn test(environment: &Environment, pattern: &str) -> Result<()> {
    let tests = format!("{PACKAGE}/tests");
    program(environment.bin("python"))
        .args([
            "-B", "-m", "unittest", "discover", "-s", &tests, "-p", pattern,
        ])
        .env("HF_HUB_OFFLINE", "1")
        .run()
}

/// Measures what calling from Python adds to the engine's own time. The wheel is built in the profile
/// of releases.
pub(crate) fn overhead(args: &[String]) -> Result<()> {
    if let Some(why) = super::missing() {
        anyhow::bail!("{why}");
    }
    let folder = files::target().join("python");
    let wheels = folder.join("overhead-wheels");
    files::remove(&wheels)?;
    // The program is not measured: the wheel holds the module alone.
    wheel_builder(PACKAGE, &wheels, Some("release"))?.run()?;
    let environment = Environment::make(folder.join("overhead"))?;
    environment.install(&NEEDED)?;
    environment.install_wheel(&find_wheel(&wheels, "prelude_serve")?)?;
    program(environment.bin("python"))
        .args(["-B", "prelude-server/python/bench/overhead.py"])
        .args(args)
        .run()
}
