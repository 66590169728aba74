//! A further rival for one run: an engine of another build of this bench.
//!
//! Two versions of an engine cannot be compiled into one program. Another version can be compiled
//! in a copy of this folder, whose program then serves the same orders.

use std::{
    path::{self, Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use crate::{engines::Who, protocol};

/// The value of `--also TITLE=ENGINE:PROGRAM`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Also {
    title: &'static str,
    engine: Who,
    program: PathBuf,
    /// The fast path of fasttoken that is left out.
    left_out: Option<String>,
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
            !Who::OF_PYTHON.contains(&engine),
            "{} runs in Python and is in no build; see --python",
            engine.key()
        );
        ensure!(!program.is_empty(), "the program is missing");
        let program = path::absolute(program).context("the program has no path")?;
        ensure!(program.is_file(), "{} is not there", program.display());
        // It lives as long as the run, as the other titles do.
        Self::new(
            Box::leak(title.to_owned().into_boxed_str()),
            engine,
            program,
        )
    }

    /// # Errors
    /// The program is no build of this version of the bench.
    pub(crate) fn new(title: &'static str, engine: Who, program: PathBuf) -> Result<Self> {
        let output = Command::new(&program).arg("protocol").output();
        let output = output.with_context(|| format!("cannot start {}", program.display()))?;
        let theirs = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success() && theirs.trim() == protocol::version().to_string(),
            "{} is a build of another version of bench/tokenizer; build it anew",
            program.display()
        );
        Ok(Self {
            title,
            engine,
            program,
            left_out: None,
        })
    }

    /// Returns fasttoken without each of its fast paths, as processes of this program; nothing in a
    /// build without the feature.
    pub(crate) fn ablations() -> Result<Vec<Self>> {
        let program = std::env::current_exe()?;
        let without = |path: String| Self {
            title: Box::leak(format!("without {path}").into_boxed_str()),
            engine: Who::Fasttoken,
            program: program.clone(),
            left_out: Some(path),
        };
        Ok(fast_paths().into_iter().map(without).collect())
    }

    pub(crate) fn who(&self) -> Who {
        Who::Also(self.title)
    }

    /// Starts the other build as an engine's process.
    pub(crate) fn worker(&self, threads: usize) -> Command {
        let mut command = worker(&self.program, self.engine, threads);
        if let Some(path) = &self.left_out {
            command.args(["--leave-out", path]);
        }
        command
    }

    /// Returns the given value without the path.
    pub(crate) fn text(&self) -> String {
        format!("{}={}:…", self.title, self.engine.key())
    }
}

/// Returns the names of fasttoken's fast paths.
fn fast_paths() -> Vec<String> {
    #[cfg(feature = "ablation")]
    return fasttoken::FastPath::ALL
        .map(|path| format!("{path:?}"))
        .into();
    #[cfg(not(feature = "ablation"))]
    Vec::new()
}

/// Leaves a fast path out in the whole process.
///
/// # Errors
/// There is none of that name, or this build leaves none out.
pub(crate) fn leave_out(name: &str) -> Result<()> {
    let at = fast_paths().iter().position(|path| path == name);
    let at = at.with_context(|| format!("no fast path is called {name}"))?;
    #[cfg(feature = "ablation")]
    fasttoken::FastPath::leave_out(Some(fasttoken::FastPath::ALL[at]));
    let _ = at;
    Ok(())
}

/// Returns the command that starts an engine's process in a build of this bench.
pub(crate) fn worker(program: &Path, engine: Who, threads: usize) -> Command {
    let mut command = Command::new(program);
    command.args(["worker", "--engine", engine.key()]);
    command.args(["--threads", &threads.to_string()]);
    command
}

#[cfg(all(test, unix))]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::PermissionsExt as _,
    };

    use super::*;

    #[test]
    fn another_build_takes_part_under_its_title() {
        let folder = std::env::temp_dir().join(format!("bench-also-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a temporary folder");
        let program = |name: &str, version: u64| {
            let path = folder.join(name);
            fs::write(&path, format!("#!/bin/sh\necho {version}\n")).expect("written");
            fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("allowed");
            path
        };
        let other = program("other", 1);
        let error = Also::new("a fork", Who::Fastokens, other).expect_err("of another version");
        assert!(error.to_string().contains("build it anew"), "{error}");
        let program = program("same", protocol::version());
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
        fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn wrong_arguments_are_refused_by_name() {
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
