//! Libraries that compute encoders, each in a Python process that measures itself when it is asked to.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::super::{
    models::{Model, Task},
    texts::Texts,
};
use crate::{load::Load, server::rival::Rival};

/// A library that has loaded a model.
pub(in crate::server::encoders) struct Library {
    pub(super) title: &'static str,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    log: PathBuf,
}

impl Library {
    /// Starts a library on a model's folder and waits until it is loaded.
    pub(super) fn start(
        out: &Path,
        title: &'static str,
        arguments: &[&str],
        model: &Model,
        folder: &Path,
    ) -> Result<Self> {
        let task = match model.task {
            Task::Embed => "embed",
            Task::Rank => "rank",
        };
        let log = format!("{}-{}.log", arguments.join("-"), model.name);
        let log = out.join(log);
        let mut child = Command::new(Rival::SentenceTransformers.python(out))
            .args(["-c", include_str!("sentence_transformers.py")])
            .arg(folder)
            .arg(task)
            .args(arguments)
            .env("HF_HUB_OFFLINE", "1")
            .env("TOKENIZERS_PARALLELISM", "false")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            .spawn()
            .with_context(|| format!("cannot start {title}"))?;
        let input = child.stdin.take().context("a pipe to the library")?;
        let output = child.stdout.take().context("a pipe from the library")?;
        let mut library = Self {
            title,
            child,
            input,
            output: BufReader::new(output),
            log,
        };
        let ready = library.line()?;
        ensure!(ready == "ready", "{title} said {ready:?}, not ready");
        Ok(library)
    }

    /// Returns what [`Peer::measure`](super::Peer::measure) does.
    pub(super) fn measure(&mut self, texts: &Texts, load: &Load) -> Result<f64> {
        let asked = json!({
            "texts": texts.file, "at_once": load.connections,
            "warm_up": load.warm_up.as_secs_f64(), "seconds": load.time.as_secs_f64(),
        });
        writeln!(self.input, "{asked}")?;
        let line = self.line()?;
        let value = line.parse();
        value.with_context(|| format!("{} printed `{line}`, no number", self.title))
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let log = self.log.display();
        ensure!(!line.is_empty(), "{} ended; see {log}", self.title);
        Ok(line.trim().to_owned())
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
