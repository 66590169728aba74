//! The parent's side of an engine's process.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, anyhow};
use prelude_measure::driver::Driver;

use crate::{
    also::{Also, worker},
    engines::Who,
    protocol::{Cost, Order, Reply},
};

/// The programs that engines are started with.
pub(crate) struct Launcher {
    /// A Python that can import the engines that run in it.
    pub(crate) python: PathBuf,
    /// Engines of other builds.
    pub(crate) also: Vec<Also>,
}

/// A running engine.
pub(crate) struct Process {
    pub(crate) who: Who,
    /// The number of times that the work of a row is repeated in a turn.
    pub(crate) passes: u32,
    driver: Driver,
}

impl Launcher {
    /// Starts `who` with `threads` threads for what it does in parallel.
    pub(crate) fn start(&self, who: Who, threads: usize) -> Result<Process> {
        let mut command = match who {
            _ if Who::OF_PYTHON.contains(&who) => {
                let mut command = Command::new(&self.python);
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
        Ok(Process {
            who,
            passes: 1,
            driver: Driver::start(who.title(), &mut command, None)?,
        })
    }
}

impl Process {
    /// Sends an order and waits for its cost. An engine that refuses or has ended is an error.
    pub(crate) fn obey(&mut self, order: &Order) -> Result<Cost> {
        let title = self.who.title();
        let line = self.driver.ask(serde_json::to_string(order)?)?;
        let reply: Reply = serde_json::from_str(&line)
            .with_context(|| format!("{title} does not serve orders: {line}"))?;
        reply.map_err(|error| anyhow!("{title}: {error}"))
    }
}
