//! Processes that are ended with all that they started.

use std::{
    fs,
    io::{self, Read as _},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

/// The time between two looks at a running process.
const LOOK: Duration = Duration::from_millis(50);
/// Longest wait for a process that was killed: one that a driver holds may never go.
pub(crate) const GONE_WITHIN: Duration = Duration::from_secs(10);

/// The end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The process ended by itself.
    Itself(ExitStatus),
    /// The process took too long, or its watcher gave it up, and was killed.
    Killed,
    /// The process was killed and is still there.
    Stuck,
}

/// Makes the process the first of a group of its own, which [`wait`] ends as a whole. Its standard
/// input is a pipe that closes when this process is gone, whatever ended it: see [`tie`].
pub(crate) fn grouped(command: &mut Command) -> &mut Command {
    command.process_group(0).stdin(Stdio::piped())
}

/// Waits for a [`grouped`] process, and kills its group when it takes longer or `look`, which is
/// told again and again how long it has taken, says that it need not go on.
///
/// # Errors
/// If it cannot be waited for or killed, or `look`'s; the group is killed then too.
pub(crate) fn wait(
    child: &mut Child,
    limit: Duration,
    mut look: impl FnMut(Duration) -> Result<bool>,
) -> Result<Ended> {
    let start = Instant::now();
    let mut wrong = None;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for a process")? {
            // What it started and left behind goes too.
            let _ = kill_group(child.id());
            return Ok(Ended::Itself(status));
        }
        match look(start.elapsed()) {
            Ok(true) if start.elapsed() < limit => thread::sleep(LOOK),
            Ok(_) => break,
            Err(error) => {
                wrong = Some(error);
                break;
            }
        }
    }
    let group = kill_group(child.id());
    let alone = child.kill();
    if group.is_err() {
        alone.context("cannot end a process")?;
    }
    let gone = gone(child)?;
    match wrong {
        Some(error) => Err(error),
        None if gone => Ok(Ended::Killed),
        None => Ok(Ended::Stuck),
    }
}

/// A process whose output went to a file.
pub(crate) struct Logged {
    /// The exit status, or none if the process did not end in time.
    pub(crate) status: Option<ExitStatus>,
    pub(crate) text: String,
}

impl Logged {
    pub(crate) fn last_line(&self) -> &str {
        self.text.lines().last().unwrap_or("it said nothing")
    }
}

/// Runs a process for `limit` at most, with its output in the file `log`; `beat` is told again and
/// again that the process, called `name`, goes on.
///
/// # Errors
/// If it cannot be started, or ended.
pub(crate) fn logged(
    command: &mut Command,
    name: &str,
    log: &Path,
    limit: Duration,
    beat: impl Fn(&str) -> Result<()>,
) -> Result<Logged> {
    let file = fs::File::create(log).with_context(|| format!("cannot make {}", log.display()))?;
    let mut child = grouped(command)
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()
        .with_context(|| format!("{name} cannot be started"))?;
    let look = |for_now: Duration| {
        beat(&format!("{name} goes on, {} s so far", for_now.as_secs()))?;
        Ok(true)
    };
    let status = match wait(&mut child, limit, look)? {
        Ended::Itself(status) => Some(status),
        Ended::Killed => None,
        Ended::Stuck => bail!("{name} was killed and is still there"),
    };
    let text = fs::read_to_string(log).unwrap_or_default();
    Ok(Logged { status, text })
}

/// Returns the first of some programs that says its version.
pub(crate) fn find(programs: &[&str]) -> Option<PathBuf> {
    let works = |program: &&&str| {
        let output = Command::new(program).arg("--version").output();
        output.is_ok_and(|output| output.status.success())
    };
    programs.iter().find(works).map(PathBuf::from)
}

/// Returns true if a killed process went within [`GONE_WITHIN`].
///
/// # Errors
/// If it cannot be waited for.
pub(crate) fn gone(child: &mut Child) -> Result<bool> {
    let start = Instant::now();
    while child
        .try_wait()
        .context("cannot wait for a process")?
        .is_none()
    {
        if start.elapsed() >= GONE_WITHIN {
            return Ok(false);
        }
        thread::sleep(LOOK);
    }
    Ok(true)
}

/// Kills a process group by the shell's own `kill`: the program of this name is not everywhere.
fn kill_group(leader: u32) -> Result<()> {
    let output = Command::new("sh")
        .args(["-c", "kill -s KILL -- \"-$0\"", &leader.to_string()])
        .stdin(Stdio::null())
        .output()
        .context("cannot start sh")?;
    anyhow::ensure!(output.status.success(), "no process is left of the group");
    Ok(())
}

/// Ends this process and its group once the standard input closes: the process that started it by
/// [`grouped`] is gone then, and with it who would end this one in time.
pub(crate) fn tie() {
    thread::spawn(|| {
        let mut bytes = [0; 64];
        loop {
            match io::stdin().lock().read(&mut bytes) {
                Ok(1..) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => break,
            }
        }
        // Signals every process of the group, the shell among them.
        let _ = Command::new("sh")
            .args(["-c", "kill -s KILL 0"])
            .stdin(Stdio::null())
            .status();
        std::process::exit(1);
    });
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::results::tests::Folder;

    /// Returns true if a process is there and not merely unreaped.
    fn lives(pid: &str) -> bool {
        let Ok(stat) = fs::read_to_string(Path::new("/proc").join(pid).join("stat")) else {
            return false;
        };
        let state = stat.rsplit(") ").next().unwrap_or_default();
        !state.starts_with('Z') && !state.starts_with('X')
    }

    /// Starts a shell whose child sleeps; how the shell ended, and whether its child went too.
    fn ended(name: &str, script: &str, limit: Duration) -> Ended {
        let folder = Folder::new(name);
        let note = folder.0.join("pid");
        let script = format!("sleep 60 & echo $! > {}; {script}", note.display());
        let mut child = grouped(Command::new("sh").args(["-c", &script]))
            .spawn()
            .unwrap();
        let ended = wait(&mut child, limit, |_| Ok(true)).unwrap();
        let pid = fs::read_to_string(&note).unwrap();
        let start = Instant::now();
        while lives(pid.trim()) {
            assert!(start.elapsed() < GONE_WITHIN, "{name}: {pid} is left");
            thread::sleep(LOOK);
        }
        ended
    }

    #[test]
    fn children_end_with_their_process() {
        let killed = ended("group-killed", "wait", Duration::from_secs(2));
        assert_eq!(killed, Ended::Killed);
        // A part that crashes leaves a server behind, say.
        let crashed = ended("group-crashed", "kill -9 $$", Duration::from_secs(30));
        let Ended::Itself(status) = crashed else {
            panic!("{crashed:?}")
        };
        assert!(!status.success());
    }
}
