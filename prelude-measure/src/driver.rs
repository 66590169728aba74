//! Programs that answer each line of their input with a line, as rivals of other languages do that
//! measure themselves.

use std::{
    fmt::Display,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{ChildStdin, ChildStdout, Command},
};

use anyhow::{Context as _, Result, ensure};

use crate::process::{Output, Process};

/// A running program, which ends when dropped.
#[derive(Debug)]
pub struct Driver {
    // Dropped first: the end of its input ends the program.
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// The program's process.
    pub process: Process,
    title: String,
    log: Option<PathBuf>,
}

impl Driver {
    /// Starts a program, called `title` in errors. What it writes to its standard error goes to a
    /// file if one is named.
    ///
    /// # Errors
    /// If it cannot be started, or its log cannot be written.
    pub fn start(title: &str, command: &mut Command, log: Option<&Path>) -> Result<Self> {
        let mut process = Process::start(command, Output::Piped(log))?;
        let (input, output) = process.pipes().context("pipes to a program")?;
        Ok(Self {
            input,
            output: BufReader::new(output),
            process,
            title: title.to_owned(),
            log: log.map(Path::to_owned),
        })
    }

    /// Writes a line and returns the line that answers it.
    ///
    /// # Errors
    /// If the program has ended; with its log.
    pub fn ask(&mut self, line: impl Display) -> Result<String> {
        // Writing to a process that has ended fails; the missing answer says more.
        let _ = writeln!(self.input, "{line}").and_then(|()| self.input.flush());
        self.line()
    }

    /// Returns the next line of the program.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        read.with_context(|| format!("{} cannot be read", self.title))?;
        let log = self
            .log
            .as_ref()
            .map(|log| format!("; see {}", log.display()));
        ensure!(
            !line.is_empty(),
            "{} ended{}",
            self.title,
            log.unwrap_or_default()
        );
        line.truncate(line.trim_end().len());
        Ok(line)
    }

    /// Writes a line and returns the number that answers it.
    ///
    /// # Errors
    /// As [`Self::ask`], or if the answer is no number.
    pub fn number(&mut self, line: impl Display) -> Result<f64> {
        let answer = self.ask(line)?;
        let parsed = answer.trim().parse();
        parsed.with_context(|| format!("{} printed `{answer}`, no number", self.title))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_answered() {
        let mut driver = Driver::start("cat", &mut Command::new("cat"), None).unwrap();
        assert_eq!(driver.ask("one").unwrap(), "one");
        assert_eq!(driver.number(2.5).unwrap(), 2.5);
        let error = driver.number("no").unwrap_err().to_string();
        assert_eq!(error, "cat printed `no`, no number");
    }

    #[test]
    fn a_program_that_ends_is_named() {
        let mut driver = Driver::start("it", &mut Command::new("true"), None).unwrap();
        assert_eq!(driver.ask("one").unwrap_err().to_string(), "it ended");
    }
}
