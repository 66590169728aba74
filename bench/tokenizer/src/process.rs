//! The parent's side of an engine's process.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Context as _, Result, anyhow, bail};

use crate::{
    also::{Also, worker},
    engines::Who,
    protocol::{Cost, Order, Reply},
};

/// The programs that engines are started with.
#[derive(Clone)]
pub(crate) struct Launcher {
    /// A Python that can import the engines that run in it.
    pub(crate) python: Option<PathBuf>,
    /// Engines of other builds.
    pub(crate) also: Vec<Also>,
}

/// A running engine.
pub(crate) struct Process {
    pub(crate) who: Who,
    child: Child,
    orders: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
}

impl Launcher {
    /// Starts `who` with `threads` threads for what it does in parallel.
    pub(crate) fn start(&self, who: Who, threads: usize) -> Result<Process> {
        let mut command = match who {
            _ if Who::OF_PYTHON.contains(&who) => {
                let python = self.python.as_ref().context("no Python for an engine")?;
                let mut command = Command::new(python);
                let driver = Path::new(env!("CARGO_MANIFEST_DIR")).join("drivers/drive_python.py");
                command.arg(driver).args([who.key(), &threads.to_string()]);
                command
            }
            Who::Also(_) => {
                let also = self.also.iter().find(|also| also.who() == who);
                also.context("no such build was given")?.worker(threads)
            }
            _ => worker(&std::env::current_exe()?, who, threads),
        };
        let mut child = command
            .env("RAYON_NUM_THREADS", threads.to_string())
            .env("FASTOKENS_BPE_THREADS", threads.to_string())
            .env("TOKENIZERS_PARALLELISM", (threads > 1).to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", who.title()))?;
        let orders = child.stdin.take();
        let replies = child.stdout.take().context("a piped standard output")?;
        Ok(Process {
            who,
            child,
            orders,
            replies: BufReader::new(replies),
        })
    }
}

impl Process {
    /// Sends an order and waits for its cost. An engine that refuses or has ended is an error.
    pub(crate) fn obey(&mut self, order: &Order) -> Result<Cost> {
        let orders = self.orders.as_mut().context("orders are open until drop")?;
        // Writing to a process that has ended fails; the missing reply says more.
        let _ = writeln!(orders, "{}", serde_json::to_string(order)?);
        let _ = orders.flush();
        let mut line = String::new();
        self.replies.read_line(&mut line)?;
        if line.is_empty() {
            bail!("{} ended: {}", self.who.title(), self.child.wait()?);
        }
        let reply: Reply = serde_json::from_str(&line).with_context(|| {
            format!(
                "{} does not serve orders: {}",
                self.who.title(),
                line.trim()
            )
        })?;
        reply.cost.ok_or_else(|| {
            let error = reply.error.unwrap_or_default();
            anyhow!("{}: {error}", self.who.title())
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The end of its input ends it.
        self.orders = None;
        let _ = self.child.wait();
    }
}
