//! Child processes that end with their keeper, and all that they started with them.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
    sync::{
        Mutex, PoisonError,
        mpsc::{self, Receiver},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};

/// Longest wait of a drop for a process that was asked to stop.
const STOPPED_WITHIN: Duration = Duration::from_secs(20);
/// Longest wait for a process that was killed: one that a driver holds may never go.
pub const GONE_WITHIN: Duration = Duration::from_secs(10);
/// The time between two looks at a process.
const LOOK: Duration = Duration::from_millis(20);
/// The time between two looks at a process that starts: its start is measured.
const LOOK_AT_START: Duration = Duration::from_millis(2);
/// A process group's guard: passes signals on to the group's leader, and kills the group when its
/// input ends, as it does when this process is gone, whatever ended it.
const GUARD: &str =
    r#"while read -r signal; do kill -s "$signal" "$0"; done; kill -s KILL -- "-$0""#;

/// Where the output of a process goes.
#[derive(Clone, Copy, Debug)]
pub enum Output<'a> {
    /// Nowhere.
    Null,
    /// To where that of this process goes.
    Inherit,
    /// To a file, which is replaced.
    File(&'a Path),
    /// The standard error is read line by line, and copied to a file if one is named; the standard
    /// output goes nowhere.
    Lines(Option<&'a Path>),
    /// As `Lines`, but what is written after the line that was waited for stays in the pipe.
    Unread,
    /// Standard input and output are pipes, see [`Process::pipes`]; the standard error goes to a
    /// file if one is named, else to where that of this process goes.
    Piped(Option<&'a Path>),
}

/// The end of a process that was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The process ended by itself.
    Itself(ExitStatus),
    /// The process took too long, or its watcher gave it up, and was killed.
    Killed,
    /// The process was killed and is still there.
    Stuck,
}

/// A child process, the first of a process group of its own. When dropped, it is asked to stop, and
/// its group is killed.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    /// The group's guard, until the group is killed.
    guard: Option<Child>,
    started: Instant,
    /// Behind a lock so that threads can share a process; it is never contended.
    lines: Option<Mutex<Receiver<String>>>,
    keeps_lines: bool,
    said: Vec<String>,
    log: Option<PathBuf>,
}

