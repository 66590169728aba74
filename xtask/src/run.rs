//! Running programs, loudly.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

use anyhow::{Context as _, Result, bail};

/// Returns the workspace's root folder.
pub(crate) fn root() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().map(PathBuf::from).unwrap_or(manifest)
}

/// A command line that is printed before it runs.
pub(crate) struct Invocation(Command);

/// Returns a cargo command at the workspace's root, with the toolchain that runs this program.
pub(crate) fn cargo<I, S>(args: I) -> Invocation
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(root()).args(args).stdin(Stdio::null());
    Invocation(command)
}

/// Builds the programs that checks run, in the release profile: the server with CUDA, the measuring
/// program and the walk over a GPU. They are chosen as programs of the whole workspace, as `cargo run`
/// chooses one: by packages, crates below them would get other features and be built again.
pub(crate) fn build_programs() -> Result<()> {
    cargo(["build", "--release"])
        .args(["prelude", "prelude-bench", "gpu-check"].map(|name| format!("--bin={name}")))
        .args(["--features", "prelude-cli/cuda"])
        .run()
}

/// Returns an invocation of another program, at the workspace's root.
pub(crate) fn program(path: impl AsRef<OsStr>) -> Invocation {
    let mut command = Command::new(path);
    command.current_dir(root()).stdin(Stdio::null());
    Invocation(command)
}

/// Returns a cargo command of the nightly toolchain.
pub(crate) fn cargo_nightly<I, S>(args: I) -> Invocation
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    cargo_of("nightly", args)
}

/// Returns a cargo command of the named toolchain.
pub(crate) fn cargo_of<I, S>(toolchain: &str, args: I) -> Invocation
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let mut command = Command::new("rustup");
    command
        .current_dir(root())
        .args(["run", toolchain, "cargo"])
        .args(args)
        .stdin(Stdio::null());
    // The variables that a stable cargo exports for its children would override the toolchain.
    for name in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
        command.env_remove(name);
    }
    Invocation(command)
}

/// Builds the tests of a `cargo test` command, and returns their programs by the names of the targets.
pub(crate) fn test_programs(test: Invocation) -> Result<BTreeMap<String, PathBuf>> {
    let said = test.args(["--no-run", "--message-format=json"]).output()?;
    let program = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let name = message["target"]["name"].as_str()?;
        Some((
            name.to_owned(),
            PathBuf::from(message["executable"].as_str()?),
        ))
    };
    Ok(said.lines().filter_map(program).collect())
}

/// Does some work in a thread for each.
pub(crate) fn all_at_once<F>(works: impl Iterator<Item = F>) -> Result<()>
where
    F: FnOnce() -> Result<()> + Send,
{
    thread::scope(|scope| {
        let threads: Vec<_> = works.map(|work| scope.spawn(work)).collect();
        let mut ended = threads.into_iter().map(|thread| thread.join());
        ended.try_for_each(|result| result.expect("running a program does not panic"))
    })
}

/// Returns the name of this machine's kind.
pub(crate) fn host() -> Result<String> {
    let text = cargo(["-vV"]).output()?;
    let host = text.lines().find_map(|l| l.strip_prefix("host: "));
    Ok(host.unwrap_or("x86_64-unknown-linux-gnu").to_owned())
}

impl Invocation {
    pub(crate) fn args<I, S>(mut self, args: I) -> Self
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        self.0.args(args);
        self
    }

    /// Sets the folder that it runs in.
    pub(crate) fn folder(mut self, folder: &Path) -> Self {
        self.0.current_dir(folder);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.0.env(name, value);
        self
    }

    /// Runs it with this program's output.
    pub(crate) fn run(mut self) -> Result<()> {
        let line = self.line();
        println!("$ {line}");
        let status = self
            .0
            .status()
            .with_context(|| format!("cannot start `{line}`"))?;
        if !status.success() {
            bail!("`{line}` failed: {status}");
        }
        Ok(())
    }

    /// Runs it and returns what it printed.
    pub(crate) fn output(mut self) -> Result<String> {
        let line = self.line();
        let output = self
            .0
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("cannot start `{line}`"))?;
        if !output.status.success() {
            bail!("`{line}` failed: {}", output.status);
        }
        String::from_utf8(output.stdout).with_context(|| format!("`{line}` printed no UTF-8"))
    }

    /// Runs it and returns what it printed on its standard output, however it ended. What it prints
    /// on its standard error is not shown.
    pub(crate) fn output_of_any_status(mut self) -> Result<String> {
        let line = self.line();
        let output = self.0.stderr(Stdio::null()).output();
        let output = output.with_context(|| format!("cannot start `{line}`"))?;
        String::from_utf8(output.stdout).with_context(|| format!("`{line}` printed no UTF-8"))
    }

    /// Runs the program quietly and returns true if it succeeds.
    pub(crate) fn succeeds(mut self) -> bool {
        let status = self.0.stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|s| s.success())
    }

    fn line(&self) -> String {
        let program = PathBuf::from(self.0.get_program());
        let name = program
            .file_name()
            .map(|n| n.to_string_lossy().into_owned());
        let mut line = name.unwrap_or_default();
        for arg in self.0.get_args() {
            line.push(' ');
            line.push_str(&arg.to_string_lossy());
        }
        line
    }
}
