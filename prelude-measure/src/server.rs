//! Servers as processes of their own.

use std::{net::TcpStream, ops::Deref, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result};

use crate::{
    http::Client,
    process::{Output, Process},
};

/// Longest wait for an answer about a server's state.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// A running server, which ends when dropped.
#[derive(Debug)]
pub struct Server {
    /// The server's process.
    pub process: Process,
    /// `host:port`.
    pub address: String,
    /// The time from the start of the process to its first healthy response.
    pub ready_after: Duration,
}

impl Deref for Server {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl Server {
    /// Starts a server that says its address as `prelude` does, in a line of its log, and waits
    /// until it is healthy. The output is [`Output::Lines`] or [`Output::Unread`].
    ///
    /// # Errors
    /// If it does not start, ends, or is not healthy within `limit`; with its last words.
    pub fn announced(command: &mut Command, output: Output<'_>, limit: Duration) -> Result<Self> {
        let mut process = Process::start(command, output)?;
        let address = process.wait_for_line(limit, ready_address)?;
        let ready_after = process.wait_until(limit, || is_healthy(&address))?;
        Ok(Self {
            process,
            address,
            ready_after,
        })
    }

    /// Starts a server that listens at `address` and writes to `log`, and waits until `is_ready`,
    /// for example [`is_healthy`], says so of its address.
    ///
    /// # Errors
    /// If it does not start, ends, or is not ready within `limit`; with the name of its log.
    pub fn at(
        address: String,
        command: &mut Command,
        log: &Path,
        limit: Duration,
        is_ready: impl Fn(&str) -> bool,
    ) -> Result<Self> {
        let mut process = Process::start(command, Output::File(log))?;
        let ready_after = process.wait_until(limit, || is_ready(&address))?;
        Ok(Self {
            process,
            address,
            ready_after,
        })
    }

    /// Asks the server to stop, as an operator does, and waits for its end.
    ///
    /// # Errors
    /// If it ends with a failure, or not within `limit`.
    pub fn stop(self, limit: Duration) -> Result<()> {
        self.process.stop(limit)
    }

    /// Returns the sum of the lines of `/metrics` that begin with `name`, of which there must be
    /// one.
    ///
    /// # Errors
    /// As [`metrics`].
    pub fn metric(&self, name: &str) -> Result<f64> {
        let [value] = metrics(&self.address, [name])?;
        Ok(value)
    }
}

/// Returns true if a server's `/health` answers 200.
#[must_use]
pub fn is_healthy(address: &str) -> bool {
    let answer = Client::connect_within(address, ANSWER_WITHIN).and_then(|mut c| c.get("/health"));
    answer.is_ok_and(|answer| answer.status == 200)
}

/// Returns true if a server takes connections. It need not speak HTTP.
#[must_use]
pub fn listens(address: &str) -> bool {
    TcpStream::connect(address).is_ok()
}

/// Returns for each of `names` the sum of the lines of a server's `/metrics` that begin with it, of
/// which there must be one.
///
/// # Errors
/// If the server does not answer, or has no such line.
pub fn metrics<const N: usize>(address: &str, names: [&str; N]) -> Result<[f64; N]> {
    let page = Client::connect_within(address, ANSWER_WITHIN)
        .and_then(|mut client| client.get("/metrics"))
        .context("the server's metrics")?
        .text();
    let mut values = [0.0; N];
    for (value, name) in values.iter_mut().zip(names) {
        let sum = sum_of(&page, name);
        *value = sum.with_context(|| format!("the server has no metric {name}"))?;
    }
    Ok(values)
}

fn sum_of(page: &str, name: &str) -> Option<f64> {
    let lines = page.lines().filter(|line| line.starts_with(name));
    let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.reduce(|a, b| a + b)
}

/// Returns the address, `host:port`, in the line by which `prelude` says that it is ready.
fn ready_address(line: &str) -> Option<String> {
    let rest = line.strip_prefix("ready: ")?.split("http://").nth(1)?;
    let ends = |c: char| !c.is_ascii_digit() && !".:".contains(c);
    Some(rest.split(ends).next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_of_one_name_are_added() {
        let page = "# TYPE a gauge\na{x=\"1\"} 2\na{x=\"2\"} 3.5\nb 7\n";
        assert_eq!(sum_of(page, "a{"), Some(5.5));
        assert_eq!(sum_of(page, "b "), Some(7.0));
        assert_eq!(sum_of(page, "c"), None);
    }

    #[test]
    fn the_address_is_in_the_line_that_says_ready() {
        let line = "ready: demo on http://127.0.0.1:8080, docs at /docs";
        assert_eq!(ready_address(line).as_deref(), Some("127.0.0.1:8080"));
        assert_eq!(ready_address("loading http://127.0.0.1:1"), None);
    }

    #[test]
    fn who_does_not_serve_is_not_healthy() {
        let address = crate::process::free_address().unwrap();
        assert!(!is_healthy(&address) && !listens(&address));
        assert!(metrics(&address, ["a"]).is_err());
    }
}
