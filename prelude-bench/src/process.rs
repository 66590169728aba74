//! Servers as processes of their own.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, ChildStderr, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};

/// Longest wait for a server that was asked to stop.
const STOPPED_WITHIN: Duration = Duration::from_secs(60);
/// Longest wait for a process that was killed: one that a driver holds may never go.
const GONE_WITHIN: Duration = Duration::from_secs(10);
/// Longest start of `prelude` with small models.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// The time between two looks at a process that should end.
const POLL: Duration = Duration::from_millis(20);

/// A running server. It is asked to stop, and then killed, when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// `host:port`.
    pub address: String,
    /// The time from the start of the process to its first healthy response.
    pub ready_after: Duration,
    /// Lines that `prelude` wrote before it was ready.
    pub start_log: Vec<String>,
    /// A log without a reader.
    unread: Option<BufReader<ChildStderr>>,
}

impl Drop for Process {
    fn drop(&mut self) {
        // A server with children of its own has to be asked, or they would outlive it.
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.ask_to_stop().is_ok() && Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(POLL),
                _ => return,
            }
        }
        // Nothing is left to do if it is gone already.
        let _ = self.child.kill();
        let deadline = Instant::now() + GONE_WITHIN;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(POLL);
        }
    }
}

impl Process {
    /// Starts `prelude` with both demo models and waits until it is healthy.
    pub(crate) fn prelude(program: &Path) -> Result<Self> {
        Self::prelude_with(program, &[])
    }

