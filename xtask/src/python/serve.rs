//! The Python package `prelude_serve`: its wheel and its tests.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{find_wheel, test, wheel_builder};
use crate::{
    files,
    packages::{Environment, no_python},
    run::{self, program},
};

/// The folder of the package.
const PACKAGE: &str = "prelude-server/python";

/// Packages that the tests need.
const NEEDED: [&str; 1] = ["numpy"];

/// Packages that run the notebook as Jupyter does.
const NOTEBOOK: [&str; 2] = ["nbclient", "ipykernel"];

/// The checker of the package's types.
const TYPES: [&str; 1] = ["mypy>=1.18,<3"];

/// Builds the wheel into a folder. `set_up` completes the command.
pub(crate) fn wheel(
    folder: &Path,
    profile: Option<&str>,
    set_up: impl FnOnce(run::Invocation) -> run::Invocation,
) -> Result<PathBuf> {
    set_up(wheel_builder(PACKAGE, folder, profile)?).run()?;
    find_wheel(folder, "prelude_serve")
}

/// Builds the wheel, installs it, and runs its tests. Returns what was left out.
pub(super) fn ci(folder: &Path) -> Result<Vec<String>> {
    let wheel = wheel(&folder.join("wheels"), Some("dev"), |builder| builder)?;
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
    test(&environment, PACKAGE, "test_*.py")?;
    Ok(skipped)
}

/// Measures what calling from Python adds to the engine's own time. The wheel is built in the profile
/// of releases.
pub(crate) fn overhead(args: &[String]) -> Result<()> {
    if let Some(why) = no_python() {
        anyhow::bail!("{why}");
    }
    let folder = files::target().join("python");
    let wheels = folder.join("overhead-wheels");
    files::remove(&wheels)?;
    let wheel = wheel(&wheels, Some("release"), |builder| builder)?;
    let environment = Environment::make(folder.join("overhead"))?;
    environment.install(&NEEDED)?;
    environment.install_wheel(&wheel)?;
    program(environment.bin("python"))
        .args(["-B", "prelude-server/python/bench/overhead.py"])
        .args(args)
        .run()
}