impl Process {
    /// Starts a program.
    ///
    /// # Errors
    /// If it cannot be started, or its log cannot be written.
    pub fn start(command: &mut Command, output: Output<'_>) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let input = match output {
            Output::Piped(_) => Stdio::piped(),
            _ => Stdio::null(),
        };
        command.process_group(0).stdin(input);
        let log = match output {
            Output::File(path) | Output::Lines(Some(path)) | Output::Piped(Some(path)) => {
                Some(path.to_owned())
            }
            _ => None,
        };
        let file = { log.as_deref() }.map(create).transpose()?;
        let (stdout, stderr) = match (output, &file) {
            (Output::File(_), Some(file)) => (file.try_clone()?.into(), file.try_clone()?.into()),
            (Output::Lines(_) | Output::Unread, _) => (Stdio::null(), Stdio::piped()),
            (Output::Piped(_), Some(file)) => (Stdio::piped(), file.try_clone()?.into()),
            (Output::Piped(_), None) => (Stdio::piped(), Stdio::inherit()),
            (Output::Inherit, _) => (Stdio::inherit(), Stdio::inherit()),
            _ => (Stdio::null(), Stdio::null()),
        };
        command.stdout(stdout).stderr(stderr);
        let started = Instant::now();
        let child = command.spawn();
        let mut child = child.with_context(|| format!("cannot start {name}"))?;
        let guard = match guard(child.id()) {
            Ok(guard) => guard,
            Err(error) => {
                let _ = child.kill().and_then(|()| child.wait());
                return Err(error);
            }
        };
        let keeps_lines = matches!(output, Output::Unread);
        let stderr = child.stderr.take();
        let lines = stderr.map(|stderr| Mutex::new(forward(stderr, file, keeps_lines)));
        Ok(Self {
            name,
            child,
            guard: Some(guard),
            started,
            lines,
            keeps_lines,
            said: Vec::new(),
            log,
        })
    }

    /// Returns the id of the process, which is that of its group too.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the time at which the process was started.
    #[must_use]
    pub const fn started(&self) -> Instant {
        self.started
    }

    /// Returns the lines that were read up to the one that was waited for.
    #[must_use]
    pub fn said(&self) -> &[String] {
        &self.said
    }

    /// Returns the pipes of a process that was started with [`Output::Piped`], once.
    pub fn pipes(&mut self) -> Option<(ChildStdin, ChildStdout)> {
        match (self.child.stdin.take(), self.child.stdout.take()) {
            (Some(stdin), Some(stdout)) => Some((stdin, stdout)),
            _ => None,
        }
    }

    /// Reads lines until `find` takes one; lines after it are read and not kept.
    ///
    /// # Errors
    /// If the process ends its output before, or `limit` after its start is over; with its last
    /// words.
    pub fn wait_for_line<T>(
        &mut self,
        limit: Duration,
        mut find: impl FnMut(&str) -> Option<T>,
    ) -> Result<T> {
        loop {
            let left = limit.saturating_sub(self.started.elapsed());
            let lines = self.lines.as_mut().map(Mutex::get_mut);
            let lines = lines.map(|lines| lines.unwrap_or_else(PoisonError::into_inner));
            let line = lines.map(|lines| lines.recv_timeout(left));
            let Some(Ok(line)) = line else {
                let (name, said) = (&self.name, self.said.join("\n"));
                bail!("{name} was not ready within {limit:?}; it said:\n{said}");
            };
            let found = find(&line);
            self.said.push(line);
            if let Some(found) = found {
                if !self.keeps_lines {
                    self.lines = None;
                }
                return Ok(found);
            }
        }
    }

    /// Looks again and again until `is_ready`, and returns the time since the start.
    ///
    /// # Errors
    /// If the process ends before, or `limit` after its start is over; with the name of its log.
    pub fn wait_until(
        &mut self,
        limit: Duration,
        mut is_ready: impl FnMut() -> bool,
    ) -> Result<Duration> {
        while !is_ready() {
            let log = match &self.log {
                Some(log) => format!("; its log is {}", log.display()),
                None => String::new(),
            };
            if let Some(status) = self.ended()? {
                bail!("{} ended before it was ready: {status}{log}", self.name);
            }
            if self.started.elapsed() > limit {
                bail!("{} was not ready within {limit:?}{log}", self.name);
            }
            thread::sleep(LOOK_AT_START);
        }
        Ok(self.started.elapsed())
    }

    /// Returns how the process ended, if it did.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        let status = self.child.try_wait();
        status.with_context(|| format!("cannot wait for {}", self.name))
    }

    /// Waits for the end of the process, and kills its group when it takes longer than `limit` or
    /// `look`, which is told again and again how long it has taken, says that it need not go on.
    /// What it started and left behind is killed too.
    ///
    /// # Errors
    /// If it cannot be waited for, or `look`'s; the group is killed then too.
    pub fn wait(
        &mut self,
        limit: Duration,
        mut look: impl FnMut(Duration) -> Result<bool>,
    ) -> Result<Ended> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.ended()? {
                self.kill();
                return Ok(Ended::Itself(status));
            }
            let goes_on = look(start.elapsed());
            if matches!(goes_on, Ok(true)) && start.elapsed() < limit {
                thread::sleep(LOOK.min(limit));
                continue;
            }
            self.kill();
            let gone = self.gone_within(GONE_WITHIN)?;
            goes_on?;
            return Ok(if gone { Ended::Killed } else { Ended::Stuck });
        }
    }

    /// Asks the process to stop, as an operator does, and waits for its end.
    ///
    /// # Errors
    /// If it ends with a failure, or not within `limit`; it is killed then.
    pub fn stop(mut self, limit: Duration) -> Result<()> {
        self.ask_to_stop();
        ensure!(
            self.gone_within(limit)?,
            "{} did not stop within {limit:?}",
            self.name
        );
        if let Some(status) = self.ended()? {
            ensure!(status.success(), "{} ended with {status}", self.name);
        }
        Ok(())
    }

    /// Kills the process and its group.
    pub fn kill(&mut self) {
        if let Some(mut guard) = self.guard.take() {
            // The end of its input makes the guard kill the group.
            drop(guard.stdin.take());
            let _ = guard.wait();
        }
    }

    /// Returns the most memory that the process held at any time, or since [`Self::forget_peak`],
    /// where the system says it as Linux does.
    ///
    /// # Errors
    /// If the system does not say it.
    pub fn peak_bytes(&self) -> Result<u64> {
        self.memory("VmHWM:")
    }

    /// Returns the memory that the process holds, where the system says it as Linux does.
    ///
    /// # Errors
    /// If the system does not say it.
    pub fn resident_bytes(&self) -> Result<u64> {
        self.memory("VmRSS:")
    }

    /// Makes what the process holds now its peak.
    ///
    /// # Errors
    /// If the system does not allow it.
    pub fn forget_peak(&self) -> Result<()> {
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

    fn ask_to_stop(&mut self) {
        let input = self.guard.as_mut().and_then(|guard| guard.stdin.as_mut());
        if let Some(input) = input {
            // A guard that is gone cannot pass it on, and the wait ends by its limit.
            let _ = input.write_all(b"TERM\n");
        }
    }

    fn gone_within(&mut self, limit: Duration) -> Result<bool> {
        let start = Instant::now();
        while self.ended()?.is_none() {
            if start.elapsed() >= limit {
                return Ok(false);
            }
            thread::sleep(LOOK);
        }
        Ok(true)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A process that serves orders ends with its input.
        drop(self.child.stdin.take());
        if self.guard.is_some() && matches!(self.ended(), Ok(None)) {
            self.ask_to_stop();
            let _ = self.gone_within(STOPPED_WITHIN);
        }
        self.kill();
        let _ = self.gone_within(GONE_WITHIN);
    }
}