    /// Starts Prelude as [`Self::prelude`] does, with settings in its environment.
    pub(crate) fn prelude_with(program: &Path, settings: &[(&str, &str)]) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["serve", "--port", "0"]);
        command.envs(settings.iter().copied());
        Self::start(command, None, READY_WITHIN)
    }

    /// Starts Prelude as [`Self::prelude`] does, with a log of every request, which nobody reads once
    /// it is ready.
    pub(crate) fn prelude_unread(program: &Path) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["serve", "--port", "0"]);
        command.env("PRELUDE_SERVER__ACCESS_LOG", "true");
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let started = Instant::now();
        let mut child = spawn(&mut command)?;
        let mut log = BufReader::new(child.stderr.take().context("stderr is piped")?);
        let mut process = Self {
            child,
            address: String::new(),
            ready_after: Duration::ZERO,
            start_log: Vec::new(),
            unread: None,
        };
        while process.address.is_empty() {
            let mut line = String::new();
            let read = log.read_line(&mut line)?;
            ensure!(read > 0, "the server ended before it was ready");
            process.address = ready_address(&line).unwrap_or_default();
        }
        process.unread = Some(log);
        process.wait_until(is_healthy, started, READY_WITHIN)?;
        Ok(process)
    }

    /// Starts `prelude` with one language model, from a folder, that embeds as well.
    pub(crate) fn prelude_embedding(program: &Path, model: &Path) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["serve", "--port", "0", "--pooling", "last"]);
        command.arg(model);
        Self::start(command, None, READY_WITHIN)
    }

    /// Starts `prelude serve` and waits until it is healthy. Its log goes to a file too, if one is
    /// named.
    ///
    /// # Errors
    /// If it does not start, ends, or is not healthy within `patience`; with its last words.
    pub fn start(mut command: Command, log: Option<&Path>, patience: Duration) -> Result<Self> {
        command.env("PRELUDE_SERVER__ACCESS_LOG", "false");
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let started = Instant::now();
        let mut process = Self {
            child: spawn(&mut command)?,
            address: String::new(),
            ready_after: Duration::ZERO,
            start_log: Vec::new(),
            unread: None,
        };
        let stderr = process.child.stderr.take().context("stderr is piped")?;
        let lines = forward(stderr, log)?;
        while process.address.is_empty() {
            let left = patience.saturating_sub(started.elapsed());
            let Ok(line) = lines.recv_timeout(left) else {
                let said = process.start_log.join("\n");
                bail!("the server was not ready within {patience:?}; it said:\n{said}");
            };
            process.address = ready_address(&line).unwrap_or_default();
            process.start_log.push(line);
        }
        process.wait_until(is_healthy, started, patience)?;
        Ok(process)
    }

    /// Asks the server to stop, as an operator does, and waits for its end.
    ///
    /// # Errors
    /// If it ends with a failure, or not within a minute.
    pub fn stop(mut self) -> Result<()> {
        self.ask_to_stop()?;
        let deadline = Instant::now() + STOPPED_WITHIN;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "the server ended with {status}");
                return Ok(());
            }
            std::thread::sleep(POLL);
        }
        bail!("the server did not stop within {STOPPED_WITHIN:?}");
    }

    fn ask_to_stop(&self) -> Result<()> {
        let pid = self.child.id().to_string();
        let asked = Command::new("kill")
            .args(["-TERM", &pid])
            .stderr(Stdio::null())
            .status();
        let is_asked = asked.is_ok_and(|status| status.success());
        ensure!(is_asked, "the server cannot be asked to stop");
        Ok(())
    }

    /// Starts a server that listens at `address` and writes to `log`, and waits until it is
    /// healthy.
    ///
    /// # Errors
    /// If it does not start, ends, or is not healthy within `patience`.
    pub fn rival(
        command: &mut Command,
        address: String,
        log: &Path,
        patience: Duration,
    ) -> Result<Self> {
        Self::awaited(command, address, log, patience, is_healthy)
    }

    /// Starts a program that listens at `address` and writes to `log`, and waits until it takes
    /// connections. It need not speak HTTP.
    pub(crate) fn listening(
        command: &mut Command,
        address: String,
        log: &Path,
        patience: Duration,
    ) -> Result<Self> {
        let listens = |address: &str| TcpStream::connect(address).is_ok();
        Self::awaited(command, address, log, patience, listens)
    }

    fn awaited(
        command: &mut Command,
        address: String,
        log: &Path,
        patience: Duration,
        is_ready: impl Fn(&str) -> bool,
    ) -> Result<Self> {
        let file =
            fs::File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let started = Instant::now();
        let child = spawn(command.stdout(file.try_clone()?).stderr(file))?;
        let mut process = Self {
            child,
            address,
            ready_after: Duration::ZERO,
            start_log: Vec::new(),
            unread: None,
        };
        let ready = process.wait_until(is_ready, started, patience);
        ready.with_context(|| format!("its log is {}", log.display()))?;
        Ok(process)
    }

    /// Returns the sum of the lines of `/metrics` that begin with `name`, of which there must be
    /// one.
    pub(crate) fn metric(&self, name: &str) -> Result<f64> {
        let [value] = metrics(&self.address, [name])?;
        Ok(value)
    }

    /// Returns the most memory that the process held at any time, or since [`Self::forget_peak`],
    /// where the system says it as Linux does.
    pub(crate) fn peak_bytes(&self) -> Result<u64> {
        self.memory("VmHWM:")
    }

    /// Returns the memory that the process holds, where the system says it as Linux does.
    pub(crate) fn resident_bytes(&self) -> Result<u64> {
        self.memory("VmRSS:")
    }

    /// Makes what the process holds now its peak.
    pub(crate) fn forget_peak(&self) -> Result<()> {
        let path = format!("/proc/{}/clear_refs", self.child.id());
        fs::write(&path, "5").with_context(|| format!("cannot write {path}"))
    }

    fn memory(&self, name: &str) -> Result<u64> {
        let path = format!("/proc/{}/status", self.child.id());
        let status = fs::read_to_string(&path).with_context(|| path.clone())?;
        let line = status.lines().find_map(|l| l.strip_prefix(name));
        let kib = line.and_then(|l| l.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        Ok(kib.with_context(|| format!("{path} has no {name}"))? << 10)
    }

    fn wait_until(
        &mut self,
        is_ready: impl Fn(&str) -> bool,
        started: Instant,
        patience: Duration,
    ) -> Result<()> {
        while !is_ready(&self.address) {
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

/// Returns the address, `host:port`, in the line by which `prelude` says that it is ready.
fn ready_address(line: &str) -> Option<String> {
    let rest = line.strip_prefix("ready: ")?.split("http://").nth(1)?;
    let ends = |c: char| !c.is_ascii_digit() && !".:".contains(c);
    Some(rest.split(ends).next().unwrap_or_default().to_owned())
}

/// Reads what a server writes until it ends, since a full pipe would stop it. Lines are sent until
/// the receiver is dropped, and written to `log`.
fn forward(stderr: ChildStderr, log: Option<&Path>) -> Result<mpsc::Receiver<String>> {
    let mut file = match log {
        Some(log) => {
            let file = fs::File::create(log);
            Some(file.with_context(|| format!("cannot write {}", log.display()))?)
        }
        None => None,
    };
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if let Some(file) = &mut file {
                let _ = writeln!(file, "{line}");
            }
            // Not read once the server is ready.
            let _ = send.send(line);
        }
    });
    Ok(receive)
}

/// Returns for each of `names` the sum of the lines of a server's `/metrics` that begin with it, of
/// which there must be one.
///
/// # Errors
/// If the server does not answer, or has no such line.
pub fn metrics<const N: usize>(address: &str, names: [&str; N]) -> Result<[f64; N]> {
    let page = get(address, "/metrics").context("the server's metrics")?;
    let mut values = [0.0; N];
    for (value, name) in values.iter_mut().zip(names) {
        let sum = sum_of(&page, name);
        *value = sum.with_context(|| format!("the server has no metric {name}"))?;
    }
    Ok(values)
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

/// Returns a whole response as text.
pub(crate) fn get(address: &str, path: &str) -> std::io::Result<String> {
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

/// Returns an address of loopback, `host:port`, on which no server listens now.
///
/// # Errors
/// If the system has none.
pub fn free_address() -> Result<String> {
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
