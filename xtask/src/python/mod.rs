//! The Python packages: environments, wheels; of `fasttoken` its tests and its race against rivals.

pub(crate) mod serve;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    files,
    packages::{Environment, no_python},
    run::{self, program},
};

/// The tool that makes wheels, from PyPI.
const WHEEL_TOOL: &str = "maturin>=1.9,<2";

/// The packages that the tests compare with.
const COMPARED: [&str; 3] = ["tokenizers>=0.23.3,<0.24", "numpy", "transformers>=5,<6"];

/// The packages that the race runs against.
const RIVALS: [&str; 4] = [
    "tokenizers>=0.23.3,<0.24",
    "fastokens==0.3.5",
    "gigatoken==0.10.0",
    "tiktoken==0.14.0",
];

/// The folder of the package.
pub(crate) const PACKAGE: &str = "fasttoken/python";

/// Returns the command that builds a package's wheel into a folder, with the profile that the
/// package names or another.
pub(crate) fn wheel_builder(
    package: &str,
    folder: &Path,
    profile: Option<&str>,
) -> Result<run::Invocation> {
    let tool = Environment::with(files::target().join("release-tool"), &[WHEEL_TOOL])?;
    let manifest = format!("{package}/Cargo.toml");
    Ok(program(tool.bin("maturin"))
        .args(["build", "--manifest-path", &manifest])
        .args(["--target-dir".as_ref(), files::target().as_os_str()])
        .args(["--out".as_ref(), folder.as_os_str()])
        .args(profile.into_iter().flat_map(|name| ["--profile", name])))
}

/// Returns the wheel of a folder whose name begins with `name`.
pub(crate) fn find_wheel(folder: &Path, name: &str) -> Result<PathBuf> {
    let files =
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut paths = files.filter_map(|file| Some(file.ok()?.path()));
    let is_it = |path: &PathBuf| {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        file.starts_with(name) && file.ends_with(".whl")
    };
    let found = paths.find(is_it);
    found.with_context(|| format!("maturin made no wheel of {name}"))
}

/// Builds the wheels, installs them, and runs their tests. Returns what was left out.
pub(crate) fn ci() -> Result<String> {
    if let Some(why) = no_python() {
        return Ok(format!("SKIP python: {why}"));
    }
    let folder = files::target().join("python");
    let wheels = folder.join("wheels");
    files::remove(&wheels)?;
    let builder = match wheel_builder(PACKAGE, &wheels, Some("dev")) {
        Ok(builder) => builder,
        Err(error) => return Ok(format!("SKIP python: no maturin from PyPI ({error:#})")),
    };
    builder.run()?;
    let environment = Environment::make(folder.join("environment"))?;
    let compared = environment.install(&COMPARED);
    environment.install_wheel(&find_wheel(&wheels, "fasttoken")?)?;
    test(&environment, PACKAGE, "test_*.py")?;
    let mut skipped = serve::ci(&folder)?;
    if let Err(error) = compared {
        skipped.push(format!(
            "SKIP comparing with tokenizers and transformers: {error:#}"
        ));
    }
    Ok(match skipped.is_empty() {
        true => "pass".to_owned(),
        false => skipped.join("; "),
    })
}

/// Runs the tests of a package whose names match a pattern.
pub(crate) fn test(environment: &Environment, package: &str, pattern: &str) -> Result<()> {
    program(environment.bin("python"))
        .args(["-B", "-m", "unittest", "discover", "-p", pattern, "-s"])
        .args([format!("{package}/tests")])
        .env("HF_HUB_OFFLINE", "1")
        .env("TOKENIZERS_PARALLELISM", "false")
        .run()
}

/// Runs the race of tokenizers in Python.
pub(crate) fn race(args: &[String]) -> Result<()> {
    if let Some(why) = no_python() {
        bail!("{why}");
    }
    let folder = files::target().join("python");
    let wheels = folder.join("race-wheels");
    files::remove(&wheels)?;
    wheel_builder(PACKAGE, &wheels, None)?.run()?;
    let environment = Environment::make(folder.join("race"))?;
    for rival in RIVALS {
        // The race says aloud which ones are missing.
        if let Err(error) = environment.install(&[rival]) {
            println!("SKIP {rival}: {error:#}");
        }
    }
    environment.install_wheel(&find_wheel(&wheels, "fasttoken")?)?;
    program(environment.bin("python"))
        .args(["-B", "fasttoken/python/bench/race.py"])
        .args(args)
        .run()
}
