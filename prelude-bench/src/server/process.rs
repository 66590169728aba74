//! Servers as processes of their own.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

/// A running server. Told to stop, and then made to, when dropped.
pub(super) struct Process {
    child: Child,
    /// `host:port`.
    pub(super) address: String,
    /// The time from the start of the process to its first healthy response.
    pub(super) ready_after: Duration,
}

impl Drop for Process {
    fn drop(&mut self) {
        // A server with children of its own has to be asked, or they would outlive it.
        let asked = Command::new("kill")
            .args(["-TERM", &self.child.id().to_string()])
            .status();
        let deadline = Instant::now() + Duration::from_secs(20);
        while asked.as_ref().is_ok_and(|s| s.success()) && Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(20)),
                _ => return,
            }
        }
        // Nothing is left to do if it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    /// Starts `prelude` with both demo models and waits until it is healthy.
    pub(super) fn prelude(program: &Path) -> Result<Self> {
        Self::prelude_with(program, &[])
    }

    /// Starts Prelude as [`Self::prelude`] does, with settings in its environment.
    pub(super) fn prelude_with(program: &Path, settings: &[(&str, &str)]) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["serve", "--port", "0"]);
        command.envs(settings.iter().copied());
        Self::ours(command)
    }

    /// The same with one language model, of a folder, that embeds as well.
    pub(super) fn prelude_embedding(program: &Path, model: &Path) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["serve", "--port", "0", "--pooling", "last"]);
        command.arg(model);
        Self::ours(command)
    }

    fn ours(mut command: Command) -> Result<Self> {
        command.env("PRELUDE_SERVER__ACCESS_LOG", "false");
        let program = command.get_program().to_string_lossy().into_owned();
        let started = Instant::now();
        let mut child = spawn(command.stderr(Stdio::piped()))?;
        let stderr = child.stderr.take().context("stderr is piped")?;
        let mut process = Self {
            child,
            address: String::new(),
            ready_after: Duration::ZERO,
        };
        let mut reader = BufReader::new(stderr);
        let mut said = String::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                bail!("{program} ended; it said:\n{said}");
            }
            said.push_str(&line);
            let rest = line.strip_prefix("ready: ");
            if let Some(rest) = rest.and_then(|rest| rest.split("http://").nth(1)) {
                let ends = |c: char| !c.is_ascii_digit() && !".:".contains(c);
                process.address = rest.split(ends).next().unwrap_or_default().to_owned();
                break;
            }
        }
        // The pipe has to be kept empty.
        std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
        process.wait_until_healthy(started, Duration::from_secs(20))?;
        Ok(process)
    }

    /// Starts a server that listens at `address` and writes to `log`.
    pub(super) fn rival(
        command: &mut Command,
        address: String,
        log: &Path,
        patience: Duration,
    ) -> Result<Self> {
        let file = std::fs::File::create(log)
            .with_context(|| format!("cannot write {}", log.display()))?;
        let started = Instant::now();
        let child = spawn(command.stdout(file.try_clone()?).stderr(file))?;
        let mut process = Self {
            child,
            address,
            ready_after: Duration::ZERO,
        };
        let healthy = process.wait_until_healthy(started, patience);
        healthy.with_context(|| format!("its log is {}", log.display()))?;
        Ok(process)
    }

    /// The sum of the lines of `/metrics` that begin with `name`, of which there must be one.
    pub(super) fn metric(&self, name: &str) -> Result<f64> {
        let page = get(&self.address, "/metrics").context("the server's metrics")?;
        sum_of(&page, name).with_context(|| format!("the server has no metric {name}"))
    }

    /// Returns the most memory that the process held at any time, where the system says it as Linux
    /// does.
    pub(super) fn peak_bytes(&self) -> Result<u64> {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(&path).with_context(|| path.clone())?;
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
        let kib = line.and_then(|l| l.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        Ok(kib.with_context(|| format!("{path} has no VmHWM"))? << 10)
    }

    fn wait_until_healthy(&mut self, started: Instant, patience: Duration) -> Result<()> {
        while !is_healthy(&self.address) {
            if let Some(status) = self.child.try_wait()? {
                bail!("the server ended before it was ready: {status}");
            }
            if started.elapsed() > patience {
                bail!("the server was not ready within {patience:?}");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.ready_after = started.elapsed();
        Ok(())
    }
}

fn sum_of(page: &str, name: &str) -> Option<f64> {
    let lines = page.lines().filter(|line| line.starts_with(name));
    let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.reduce(|a, b| a + b)
}

fn spawn(command: &mut Command) -> Result<Child> {
    let name = command.get_program().to_string_lossy().into_owned();
    let child = command.stdin(Stdio::null()).spawn();
    child.with_context(|| format!("cannot start {name}"))
}

fn is_healthy(address: &str) -> bool {
    get(address, "/health").is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

/// A whole response as text.
fn get(address: &str, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Returns an address on which no server listens now.
pub(super) fn free_address() -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").context("a loopback port")?;
    Ok(listener.local_addr()?.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_of_one_name_are_added() {
        let page = "# TYPE a gauge\na{x=\"1\"} 2\na{x=\"2\"} 3.5\nb 7\n";
        assert_eq!(sum_of(page, "a{"), Some(5.5));
        assert_eq!(sum_of(page, "b "), Some(7.0));
        assert_eq!(sum_of(page, "c"), None);
    }
}
