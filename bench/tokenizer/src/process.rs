//! The parent's side of an engine's process.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{ChildStdin, ChildStdout, Command},
};

use anyhow::{Context as _, Result, anyhow, bail};
use prelude_measure::process::{self, GONE_WITHIN, Output};

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
    // Before the keeper: the end of its orders ends the process.
    orders: ChildStdin,
    replies: BufReader<ChildStdout>,
    keeper: process::Process,
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
        command
            .env("RAYON_NUM_THREADS", threads.to_string())
            .env("FASTOKENS_BPE_THREADS", threads.to_string())
            .env("TOKENIZERS_PARALLELISM", (threads > 1).to_string());
        let mut keeper = process::Process::start(&mut command, Output::Piped(None))
            .with_context(|| format!("cannot start {}", who.title()))?;
        let (orders, replies) = keeper.pipes().context("its pipes are taken once")?;
        Ok(Process {
            who,
            orders,
            replies: BufReader::new(replies),
            keeper,
        })
    }
}

impl Process {
    /// Sends an order and waits for its cost. An engine that refuses or has ended is an error.
    pub(crate) fn obey(&mut self, order: &Order) -> Result<Cost> {
        // Writing to a process that has ended fails; the missing reply says more.
        let _ = writeln!(self.orders, "{}", serde_json::to_string(order)?);
        let _ = self.orders.flush();
        let mut line = String::new();
        self.replies.read_line(&mut line)?;
        if line.is_empty() {
            let ended = self.keeper.wait(GONE_WITHIN, |_| Ok(true))?;
            bail!("{} ended: {ended:?}", self.who.title());
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
