//! The demo server as a process of its own.

use std::{
    ffi::OsStr,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::{files, run::cargo};

/// Longest that the demo server may take to be ready. The promise is one second from start to
/// first answer; a busy machine gets slack, since this is a check of function.
pub(crate) const READY_WITHIN: Duration = Duration::from_secs(20);

/// A running server; stopped when dropped, whatever happens.
pub(crate) struct DemoServer {
    child: Child,
    /// `host:port`.
    pub(crate) address: String,
    /// The time at which the process was started.
    pub(crate) started: Instant,
}

impl Drop for DemoServer {
    fn drop(&mut self) {
        // Nothing is left to do if the process is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Builds the program as the README says, and starts it on a free port.
pub(crate) fn start() -> Result<DemoServer> {
    build()?;
    start_with(&[])
}

/// Builds the program as the README says.
pub(crate) fn build() -> Result<()> {
    // That it prints its version shows that cargo found the program to run.
    cargo(["run", "--release", "--", "--version"]).run()
}

/// Starts the program that [`build`] built, on a free port, with more arguments.
pub(crate) fn start_with(args: &[&OsStr]) -> Result<DemoServer> {
    start_program(Command::new(files::target().join("release/prelude")), args)
}

/// Starts a program on a free port, with more arguments.
pub(crate) fn start_program(mut program: Command, args: &[&OsStr]) -> Result<DemoServer> {
    let started = Instant::now();
    let name = program.get_program().display().to_string();
    let child = program
        .args(["serve", "--port", "0"])
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {name}"))?;
    let mut server = DemoServer {
        child,
        address: String::new(),
        started,
    };
    server.address = bound_address(&mut server.child)?;
    Ok(server)
}

/// Reads the address from the server's own announcement.
fn bound_address(child: &mut Child) -> Result<String> {
    let stderr = child
        .stderr
        .take()
        .context("the server's stderr is not piped")?;
    let mut reader = BufReader::new(stderr);
    let deadline = Instant::now() + READY_WITHIN;
    let mut seen = String::new();
    while Instant::now() < deadline {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            bail!("the server ended before it was ready; it said:\n{seen}");
        }
        seen.push_str(&line);
        if let Some(rest) = line
            .split("http://")
            .nth(1)
            .filter(|_| line.contains("ready"))
        {
            let address: String = rest
                .chars()
                .take_while(|c| c.is_ascii_digit() || ".:".contains(*c))
                .collect();
            // Keep the pipe drained, or the server's log would block it one day.
            std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
            return Ok(address);
        }
    }
    bail!("the server was not ready within {READY_WITHIN:?}; it said:\n{seen}")
}
