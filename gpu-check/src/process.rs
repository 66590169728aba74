//! Programs that are run for their output, each for a limited time.

use std::{
    fs,
    path::Path,
    process::{Command, ExitStatus},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use prelude_measure::process::{Ended, Output, Process};

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
    let mut process = Process::start(command, Output::File(log))
        .with_context(|| format!("{name} cannot be started"))?;
    let look = |for_now: Duration| {
        beat(&format!("{name} goes on, {} s so far", for_now.as_secs()))?;
        Ok(true)
    };
    let status = match process.wait(limit, look)? {
        Ended::Itself(status) => Some(status),
        Ended::Killed => None,
        Ended::Stuck => bail!("{name} was killed and is still there"),
    };
    let text = fs::read_to_string(log).unwrap_or_default();
    Ok(Logged { status, text })
}
