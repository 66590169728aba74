//! llama.cpp: its server, which is a program that the caller names, or a Python package that
//! compiles it; and a model in its own format.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::run;

/// The packages that write its model format.
pub(super) const TOOLS: &[&str] = &["gguf==0.19.0", "numpy"];

/// The package that compiles llama.cpp for the processor that it is installed on: ten minutes on
/// two cores.
pub(super) const IN_PROCESS: &str = "llama-cpp-python==0.3.36";

/// Slots, one for each connection of the largest crowd, and the tokens of all.
const SLOTS: &str = "64";
const CONTEXT: &str = "32768";

/// A program that writes a Qwen3 model as llama.cpp reads it.
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

/// Writes `model` in llama.cpp's format, by the Python of `environment`, that has the [`TOOLS`],
/// and returns the path of the file, `NAME.gguf` in that folder.
pub(super) fn write(environment: &Path, model: &Path, name: &str) -> Result<PathBuf> {
    let file = environment.join(format!("{name}.gguf"));
    // Renamed when it is whole.
    let part = environment.join(format!("{name}.part"));
    let (from, to) = (model.to_string_lossy(), part.to_string_lossy());
    let python = environment.join("bin/python");
    run(&python, &["-c", CONVERT, &from, &to]).context("the model in llama.cpp's format")?;
    fs::rename(&part, &file).with_context(|| format!("cannot make {}", file.display()))?;
    Ok(file)
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
    let file = write(environment, model, name)?;
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
