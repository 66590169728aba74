//! One more rival for one run: an engine of another build of this bench.
//!
//! Another version of an engine cannot be compiled in beside the one that is. It can be compiled
//! in a copy of this folder, whose program then serves the same orders.

use std::{
    path::{self, Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use crate::engines::Who;

/// What `--also TITLE=ENGINE:PROGRAM` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Also {
    title: &'static str,
    engine: Who,
    program: PathBuf,
}

impl Also {
    /// # Errors
    /// The form is another one, the title is no good in a table, there is no such engine or no
    /// such program.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let parts = text.split_once('=').and_then(|(title, rest)| {
            let (engine, program) = rest.split_once(':')?;
            Some((title.trim(), engine.trim(), program.trim()))
        });
        let (title, engine, program) = parts.context("this is not TITLE=ENGINE:PROGRAM")?;
        ensure!(!title.is_empty(), "the title is empty");
        ensure!(
            !title.contains(['|', '\'', '\n']),
            "a title has no bars, quotes and line ends"
        );
        ensure!(
            Who::ALL.into_iter().all(|who| who.title() != title),
            "{title} takes part already; give another title"
        );
        let engine = Who::from_key(engine)?;
        ensure!(
            engine != Who::Gigatoken,
            "gigatoken runs in Python and is in no build; see --python"
        );
        ensure!(!program.is_empty(), "the program is missing");
        let program = path::absolute(program).context("the program has no path")?;
        ensure!(program.is_file(), "{} is not there", program.display());
        Ok(Self {
            // It lives as long as the run, as the other titles do.
            title: Box::leak(title.to_owned().into_boxed_str()),
            engine,
            program,
        })
    }

    pub(crate) fn who(&self) -> Who {
        Who::Also(self.title)
    }

    /// Starts the other build as an engine's process.
    pub(crate) fn worker(&self, threads: usize) -> Command {
        worker(&self.program, self.engine, threads)
    }

    /// What was given, without the path.
    pub(crate) fn text(&self) -> String {
        format!("{}={}:…", self.title, self.engine.key())
    }
}

/// An engine's process of a build of this bench.
pub(crate) fn worker(program: &Path, engine: Who, threads: usize) -> Command {
    let mut command = Command::new(program);
    command.args(["worker", "--engine", engine.key()]);
    command.args(["--threads", &threads.to_string()]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_build_takes_part_under_its_title() {
        let program = std::env::current_exe().expect("this test's program");
        let text = format!(" a fork=fastokens:{}", program.display());
        let also = Also::parse(&text).expect("of the form");
        assert_eq!(
            (also.who(), also.engine),
            (Who::Also("a fork"), Who::Fastokens)
        );
        assert_eq!(also.text(), "a fork=fastokens:…");
        assert_eq!(also.worker(2).get_program(), program);
        let arguments = also.worker(2);
        let arguments: Vec<_> = arguments.get_args().collect();
        assert_eq!(
            arguments,
            ["worker", "--engine", "fastokens", "--threads", "2"]
        );
    }

    #[test]
    fn what_is_wrong_is_said() {
        let check = |text: &str, expected: &str| {
            let error = Also::parse(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        };
        check("fastokens:/bin/sh", "TITLE=ENGINE:PROGRAM");
        check("a fork=/bin/sh", "TITLE=ENGINE:PROGRAM");
        check(" =fastokens:/bin/sh", "title is empty");
        check("a|b=fastokens:/bin/sh", "bars");
        check("tokenizers 0.23=tokenizers:/bin/sh", "another title");
        check(
            "a fork=fasttokens:/bin/sh",
            "no engine is called fasttokens",
        );
        check("a fork=gigatoken:/bin/sh", "Python");
        check("a fork=fastokens:", "program is missing");
        check("a fork=fastokens:/nonexistent", "/nonexistent is not there");
    }
}