fn create(path: &Path) -> Result<fs::File> {
    fs::File::create(path).with_context(|| format!("cannot write {}", path.display()))
}

/// Starts the guard of a process group, in a group of its own: an interrupt from the terminal ends
/// this process, and the guard has to outlive it.
fn guard(group: u32) -> Result<Child> {
    Command::new("sh")
        .args(["-c", GUARD, &group.to_string()])
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start sh, which guards a process")
}

/// Reads what a process writes until it ends, since a full pipe would stop it. Lines are sent until
/// the receiver is dropped; with `waits`, a line is read once the one before it was received.
fn forward(
    stderr: impl std::io::Read + Send + 'static,
    mut log: Option<fs::File>,
    waits: bool,
) -> Receiver<String> {
    let (send, receive) = mpsc::sync_channel(if waits { 0 } else { 1 << 20 });
    thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if let Some(log) = &mut log {
                let _ = writeln!(log, "{line}");
            }
            let _ = send.send(line);
        }
    });
    receive
}

/// Returns the first of some programs that says its version.
#[must_use]
pub fn find(programs: &[&str]) -> Option<PathBuf> {
    let works = |program: &&&str| {
        let output = Command::new(program).arg("--version").output();
        output.is_ok_and(|output| output.status.success())
    };
    programs.iter().find(works).map(PathBuf::from)
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
    use std::env;

    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    /// Returns true if a process is there and not merely unreaped.
    fn lives(pid: &str) -> bool {
        let path = Path::new("/proc").join(pid.trim()).join("stat");
        let stat = fs::read_to_string(path).unwrap_or_default();
        let state = stat.rsplit(") ").next().unwrap_or_default();
        !state.is_empty() && !state.starts_with(['Z', 'X'])
    }

    fn check_gone(pid: &str) {
        let start = Instant::now();
        while lives(pid) {
            assert!(start.elapsed() < GONE_WITHIN, "{pid} is left");
            thread::sleep(LOOK);
        }
    }

    /// Starts a shell with a child that sleeps, and returns the child's id.
    fn with_child(script: &str) -> (Process, String) {
        let script = format!("sleep 60 & echo $! >&2; {script}");
        let mut process = Process::start(&mut sh(&script), Output::Lines(None)).unwrap();
        let limit = Duration::from_secs(20);
        let pid = process
            .wait_for_line(limit, |l| Some(l.to_owned()))
            .unwrap();
        (process, pid)
    }

    #[test]
    fn children_end_with_their_process() {
        let (mut process, pid) = with_child("wait");
        let mut looks = 0;
        let look = |_| {
            looks += 1;
            Ok(looks < 3)
        };
        let ended = process.wait(Duration::from_secs(60), look).unwrap();
        assert_eq!(ended, Ended::Killed);
        check_gone(&pid);

        let (mut process, pid) = with_child("kill -9 $$");
        let ended = process.wait(Duration::from_secs(60), |_| Ok(true)).unwrap();
        assert!(matches!(ended, Ended::Itself(status) if !status.success()));
        check_gone(&pid);

        let (process, pid) = with_child("wait");
        drop(process);
        check_gone(&pid);
    }

    #[test]
    fn a_process_ends_when_its_keeper_is_killed() {
        if env::var_os("PRELUDE_MEASURE_KEEPER").is_some() {
            let (process, pid) = with_child("wait");
            eprintln!("sleeper {pid} of {}", process.id());
            thread::sleep(Duration::from_secs(60));
        }
        let mut keeper = Command::new(env::current_exe().unwrap());
        keeper
            .args(["a_process_ends_when_its_keeper_is_killed", "--nocapture"])
            .env("PRELUDE_MEASURE_KEEPER", "1");
        let mut keeper = Process::start(&mut keeper, Output::Lines(None)).unwrap();
        let pid = keeper
            .wait_for_line(Duration::from_secs(20), |line| {
                let rest = line.strip_prefix("sleeper ")?;
                Some(rest.split(' ').next()?.to_owned())
            })
            .unwrap();
        assert!(lives(&pid));
        // The sleeper is of another group than the keeper.
        keeper.kill();
        check_gone(&pid);
    }

    #[test]
    fn a_process_is_asked_before_it_is_killed() {
        let script = "trap 'exit 0' TERM; echo ready >&2; while :; do sleep 0.01; done";
        let mut process = Process::start(&mut sh(script), Output::Lines(None)).unwrap();
        let limit = Duration::from_secs(20);
        process
            .wait_for_line(limit, |line| (line == "ready").then_some(()))
            .unwrap();
        assert_eq!(process.said(), ["ready"]);
        process.stop(limit).unwrap();
    }

    #[test]
    fn last_words_and_logs_are_named() {
        let mut process = Process::start(&mut sh("echo no >&2"), Output::Lines(None)).unwrap();
        let error = process
            .wait_for_line(Duration::from_secs(20), |_| None::<()>)
            .unwrap_err();
        assert!(error.to_string().ends_with("it said:\nno"), "{error}");

        let log = env::temp_dir().join(format!("prelude-measure-{}", std::process::id()));
        let mut process = Process::start(&mut sh("echo out; exit 3"), Output::File(&log)).unwrap();
        let error = process
            .wait_until(Duration::from_secs(20), || false)
            .unwrap_err()
            .to_string();
        assert!(error.contains(&log.display().to_string()), "{error}");
        assert_eq!(fs::read_to_string(&log).unwrap(), "out\n");
        fs::remove_file(log).unwrap();
    }

    #[test]
    fn orders_go_in_and_replies_come_out() {
        let mut process = Process::start(&mut Command::new("cat"), Output::Piped(None)).unwrap();
        let (mut orders, replies) = process.pipes().unwrap();
        writeln!(orders, "hello").unwrap();
        let mut line = String::new();
        BufReader::new(replies).read_line(&mut line).unwrap();
        assert_eq!(line, "hello\n");
        assert!(process.pipes().is_none());
        drop(orders);
        let ended = process.wait(Duration::from_secs(20), |_| Ok(true)).unwrap();
        assert!(matches!(ended, Ended::Itself(status) if status.success()));
    }
}
