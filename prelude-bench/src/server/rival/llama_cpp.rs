//! llama.cpp's server: a program that the caller names, given the demo model in its own format.

use std::{path::Path, process::Command};

use anyhow::{Context as _, Result};

use super::run;

/// The packages that write its model format.
pub(super) const TOOLS: &[&str] = &["gguf==0.19.0", "numpy"];

/// Slots, one for each connection of the largest crowd, and the tokens of all.
const SLOTS: &str = "64";
const CONTEXT: &str = "32768";

/// Writes a demo model as llama.cpp reads it.
const CONVERT: &str = include_str!("gguf.py");

/// Returns the version that the program reports.
pub(super) fn version(program: &Path) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    // Some releases say it on one, some on the other.
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let line = said.lines().find_map(|line| line.strip_prefix("version: "));
    line.map(|line| format!("version {}", line.trim()))
}

/// Sets the arguments with which it serves `model`, which is first written in its format, by the
/// Python of `environment`, that has the [`TOOLS`].
pub(super) fn serve(
    command: &mut Command,
    environment: &Path,
    model: &Path,
    name: &str,
    port: &str,
) -> Result<()> {
    let file = environment.join(format!("{name}.gguf"));
    let (from, to) = (model.to_string_lossy(), file.to_string_lossy());
    run(
        &environment.join("bin/python"),
        &["-c", CONVERT, &from, &to],
    )
    .context("the model in llama.cpp's format")?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    command
        .arg("--model")
        .arg(&file)
        .args(["--alias", name, "--host", "127.0.0.1", "--port", port])
        .args(["--parallel", SLOTS, "--ctx-size", CONTEXT])
        .args(["--threads", &cores.to_string()])
        .args(["--batch-size", "2048", "--ubatch-size", "2048"])
        .args(["--jinja", "--log-verbosity", "1"]);
    Ok(())
}
