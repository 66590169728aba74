//! The program `prelude`, and servers beside it, as they are started for measurements.

use std::{ops::Deref, path::Path, process::Command, time::Duration};

use anyhow::Result;
use prelude_measure::{
    process::Output,
    server::{Server, is_healthy, listens},
};

pub use prelude_measure::{process::free_address, server::metrics};

/// Longest wait for a server that was asked to stop.
const STOPPED_WITHIN: Duration = Duration::from_secs(60);

/// A running server, which ends when dropped.
#[derive(Debug)]
pub struct Process {
    server: Server,
    /// Lines that `prelude` wrote before it was ready.
    pub start_log: Vec<String>,
}

impl Deref for Process {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl From<Server> for Process {
    fn from(server: Server) -> Self {
        let start_log = server.said().to_vec();
        Self { server, start_log }
    }
}

impl Process {
    /// Starts `prelude serve` and waits until it is healthy. Its log goes to a file too, if one is
    /// named.
    ///
    /// # Errors
    /// If it does not start, ends, or is not healthy within `patience`; with its last words.
    pub fn start(mut command: Command, log: Option<&Path>, patience: Duration) -> Result<Self> {
        command.env("PRELUDE_SERVER__ACCESS_LOG", "false");
        Ok(Server::announced(&mut command, Output::Lines(log), patience)?.into())
    }

    /// Starts a server that listens at `address` and writes to `log`, and waits until it is
    /// healthy.
    ///
    /// # Errors
    /// If it does not start, ends, or is not healthy within `patience`.
    pub fn rival(
        command: &mut Command,
        address: String,
        log: &Path,
        patience: Duration,
    ) -> Result<Self> {
        Ok(Server::at(address, command, log, patience, is_healthy)?.into())
    }

    /// Starts a program that listens at `address` and writes to `log`, and waits until it takes
    /// connections. It need not speak HTTP.
    pub(crate) fn listening(
        command: &mut Command,
        address: String,
        log: &Path,
        patience: Duration,
    ) -> Result<Self> {
        Ok(Server::at(address, command, log, patience, listens)?.into())
    }

    /// Asks the server to stop, as an operator does, and waits for its end.
    ///
    /// # Errors
    /// If it ends with a failure, or not within a minute.
    pub fn stop(self) -> Result<()> {
        self.server.stop(STOPPED_WITHIN)
    }
}
